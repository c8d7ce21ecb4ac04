from __future__ import annotations

from memory_pool.directory.pulls import PULLS_MAX, REFUSALS_MAX, Pulls


def test_pulls_expire_in_their_order() -> None:
    pulls = Pulls(100)
    assert pulls.start(1, 0) is not None
    assert pulls.start(2, 50) is not None
    assert pulls.expired(99) == []
    assert [pull.page_id for pull in pulls.expired(120)] == [1]
    assert pulls.get(1) is None
    assert pulls.get(2) is not None


def test_tickets_differ() -> None:
    pulls = Pulls(100)
    first = pulls.start(1, 0)
    pulls.finish(1)
    second = pulls.start(1, 0)
    assert first is not None
    assert second is not None
    assert first.ticket != second.ticket


def test_too_many_pulls_are_refused() -> None:
    pulls = Pulls(100)
    for page in range(PULLS_MAX):
        assert pulls.start(page, 0) is not None
    assert pulls.start(PULLS_MAX, 0) is None


def test_asking_again_is_bounded() -> None:
    pulls = Pulls(100)
    pulls.start(1, 0)
    assert [pulls.refused(1) for _ in range(REFUSALS_MAX + 1)] == [True] * REFUSALS_MAX + [False]
    assert not pulls.refused(2)


def test_a_lost_reader_waits_for_nothing() -> None:
    pulls = Pulls(100)
    pull = pulls.start(1, 0)
    assert pull is not None
    pull.waiters += [(1, "a"), (2, "b"), (1, "c")]
    pulls.drop_waiter(1)
    assert pull.waiters == [(2, "b")]
    assert pulls.finish_all() == [pull]
    assert len(pulls) == 0
