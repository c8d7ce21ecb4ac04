"""``polarless demo``: a whole cluster, a real load, ``kill -9`` of the writer, and what it cost.

    start      RW, 2 RO, 2 memory nodes, storage, control: processes of their own
    load       pgbench -i -s 1, then its default script for a while: the rate before
    kill       beside pgbench at a steady rate, own writers insert numbered rows and note which
               commits were acknowledged; the RW is killed by its pid
    after      the same URL: first new commit, then the rate after
    check      every acknowledged row is there, pgbench's sums agree, every RO sees the last commit

A commit that was under way at the kill may be there or not: the client was not told. An
acknowledged one must be there: ``lost`` counts those that are not, and any makes the demo fail.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import asyncpg

from polarless.demo_load import find_load
from polarless.errors import PolarlessError
from polarless.local import LocalCluster

log = logging.getLogger(__name__)

CLIENTS: Final = 8
WRITERS: Final = 4
# Transactions of pgbench a second around the kill: each makes a page of the pool old, and the
# report is about what the pool is worth, not about how fast pages can be made old.
STEADY_RATE: Final = 100
WARM_DEADLINE_S: Final = 10.0
RECOVER_DEADLINE_S: Final = 20.0

# Called with the name of the step, and a rate or None.
Tell = Callable[[str, float | None], object]


class Report(NamedTuple):
    """What the demo found. Rates are transactions per second, times seconds."""

    acked: int
    lost: int
    in_doubt: int
    in_doubt_there: int
    failover_s: float
    tps_before: float
    tps_after: float
    cache_pages_after: int
    pool_hits_after: int
    storage_reads_after: int
    readers_current: bool
    sums_agree: bool
    new_writer: str
    load: str
    seconds: float

    @property
    def good(self) -> bool:
        """Whether everything that must hold did."""
        return not self.lost and self.readers_current and self.sums_agree and self.acked > 0


class Writers:
    """Connections that insert numbered rows and know which commits were acknowledged."""

    def __init__(self, url: str) -> None:
        self.acked: set[int] = set()
        self.in_doubt: set[int] = set()
        self.first_after_kill: float | None = None
        self._url = url
        self._killed_at: float | None = None
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Create the table and begin."""
        connection = await asyncpg.connect(self._url)
        await connection.execute("drop table if exists demo_commits")
        await connection.execute("create table demo_commits(id bigint primary key, note text)")
        await connection.close()
        self._tasks = [asyncio.create_task(self._write(writer)) for writer in range(WRITERS)]

    def killed(self) -> None:
        """The writer was killed just now."""
        self._killed_at = time.monotonic()

    async def first_commit_after_kill(self) -> float:
        """Seconds from the kill to the first commit that began and was acknowledged after it."""
        assert self._killed_at is not None
        deadline = self._killed_at + RECOVER_DEADLINE_S
        while self.first_after_kill is None:
            if time.monotonic() > deadline:
                raise PolarlessError(f"no commit within {RECOVER_DEADLINE_S} s after the kill")
            await asyncio.sleep(0.002)
        return self.first_after_kill - self._killed_at

    async def stop(self) -> None:
        """End, each after the commit that it waits for."""
        self._stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, writer: int) -> None:
        connection: asyncpg.Connection | None = None
        number = 0
        while not self._stopping:
            number += 1
            row = writer * 1_000_000_000 + number
            try:
                if connection is None:
                    connection = await asyncpg.connect(self._url, timeout=2)
                began = time.monotonic()
                self.in_doubt.add(row)
                await connection.execute(
                    "insert into demo_commits values ($1, $2)", row, f"row {row} of the demo",
                    timeout=5,
                )  # fmt: skip
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if connection is not None:
                    connection.terminate()
                connection = None
                await asyncio.sleep(0.002)
                continue
            self.in_doubt.discard(row)
            self.acked.add(row)
            if (
                self.first_after_kill is None
                and self._killed_at is not None
                and began > self._killed_at
            ):
                self.first_after_kill = time.monotonic()
        if connection is not None:
            await connection.close(timeout=2)


async def run(cluster: LocalCluster, tell: Tell) -> Report:
    """Everything after the start. Raises `PolarlessError` if a step cannot be done."""
    began = time.monotonic()
    load = find_load(cluster.url)
    tell(f"loading 100,000 accounts ({load.name})", None)
    await load.prepare()
    before = await load.run(5, CLIENTS, lambda tps: tell("pgbench before the kill", tps))
    writers = Writers(cluster.url)
    await writers.start()
    quiet = asyncio.create_task(
        load.run(30, CLIENTS, lambda tps: tell("pgbench at a steady rate", tps), rate=STEADY_RATE)
    )
    try:
        await _until_warm(cluster, tell)
        tell("kill -9 of the writer", None)
        counters = {
            node.name: _fetched(cluster, node.name) for node in cluster.nodes() if node.sql_url
        }
        victim = await asyncio.to_thread(cluster.kill, "rw")
        writers.killed()
        failover_s = await writers.first_commit_after_kill()
        tell(f"first commit {failover_s * 1000:.0f} ms after the kill", None)
        quiet.cancel()
        await asyncio.gather(quiet, return_exceptions=True)
        after = await load.run(5, CLIENTS, lambda tps: tell("pgbench after the kill", tps))
    finally:
        quiet.cancel()
        await asyncio.gather(quiet, writers.stop(), return_exceptions=True)
    tell("checking every acknowledged row", None)
    writer = await asyncio.to_thread(cluster.node, "rw")
    assert writer.name != victim.name or writer.process != victim.process
    hits, reads = _fetched(cluster, writer.name)
    hits -= counters[writer.name][0]
    reads -= counters[writer.name][1]
    frames = int(cluster.control.node(writer.name)["cache"]["frames"])
    there = await _rows(cluster.url)
    return Report(
        acked=len(writers.acked),
        lost=len(writers.acked - there),
        in_doubt=len(writers.in_doubt),
        in_doubt_there=len(writers.in_doubt & there),
        failover_s=round(failover_s, 4),
        tps_before=round(before, 1),
        tps_after=round(after, 1),
        cache_pages_after=frames,
        pool_hits_after=hits,
        storage_reads_after=reads,
        readers_current=await _readers_current(cluster),
        sums_agree=await _sums_agree(cluster.url),
        new_writer=writer.name,
        load=load.name,
        seconds=round(time.monotonic() - began, 1),
    )


async def _until_warm(cluster: LocalCluster, tell: Tell) -> None:
    """Let the writer bring the pool up to date, as it does in the background all the time."""
    deadline = time.monotonic() + WARM_DEADLINE_S
    await asyncio.sleep(2)
    while time.monotonic() < deadline:
        status = await asyncio.to_thread(cluster.control.node, cluster.node("rw").name)
        left = int(status["writeback"]["dirty"])
        tell(f"pages that the pool does not have yet: {left}", None)
        if left < 100:
            return
        await asyncio.sleep(0.2)


def _fetched(cluster: LocalCluster, name: str) -> tuple[int, int]:
    """(pool hits, storage reads) of a compute node so far."""
    fetch = cluster.control.node(name)["fetch"]
    return int(fetch["pool_hits"]), int(fetch["storage_reads"])


async def _rows(url: str) -> set[int]:
    connection = await asyncpg.connect(url)
    try:
        return {row["id"] for row in await connection.fetch("select id from demo_commits")}
    finally:
        await connection.close()


async def _sums_agree(url: str) -> bool:
    connection = await asyncpg.connect(url)
    try:
        # One snapshot: a commit whose client is gone may still be under way.
        async with connection.transaction(isolation="repeatable_read"):
            sums = [
                await connection.fetchval(f"select sum({column}) from pgbench_{table}")
                for column, table in (
                    ("bbalance", "branches"), ("tbalance", "tellers"), ("abalance", "accounts"),
                    ("delta", "history"),
                )
            ]  # fmt: skip
    finally:
        await connection.close()
    if len(set(sums)) != 1:
        log.error("pgbench's sums differ: %s", sums)
    return len(set(sums)) == 1


async def _readers_current(cluster: LocalCluster) -> bool:
    """Commit on the writer, then ask every reader for it at once."""
    writer = await asyncpg.connect(cluster.url)
    await writer.execute("insert into demo_commits values (-1, 'the last one')")
    await writer.close()
    current = True
    for node in cluster.nodes():
        if node.role == "ro" and node.state == "serving" and node.sql_url:
            reader = await asyncpg.connect(node.sql_url)
            found = await reader.fetchval("select note from demo_commits where id = -1")
            current = current and found == "the last one"
            await reader.close()
    return current
