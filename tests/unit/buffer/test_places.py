"""Pages that are read again where they lie: what is told to the home, and what never happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from compute.buffer.fetch import RECALLS_PER_TURN, Fetcher, PageMiss
from compute.buffer.frames import FrameCache
from compute.buffer.places import PLACES_MIN, Places
from compute.buffer.waits import resumed
from polarless.errors import CorruptData
from polarless.kernel.page import LEAF, Frame, encode
from polarless.wire.memory import Place

MARK = 100


def place(page_id: int, lsn: int = 10, generation: int = 1) -> Place:
    return Place("mem", 0, page_id, generation, lsn)


class Slots:
    """A pool whose slots are shared memory; asking it for a page is counted and never answered."""

    def __init__(self) -> None:
        self.images: dict[tuple[int, int], bytes] = {}
        self.released: list[int] = []
        self.unregistered: list[int] = []
        self.asked: list[int] = []
        # Which image it answers with; None: with none, for ever.
        self.answer: tuple[int, int] | None = None
        self.told: list[tuple[str, list[int]]] = []

    def put(self, page_id: int, lsn: int = 10, generation: int = 1) -> None:
        rows = dict.fromkeys(range(20), (lsn, b"value", None))
        frame = Frame(page_id, LEAF, 99, lsn=lsn, keys=list(rows), rows=rows)
        self.images[page_id, generation] = encode(frame)

    def locate(self, page_ids: Sequence[int], found: Callable[[int, Place], None]) -> None:
        self.told.append(("locate", list(page_ids)))
        self.found = found

    def is_mapped(self, at: Place) -> bool:
        return True

    def read_now(self, page_id: int, at: Place) -> bytes | None:
        return self.images.get((page_id, at.generation))

    async def read_place(self, page_id: int, at: Place, *, deadline_s: float) -> bytes | None:
        return self.read_now(page_id, at)

    async def register(self, page_id: int, scan: bool = False, *, deadline_s: float) -> Any:
        self.asked.append(page_id)
        if self.answer is None:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        image = self.images[self.answer]  # type: ignore[index]
        return SimpleNamespace(image=image, place=None, mark=0)

    def release(self, page_ids: Sequence[int]) -> None:
        self.released += page_ids
        self.told.append(("release", list(page_ids)))

    def unregister(self, page_ids: Sequence[int]) -> None:
        self.unregistered += page_ids
        self.told.append(("unregister", list(page_ids)))


class Node:
    """A cache with a fetcher over `Slots`."""

    def __init__(self, budget_bytes: int = 1 << 20) -> None:
        self.pool = Slots()
        self.cache = FrameCache(budget_bytes)
        self.cache.evictable_lsn = 1 << 62
        self.tasks: list[asyncio.Task[None]] = []
        self.fetcher = Fetcher(
            self.cache,
            self.pool,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            spawn=self.spawn,
            large_bytes=0,
        )
        self.fetcher.mark = lambda: MARK
        self.places = self.fetcher.places
        self.cache.on_evict = self.places.evicted

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def know(self, *page_ids: int) -> None:
        for page_id in page_ids:
            self.pool.put(page_id)
            self.places.keep(page_id, place(page_id))


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_a_page_is_read_where_it_lies(node: Node) -> None:
    node.know(7)
    frame = node.fetcher.recall(7)
    assert frame is node.cache.frames[7]
    assert frame.lsn == 10
    assert node.fetcher.recall(8) is None
    assert not node.pool.asked


async def test_a_slot_with_another_use_is_asked_for(node: Node) -> None:
    node.know(7)
    del node.pool.images[7, 1]
    node.pool.put(7, generation=2)
    assert node.fetcher.recall(7) is None
    PageMiss(node.fetcher, 7).subscribe(lambda error: None)
    await asyncio.sleep(0)
    assert node.pool.asked == [7]
    assert 7 not in node.places.known


async def test_an_invalidated_page_is_not_read_again(node: Node) -> None:
    node.know(7)
    node.fetcher.invalidated(7)
    assert node.fetcher.recall(7) is None
    node.know(8)
    node.fetcher.restart_all()
    assert node.fetcher.recall(8) is None


async def test_a_fetch_under_way_is_waited_for(node: Node) -> None:
    # It would install its frame over one that a commit has changed meanwhile.
    node.fetcher.start(7)
    node.know(7)
    assert node.fetcher.recall(7) is None


async def test_nothing_beyond_the_mark_is_installed(node: Node) -> None:
    node.pool.put(7, lsn=MARK + 1)
    node.places.keep(7, place(7, lsn=MARK + 1))
    assert node.fetcher.recall(7) is None
    node.pool.answer = (7, 1)
    with pytest.raises(CorruptData, match="beyond this node's mark"):
        await resumed(PageMiss(node.fetcher, 7))
    assert not node.cache.frames


async def test_a_reader_that_holds_its_channel_tries_again(node: Node) -> None:
    node.fetcher.mark = lambda: MARK + (len(node.pool.asked) > 1)
    node.fetcher.hold = node.fetcher.release = lambda: None
    node.pool.put(7, lsn=MARK + 1)
    node.pool.answer = (7, 1)
    await resumed(PageMiss(node.fetcher, 7))
    assert node.pool.asked == [7, 7]
    assert node.cache.frames[7].lsn == MARK + 1


async def test_nothing_leaves_before_the_turn_is_over() -> None:
    node = Node(budget_bytes=1)
    node.know(*range(1, 50))
    frames = [node.fetcher.recall(page_id) for page_id in range(1, 50)]
    assert [frame is not None for frame in frames] == [n < RECALLS_PER_TURN for n in range(49)]
    assert len(node.cache.frames) == RECALLS_PER_TURN
    await asyncio.sleep(0)
    assert len(node.cache.frames) == 0
    assert node.fetcher.recall(40) is not None


async def test_what_leaves_is_told_together(node: Node) -> None:
    node.know(1, 2, 3)
    first, second = node.fetcher.recall(1), node.fetcher.recall(2)
    scanned = node.fetcher.recall(3, scan=True)
    unknown = Frame(4, LEAF, 99, lsn=10)
    newer = Frame(2, LEAF, 99, lsn=20)
    assert first is not None
    assert second is not None
    assert scanned is not None
    for frame in (first, newer, scanned, unknown):
        node.places.evicted(frame)
    assert node.pool.released == node.pool.unregistered == []
    node.places.flush()
    # A scan does not count as a use; the place of an older image is worth nothing.
    assert node.pool.released == [1]
    assert node.pool.unregistered == [2, 4]
    assert sorted(node.places.known) == [1, 3]


async def test_what_is_read_again_has_not_left(node: Node) -> None:
    node.know(1)
    frame = node.fetcher.recall(1)
    assert frame is not None
    node.cache.remove(1)
    node.places.evicted(frame)
    assert node.fetcher.recall(1) is not None
    node.places.flush()
    assert node.pool.released == []


async def test_places_are_bounded(node: Node) -> None:
    places = Places(node.pool, node.cache.frames, 0)  # type: ignore[arg-type]
    node.cache.install(Frame(2, LEAF, 99, lsn=10))
    for page_id in range(1, PLACES_MIN + 4):
        places.keep(page_id, place(page_id))
    assert len(places.known) == PLACES_MIN
    places.flush()
    # What is cached has not left.
    assert node.pool.unregistered == [1, 3]


async def test_places_of_neighbours_are_asked_for_once(node: Node) -> None:
    node.know(3)
    node.cache.install(Frame(4, LEAF, 99, lsn=10))
    near = list(range(1, 21))
    node.places.look_around(near)
    node.places.look_around(near)
    node.places.look_around([30, 31])
    unknown = [page_id for page_id in near if page_id not in (3, 4)]
    assert node.pool.told == [("locate", unknown)]
    node.pool.put(5)
    node.pool.found(5, place(5))
    assert node.fetcher.recall(5) is not None


async def test_what_leaves_is_told_before_its_place_is_asked_for(node: Node) -> None:
    node.places.evicted(Frame(5, LEAF, 99, lsn=10))
    node.places.look_around(range(1, 21))
    assert [what for what, _ in node.pool.told] == ["unregister", "locate"]


async def test_an_answer_that_was_overtaken_by_leaving_is_not_kept(node: Node) -> None:
    node.places.look_around(range(1, 21))
    node.places.evicted(Frame(5, LEAF, 99, lsn=10))
    node.places.flush()
    node.pool.found(5, place(5))
    assert 5 not in node.places.known
