"""Memory comes and goes while clients work: nobody fails, and no page is wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from polarless.local import LocalCluster, Node
from polarless.net.datadir import shared_memory_names
from polarless.net.processes import ProcessId, find_processes
from tests.cluster.conftest import assert_nothing_left, running_cluster
from tests.cluster.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

ROWS = 20_000


@pytest.fixture
def running(data: Path) -> Iterator[LocalCluster]:
    """A cluster whose caches hold a part of the data, so that reads go to the pool."""
    with running_cluster(data, ro=1, pool_mb=64, cache_mb=4) as cluster:
        yield cluster


def pool(cluster: LocalCluster) -> dict[str, Any]:
    home: dict[str, Any] = cluster.control.node(cluster.node("home").name)["home"]
    return home


def shared_bytes(cluster: LocalCluster) -> int:
    """What the host keeps in memory for the slabs."""
    names = shared_memory_names(cluster.data.cluster())
    return sum(os.stat(f"/dev/shm/{name}").st_blocks * 512 for name in names)


async def sum_of_all(connection: asyncpg.Connection) -> int:
    found: int = await connection.fetchval("select sum(id) from wide")
    return found


@pytest.mark.allow_log("detached: control took it away")
async def test_pool_and_memory_nodes_by_number_under_load(running: LocalCluster) -> None:
    connection = await asyncpg.connect(running.url)
    await connection.execute("create table wide (id int primary key, filler text)")
    rows = [(number, "x" * 800) for number in range(ROWS)]
    await connection.copy_records_to_table("wide", records=rows)
    expected = sum(range(ROWS))

    # A scan leaves the pool as it is; what is asked for by its key is put there.
    async def read_until(page_count: int) -> None:
        for number in range(0, ROWS * 5, 20):
            key = number % ROWS
            assert await connection.fetchval("select id from wide where id = $1", key) == key
            if number % 1000 == 0 and pool(running)["pages"] >= page_count:
                return
        raise AssertionError(f"{pool(running)['pages']} pages, not {page_count}")

    ledger = Ledger(running)
    async with ledger.running():
        await ledger.progress()
        await read_until(400)
        full = pool(running)["pages"]
        used = shared_bytes(running)
        await asyncio.to_thread(running.scale, pool_mb=4)
        small = pool(running)["pages"]
        assert small <= 2 * (2 * 1024 * 1024 // 16448) < full
        # What is lent, and the cells; the pool may have filled that already.
        assert shared_bytes(running) < 4.25 * 1024 * 1024 < used
        assert await sum_of_all(connection) == expected
        await asyncio.to_thread(running.scale, pool_mb=64)
        await read_until(small + 100)
        await asyncio.to_thread(running.scale, memory_nodes=3)
        await ledger.progress()
        await asyncio.to_thread(running.scale, memory_nodes=2)
        # The size is known to whoever starts as a memory node or as the home.
        await asyncio.to_thread(running.kill, "home")
        await asyncio.to_thread(running.wait_until_serving)
        await ledger.progress()
        assert await sum_of_all(connection) == expected
    await ledger.check()
    assert not ledger.errors, ledger.errors
    sizes = [
        running.control.node(node.name)["memory_mb"]
        for node in running.nodes()
        if node.role in ("home", "memory")
    ]
    assert sizes == [32, 32]
    await connection.close()


async def test_a_reader_is_there_at_once_and_a_sleeping_cluster_wakes(data: Path) -> None:
    with LocalCluster(data, ro=1, pool_mb=64) as cluster:
        spare = "spare.config.json"
        cluster.wait_until(
            "a spare is there", lambda _: any(spare in p for p in find_processes(str(data)))
        )
        connection = await asyncpg.connect(cluster.url)
        await connection.execute("create table t (id int primary key)")
        await connection.execute("insert into t values (1)")
        # Whoever decides does so within its limits, and says why.
        limits = {"ro_min": 2, "ro_max": 2, "pool_mb_min": 64, "pool_mb_max": 64}
        cluster.control.autoscale(limits, change=True)
        cluster.wait_until(
            "another reader serves",
            lambda s: [n["state"] for n in s["nodes"] if n["role"] == "ro"] == ["serving"] * 2,
        )
        cluster.control.autoscale(None, change=True)
        (decision,) = [e for e in cluster.events() if e.get("what") == "ro"]
        assert decision["text"] == "ro 2: the policy's limits"
        # Control that stands still for longer than a node may: nobody else is to blame.
        epoch = cluster.status()["epoch"]
        cluster.pause("control")
        before = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - before < 3.0:
            assert await connection.fetchval("select count(*) from t") == 1
        cluster.resume(Node("control", "control", offline_control(cluster), "", "", ""))
        status = cluster.wait_until_serving()
        await connection.execute("insert into t values (2)")
        assert status["epoch"] == cluster.status()["epoch"] == epoch
        assert not [e for e in cluster.events() if e["event"] in ("hung", "failover")]
        await connection.close()
        cluster.sleep()
        assert not [n for n in cluster.nodes() if n.role in ("rw", "ro") and n.process.pid]
        connection = await asyncpg.connect(cluster.url)
        assert await connection.fetchval("select count(*) from t") == 2
        await connection.close()
    assert_nothing_left(cluster)


def offline_control(cluster: LocalCluster) -> ProcessId:
    """Control's process; while it is stopped it cannot be asked."""
    saved = cluster.data.read("control.json")
    return ProcessId(saved["pid"], saved["start"])
