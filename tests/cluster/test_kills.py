"""Every kind of process is killed under load, alone and together; nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from polarless.errors import PolarlessError
from polarless.local import LocalCluster, Node
from tests.cluster.conftest import running_cluster
from tests.cluster.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
def running(data: Path) -> Iterator[LocalCluster]:
    with running_cluster(data, ro=2, verify=True) as cluster:
        yield cluster


async def replaced(cluster: LocalCluster, victim: Node) -> None:
    """Wait until everything serves again and the victim's process is not among it."""

    def serves(status: dict[str, Any]) -> bool:
        nodes = status["nodes"]
        return (
            status["state"] == "serving"
            and all(node["state"] == "serving" for node in nodes)
            and all(node["pid"] != victim.process.pid for node in nodes)
        )

    what = f"{victim.name} ({victim.role}) is replaced"
    await asyncio.to_thread(cluster.wait_until, what, serves, 20)


async def test_each_kind_of_process_is_killed_in_turn(running: LocalCluster) -> None:
    ledger = Ledger(running)
    async with ledger.running():
        for role in ("rw", "ro", "memory", "home", "storage", "control", "rw"):
            victim = await asyncio.to_thread(running.kill, role)
            await ledger.progress()
            await replaced(running, victim)
            await ledger.progress()
    await ledger.check()
    told = {event["event"] for event in running.events()}
    assert {"ended", "switch", "home"} & told, told


async def test_pages_that_are_left_in_the_pool_outlive_its_home(running: LocalCluster) -> None:
    writer = await asyncpg.connect(running.url)
    await writer.execute("create table wide (id int primary key, v text)")
    rows = [(number, str(number).zfill(1000)) for number in range(3000)]
    await writer.copy_records_to_table("wide", records=rows)
    query = "select count(*), count(distinct v), min(v), max(v) from wide"
    expected = tuple(await writer.fetchrow(query))
    await writer.close()
    for node in running.nodes():
        if node.role == "ro":
            await read_once(node, query)
    victim = await asyncio.to_thread(running.kill, "home")
    await replaced(running, victim)
    said: list[tuple[int, int]] = []

    def judged(status: dict[str, Any]) -> bool:
        for path in sorted((running.data.root / "logs").glob("memory-*.log")):
            for kept, found in re.findall(r"keeps (\d+) of (\d+) pages", path.read_text()):
                said.append((int(kept), int(found)))
        return bool(said)

    await asyncio.to_thread(running.wait_until, "found slots are judged", judged, 20)
    kept, found = said[-1]
    # A part of some 200 pages. Few of them can have changed since they were written.
    assert found > 20
    assert kept > found // 2
    for node in running.nodes():
        if node.role == "ro":
            assert await read_once(node, query) == expected


async def read_once(node: Node, query: str) -> tuple[Any, ...]:
    connection = await asyncpg.connect(node.sql_url)
    row = await connection.fetchrow(query)
    await connection.close()
    return tuple(row)


async def test_all_processes_at_once_and_every_acknowledged_commit_is_there(
    running: LocalCluster,
) -> None:
    ledger = Ledger(running)
    async with ledger.running():
        await ledger.progress(500)
        await asyncio.to_thread(running.kill_all)
        await asyncio.to_thread(running.restart)
        await ledger.progress()
    await ledger.check()


async def test_a_stopped_writer_is_replaced_and_its_late_writes_are_refused(
    running: LocalCluster,
) -> None:
    old = running.node("rw")
    late = await asyncpg.connect(old.sql_url)
    await late.execute("create table late (id int primary key, v int)")
    await late.execute("insert into late values (1, 0)")
    ledger = Ledger(running)
    async with ledger.running():
        await asyncio.to_thread(running.pause, old)
        # Sent while it sleeps; it will see them when it wakes up.
        writes = asyncio.ensure_future(late.execute("update late set v = 666 where id = 1"))
        read = asyncio.ensure_future(_read_late(old.sql_url))
        try:
            await asyncio.to_thread(
                running.wait_until,
                "another node is the writer",
                lambda status: any(
                    n["role"] == "rw" and n["pid"] not in (None, old.process.pid)
                    for n in status["nodes"]
                ),
            )
            fresh = await asyncpg.connect(running.url)
            await fresh.execute("update late set v = 1 where id = 1")
        finally:
            await asyncio.to_thread(running.resume, old)
        with pytest.raises((asyncpg.PostgresError, OSError, asyncpg.InterfaceError)):
            await writes
        # Never a stale read either: an error, or nothing.
        (outcome,) = await asyncio.gather(read, return_exceptions=True)
        assert outcome == 1 or isinstance(outcome, BaseException), outcome
        assert await fresh.fetchval("select v from late") == 1
        await fresh.close()
        late.terminate()
        await replaced(running, old)
        await ledger.progress()
    await ledger.check()
    async_ends = [e for e in running.events() if e["node"] == old.name]
    assert async_ends, "status says what was done about it"


async def _read_late(url: str) -> int:
    connection = await asyncpg.connect(url, timeout=30)
    value = await connection.fetchval("select v from late where id = 1")
    await connection.close()
    return int(value)


@pytest.mark.parametrize(
    "count", [1000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_an_acknowledged_commit_is_seen_by_the_next_statement_on_every_reader(
    running: LocalCluster, count: int
) -> None:
    writer = await asyncpg.connect(running.url)
    await writer.execute("create table news (id int primary key, v int)")
    await writer.execute("insert into news values (1, 0)")
    readers = [await asyncpg.connect(n.sql_url) for n in running.nodes() if n.role == "ro"]
    assert len(readers) == 2
    for value in range(1, count + 1):
        await writer.execute("update news set v = $1 where id = 1", value)
        seen = await asyncio.gather(
            *(reader.fetchval("select v from news where id = 1") for reader in readers)
        )
        assert seen == [value] * len(readers)
    for connection in (writer, *readers):
        await connection.close()


def listening(cluster: LocalCluster) -> list[int]:
    """Every TCP port that a process of the cluster listens on."""
    inodes = set()
    for node in cluster.nodes():
        for fd in Path(f"/proc/{node.process.pid}/fd").iterdir():
            try:
                target = os.readlink(fd)
            except FileNotFoundError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.add(int(fields[1].partition(":")[2], 16))
    return sorted(ports)


def resident_mb(cluster: LocalCluster) -> dict[str, int]:
    sizes = {}
    for node in cluster.nodes():
        statm = Path(f"/proc/{node.process.pid}/statm").read_text().split()
        sizes[node.name] = int(statm[1]) * 4096 >> 20
    return sizes


def test_strangers_at_every_port_do_no_harm(running: LocalCluster) -> None:
    rng = random.Random(5)
    ports = listening(running)
    assert len(ports) >= 10
    before, pids = resident_mb(running), {node.process for node in running.nodes()}
    for port in ports:
        for number in range(40):
            data = (
                rng.randbytes(rng.randrange(1, 5000)),
                b"\xff" * 3000,
                (0x7FFFFFFF).to_bytes(4, "little") + b"x" * 1000,
                (0x7FFFFFFF).to_bytes(4, "big") + b"x" * 1000,
                (8).to_bytes(4, "big") + (196608).to_bytes(4, "big") + b"\0Q\xff\xff\xff\xff",
                b"GET / HTTP/1.1\r\n\r\n",
            )[number % 6]
            with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                try:
                    stranger.sendall(data)
                except OSError:
                    # It hung up on us before we had said it all.
                    continue
    running.wait_until_serving()
    assert {node.process for node in running.nodes()} == pids, "nobody ended"
    after = resident_mb(running)
    assert all(after[name] - before[name] < 20 for name in before), (before, after)
    for node in running.nodes():
        assert not [line for line in running.tail(node.name, 500) if "Traceback" in line]


def test_a_directory_in_use_is_refused(running: LocalCluster) -> None:
    with pytest.raises(PolarlessError) as refused:
        LocalCluster(running.data.root).start()
    assert refused.value.sqlstate == "55006"
    assert refused.value.hint
