"""What the writer gives to the pool, and what it must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from compute.buffer.frames import FrameCache
from compute.buffer.places import Places
from compute.buffer.writeback import NEVER, Writeback
from polarless.kernel.page import LEAF, Frame
from polarless.wire.memory import Place


class SlowPool:
    """Keeps each write-back waiting until the test lets it go on."""

    def __init__(self) -> None:
        self.promises: list[tuple[int, int]] = []
        self.unregistered: list[int] = []
        self.released: list[int] = []
        self.written: list[int] = []
        self.go = asyncio.Event()

    async def write_back(
        self, page_id: int, image: bytes, lsn: int, as_of: Callable[[], int], scan: bool = False
    ) -> Place | None:
        self.written.append(page_id)
        await self.go.wait()
        promise = as_of()
        self.promises.append((page_id, promise))
        return Place("mem", 0, page_id, 1, lsn) if promise != NEVER else None

    def unregister(self, page_ids: Sequence[int]) -> None:
        self.unregistered += page_ids

    def release(self, page_ids: Sequence[int]) -> None:
        self.released += page_ids


class Bench:
    def __init__(self) -> None:
        self.cache = FrameCache(1 << 20)
        self.pool = SlowPool()
        self.places = Places(self.pool, self.cache.frames, 1 << 20)  # type: ignore[arg-type]
        self.sent = 100
        self.durable = 100
        self.tasks: list[asyncio.Task[None]] = []
        self.writeback = Writeback(
            self.cache,
            self.pool,  # type: ignore[arg-type]
            places=self.places,
            spawn=self.spawn,
            advance_sent=lambda: self.sent,
            durable=lambda: self.durable,
        )

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def frame(self, page_id: int, lsn: int) -> Frame:
        frame = Frame(page_id, LEAF, 99, lsn=lsn)
        frame.dirty = True
        self.cache.install(frame)
        return frame

    async def finish(self) -> None:
        self.pool.go.set()
        await asyncio.gather(*self.tasks)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_pulled_page_goes_out_and_is_clean_after(bench: Bench) -> None:
    frame = bench.frame(1, 90)
    assert bench.writeback.pull(1)
    await bench.finish()
    assert bench.pool.promises == [(1, 100)]
    assert not frame.dirty


async def test_a_page_that_is_not_durable_waits_for_it(bench: Bench) -> None:
    bench.frame(1, 150)
    assert bench.writeback.pull(1)
    await asyncio.sleep(0)
    assert not bench.pool.written, "C3: nothing leaves before it is durable"
    bench.durable = 150
    bench.writeback.durable()
    await bench.finish()
    assert bench.pool.written == [1]


async def test_an_image_overtaken_by_an_advance_is_not_promised(bench: Bench) -> None:
    frame = bench.frame(1, 90)
    bench.writeback.pull(1)
    await asyncio.sleep(0)
    frame.lsn = 120
    bench.writeback.applied([1], 120)
    bench.sent = bench.durable = 120
    await bench.finish()
    assert bench.pool.promises == [(1, NEVER)]
    assert frame.dirty
    assert 1 in bench.writeback.dirty, "it goes out again later"


async def test_an_image_is_good_as_long_as_the_newer_commit_is_not_advanced(bench: Bench) -> None:
    frame = bench.frame(1, 90)
    bench.writeback.pull(1)
    await asyncio.sleep(0)
    frame.lsn = 120
    bench.writeback.applied([1], 120)
    await bench.finish()
    assert bench.pool.promises == [(1, 100)]
    assert frame.dirty, "the frame is newer than the image"


async def test_a_clean_frame_that_leaves_is_only_unregistered(bench: Bench) -> None:
    frame = bench.frame(1, 90)
    frame.dirty = False
    bench.writeback.evicted(frame)
    bench.places.flush()
    assert bench.pool.unregistered == [1]
    assert not bench.tasks


async def test_the_place_of_an_image_is_kept_until_the_frame_is_newer(bench: Bench) -> None:
    frame = bench.frame(1, 90)
    bench.writeback.pull(1)
    await bench.finish()
    assert bench.places.known == {1: Place("mem", 0, 1, 1, 90)}
    bench.writeback.evicted(frame)
    bench.places.flush()
    assert bench.pool.released == [1]
    frame.lsn, frame.dirty = 120, True
    bench.sent = bench.durable = 120
    bench.writeback.evicted(frame)
    assert not bench.places.known
    await bench.finish()
    assert bench.places.known == {1: Place("mem", 0, 1, 1, 120)}


async def test_an_image_that_a_commit_overtook_leaves_no_place(bench: Bench) -> None:
    frame = bench.frame(1, 90)
    bench.writeback.pull(1)
    await asyncio.sleep(0)
    frame.lsn = 120
    bench.writeback.applied([1], 120)
    await bench.finish()
    assert bench.pool.promises == [(1, 100)]
    assert not bench.places.known


async def test_a_page_that_is_not_cached_cannot_be_pulled(bench: Bench) -> None:
    assert not bench.writeback.pull(7)


async def test_the_background_pass_is_limited_and_comes_to_an_end(bench: Bench) -> None:
    for page_id in range(1, 200):
        bench.frame(page_id, 50)
    bench.writeback.applied(list(range(1, 200)), 50)
    bench.writeback.tick()
    await asyncio.sleep(0)
    assert 0 < len(bench.pool.written) < 50
    bench.pool.go.set()
    while bench.writeback.dirty:
        bench.writeback.tick()
        await asyncio.gather(*bench.tasks)
    assert sorted(bench.pool.written) == list(range(1, 200))
