"""In-memory stand-ins for storage and the memory pool, and an engine over them.

`MemoryStore` keeps the log as groups and builds pages from them with `polarless.kernel.apply`, the
slow and obvious way; `MemoryPoolFake` holds nothing, publishes what is advanced, and delivers
invalidations to the readers that were attached. With them a whole compute node runs in one test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

from compute.buffer.coherence import ReaderEvents
from compute.buffer.fetch import Fetcher
from compute.buffer.frames import FrameCache
from compute.txn.engine import Engine
from compute.txn.recovery import take_over
from polarless.kernel import redo
from polarless.kernel.apply import apply
from polarless.kernel.page import Frame, encode
from polarless.wire.memory import Place


class LoopClock:
    """The running loop's clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], object]) -> object:
        return asyncio.get_running_loop().call_soon(callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class MemoryStore:
    """A log and its pages, in memory. Page reads replay the log from the start."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.epoch = 0
        self.groups: list[redo.Group] = []
        self.records: dict[int, list[tuple[redo.Group, redo.Record]]] = {}
        self.announced = 0
        self.paused: list[Callable[[], None]] | None = None

    def append(self, epoch: int, start_lsn: int, groups: bytes, done: Any) -> None:
        assert epoch == self.epoch
        assert start_lsn == len(self.log), (start_lsn, len(self.log))
        for group in redo.decode_groups(groups, start_lsn):
            self.groups.append(group)
            for record in group.records:
                self.records.setdefault(record[1], []).append((group, record))
        self.log += groups
        lsn = len(self.log)

        def answer() -> None:
            done(lsn, None)

        if self.paused is not None:
            self.paused.append(answer)
        else:
            asyncio.get_running_loop().call_soon(answer)

    def page(self, page_id: int, as_of: int) -> Frame | None:
        frame: Frame | None = None
        for group, record in self.records.get(page_id, ()):
            if group.end_lsn > as_of:
                break
            frame = apply(frame, record, lsn=group.end_lsn, cts=group.cts, horizon=group.horizon)
        return frame

    async def read_page(self, page_id: int, as_of: int, *, deadline_s: float) -> bytes | None:
        await asyncio.sleep(0)
        frame = self.page(page_id, as_of)
        return None if frame is None else encode(frame)

    async def read_pages(
        self, page_ids: Sequence[int], as_of: int, *, deadline_s: float
    ) -> list[bytes | None]:
        return [await self.read_page(p, as_of, deadline_s=deadline_s) for p in page_ids]

    async def page_lsns(
        self, page_ids: Sequence[int], as_of: int, *, deadline_s: float
    ) -> list[int]:
        frames = [self.page(page_id, as_of) for page_id in page_ids]
        return [0 if frame is None else frame.lsn for frame in frames]

    async def read_log(self, from_lsn: int, max_bytes: int) -> tuple[bytes, int]:
        return bytes(self.log[from_lsn:]), len(self.log)

    async def verdict(self, transaction_id: int, from_lsn: int) -> tuple[str, int, bytes]:
        return "unknown", 0, b""

    async def fence(self, epoch: int) -> Any:
        self.epoch = epoch
        return SimpleNamespace(
            tail=len(self.log),
            cts=max((group.cts for group in self.groups), default=0),
            next_page=max((group.next_page for group in self.groups), default=0),
            mark=self.announced,
            folded=0,
        )

    def announce(self, epoch: int, mark: int) -> None:
        self.announced = mark


class PoolHub:
    """What all fakes of one cluster share: the mark, the published timestamp, the readers."""

    def __init__(self) -> None:
        self.mark = 0
        self.published = 0
        self.readers: list[MemoryPoolFake] = []
        # What the readers reported last, as an advance's answer brings it.
        self.snapshots: list[int] | None = None


class MemoryPoolFake:
    """A pool without slots. ``events`` is set on a reader."""

    def __init__(self, hub: PoolHub) -> None:
        self.hub = hub
        self.events: ReaderEvents | None = None
        self.held: set[int] = set()
        self.remote = False

    @property
    def mark(self) -> int:
        return self.hub.mark

    def published(self) -> int | None:
        return None if self.remote else self.hub.published

    async def fetch_published(self) -> int:
        await asyncio.sleep(0)
        return self.hub.published

    async def register(self, page_id: int, scan: bool = False, *, deadline_s: float) -> Any:
        self.held.add(page_id)
        await asyncio.sleep(0)
        return SimpleNamespace(image=None, lsn=0, mark=self.hub.mark, place=None)

    def locate(self, page_ids: Sequence[int], found: Callable[[int, Place], None]) -> None:
        pass

    def is_mapped(self, place: Place) -> bool:
        return False

    def read_now(self, page_id: int, place: Place) -> bytes | None:
        return None

    async def read_place(self, page_id: int, place: Place, *, deadline_s: float) -> bytes | None:
        return None

    def release(self, page_ids: Sequence[int]) -> None:
        raise AssertionError("no place was ever known")

    def unregister(self, page_ids: Sequence[int]) -> None:
        self.held.difference_update(page_ids)

    async def write_back(
        self, page_id: int, image: bytes, lsn: int, as_of: Callable[[], int], scan: bool = False
    ) -> Place | None:
        await asyncio.sleep(0)
        as_of()
        return None

    def advance(self, epoch: int, lsn: int, cts: int, pages: Sequence[int], done: Any) -> None:
        self.hub.mark = lsn
        for reader in self.hub.readers:
            named = [page for page in pages if page in reader.held]
            reader.held.difference_update(named)
            assert reader.events is not None
            if named:
                reader.events.invalidate(lsn, named, lsn)
            else:
                reader.events.advance_mark(lsn)
        self.hub.published = max(self.hub.published, cts)
        asyncio.get_running_loop().call_soon(lambda: done(([], self.hub.snapshots), None))

    def report(self, snapshots: Sequence[int]) -> None:
        pass

    def ack(self, lsn: int) -> None:
        pass

    async def refresh_mark(self) -> int:
        return self.hub.mark

    async def fence(self, epoch: int) -> dict[str, int]:
        return {"mark": self.hub.mark, "published": self.hub.published}


class Cluster:
    """Engines over one store, in one loop. Use as an async context manager."""

    def __init__(self, *, cache_bytes: int = 64 << 20, remote_snapshots: bool = False) -> None:
        self.cache_bytes = cache_bytes
        self.remote_snapshots = remote_snapshots
        self.store = MemoryStore()
        self.hub = PoolHub()
        self.tasks: set[asyncio.Task[None]] = set()
        self.epoch = 0

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def engine(self) -> Engine:
        """A node that is neither reader nor writer yet."""
        pool = MemoryPoolFake(self.hub)
        pool.remote = self.remote_snapshots
        cache = FrameCache(self.cache_bytes)
        fetcher = Fetcher(cache, pool, self.store, spawn=self.spawn, large_bytes=64 << 20)
        return Engine(LoopClock(), cache, fetcher, pool, self.store, spawn=self.spawn)

    async def writer(self, engine: Engine | None = None) -> Engine:
        """Make a node the writer (a new one by default)."""
        engine = engine or self.engine()
        pool = engine.pool
        if isinstance(pool, MemoryPoolFake) and pool in self.hub.readers:
            self.hub.readers.remove(pool)
        self.epoch += 1
        await take_over(engine, self.epoch, lambda error: None)
        # There are no proxies here that would bring old snapshots.
        engine._prune_again()
        return engine

    def reader(self) -> Engine:
        """A reader."""
        engine = self.engine()
        pool = engine.pool
        assert isinstance(pool, MemoryPoolFake)
        pool.events = ReaderEvents(engine.cache, engine.fetcher, ack=lambda lsn: None)
        pool.events.mark = self.hub.mark
        pool.events.on_catalog = engine.catalog_changed
        engine.cache.evictable_lsn = 1 << 62
        self.hub.readers.append(pool)
        return engine


async def running(step: Callable[[], Any]) -> Any:
    """Run synchronous code that may suspend until it does not: as sessions do, in the callback."""
    from compute.buffer.waits import Suspend

    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def attempt(error: Exception | None = None) -> None:
        try:
            if error is not None:
                raise error
            future.set_result(step())
        except Suspend as suspend:
            suspend.subscribe(attempt)
        except Exception as failure:
            future.set_exception(failure)

    attempt()
    return await future


async def commit(engine: Engine, txn: Any) -> int | None:
    """Commit and wait for the acknowledgement. Raises what it ended with."""
    future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def done(lsn: int | None, error: Exception | None) -> None:
        if error is None:
            future.set_result(lsn)
        else:
            future.set_exception(error)

    await running(lambda: engine.commit(txn, done))
    return await future
