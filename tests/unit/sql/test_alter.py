"""ALTER TABLE, views, schemas and comments in the catalog."""

from __future__ import annotations

import pytest

from tests.unit.sql.harness import database

pytestmark = pytest.mark.asyncio


async def test_columns_come_and_go() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, a text, b numeric(5,2) UNIQUE)")
        await client.run("INSERT INTO t SELECT g, 'a' || g, g FROM generate_series(1, 300) g")
        await client.run("CREATE INDEX t_a ON t (a)")
        await client.run("ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 7, ADD m text")
        assert await client.run("SELECT * FROM t WHERE id = 5") == [("5", "a5", "5.00", "7", None)]
        assert await client.state("ALTER TABLE t ADD n int") == "42701"
        await client.run("ALTER TABLE t ADD COLUMN IF NOT EXISTS n int")
        assert await client.state("ALTER TABLE t ADD z int NOT NULL") == "23502"
        await client.run("ALTER TABLE t DROP COLUMN a")
        assert await client.run("SELECT * FROM t WHERE b = 5") == [("5", "5.00", "7", None)]
        assert await client.state("SELECT a FROM t") == "42703"
        assert await client.state("ALTER TABLE t DROP a") == "42703"
        await client.run("ALTER TABLE t DROP COLUMN IF EXISTS a")
        assert await client.state("INSERT INTO t VALUES (1000, 5)") == "23505"
        await client.run("ALTER TABLE t RENAME COLUMN n TO num")
        await client.run("ALTER TABLE t RENAME num TO number")
        await client.run("ALTER TABLE t RENAME number TO num")
        await client.run("ALTER TABLE t ADD s serial")
        assert await client.run("SELECT count(DISTINCT s), max(s) FROM t") == [("300", "300")]
        await client.run("ALTER TABLE t RENAME TO u")
        assert await client.state("SELECT * FROM t") == "42P01"
        result = await client.run("SELECT * FROM u WHERE id = 3")
        assert result.names == ["id", "b", "num", "m", "s"]


async def test_types_defaults_and_nulls() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, a text DEFAULT 'x', b int)")
        await client.run("INSERT INTO t VALUES (1, '10', 1), (2, '20', NULL)")
        error = await client.error("ALTER TABLE t ALTER a TYPE int")
        assert error.sqlstate == "42804"
        await client.run("ALTER TABLE t ALTER COLUMN a DROP DEFAULT")
        await client.run("ALTER TABLE t ALTER a TYPE bigint USING a::bigint + 1")
        assert await client.run("SELECT a FROM t ORDER BY id") == [("11",), ("21",)]
        assert await client.state("ALTER TABLE t ALTER b SET NOT NULL") == "23502"
        await client.run("UPDATE t SET b = 0 WHERE b IS NULL")
        await client.run("ALTER TABLE t ALTER b SET NOT NULL")
        assert await client.state("INSERT INTO t VALUES (3, 1, NULL)") == "23502"
        await client.run("ALTER TABLE t ALTER b SET DEFAULT 5")
        assert await client.run("INSERT INTO t VALUES (3, 1) RETURNING b") == [("5",)]
        await client.run("ALTER TABLE t ALTER b DROP NOT NULL")
        await client.run("INSERT INTO t VALUES (4, 1, NULL)")
        await client.run("ALTER TABLE t ALTER id TYPE numeric(10,1)")
        assert await client.run("SELECT id FROM t WHERE id = 3") == [("3.0",)]


async def test_constraints_are_checked_when_added() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE p (id int PRIMARY KEY)")
        await client.run("CREATE TABLE t (id int, a int, b int)")
        await client.run("INSERT INTO p VALUES (1), (2)")
        await client.run("INSERT INTO t VALUES (1, 1, -1), (2, 1, 2), (3, 3, NULL)")
        assert await client.state("ALTER TABLE t ADD UNIQUE (a)") == "23505"
        assert await client.state("ALTER TABLE t ADD CHECK (b > 0)") == "23514"
        assert await client.state("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES p") == "23503"
        assert await client.state("ALTER TABLE t ADD CONSTRAINT t_pk PRIMARY KEY (a)") == "23505"
        await client.run("DELETE FROM t WHERE id = 3")
        await client.run(
            "ALTER TABLE t ADD CONSTRAINT tu UNIQUE (b), ADD CONSTRAINT tc CHECK (b < 5)"
        )
        await client.run(
            "ALTER TABLE t ADD CONSTRAINT tf FOREIGN KEY (a) REFERENCES p ON DELETE CASCADE"
        )
        await client.run("ALTER TABLE t ADD PRIMARY KEY (id)")
        assert await client.state("INSERT INTO t VALUES (4, 1, 2)") == "23505"
        assert await client.state("INSERT INTO t VALUES (4, 1, 7)") == "23514"
        assert await client.state("INSERT INTO t VALUES (4, 9, 3)") == "23503"
        for name in ("tu", "tc", "tf"):
            await client.run(f"ALTER TABLE t DROP CONSTRAINT {name}")
        assert await client.state("ALTER TABLE t DROP CONSTRAINT tu") == "42704"
        await client.run("INSERT INTO t VALUES (4, 9, 2), (5, 9, 7)")
        await client.run("ALTER TABLE t DROP CONSTRAINT t_pkey")
        await client.run("INSERT INTO t VALUES (4, 9, 2)")
        assert await client.value("SELECT count(*) FROM t") == "5"


async def test_it_is_undone_with_its_transaction() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
        await client.run("INSERT INTO t VALUES (1, 2)")
        await client.run("BEGIN")
        await client.run("ALTER TABLE t ADD b int DEFAULT 3")
        await client.run("CREATE INDEX ON t (b)")
        assert await client.run("SELECT * FROM t WHERE b = 3") == [("1", "2", "3")]
        await client.run("ROLLBACK")
        assert await client.run("SELECT * FROM t") == [("1", "2")]
        assert await client.state("ALTER TABLE nosuch ADD b int") == "42P01"
        await client.run("ALTER TABLE IF EXISTS nosuch ADD b int")


async def test_schemas_views_and_comments() -> None:
    async with database() as found:
        client = found.client()
        assert await client.state("CREATE TABLE s.t (id int)") == "3F000"
        await client.run("CREATE SCHEMA s")
        assert await client.state("CREATE SCHEMA s") == "42P06"
        await client.run("CREATE TABLE s.t (id serial PRIMARY KEY, a int)")
        await client.run("INSERT INTO s.t (a) VALUES (5)")
        assert await client.run("SELECT id, a FROM s.t") == [("1", "5")]
        assert await client.state("SELECT * FROM t") == "42P01"
        await client.run("COMMENT ON COLUMN s.t.a IS 'what it is'")
        assert await client.state("COMMENT ON COLUMN s.t.b IS 'x'") == "42703"
        assert await client.state("DROP SCHEMA s") == "2BP01"
        await client.run("DROP SCHEMA s CASCADE")
        assert await client.state("SELECT * FROM s.t") == "42P01"
        await client.run("CREATE VIEW v AS SELECT 1 AS one")
        assert await client.state("CREATE TABLE v (id int)") == "42P07"
        await client.run("CREATE OR REPLACE VIEW v AS SELECT 2 AS one")
        await client.run("DROP VIEW v")
        assert await client.state("DROP VIEW v") == "42P01"
        await client.run("DROP VIEW IF EXISTS v")


async def test_a_table_is_made_of_a_query() -> None:
    async with database() as found:
        client = found.client()
        made = (
            "CREATE TABLE t AS SELECT g AS id, g * 1.5 AS n, 'x' AS s FROM generate_series(1, 5) g"
        )
        assert (await client.run(made)).tag == "SELECT 5"
        assert await client.run("SELECT * FROM t WHERE id = 3") == [("3", "4.5", "x")]
        assert await client.state(made) == "42P07"
        await client.run("CREATE TABLE u (a) AS SELECT count(*) FROM t WITH NO DATA")
        assert await client.run("SELECT a FROM u") == []
        await client.run("CREATE TABLE v AS SELECT a.id, b.n FROM t a JOIN t b ON a.id = b.id")
        assert await client.value("SELECT sum(n) FROM v") == "22.5"
