"""What pgbench and psql do, DDL in transactions, parameters, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from compute.sql.planner import Planner
from polarless.errors import CallerMistake, Conflict, Overloaded
from tests.fakes import commit, running
from tests.unit.sql.harness import NOW_US, Client, database

TABLES = """
create table pgbench_history(tid int,bid int,aid    int,delta int,mtime timestamp,filler char(22))
create table pgbench_tellers(tid int not null,bid int,tbalance int,filler char(84)) with (fillfactor=100)
create table pgbench_accounts(aid    int not null,bid int,abalance int,filler char(84)) with (fillfactor=100)
create table pgbench_branches(bid int not null,bbalance int,filler char(88)) with (fillfactor=100)
""".strip().split("\n")  # noqa: E501


async def test_pgbench_from_init_to_run() -> None:
    async with database() as db:
        client = db.client()
        names = "pgbench_accounts, pgbench_branches, pgbench_history, pgbench_tellers"
        await client.run(f"drop table if exists {names}")
        assert len(client.notices) == 4
        for text in TABLES:
            assert (await client.run(text)).tag == "CREATE TABLE"
        await client.run("begin")
        assert (await client.run(f"truncate table {names}")).tag == "TRUNCATE TABLE"
        await client.run("insert into pgbench_branches(bid,bbalance) values(1,0)")
        for teller in range(1, 11):
            await client.run(f"insert into pgbench_tellers(tid,bid,tbalance) values ({teller},1,0)")
        data = "".join(f"{i}\t1\t0\t\n" for i in range(1, 3001)) + "\\.\n"
        tag = await client.copy("copy pgbench_accounts from stdin with (freeze on)", data)
        assert tag == "COPY 3000"
        await client.run("commit")
        await client.run("vacuum analyze pgbench_branches")
        for table, key in (("branches", "bid"), ("tellers", "tid"), ("accounts", "aid")):
            text = f"alter table pgbench_{table} add primary key ({key})"
            assert (await client.run(text)).tag == "ALTER TABLE"
        assert await client.value("select count(*) from pgbench_branches") == "1"
        partitions = (
            "select o.n, p.partstrat, pg_catalog.count(i.inhparent) from pg_catalog.pg_class as c "
            "join pg_catalog.pg_namespace as n on (n.oid = c.relnamespace) cross join lateral "
            "(select pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname)) as "
            "o(n) left join pg_catalog.pg_partitioned_table as p on (p.partrelid = c.oid) left "
            "join pg_catalog.pg_inherits as i on (c.oid = i.inhparent) where c.relname = $1 and "
            "o.n is not null group by 1, 2 order by 1 asc limit 1"
        )
        assert await client.run(partitions, "pgbench_accounts") == [("2", None, "0")]
        assert await client.run(partitions, "nosuch") == []

        for delta in (-1234, 55):
            await client.run("BEGIN;")
            await client.run(
                f"UPDATE pgbench_accounts SET abalance = abalance + {delta} WHERE aid = 77;"
            )
            await client.run("SELECT abalance FROM pgbench_accounts WHERE aid = 77;")
            await client.run(
                f"UPDATE pgbench_tellers SET tbalance = tbalance + {delta} WHERE tid = 3;"
            )
            await client.run(
                f"UPDATE pgbench_branches SET bbalance = bbalance + {delta} WHERE bid = 1;"
            )
            await client.run(
                "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) "
                f"VALUES (3, 1, 77, {delta}, CURRENT_TIMESTAMP);"
            )
            await client.run("END;")
        assert await client.value("select sum(abalance) from pgbench_accounts") == "-1179"
        assert await client.value("select tbalance from pgbench_tellers where tid = 3") == "-1179"
        assert await client.run("select * from pgbench_history order by delta") == [
            ("3", "1", "77", str(delta), "2023-11-14 22:13:20.123456", None)
            for delta in (-1234, 55)
        ]


async def test_server_side_generation_of_pgbench() -> None:
    """pgbench -i -I G."""
    async with database() as db:
        client = db.client()
        for text in TABLES:
            await client.run(text)
        await client.run("begin")
        await client.run("truncate table pgbench_accounts")
        result = await client.run(
            "insert into pgbench_accounts(aid,bid,abalance,filler) select aid, (aid - 1) / 1000 "
            "+ 1, 0, '' from generate_series(1, 2500) as aid"
        )
        assert result.tag == "INSERT 0 2500"
        await client.run("commit")
        rows = await client.run(
            "select bid, count(*) from pgbench_accounts group by bid order by 1"
        )
        assert rows == [("1", "1000"), ("2", "1000"), ("3", "500")]


# ------------------------------------------------------------------------------ DDL in transactions


async def test_own_ddl_is_seen_inside_the_transaction_only() -> None:
    async with database() as db:
        mine, other = db.client(), db.client()
        await mine.run("begin")
        await mine.run("create table t(a int primary key)")
        await mine.run("insert into t values (1)")
        assert await mine.value("select count(*) from t") == "1"
        assert await other.state("select * from t") == "42P01"
        await mine.run("commit")
        assert await other.value("select a from t where a = 1") == "1"


async def test_rolled_back_ddl_leaves_nothing() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key)")
        await client.run("insert into t values (1), (2)")
        await client.run("begin")
        await client.run("truncate t")
        assert await client.value("select count(*) from t") == "0"
        await client.run("create table u(a int)")
        await client.run("drop table t")
        assert await client.state("select * from t") == "42P01"
        await client.run("rollback")
        assert await client.value("select count(*) from t") == "2"
        assert await client.state("select * from u") == "42P01"


async def test_copy_into_a_fresh_table_is_undone_by_rollback_to() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key)")
        await client.run("begin")
        await client.run("truncate t")
        await client.run("savepoint s")
        assert await client.copy("copy t from stdin", "1\n2\n3\n") == "COPY 3"
        assert await client.value("select count(*) from t") == "3"
        await client.run("rollback to s")
        db.planner.rolled_back(client)  # type: ignore[arg-type]
        assert await client.value("select count(*) from t") == "0"
        await client.run("insert into t values (9)")
        await client.run("commit")
        assert await client.run("select * from t") == [("9",)]


async def test_plan_made_before_truncate_reads_the_new_tree() -> None:
    async with database() as db:
        one, two = db.client(), db.client()
        await one.run("create table t(a int primary key, b int)")
        await one.run("insert into t values (1, 10)")
        text = "select b from t where a = $1"
        assert await one.run(text, "1") == [("10",)]
        await two.run("truncate t")
        assert await one.run(text, "1") == []
        await two.run("insert into t values (1, 20)")
        assert await one.run(text, "1") == [("20",)]


async def test_ddl_waits_for_writers_and_writers_find_the_new_tree() -> None:
    async with database() as db:
        writer, ddl, late = db.client(), db.client(), db.client()
        await writer.run("create table t(a int primary key, b int)")
        await writer.run("insert into t values (1, 10), (2, 20)")
        await writer.run("begin")
        await writer.run("update t set b = 11 where a = 1")
        truncating = asyncio.create_task(ddl.run("truncate t"))
        await asyncio.sleep(0.01)
        assert not truncating.done()
        # One by key, one that walks the table: both wait for the TRUNCATE.
        by_key = asyncio.create_task(late.run("insert into t values (3, 30)"))
        scanning = asyncio.create_task(db.client().run("update t set b = b + 1 where b > 0"))
        await asyncio.sleep(0.01)
        await writer.run("commit")
        await truncating
        await by_key
        with pytest.raises(Conflict):
            await scanning
        assert await writer.run("select * from t") == [("3", "30")]


async def test_create_table_of_the_same_name_waits_and_fails() -> None:
    async with database() as db:
        one, two = db.client(), db.client()
        await one.run("begin")
        await one.run("create table t(a int)")
        second = asyncio.create_task(two.run("create table t(b int)"))
        await asyncio.sleep(0.01)
        assert not second.done()
        await one.run("commit")
        with pytest.raises(CallerMistake, match="already exists") as caught:
            await second
        assert caught.value.sqlstate == "42P07"


# -------------------------------------------------------------------------------------- primary key


@pytest.mark.parametrize("pending_bytes", [1 << 24, 500])
async def test_add_primary_key_sorts_rows_that_are_out_of_order(
    pending_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compute.sql.rebuild.PENDING_BYTES_MAX", pending_bytes)
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int, b text)")
        # Not sorted, not reversed: several runs when little may be pending.
        order = sorted(range(1000), key=lambda n: n * 7919 % 1009)
        data = "".join(f"{n}\tvalue {n}\n" for n in order)
        await client.copy("copy t from stdin", data)
        await client.run("alter table t add primary key (a)")
        rows = await client.run("select a from t")
        assert [int(row[0]) for row in rows] == list(range(1000))
        assert await client.value("select b from t where a = 500") == "value 500"


async def test_add_primary_key_refuses_duplicates_and_nulls() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int, b int)")
        await client.run("insert into t values (1, 1), (3, 3), (2, 2), (1, 4)")
        error = await client.error("alter table t add primary key (a)")
        assert (error.sqlstate, error.message, error.detail) == (
            "23505",
            'could not create unique index "t_pkey"',
            "Key (a)=(1) is duplicated.",
        )
        await client.run("delete from t where b = 4")
        await client.run("insert into t values (null, 5)")
        assert await client.state("alter table t add primary key (a)") == "23502"
        await client.run("delete from t where a is null")
        await client.run("alter table t add constraint mine primary key (a)")
        error = await client.error("insert into t values (1, 9)")
        assert error.detail == "Key (a)=(1) already exists."
        assert '"mine"' in error.message


async def test_row_ids_go_on_after_deletes_and_a_new_planner() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int)")
        await client.run("insert into t values (1), (2), (3)")
        await client.run("delete from t where a = 3")
        db.planner.row_ids.forget()
        await client.run("insert into t values (4)")
        assert await client.run("select a from t") == [("1",), ("2",), ("4",)]


# ------------------------------------------------------------------------------------- parameters


async def test_parameters_in_text_and_binary() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b bigint, c text, d timestamp, e bool)")
        plan = db.planner.prepare(client, "insert into t values ($1, $2, $3, $4, $5)")  # type: ignore[arg-type]
        assert plan.parameter_oids == (23, 20, 25, 1114, 16)
        await client.run(
            "insert into t values ($1, $2, $3, $4, $5)",
            (7).to_bytes(4, "big"), (-1).to_bytes(8, "big", signed=True), "x", "2020-01-01", b"\1",
        )  # fmt: skip
        assert await client.run("select * from t where a = $1", "7") == [
            ("7", "-1", "x", "2020-01-01 00:00:00", "t")
        ]
        rows = await client.run("select a, b, e from t where a = $1", "7", formats=(1,))
        assert rows == [(b"\0\0\0\7", b"\xff" * 8, b"\1")]
        assert await client.run("select a from t where a = $1", None) == []
        assert await client.state("select a from t where a = $1", "1_000") == "22P02"
        assert await client.state("select a from t where a = $1", "x") == "22P02"
        assert await client.state("select a from t where a = $1", "3000000000") == "22003"
        assert await client.state("select a from t where a = $1", b"\0\1") == "22P03"
        assert await client.state("select $1") == "42P02"


async def test_types_of_parameters_come_from_where_they_stand() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b numeric, c char(5))")
        for text, oids in (
            ("select $1", (25,)),
            ("select $1 + 1", (23,)),
            ("select $1::bigint", (20,)),
            ("select a from t where b > $1 and c = $2", (1700, 1042)),
            ("select a from t limit $1 offset $2", (20, 20)),
            ("update t set b = $2 where a = $1", (23, 1700)),
            ("select coalesce($1, 5)", (23,)),
            ("select a from t where a in ($1, $2)", (23, 23)),
            ("select a from t where a between $1 and $2", (23, 23)),
            ("select $1 || 'x'", (25,)),
            ("select $2, $1::int", (23, 25)),
        ):
            plan = db.planner.prepare(client, text)  # type: ignore[arg-type]
            assert plan.parameter_oids == oids, text


async def test_now_is_the_start_of_the_transaction() -> None:
    async with database() as db:
        client = db.client()
        assert await client.value("select now()") == "2023-11-14 22:13:20.123456+00"
        client.now_us = NOW_US + 1_000_000
        assert await client.value("select current_timestamp") == "2023-11-14 22:13:21.123456+00"


# ------------------------------------------------------------------------------------------ limits


async def test_limits_are_errors_with_a_hint() -> None:
    async with database() as db:
        client = db.client()
        deep = "select " + "(" * 200 + "1" + ")" * 200
        assert await client.state(deep) == "54001"
        assert await client.state("select " + "- " * 500 + "1") == "54001"
        assert await client.state("select " + "not " * 500 + "true") == "54001"
        assert (
            await client.state("select case " * 150 + "when true then 1" + " end" * 150) == "54001"
        )
        long_sum = await client.state("select " + "+".join(["1"] * 20_000))
        assert long_sum in ("54001", "54000")
        wide = "select " + " or ".join([f"a = {i}" for i in range(2000)]) + " from t"
        assert await client.state(wide) == "42P01"
        assert await client.state("select '" + "x" * (17 << 20) + "'") == "54000"
        assert await client.state("select 'never ends") == "42601"
        assert await client.state("select /* never ends") == "42601"


async def test_rows_up_to_16_mib_and_not_beyond() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b bytea, c text)")
        value = bytes(range(256)) * (1 << 14)
        await client.run("insert into t(a, b) values (1, $1)", value)
        (row,) = await client.run("select b from t where a = $1", "1", formats=(1,))
        assert row[0] == value
        assert await client.value("select length(b) from t where a = 1") == str(len(value))
        assert (
            await client.state("insert into t(a, b) values (2, $1)", b"x" * (17 << 20)) == "54000"
        )


async def test_sort_beyond_its_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compute.sql.gather.WORK_BYTES_MAX", 200_000)
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b int)")
        await client.run("insert into t select g, g * 7919 % 5003 from generate_series(1, 5000) g")
        with pytest.raises(Overloaded, match="ORDER BY") as caught:
            await client.run("select * from t order by b")
        assert caught.value.hint
        with pytest.raises(Overloaded, match="DISTINCT"):
            await client.run("select distinct b from t")
        with pytest.raises(Overloaded, match="GROUP BY"):
            await client.run("select b, count(*) from t group by b")
        with pytest.raises(Overloaded, match="DISTINCT"):
            await client.run("select count(distinct b) from t")
        # A limit needs only what it keeps.
        rows = await client.run("select b from t order by b desc limit 3")
        assert [int(row[0]) for row in rows] == sorted(
            (g * 7919 % 5003 for g in range(1, 5001)), reverse=True
        )[:3]
        assert len(await client.run("select a from t order by a desc")) == 5000


async def test_long_sorts_are_merged_of_runs() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b int, c int)")
        await client.run(
            "insert into t select g, g % 7, case when g % 10 > 0 then g * 7919 % 10007 end "
            "from generate_series(1, 10000) g"
        )
        model = [(g, g % 7, g * 7919 % 10007 if g % 10 else None) for g in range(1, 10001)]
        last = 1 << 30
        orders = {
            "c": lambda r: (r[2] is None, r[2] or 0),
            "b, c": lambda r: (r[1], r[2] if r[2] is not None else last),
            "b desc, c": lambda r: (-r[1], r[2] if r[2] is not None else last),
            "b desc, c desc": lambda r: (-r[1], -(r[2] if r[2] is not None else last)),
            "b, c desc nulls last": lambda r: (r[1], -(r[2] if r[2] is not None else -last)),
        }
        for order, key in orders.items():
            for limit in ("", " limit 10", " limit 6000 offset 500"):
                rows = await client.run(f"select c from t order by {order}{limit}")
                wanted = [row[2] for row in sorted(model, key=key)]
                if limit == " limit 10":
                    wanted = wanted[:10]
                elif limit:
                    wanted = wanted[500:6500]
                assert [None if c is None else int(c) for (c,) in rows] == wanted, (order, limit)


async def test_writes_on_a_reader_are_refused_by_the_engine() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key)")
        await client.run("insert into t values (1)")
        engine = db.cluster.reader()
        reader = Client(engine, Planner(engine))
        assert await reader.value("select a from t where a = 1") == "1"
        assert await reader.value("select pg_is_in_recovery()") == "t"
        assert await reader.state("insert into t values (2)") == "25006"
        assert await reader.state("update t set a = 3") == "25006"
        assert await reader.state("create table u(a int)") == "25006"
        # What the writer changes later is seen.
        await client.run("drop table t")
        assert await reader.state("select a from t where a = 1") == "42P01"


async def test_a_small_cache_gives_the_same_answers() -> None:
    async with database(cache_bytes=150_000) as db:
        client = db.client()
        await client.run("create table t(a int primary key, b int, c char(50))")
        await client.run("begin")
        await client.run("truncate t")
        data = "".join(f"{i}\t{i * 7 % 100}\tx\n" for i in range(5000))
        await client.copy("copy t from stdin", data)
        await client.run("commit")
        assert await client.value("select count(*) from t") == "5000"
        assert await client.value("select sum(b) from t") == str(
            sum(i * 7 % 100 for i in range(5000))
        )
        assert await client.value("select a from t where a = 4321") == "4321"
        assert (await client.run("update t set b = 0 where b < 50")).tag == "UPDATE 2500"
        assert await client.value("select count(*) from t where b = 0") == "2500"
        assert (await client.run("delete from t where a % 2 = 0")).tag == "DELETE 2500"
        rows = await client.run("select a from t where a between 1000 and 1010 order by a desc")
        assert [row[0] for row in rows] == ["1009", "1007", "1005", "1003", "1001"]


# ---------------------------------------------------------------------------------------- isolation


async def test_update_sees_what_a_lock_holder_committed() -> None:
    async with database() as db:
        one, two = db.client(), db.client()
        await one.run("create table t(a int primary key, b int)")
        await one.run("insert into t values (1, 10), (2, 20)")
        await one.run("begin")
        await one.run("update t set b = b + 5 where a = 1")
        waiting = asyncio.create_task(two.run("update t set b = b + 1 where b < 18"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await one.run("update t set b = 100 where a = 1")
        await one.run("commit")
        # Read again at its newest version, the row does not qualify any more.
        assert (await waiting).tag == "UPDATE 0"
        assert await two.run("select b from t order by a") == [("100",), ("20",)]


async def test_repeatable_read_refuses_a_row_that_changed() -> None:
    async with database() as db:
        one, two = db.client(), db.client()
        await one.run("create table t(a int primary key, b int)")
        await one.run("insert into t values (1, 10)")
        await one.run("begin isolation level repeatable read")
        assert await one.value("select b from t where a = 1") == "10"
        await two.run("update t set b = 11 where a = 1")
        assert await one.value("select b from t where a = 1") == "10"
        with pytest.raises(Conflict):
            await one.run("update t set b = b + 1 where a = 1")


async def test_suspended_statement_runs_again_from_its_start() -> None:
    async with database() as db:
        one, two = db.client(), db.client()
        await one.run("create table t(a int primary key, b int)")
        await one.run("insert into t values (1, 1), (2, 2)")
        txn = db.engine.begin()
        await running(txn.start_statement)
        table = db.planner.catalog(two).find("t")  # type: ignore[arg-type]
        assert table is not None
        await running(lambda: txn.lock_and_get(table.tree, 2))
        waiting = asyncio.create_task(two.run("insert into t values (3, 3), (2, 9) returning a"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        txn.put(table.tree, 2, None)
        await commit(db.engine, txn)
        assert await waiting == [("3",), ("2",)]
