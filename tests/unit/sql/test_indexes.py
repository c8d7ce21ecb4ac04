"""Secondary indexes and UNIQUE: entries follow their rows, and the planner uses them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sql.harness import Client, Database, database

pytestmark = pytest.mark.asyncio


async def plan_of(client: Client, text: str) -> str:
    return "\n".join(row[0] for row in await client.run("EXPLAIN " + text))


async def same_by_index(client: Client, table: str, column: str) -> None:
    """Every value is found by the index exactly where the table has it."""
    rows = await client.run(f"SELECT {column}, count(*) FROM {table} GROUP BY {column}")
    for value, count in rows:
        if value is not None:
            found = await client.value(f"SELECT count(*) FROM {table} WHERE {column} = '{value}'")
            assert found == count, value
    total = await client.value(f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL")
    assert await client.value(f"SELECT count(*) FROM {table} WHERE {column} > -100000") == total


async def test_an_index_on_a_filled_table_is_used_and_follows() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, k int, c text)")
        await client.run("INSERT INTO t SELECT g, g % 50, 'x' || g FROM generate_series(1, 3000) g")
        await client.run("CREATE INDEX t_k ON t (k)")
        assert "Index Scan using t_k" in await plan_of(client, "SELECT * FROM t WHERE k = 7")
        assert "Index Scan using t_k" in await plan_of(client, "SELECT * FROM t WHERE k > 7")
        assert "Index" not in await plan_of(client, "SELECT * FROM t WHERE id = 7 AND k = 7")
        assert await client.value("SELECT count(*) FROM t WHERE k = 7") == "60"
        await client.run("UPDATE t SET k = k + 1 WHERE id = 7")
        await client.run("UPDATE t SET k = NULL WHERE id = 8")
        await client.run("UPDATE t SET c = 'other' WHERE id = 9")
        await client.run("UPDATE t SET id = id + 5000 WHERE k = 20")
        await client.run("DELETE FROM t WHERE k = 30")
        await client.run("INSERT INTO t VALUES (4000, 7, 'new')")
        assert await client.value("SELECT count(*) FROM t WHERE k = 30") == "0"
        assert await client.value("SELECT count(*) FROM t WHERE k = 20 AND id > 5000") == "60"
        await same_by_index(client, "t", "k")
        rows = await client.run("SELECT k FROM t WHERE k BETWEEN 47 AND 60 ORDER BY k DESC")
        assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
        rows = await client.run("SELECT k, count(*) FROM t WHERE k IN (1, 3, 99) GROUP BY k")
        assert sorted(rows) == [("1", "60"), ("3", "60")]
        await client.run("DROP INDEX t_k")
        assert "Seq Scan" in await plan_of(client, "SELECT * FROM t WHERE k = 7")


async def test_an_update_of_the_column_it_searches_by_meets_each_row_once() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, k int)")
        await client.run("CREATE INDEX ON t (k)")
        await client.run("INSERT INTO t SELECT g, g FROM generate_series(1, 2000) g")
        assert (await client.run("UPDATE t SET k = k + 10 WHERE k > 5")).tag == "UPDATE 1995"
        assert await client.value("SELECT max(k) FROM t WHERE k > 0") == "2010"
        await same_by_index(client, "t", "k")


async def test_unique_values_are_refused_in_every_way() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, b text, c int)")
        await client.run("CREATE UNIQUE INDEX t_bc ON t (b, c)")
        await client.run(
            "INSERT INTO t VALUES (1, 1, 'x', 1), (2, NULL, 'x', 2), (3, NULL, 'x', NULL)"
        )
        await client.run("INSERT INTO t VALUES (4, NULL, 'x', NULL)")
        error = await client.error("INSERT INTO t VALUES (5, 1, 'y', 1)")
        assert error.sqlstate == "23505"
        assert error.detail == "Key (a)=(1) already exists."
        assert str(error).startswith('duplicate key value violates unique constraint "t_a_key"')
        error = await client.error("UPDATE t SET c = 1 WHERE id = 2")
        assert error.detail == "Key (b, c)=(x, 1) already exists."
        await client.run("UPDATE t SET c = c + 10 WHERE b = 'x'")
        assert await client.state("CREATE UNIQUE INDEX ON t (b)") == "23505"
        await client.run("DELETE FROM t WHERE a = 1")
        await client.run("INSERT INTO t VALUES (5, 1, 'y', 1)")
        assert await client.run("SELECT id FROM t WHERE a = 1") == [("5",)]


async def test_who_inserts_what_is_being_deleted_waits_for_the_verdict() -> None:
    async with database() as found:
        one, two = found.client(), found.client()
        await one.run("CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE)")
        await one.run("INSERT INTO t VALUES (1, 1)")
        await one.run("BEGIN")
        await one.run("DELETE FROM t WHERE id = 1")
        import asyncio

        task = asyncio.ensure_future(two.run("INSERT INTO t VALUES (2, 1)"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        await one.run("COMMIT")
        assert (await task).tag == "INSERT 0 1"


async def test_upserts_by_any_unique_key() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id serial PRIMARY KEY, a text UNIQUE, n int DEFAULT 1)")
        upsert = (
            "INSERT INTO t (a) VALUES ('x') ON CONFLICT (a) DO UPDATE SET n = t.n + excluded.n "
            "RETURNING id, n"
        )
        assert await client.run(upsert) == [("1", "1")]
        assert await client.run(upsert) == [("1", "2")]
        result = await client.run("INSERT INTO t (a) VALUES ('x'), ('y') ON CONFLICT DO NOTHING")
        assert result.tag == "INSERT 0 1"
        assert await client.state("INSERT INTO t VALUES (1, 'z') ON CONFLICT (a) DO NOTHING") == (
            "23505"
        )
        assert (
            await client.state(
                "INSERT INTO t (a) VALUES ('q'), ('q') ON CONFLICT (a) DO UPDATE SET n = 5"
            )
            == "21000"
        )
        await client.run(
            "INSERT INTO t (a) VALUES ('x') ON CONFLICT ON CONSTRAINT t_a_key DO UPDATE SET a = 'w'"
        )
        assert await client.run("SELECT id, n FROM t WHERE a = 'w'") == [("1", "2")]


async def test_rows_without_a_primary_key_and_copy_and_truncate() -> None:
    async with database() as found:
        client = found.client()
        await client.run("BEGIN")
        await client.run("CREATE TABLE t (a int, b numeric(6,2))")
        await client.run("CREATE INDEX t_b ON t (b, a)")
        await client.copy("COPY t FROM STDIN", "".join(f"{i}\t{i % 7}.50\n" for i in range(500)))
        await client.run("COMMIT")
        await client.copy("COPY t FROM STDIN", "9000\t3.50\n9001\t\\N\n")
        assert "t_b" in await plan_of(client, "SELECT a FROM t WHERE b = 3.5 AND a > 400")
        rows = await client.run("SELECT a FROM t WHERE b = 3.5 AND a > 480 ORDER BY a")
        assert [row[0] for row in rows] == ["486", "493", "9000"]
        await client.run("DELETE FROM t WHERE b = 3.50 AND a < 9000")
        assert await client.value("SELECT count(*) FROM t WHERE b = 3.5") == "1"
        await client.run("TRUNCATE t")
        assert await client.value("SELECT count(*) FROM t WHERE b = 3.5") == "0"


async def test_a_snapshot_sees_the_index_as_it_was() -> None:
    async with database() as found:
        one, two = found.client(), found.client()
        await one.run("CREATE TABLE t (id int PRIMARY KEY, k int)")
        await one.run("CREATE INDEX ON t (k)")
        await one.run("INSERT INTO t VALUES (1, 1), (2, 2)")
        await one.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert await one.run("SELECT id FROM t WHERE k = 1") == [("1",)]
        await two.run("UPDATE t SET k = 3 WHERE id = 1")
        assert await one.run("SELECT id FROM t WHERE k = 1") == [("1",)]
        assert await one.run("SELECT id FROM t WHERE k = 3") == []
        assert await two.run("SELECT id FROM t WHERE k = 3") == [("1",)]
        await one.run("ROLLBACK")


async def value_after(client: Client, *texts: str) -> Any:
    for text in texts[:-1]:
        await client.run(text)
    return await client.value(texts[-1])


async def test_sequences_count_as_postgresql_does() -> None:
    async with database() as found:
        client, other = found.client(), found.client()
        assert await client.state("SELECT nextval('s')") == "42P01"
        await client.run("CREATE SEQUENCE s START WITH 5 INCREMENT BY 2 MAXVALUE 9")
        assert await client.state("SELECT currval('s')") == "55000"
        assert await client.value("SELECT nextval('s')") == "5"
        assert await other.value("SELECT nextval('s'::regclass)") == "7"
        assert await client.value("SELECT currval('s')") == "5"
        assert await client.value("SELECT lastval()") == "5"
        assert await client.value("SELECT nextval('public.s')") == "9"
        error = await client.error("SELECT nextval('s')")
        assert error.sqlstate == "2200H"
        assert await value_after(client, "SELECT setval('s', 5)", "SELECT nextval('s')") == "7"
        assert (
            await value_after(client, "SELECT setval('s', 5, false)", "SELECT nextval('s')") == "5"
        )
        assert await value_after(client, "ALTER SEQUENCE s RESTART", "SELECT nextval('s')") == "5"
        assert await client.state("DROP SEQUENCE nosuch") == "42P01"
        await client.run("DROP SEQUENCE s")
        assert await client.state("SELECT nextval('s')") == "42P01"


async def test_serial_and_identity_columns() -> None:
    async with database() as found:
        client = found.client()
        await client.run(
            "CREATE TABLE t (id bigserial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY "
            "(START WITH 10), x text)"
        )
        await client.run("INSERT INTO t (x) VALUES ('a'), ('b')")
        assert await client.run("INSERT INTO t (x) VALUES ('c') RETURNING id, n") == [("3", "12")]
        assert await client.state("INSERT INTO t (n, x) VALUES (5, 'd')") == "428C9"
        await client.run("INSERT INTO t (n, x) OVERRIDING SYSTEM VALUE VALUES (5, 'd')")
        await client.run("BEGIN")
        await client.run("CREATE TABLE u (id serial, x int)")
        rows = await client.run(
            "INSERT INTO u (x) SELECT g FROM generate_series(1, 100) g RETURNING id"
        )
        assert [row[0] for row in rows] == [str(i) for i in range(1, 101)]
        await client.run("COMMIT")
        assert await client.run("INSERT INTO u (x) VALUES (1) RETURNING id") == [("101",)]
        await client.run("TRUNCATE u RESTART IDENTITY")
        assert await client.run("INSERT INTO u (x) VALUES (1) RETURNING id") == [("1",)]
        assert await client.value("SELECT nextval('u_id_seq')") == "2"
        await client.run("DROP TABLE u")
        assert await client.state("SELECT nextval('u_id_seq')") == "42P01"


async def test_many_rows_get_numbers_without_gaps() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id serial PRIMARY KEY, x int)")
        await client.run("INSERT INTO t (x) VALUES " + ", ".join(f"({i})" for i in range(3000)))
        assert await client.run("SELECT min(id), max(id), count(*) FROM t") == [
            ("1", "3000", "3000")
        ]


@pytest.mark.parametrize("where", ["k between 100 and 139", "id in (select_list)"])
async def test_the_rows_that_many_keys_name_are_fetched_together(where: str) -> None:
    where = where.replace("select_list", ", ".join(str(n * 97 % 4000) for n in range(1, 41)))
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, k int, c text)")
        await client.run(
            "INSERT INTO t SELECT g, g * 1117 % 4000, repeat('x', 300) "
            "FROM generate_series(1, 4000) g"
        )
        await client.run("CREATE INDEX t_k ON t (k)")
        text = f"SELECT id FROM t WHERE {where} ORDER BY id"
        expected = await client.run(text)
        assert len(expected) == 40
        # Cold readers: one that fetches ahead, and one that waits for each page in turn.
        for prefetches in (True, False):
            engine = found.cluster.reader()
            engine.fetcher._prefetches = prefetches
            assert await Database(engine, found.cluster).client().run(text) == expected
            stats = engine.fetcher.stats
            assert stats.storage_reads > 30
            assert (stats.prefetched > 20) == prefetches, stats.snapshot()
