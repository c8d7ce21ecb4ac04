"""A memory pool in one process: real memory nodes on real sockets and shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from memory_pool.client import PoolClient
from memory_pool.home_state import HomeConfig
from memory_pool.node import MemoryNode
from polarless.errors import PolarlessError
from polarless.kernel.page import LEAF, Frame, encode
from polarless.net.system import system_world

CLUSTER = b"pool contracts!!"
LIMIT_S = 10.0
CONFIG = HomeConfig(ack_timeout_us=150_000, pull_timeout_us=100_000, rejoin_grace_us=200_000)


def image(page_id: int, lsn: int) -> bytes:
    """A page that says which one it is."""
    rows = dict.fromkeys(range(60), (lsn, b"%d@%d" % (page_id, lsn), None))
    return encode(Frame(page_id, LEAF, 1, lsn=lsn, keys=list(rows), rows=rows))


class Compute:
    """A compute node as the pool sees it: what it was told, and a cache of LSNs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[tuple[Any, ...]] = []
        self.acknowledge = True
        # What storage says of pages, as far as this node is asked.
        self.stored: dict[int, int] = {}
        self.marks_at_invalidate: list[int] = []
        self.pool: PoolClient | None = None
        self._news = asyncio.Event()

    def _note(self, *news: Any) -> None:
        self.told.append(news)
        self._news.set()

    async def heard(self, kind: str) -> tuple[Any, ...]:
        """The first thing of that kind it is told, now or later."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for news in self.told:
                    if news[0] == kind:
                        return news
                self._news.clear()
                await self._news.wait()

    def on_invalidate(self, lsn: int, pages: Sequence[int], mark: int) -> bool:
        assert self.pool is not None
        self.marks_at_invalidate.append(self.pool.mark)
        self._note("invalidate", lsn, list(pages), mark)
        return self.acknowledge

    def on_mark(self, mark: int) -> None:
        self._note("mark", mark)

    def on_pull(self, page_id: int, ticket: int) -> None:
        self._note("pull", page_id, ticket)

    def on_confirm(
        self, as_of: int, claims: list[tuple[int, int]], answer: Callable[[Sequence[bool]], None]
    ) -> None:
        answer([self.stored.get(page_id) == lsn for page_id, lsn in claims])
        self._note("confirm", as_of, claims)

    def on_slabs(self) -> None:
        self._note("slabs")

    def on_expelled(self) -> None:
        self._note("expelled")

    def on_lost(self, error: PolarlessError) -> None:
        self._note("lost", error)


class PoolCluster:
    """Memory nodes and compute nodes; `close` ends all."""

    def __init__(self, tasks: asyncio.TaskGroup, *, shared_memory: bool) -> None:
        self.world = system_world()
        self.tasks = tasks
        self.shared_memory = shared_memory
        self.nodes: dict[str, MemoryNode] = {}
        self.clients: list[PoolClient] = []

    async def memory(self, name: str, *, memory_mb: int = 1) -> MemoryNode:
        """Start a memory node."""
        node = MemoryNode(
            self.world,
            cluster=CLUSTER,
            node=name,
            memory_mb=memory_mb,
            home_config=CONFIG,
            verify=True,
        )
        await node.start(self.tasks, host="127.0.0.1", port=0)
        self.nodes[name] = node
        return node

    def client(self, name: str, home: str, *, writer: bool = False, epoch: int = 1) -> Compute:
        """A compute node that has not joined yet."""
        compute = Compute(name)
        compute.pool = PoolClient(
            self.world,
            CLUSTER,
            name,
            self.nodes[home].address,
            writer=writer,
            epoch=epoch,
            events=compute,
            shared_memory=self.shared_memory,
        )
        self.clients.append(compute.pool)
        return compute

    async def serve(self) -> tuple[Compute, Compute]:
        """Two memory nodes, a writer and a reader, advanced to LSN 10."""
        first, second = await self.memory("mem1"), await self.memory("mem2")
        await first.become_home(home_epoch=1, epoch=1, agents={"mem2": second.address})
        rw, ro = self.client("rw", "mem1", writer=True), self.client("ro1", "mem1")
        assert rw.pool is not None
        assert ro.pool is not None
        joining = asyncio.ensure_future(ro.pool.connect())
        await rw.pool.connect()
        await advance(rw, 10, 1, [])
        await joining
        return rw, ro

    def kill(self, name: str) -> None:
        """The node's process is gone, and control has tidied up after it."""
        self.nodes.pop(name).close()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for node in self.nodes.values():
            node.close()


@asynccontextmanager
async def pool_cluster(*, shared_memory: bool = True) -> AsyncIterator[PoolCluster]:
    """A `PoolCluster` for one test. It leaves no task and no shared memory behind."""
    before = shared_memory_names()
    async with asyncio.TaskGroup() as tasks:
        cluster = PoolCluster(tasks, shared_memory=shared_memory)
        try:
            yield cluster
        finally:
            cluster.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
    assert shared_memory_names() == before


def shared_memory_names() -> set[str]:
    """What this test's cluster has in /dev/shm."""
    prefix = f"polarless-{CLUSTER.hex()[:8]}-"
    return {path.name for path in Path("/dev/shm").glob(f"{prefix}*")}


async def advance(rw: Compute, lsn: int, cts: int, pages: Sequence[int], epoch: int = 1) -> Any:
    """Advance and wait for the answer."""
    assert rw.pool is not None
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: PolarlessError | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    rw.pool.advance(epoch, lsn, cts, pages, done)
    async with asyncio.timeout(LIMIT_S):
        return await future


async def snapshot(compute: Compute) -> int:
    """What the node may read, by whichever way it has."""
    assert compute.pool is not None
    published = compute.pool.published()
    return await compute.pool.fetch_published() if published is None else published


def always(lsn: int) -> Callable[[], int]:
    """An ``as_of``."""
    return lambda: lsn
