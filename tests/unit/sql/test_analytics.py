"""Joins, subqueries, windows and their kin, through the planner, on a database in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from compute.sql.analytics import engine, scans
from polarless.errors import Conflict
from tests.unit.sql.harness import Client, Database, database

TABLES = """
create table a (id int primary key, x int, t text, n numeric(10,2), d date, u numeric);
create table b (id int primary key, a_id int, v bigint, s varchar(10), c char(5));
insert into a values (1,10,'one',1.50,'2020-01-01',1.10), (2,20,'two',2.25,'2020-02-01',2.2),
    (3,null,null,null,null,null);
insert into b values (1,1,100,'x','ab'), (2,1,200,'y','cd'), (3,2,300,'z',null), (4,9,400,null,'e')
"""


@pytest.fixture
async def db() -> AsyncIterator[Database]:
    async with database() as found:
        client = found.client()
        for text in TABLES.split(";"):
            await client.run(text)
        yield found


@pytest.fixture
def client(db: Database) -> Client:
    return db.client()


async def test_joins(client: Client) -> None:
    assert await client.run("select a.id, s from a join b on b.a_id = a.id order by b.id") == [
        ("1", "x"), ("1", "y"), ("2", "z"),
    ]  # fmt: skip
    left = "select a.id, b.c from a left join b on b.a_id = a.id order by 1, b.id"
    assert await client.run(left) == [("1", "ab   "), ("1", "cd   "), ("2", None), ("3", None)]
    full = "select a.id, b.id from a full join b using (id) where a.x is null order by 1, 2"
    assert await client.run(full) == [("3", "3"), (None, "4")]
    using = await client.run("select * from a natural join b where id = 1")
    assert using.names == ["id", "x", "t", "n", "d", "u", "a_id", "v", "s", "c"]


async def test_subqueries(client: Client) -> None:
    counts = "select id, (select count(*) from b where a_id = a.id) n from a order by n desc, id"
    assert await client.run(counts) == [("1", "2"), ("2", "1"), ("3", "0")]
    exists = "select id from a where exists (select 1 from b where a_id = a.id and v > 150)"
    assert sorted(await client.run(exists)) == [("1",), ("2",)]
    assert await client.run("select id from a where id not in (select a_id from b)") == [("3",)]
    assert await client.run("select id from b where v > all (select x from a where x > 0)") != []
    assert await client.state("select (select id from b)") == "21000"
    assert await client.state("select (select id, v from b)") == "42601"


async def test_numerics_are_exact(client: Client) -> None:
    text = "select n * 2, n + u, u * u, n / 3, avg(n) over () from a where id = 1 order by id"
    assert await client.run(text) == [
        ("3.00", "2.60", "1.2100", "0.50000000000000000000", "1.50000000000000000000")
    ]
    spread = "select sum(u), avg(u), stddev(n) from a join b on true"
    assert await client.run(spread) == [("13.20", "1.6500000000000000", "0.40089186286863657703")]
    assert await client.run("select distinct u from (values (1.0), (1.00)) v(u)") == [("1.0",)]
    assert await client.run("select 1.50 except select 2") == [("1.50",)]


async def test_decimals_that_overflow_are_computed_as_text(client: Client) -> None:
    await client.run("create table wide (id int primary key, w numeric(38,0))")
    await client.run(f"insert into wide values (1, {'9' * 38})")
    text = "select w.w * a.id, w.w + w.w from wide w join a on a.id = 2"
    assert await client.run(text) == [(str(2 * int("9" * 38)),) * 2]


async def test_common_table_expressions(client: Client) -> None:
    text = (
        "with q(k, s) as (select a_id, sum(v) from b group by a_id) select k, s from q order by 1"
    )
    assert await client.run(text) == [("1", "300"), ("2", "300"), ("9", "400")]
    text = "with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) table r"
    assert [row[0] for row in await client.run(text)] == ["1", "2", "3", "4", "5"]
    text = "with q as (delete from b where false returning *) select * from q"
    assert await client.run(text) == []
    text = "with q as (delete from b returning *) select * from b"
    assert await client.state(text) == "0A000"


async def test_windows_and_grouping(client: Client) -> None:
    text = (
        "select id, row_number() over (order by v desc), sum(v) over w, lag(s, 1, '-') over w "
        "from b window w as (partition by a_id order by id) order by id"
    )
    assert await client.run(text) == [
        ("1", "4", "100", "-"), ("2", "3", "300", "x"), ("3", "2", "300", "-"),
        ("4", "1", "400", "-"),
    ]  # fmt: skip
    rollup = "select a_id, count(*), grouping(a_id) from b group by rollup (a_id) order by 1"
    assert await client.run(rollup) == [
        ("1", "2", "0"), ("2", "1", "0"), ("9", "1", "0"), (None, "4", "1"),
    ]  # fmt: skip
    # The primary key determines the other columns.
    text = (
        "select a.id, a.t, count(b.id) from a left join b on a_id = a.id group by a.id order by 1"
    )
    assert await client.run(text) == [("1", "one", "2"), ("2", "two", "1"), ("3", None, "0")]
    assert await client.state("select t, count(*) from a join b on true") == "42803"
    assert await client.state("select a.id from a, b where count(*) > 1") == "42803"
    assert await client.state("select 1 from a, b where row_number() over () > 1") == "42P20"


async def test_set_operations(client: Client) -> None:
    text = "select 1 union select 2 union all select 2 order by 1 desc"
    assert await client.run(text) == [("2",), ("2",), ("1",)]
    assert await client.run("select 1 union all select 2.5 order by 1") == [("1",), ("2.5",)]
    assert await client.run("(select id from a order by id desc limit 1) union all values (7)") == [
        ("3",), ("7",),
    ]  # fmt: skip
    assert await client.state("select 1 union select 1, 2") == "42601"
    assert await client.state("select 1 union select 'x'") == "22P02"
    assert await client.state("select id from a union select t from a") == "42804"


async def test_names_that_mean_nothing(client: Client) -> None:
    assert await client.state("select nosuch from a join b on true") == "42703"
    assert await client.state("select c.id from a join b on true") == "42P01"
    assert await client.state("select id from a join b on true") == "42702"
    assert await client.state("select 1 from a join a on true") == "42712"
    assert await client.state("select 1 from a join nosuch on true") == "42P01"


async def test_parameters_and_binary_results(client: Client) -> None:
    text = "select a.id, n, t, d from a join b on a_id = a.id where v > $1 and a.id = $2 order by v"
    assert await client.run(text, "150", "1") == [("1", "1.50", "one", "2020-01-01")]
    rows = await client.run(text, "250", "2", formats=(1,))
    assert rows == [
        (b"\0\0\0\2", bytes.fromhex("00020000000000020002" + "09c4"), b"two", b"\0\0\x1c\xa8")
    ]
    assert await client.run("select $1::int + b.id from b where id = 1 union select 7", "4") == [
        ("5",), ("7",),
    ]  # fmt: skip


async def test_own_writes_are_seen_and_others_are_not(db: Database, client: Client) -> None:
    count = "select count(*) from a join b on b.a_id = a.id"
    await client.run("begin")
    await client.run("insert into b values (5, 1, 500, 'w', null)")
    await client.run("delete from b where id = 3")
    assert await client.value(count) == "3"
    assert await db.client().value(count) == "3"
    await client.run("rollback")
    assert await client.value(count) == "3"


async def test_conditions_narrow_the_scan(db: Database, client: Client) -> None:
    text = "select b.v from a join b on b.id = a.id where a.id = 1 and b.id > 0 and a.x + 1 > 0"
    plan = db.planner.prepare(client, text)  # type: ignore[arg-type]
    bound = plan.bind()
    statement = bound._analytic.statement  # type: ignore[attr-defined]
    assert [scan.access.describe() for scan in statement.scans] == [
        "Primary Key Lookup on a",
        "Primary Key Range Scan on b",
    ]
    assert [sorted(scan.used) for scan in statement.scans] == [[0, 1], [0, 2]]


async def test_an_outer_join_keeps_what_where_says_of_the_other_side(client: Client) -> None:
    text = "select a.id from a left join b on b.a_id = a.id where b.id is null order by 1"
    assert await client.run(text) == [("3",)]
    text = "select a.id, b.id from a left join b on b.a_id = a.id and a.id = 2 order by 1"
    assert await client.run(text) == [("1", None), ("2", "3"), ("3", None)]


async def test_the_buffer_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "BUFFER_BYTES_MAX", 100)
    error = await client.error("select count(*) from a join b on true")
    assert error.sqlstate == "53200"
    assert error.hint is not None


async def test_a_cancelled_query_is_interrupted(client: Client) -> None:
    text = "select count(*) from generate_series(1, 9000000) x join generate_series(1, 9000000) y "
    task = asyncio.ensure_future(client.run(text + "on (x + y) % 7 = 3 and x * y > 0"))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    # The instance is fit for the next one.
    assert await client.value("select count(*) from a join b on b.id = a.id") == "3"


async def test_errors_of_computing(client: Client) -> None:
    assert await client.state("select a.x / (b.id - 1) from a join b on true") == "22012"
    assert await client.state("select a.x + 2147483647 from a join b on true") == "22003"
    assert await client.state("select 9223372036854775807 + a.id from b join a on true") == "22003"
    assert await client.state("select t::int from a join b on true where t = 'one'") == "22P02"


async def test_insert_takes_the_rows_of_any_query(client: Client) -> None:
    rows = "select a.id + y.id * 10, a.id, x from a join (values (1), (2)) y(id) on x > 0"
    text = f"insert into b {rows}"
    assert (await client.run(text)).tag == "INSERT 0 4"
    assert await client.run("select id, v from b where id > 10 order by id") == [
        ("11", "10"), ("12", "20"), ("21", "10"), ("22", "20"),
    ]  # fmt: skip
    # A table that feeds itself is read before the first row is written.
    text = "with q as (select max(id) m from b) insert into b (id) select b.id + m from b, q"
    assert (await client.run(text + " returning id")).tag == "INSERT 0 8"
    assert await client.value("select count(*) from b") == "16"
    await client.run("insert into a (id) values ((select max(id) + 1 from a)), (9)")
    assert [row[0] for row in await client.run("select id from a order by id")] == [
        "1", "2", "3", "4", "9",
    ]  # fmt: skip
    assert await client.state("insert into a (id) select t from a natural join a y") == "42804"
    assert await client.state("insert into b (id) select id from a union all select 1") == "23505"


async def test_explain_shows_the_scans(client: Client) -> None:
    text = "explain select 1 from a join b on true where a.id = 1 and exists (select 1 from a z)"
    assert [row[0] for row in await client.run(text)] == [
        "DuckDB", "  ->  Primary Key Lookup on a", "  ->  Seq Scan on b", "  ->  Seq Scan on a z",
    ]  # fmt: skip


async def test_a_join_by_key_reads_only_the_keys_it_needs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.run("create table c (a_id int, k text, v int, primary key (a_id, k))")
    await client.run("insert into c values (1, 'x', 1), (1, 'y', 2), (2, 'x', 3), (7, 'z', 4)")
    looked: list[tuple[str, list[object]]] = []
    look_up = scans.Scan.look_up

    async def watched(self: scans.Scan, *args: Any) -> Any:
        looked.append((self.table.name, args[-1]))
        return await look_up(self, *args)

    monkeypatch.setattr(scans.Scan, "look_up", watched)

    async def check(text: str, rows: list[tuple[str | None, ...]], expected: object) -> None:
        looked.clear()
        assert sorted(await client.run(text), key=repr) == sorted(rows, key=repr)
        assert looked == expected

    inner = "select b.id, t from b join a on a.id = b.a_id where b.id = 1"
    await check(inner, [("1", "one")], [("a", [1])])
    await check(inner.replace("join", "left join"), [("1", "one")], [("a", [1])])
    # The rows of this side are kept, with or without a partner.
    await check(inner.replace("join", "right join").replace("b.id = 1", "b.id is null"),
                [(None, None)], [])  # fmt: skip
    await check("select k from a, c where a.id = a_id and a.id < 2 and a.id > 0",
                [("x",), ("y",)], [("c", [1])])  # fmt: skip
    await check("select c.v from a join c on a.id = c.a_id where x = 20", [("3",)], [("c", [2])])
    await check("select b.id, (select t from a where a.id = b.a_id) from b where b.id >= 3",
                [("3", "two"), ("4", None)], [("a", [2, 9])])  # fmt: skip
    await check("select count(*) from a full join b on a.id = b.a_id", [("5",)], [])
    await check("select v from b join a using (id) where id = 2 and b.id = 2", [("200",)],
                [("a", [2])])  # fmt: skip
    await check("select t from a where id = any ('{3,1,7,NULL}')", [("one",), (None,)],
                [("a", [1, 3, 7])])  # fmt: skip
    await check("select v from c where a_id = any (array[2, 7]) and k <> 'z'", [("3",)],
                [("c", [2, 7])])  # fmt: skip
    # Own writes are seen this way too.
    await client.run("begin")
    await client.run("update a set t = 'new' where id = 1")
    await check(inner, [("1", "new")], [("a", [1])])
    await client.run("rollback")


async def test_updates_and_deletes_by_a_query(client: Client) -> None:
    text = "update a set x = b.v, t = t || s from b where b.a_id = a.id and b.id <> 2"
    assert (await client.run(f"{text} returning a.id, x, t")) == [
        ("1", "100", "onex"), ("2", "300", "twoz"),
    ]  # fmt: skip
    text = (
        "update a set n = (select sum(v) from b where a_id = a.id) where id in (select a_id from b)"
    )
    assert (await client.run(text)).tag == "UPDATE 2"
    assert await client.run("select id, n from a order by id") == [
        ("1", "300.00"), ("2", "300.00"), ("3", None),
    ]  # fmt: skip
    # Rows that move to another key are not found a second time.
    text = "update b set id = b.id + 10 from a where a.id > 0"
    assert (await client.run(text)).tag == "UPDATE 4"
    assert (await client.run("delete from b using a where a.id = b.a_id")).tag == "DELETE 3"
    assert (await client.run("delete from a where id > (select avg(id) from a)")).tag == "DELETE 1"
    found = await client.run("update a set x = 1 from b returning a.id, b.id as other, b.s")
    assert found.names == ["id", "other", "s"]
    assert len(found) == 2 and all(row[1] == "14" for row in found)
    found = await client.run("update a set x = 2 from b returning *")
    assert len(found.names) == len((await client.run("select * from a, b limit 1")).names)
    assert await client.state("update a set x = b.s from b") == "42804"


async def test_a_change_by_a_query_does_not_overwrite_what_it_has_not_seen(db: Database) -> None:
    one, other = db.client(), db.client()
    await one.run("begin isolation level read committed")
    await other.run("update a set x = 11 where id = 1")
    # The snapshot is taken by the statement: it sees the 11.
    text = "update a set x = x + b.id from b where b.a_id = a.id and b.id = 1 returning x"
    assert await one.run(text) == [("12",)]
    waiting = asyncio.ensure_future(other.run(text))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await one.run("commit")
    with pytest.raises(Conflict):
        await waiting
    assert await one.value("select x from a where id = 1") == "12"


async def test_whoever_waits_too_long_for_a_turn_is_told(
    db: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SLOT_WAIT_S", 0.05)
    async with AsyncExitStack() as stack:
        for _ in range(engine.RUNNING_MAX):
            await stack.enter_async_context(db.planner.duckdb.slot())
        error = await client.error("select count(*) from a join b on true")
        assert error.sqlstate == "53200"
        assert error.hint is not None
    assert await client.value("select count(*) from a join b on true") == "12"
