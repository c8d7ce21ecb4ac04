"""`polarless check`: all trees are whole on all nodes, with caches and a pool that are small."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

# Some 60 MB: the pool holds half of it, a cache a fifteenth.
ROWS = 80_000


async def changes(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("create table wide (id serial primary key, v int, filler text)")
    rows = [(number, number % 97, "x" * 600) for number in range(ROWS)]
    for start in range(0, ROWS, 20_000):
        await connection.copy_records_to_table("wide", records=rows[start : start + 20_000])
    await connection.execute("create index on wide (v)")
    await connection.execute("delete from wide where id % 3 = 0 and id < 9000")
    await connection.execute("update wide set v = v + 1, filler = repeat('y', 900) where id < 3000")
    await connection.close()


def test_all_trees_are_whole_on_every_node(data: Path) -> None:
    with LocalCluster(data, ro=1, pool_mb=30, cache_mb=4) as cluster:
        asyncio.run(changes(cluster.url))
        done = subprocess.run(
            [sys.executable, "-m", "polarless", "check", "--data", str(data), "--json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        reports = json.loads(done.stdout)
        assert set(reports) == {"compute-1", "compute-2"}
        for report in reports.values():
            # The catalog, the table, its index and its sequence.
            assert (report["trees"], report["findings"], report["unchecked"]) == (4, [], [])
            assert report["keys"] > 2 * (ROWS - 9000)
    assert_nothing_left(cluster)
