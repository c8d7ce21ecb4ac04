"""EXPLAIN ANALYZE runs the statement, and says where its pages came from."""

from __future__ import annotations

import re

import pytest

from tests.unit.sql.harness import database

pytestmark = pytest.mark.asyncio


async def test_it_counts_rows_and_pages() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, k int, c text)")
        await client.run("CREATE INDEX t_k ON t (k)")
        await client.run(
            "INSERT INTO t SELECT g, g % 10, repeat('x', 200) FROM generate_series(1, 2000) g"
        )
        rows = await client.run("EXPLAIN ANALYZE SELECT * FROM t WHERE k = 3")
        lines = [row[0] for row in rows]
        assert lines[0] == "Index Scan using t_k on t (actual rows=200)"
        pages = re.fullmatch(
            r"Pages: (\d+) from local cache, (\d+) from pool, (\d+) from storage", lines[1]
        )
        assert pages is not None
        # The rows are on every leaf of the table, and a leaf holds some eighty of them.
        assert int(pages[1]) > 20
        point = await client.run("EXPLAIN ANALYZE SELECT * FROM t WHERE id = 3")
        assert point[0][0] == "Primary Key Lookup on t (actual rows=1)"
        assert point[1][0].startswith("Pages: 2 from local cache, 0 from pool, 0 from storage")


async def test_a_change_is_made_and_explain_alone_makes_none() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id int PRIMARY KEY, k int)")
        await client.run("INSERT INTO t VALUES (1, 1), (2, 2)")
        await client.run("EXPLAIN UPDATE t SET k = 5")
        assert await client.value("SELECT sum(k) FROM t") == "3"
        rows = await client.run("EXPLAIN (ANALYZE) UPDATE t SET k = 5")
        assert rows[0][0] == "Seq Scan on t (actual rows=2)"
        assert await client.value("SELECT sum(k) FROM t") == "10"
