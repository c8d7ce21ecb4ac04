"""Ranges of rows: decoded a leaf at a time, with large values and own writes among them."""

from __future__ import annotations

import pytest

from tests.unit.sql.harness import Client, database

LARGE = 40_000


async def filled(client: Client) -> None:
    await client.run("create table t (id int primary key, n int, s text)")
    for start in range(0, 600, 100):
        values = ", ".join(f"({i}, {i % 7}, 'row {i}')" for i in range(start, start + 100))
        await client.run(f"insert into t values {values}")


async def test_large_values_among_short_ones() -> None:
    async with database() as db:
        client = db.client()
        await filled(client)
        await client.run(f"update t set s = repeat('x', {LARGE}) where id = 250 or id = 252")
        for order in ("", " order by s", " order by id desc"):
            found = await client.run(f"select s from t where id between 249 and 253{order}")
            lengths = sorted(len(s) for (s,) in found)
            assert lengths == [7, 7, 7, LARGE, LARGE], order
        found = await client.run("select distinct s from t where id between 249 and 252")
        assert sorted(s[:7] for (s,) in found) == ["row 249", "row 251", "xxxxxxx"]
        found = await client.run("select sum(length(s)) from t where id between 250 and 251")
        assert found == [(str(LARGE + 7),)]


async def test_own_writes_in_a_range() -> None:
    async with database() as db:
        client = db.client()
        await filled(client)
        await client.run("begin")
        await client.run("update t set n = 100 where id = 300")
        await client.run("delete from t where id = 301")
        await client.run("insert into t values (1000, 1000, 'new')")
        select = "select id, n from t where id between 299 and 302"
        assert await client.run(select) == [("299", "5"), ("300", "100"), ("302", "1")]
        assert await client.run("select sum(n) from t where id > 598 and id < 2000") == [("1004",)]
        other = db.client()
        assert await other.run(select) == [("299", "5"), ("300", "6"), ("301", "0"), ("302", "1")]
        await client.run("rollback")


async def test_distinct_lets_each_value_through_once_over_many_leaves() -> None:
    async with database() as db:
        client = db.client()
        await filled(client)
        select = "select distinct n from t where id between 10 and 590"
        assert sorted(await client.run(select)) == [(str(n),) for n in range(7)]
        ordered = await client.run(f"{select} order by n desc limit 3")
        assert ordered == [("6",), ("5",), ("4",)]
        pairs = await client.run("select distinct n, n + 1 from t where id < 590 order by n")
        assert pairs == [(str(n), str(n + 1)) for n in range(7)]


RANGES = (
    # (condition on the column, the values of 0..599 for which it holds)
    ("{c} between 10 and 20 or {c} between 15 and 30 or {c} = 599", {*range(10, 31), 599}),
    ("{c} between 50 and 40 or {c} = 3 or {c} = 3", {3}),
    ("({c} > 5 and {c} < 8) or ({c} >= 8 and {c} <= 9)", {6, 7, 8, 9}),
    ("({c} between 1 and 6 and u = 2) or {c} between 100 and 101", {2, 100, 101}),
    ("{c} between 1 and 3 or {c} between null and 9", {1, 2, 3}),
    ("({c} between 1 and 3 or {c} between 7 and 9) and u between 3 and 8", {3, 7, 8}),
)


@pytest.mark.parametrize(("condition", "values"), RANGES)
@pytest.mark.parametrize("column", ["id", "k", "s"])
async def test_or_of_ranges_reads_only_these(condition: str, values: set[int], column: str) -> None:
    """By a key of integers, by an index, and by one that is not unique, with NULLs in it."""
    async with database() as db:
        client = db.client()
        kind = "smallint" if column == "s" else "int"
        await client.run(f"create table t (id int primary key, k int, s {kind}, u int not null)")
        if column != "id":
            await client.run(f"create index i on t ({column})")
        for start in range(0, 600, 100):
            rows = ", ".join(f"({i}, {i}, {i}, {i})" for i in range(start, start + 100))
            await client.run(f"insert into t values {rows}, ({-1 - start}, null, null, 0)")
        where = condition.format(c=column)
        way = "Index Scan" if column != "id" else "Primary Key Range Scan"
        if "u between" not in where:
            ((plan,), *_) = await client.run(f"explain select * from t where {where}")
            assert way in plan
        found = await client.run(f"select u from t where {where} order by u desc")
        assert [int(u) for (u,) in found] == sorted(values, reverse=True)
        assert await client.value(f"select count(*) from t where {where}") == str(len(values))
        ordered = await client.run(f"select {column} from t where {where} order by {column} desc")
        assert [int(u) for (u,) in ordered] == sorted(values, reverse=True)
        changed = await client.run(f"update t set u = u where {where}")
        assert changed.tag == f"UPDATE {len(values)}"


async def test_an_or_with_an_open_range_reads_all() -> None:
    async with database() as db:
        client = db.client()
        await filled(client)
        ((plan,), *_) = await client.run("explain select * from t where id < 5 or id = 9")
        assert "Seq Scan" in plan
        assert await client.value("select count(*) from t where id < 5 or id = 9") == "6"
