from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory_pool.directory.staleness import Staleness


def test_an_image_is_newest_as_long_as_nothing_changed_its_page() -> None:
    staleness = Staleness()
    staleness.stale(7, (20, 10))
    assert staleness.is_newest(7, lsn=15, as_of=20, mark=20)
    assert staleness.is_newest(7, lsn=15, as_of=20, mark=99)
    assert staleness.is_newest(8, lsn=5, as_of=5, mark=20)
    assert staleness.is_newest(8, lsn=0, as_of=0, mark=0)


def test_image_from_before_the_change_is_refused() -> None:
    staleness = Staleness()
    staleness.stale(7, (20, 10))
    assert not staleness.is_newest(7, lsn=15, as_of=19, mark=20)


def test_image_that_cannot_have_the_change_is_refused() -> None:
    staleness = Staleness()
    staleness.stale(7, (20, 10))
    assert not staleness.is_newest(7, lsn=10, as_of=20, mark=20)


def test_promise_ahead_of_the_mark_is_refused() -> None:
    assert not Staleness().is_newest(7, lsn=5, as_of=21, mark=20)


def test_image_newer_than_its_promise_is_refused() -> None:
    assert not Staleness().is_newest(7, lsn=6, as_of=5, mark=20)


def test_image_from_before_the_floor_is_refused() -> None:
    staleness = Staleness()
    staleness.raise_floor(30)
    staleness.raise_floor(20)
    assert staleness.floor == 30
    assert not staleness.is_newest(7, lsn=5, as_of=29, mark=40)
    assert staleness.is_newest(7, lsn=5, as_of=30, mark=40)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=80), st.integers(1, 5))
def test_forgetting_only_makes_it_stricter(changes: list[tuple[int, int]], pages_max: int) -> None:
    exact, small = Staleness(), Staleness(pages_max=pages_max)
    mark = 0
    for page, step in changes:
        change = (mark + step, -1)
        mark += step
        exact.stale(page, change)
        small.stale(page, change)
        for p in range(10):
            assert small.since(p) >= exact.since(p)
            for as_of in range(max(0, mark - 6), mark + 2):
                if small.is_newest(p, lsn=as_of, as_of=as_of, mark=mark):
                    assert exact.is_newest(p, lsn=as_of, as_of=as_of, mark=mark)
