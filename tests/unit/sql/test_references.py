"""FOREIGN KEY, CHECK, and rows locked by SELECT."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.sql.harness import Client, database

pytestmark = pytest.mark.asyncio

ACTIONS = (
    "",
    " ON DELETE CASCADE ON UPDATE CASCADE",
    " ON DELETE SET NULL",
    " ON DELETE SET DEFAULT",
)


async def tables(client: Client, action: str) -> None:
    await client.run("CREATE TABLE p (id int PRIMARY KEY, u text UNIQUE)")
    await client.run(
        f"CREATE TABLE c (id int PRIMARY KEY, p int DEFAULT 9 REFERENCES p{action}, "
        "u text REFERENCES p (u))"
    )
    await client.run("INSERT INTO p VALUES (1, 'a'), (2, 'b'), (9, 'z')")
    await client.run("INSERT INTO c VALUES (1, 1, NULL), (2, 1, 'b'), (3, NULL, NULL)")


async def test_a_row_that_refers_to_nothing_is_refused() -> None:
    async with database() as found:
        client = found.client()
        await tables(client, "")
        error = await client.error("INSERT INTO c VALUES (4, 5, NULL)")
        assert error.sqlstate == "23503"
        assert str(error).startswith(
            'insert or update on table "c" violates foreign key constraint "c_p_fkey"'
        )
        assert error.detail == 'Key (p)=(5) is not present in table "p".'
        assert await client.state("UPDATE c SET u = 'q' WHERE id = 1") == "23503"
        await client.run("UPDATE c SET p = 2 WHERE id = 1")
        assert await client.state("CREATE TABLE d (x int REFERENCES nosuch)") == "42P01"
        assert await client.state("CREATE TABLE d (x int REFERENCES c (p))") == "42830"
        assert await client.state("CREATE TABLE d (x text REFERENCES p)") == "42804"


async def test_a_row_that_is_referred_to_stays() -> None:
    async with database() as found:
        client = found.client()
        await tables(client, "")
        error = await client.error("DELETE FROM p WHERE id = 1")
        assert error.sqlstate == "23503"
        assert error.detail == 'Key (id)=(1) is still referenced from table "c".'
        assert await client.state("UPDATE p SET id = 5 WHERE id = 1") == "23503"
        assert await client.state("DELETE FROM p WHERE u = 'b'") == "23503"
        await client.run("UPDATE p SET u = 'other' WHERE id = 1")
        await client.run("DELETE FROM p WHERE id = 9")
        assert await client.state("DROP TABLE p") == "2BP01"
        assert await client.state("TRUNCATE p") == "0A000"
        await client.run("DROP TABLE p CASCADE")
        await client.run("INSERT INTO c VALUES (7, 77, 'none')")


async def test_actions() -> None:
    for action, left in (
        (ACTIONS[1], [("3", None)]),
        (ACTIONS[2], [("1", None), ("2", None), ("3", None)]),
        (ACTIONS[3], [("1", "9"), ("2", "9"), ("3", None)]),
    ):
        async with database() as found:
            client = found.client()
            await tables(client, action)
            if "UPDATE CASCADE" in action:
                await client.run("UPDATE p SET id = 7 WHERE id = 1")
                assert await client.value("SELECT count(*) FROM c WHERE p = 7") == "2"
                await client.run("DELETE FROM p WHERE id = 7")
            else:
                await client.run("DELETE FROM p WHERE id = 1")
            assert await client.run("SELECT id, p FROM c ORDER BY id") == left


async def test_a_tree_of_rows_goes_as_a_whole() -> None:
    async with database() as found:
        client = found.client()
        await client.run(
            "CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t ON DELETE CASCADE)"
        )
        await client.run("INSERT INTO t VALUES (1, 1), (2, 1), (3, 2), (4, 3), (5, NULL)")
        await client.run("CREATE INDEX ON t (up)")
        assert (await client.run("DELETE FROM t WHERE id = 2")).tag == "DELETE 1"
        assert await client.run("SELECT id FROM t ORDER BY id") == [("1",), ("5",)]


async def test_who_deletes_waits_for_who_refers() -> None:
    async with database() as found:
        one, two = found.client(), found.client()
        await tables(one, "")
        await one.run("BEGIN")
        await one.run("INSERT INTO c VALUES (10, 9, NULL)")
        task = asyncio.ensure_future(two.state("DELETE FROM p WHERE id = 9"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        await one.run("COMMIT")
        assert await task == "23503"


async def test_checks() -> None:
    async with database() as found:
        client = found.client()
        await client.run(
            "CREATE TABLE t (id int PRIMARY KEY, a int CHECK (a > 0), b numeric, "
            "CONSTRAINT wide CHECK (b < a * 10))"
        )
        error = await client.error("INSERT INTO t VALUES (1, -1, 2.50)")
        assert error.sqlstate == "23514"
        assert str(error).startswith(
            'new row for relation "t" violates check constraint "t_a_check"'
        )
        assert error.detail == "Failing row contains (1, -1, 2.50)."
        await client.run("INSERT INTO t VALUES (1, 1, NULL), (2, NULL, 4), (3, 3, 29.9)")
        assert await client.state("UPDATE t SET b = 30 WHERE id = 3") == "23514"
        assert await client.state("UPDATE t SET a = a - 1") == "23514"
        assert (
            await client.state(
                "INSERT INTO t VALUES (3, 1, 1) ON CONFLICT (id) DO UPDATE SET b = 100"
            )
            == "23514"
        )


async def test_for_update_waits_skips_and_refuses() -> None:
    async with database() as found:
        one, two = found.client(), found.client()
        await one.run("CREATE TABLE t (id int PRIMARY KEY, k int, s text)")
        await one.run("INSERT INTO t SELECT g, 100 - g, 'new' FROM generate_series(1, 50) g")
        await one.run("BEGIN")
        await two.run("BEGIN")
        text = "SELECT id FROM t WHERE s = 'new' ORDER BY k LIMIT 2 FOR UPDATE SKIP LOCKED"
        assert await one.run(text) == [("50",), ("49",)]
        assert await two.run(text) == [("48",), ("47",)]
        assert await two.state("SELECT * FROM t WHERE id = 50 FOR UPDATE NOWAIT") == "55P03"
        assert await two.run("SELECT k FROM t WHERE id = 50 FOR SHARE SKIP LOCKED") == []
        task = asyncio.ensure_future(two.run("SELECT s FROM t WHERE id = 50 FOR UPDATE"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        await one.run("UPDATE t SET s = 'done' WHERE id = 50")
        await one.run("COMMIT")
        assert await task == [("done",)]
        await two.run("ROLLBACK")
        assert await one.state("SELECT count(*) FROM t FOR UPDATE") == "0A000"
