"""Auditors on every node watch pgbench's invariants while processes are killed around them.

Under pgbench's default script every transaction adds one number to an account, a teller, a branch
and the history. So in any one snapshot, on any node, four sums are equal. The auditors read them in
REPEATABLE READ transactions that stay open for a while; every node also compares its cached pages
with the log's truth all the time (``verify``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SUMS = (
    "select sum(bbalance) from pgbench_branches",
    "select sum(tbalance) from pgbench_tellers",
    "select sum(abalance) from pgbench_accounts",
    "select coalesce(sum(delta), 0) from pgbench_history",
)
SECONDS = 12


@pytest.fixture(params=["roomy", "tiny caches, TCP"])
def audited(request: pytest.FixtureRequest, data: Path) -> Iterator[LocalCluster]:
    settings = (
        {"ro": 2} if request.param == "roomy"
        else {"ro": 1, "cache_mb": 4, "pool_mb": 8, "shared_memory": False}
    )  # fmt: skip
    cluster = LocalCluster(data, verify=True, **settings)  # type: ignore[arg-type]
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
    assert_nothing_left(cluster)


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


class Auditor:
    """Reads the sums on one node until told to stop; survives the end of its node."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.audits = 0
        self.wrong: list[tuple[object, ...]] = []
        self.stop = asyncio.Event()

    async def watch(self) -> None:
        while not self.stop.is_set():
            try:
                connection = await asyncpg.connect(self.url, timeout=5)
            except (OSError, asyncpg.PostgresError, TimeoutError):
                await asyncio.wait({asyncio.ensure_future(self.stop.wait())}, timeout=0.05)
                continue
            try:
                while not self.stop.is_set():
                    await self.audit(connection)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()
                continue
            await connection.close()

    async def audit(self, connection: asyncpg.Connection) -> None:
        await connection.execute("begin isolation level repeatable read read only")
        sums = [await connection.fetchval(statement) for statement in SUMS]
        await connection.execute("commit")
        self.audits += 1
        if len(set(sums)) != 1:
            self.wrong.append(tuple(sums))


@pytest.mark.parametrize("victims", [("memory", "home", "storage", "ro")], ids=["kills"])
async def test_sums_agree_in_every_snapshot_on_every_node(
    audited: LocalCluster, victims: tuple[str, ...], pgbench: Path
) -> None:
    port = audited.url.rpartition(":")[2].partition("/")[0]
    where = ("-h", "127.0.0.1", "-p", port)
    await run(str(pgbench), *where, "-i", "-q", "postgres")
    nodes = [node for node in audited.nodes() if node.sql_url]
    auditors = [Auditor(node.sql_url) for node in nodes for _ in range(2)]
    watches = [asyncio.create_task(auditor.watch()) for auditor in auditors]
    load = asyncio.create_task(
        run(str(pgbench), *where, "-n", "-T", str(SECONDS), "-c", "6", "-M", "prepared", "postgres")
    )
    for victim in victims:
        # Load in between is the point of this wait, not synchronisation.
        await asyncio.wait({load}, timeout=SECONDS / (len(victims) + 1))
        await asyncio.to_thread(audited.kill, victim)
    output = await load
    for auditor in auditors:
        auditor.stop.set()
    await asyncio.gather(*watches)
    assert "number of failed transactions: 0" in output
    assert not [auditor.wrong for auditor in auditors if auditor.wrong]
    assert sum(auditor.audits for auditor in auditors) > 10
    last = Auditor(audited.url)
    connection = await asyncpg.connect(audited.url)
    await last.audit(connection)
    await connection.close()
    assert not last.wrong
    for node in audited.nodes():
        if node.sql_url:
            assert audited.control.node(node.name)["pages_verified"] > 0
            broken = [line for line in audited.tail(node.name, 200) if '"level": "error"' in line]
            assert not broken, broken
