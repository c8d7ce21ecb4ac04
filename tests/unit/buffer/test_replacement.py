"""SIEVE and the byte budget."""

from __future__ import annotations

import pytest

from compute.buffer.frames import TRIM_FRAMES, FrameCache
from compute.buffer.replacement import Sieve
from polarless.kernel.page import LEAF, Frame


def leaf(page_id: int, *, lsn: int = 0, tree_id: int = 99) -> Frame:
    return Frame(page_id, LEAF, tree_id, lsn=lsn, used_bytes=1000)


@pytest.fixture
def cache() -> FrameCache:
    return FrameCache(5 * 1600)


def test_the_oldest_unvisited_page_leaves_first(cache: FrameCache) -> None:
    for page_id in range(1, 6):
        cache.install(leaf(page_id))
    cache.frames[1].visited = True
    cache.install(leaf(6))
    assert set(cache.frames) == {1, 3, 4, 5, 6}


def test_a_scan_does_not_push_out_what_is_in_use(cache: FrameCache) -> None:
    for page_id in (1, 2):
        cache.install(leaf(page_id))
    for page_id in range(100, 200):
        for hot in (1, 2):
            cache.frames[hot].visited = True
        cache.install(leaf(page_id))
    assert {1, 2} <= set(cache.frames)


def test_frames_that_are_not_advanced_stay_over_budget(cache: FrameCache) -> None:
    cache.evictable_lsn = 10
    for page_id in range(1, 20):
        cache.install(leaf(page_id, lsn=11))
    assert len(cache.frames) == 19
    assert cache.stats.over_budget
    cache.evictable_lsn = 11
    cache.shrink()
    assert cache.used_bytes <= cache.budget_bytes


def test_what_could_not_leave_leaves_when_it_may(cache: FrameCache) -> None:
    cache.evictable_lsn = 10
    for page_id in range(1, 60):
        cache.install(leaf(page_id, lsn=20))
    cache.trim()
    assert len(cache.frames) == 59
    cache.evictable_lsn = 20
    cache.trim()
    # Some at a time: the loop must not stop for all of them.
    assert len(cache.frames) == 59 - TRIM_FRAMES
    cache.trim()
    assert cache.used_bytes <= cache.budget_bytes


def test_the_catalog_and_pinned_pages_never_leave(cache: FrameCache) -> None:
    cache.install(leaf(1, tree_id=1))
    cache.pin(2)
    cache.install(leaf(2))
    for page_id in range(10, 40):
        cache.install(leaf(page_id))
    assert {1, 2} <= set(cache.frames)
    cache.unpin(2)
    for page_id in range(50, 80):
        cache.install(leaf(page_id))
        # The hand passes what was visited, and so comes round.
        cache.frames[page_id].visited = True
    assert 2 not in cache.frames


def test_whoever_leaves_is_handed_over_and_the_books_balance(cache: FrameCache) -> None:
    gone: list[int] = []
    cache.on_evict = lambda frame: gone.append(frame.page_id)
    for page_id in range(1, 30):
        cache.install(leaf(page_id))
    assert sorted(gone + list(cache.frames)) == list(range(1, 30))
    assert cache.used_bytes == sum(frame.weight for frame in cache.frames.values())
    cache.clear()
    assert cache.used_bytes == 0


def test_removing_the_page_under_the_hand_moves_it_on() -> None:
    sieve = Sieve()
    for page_id in range(4):
        sieve.add(page_id)
    assert next(sieve.victims(lambda page_id: page_id == 0)) == 1
    sieve.remove(2)
    assert next(sieve.victims(lambda page_id: False)) == 3
    sieve.remove(3)
    sieve.remove(0)
    sieve.remove(1)
    assert not list(sieve.victims(lambda page_id: False))
