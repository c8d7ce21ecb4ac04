from __future__ import annotations

import pytest

from memory_pool.directory.members import SNAPSHOTS_MAX, Members, merge_reports, report
from polarless.wire.memory import MEMBERS_MAX


def test_places_are_given_out_low_first_and_again() -> None:
    members = Members()
    first, second = members.admit(1, "a", 11), members.admit(2, "b", 12)
    assert first is not None
    assert second is not None
    assert (first.place, second.place) == (0, 1)
    assert members.get(1) is first
    assert members.at(1) is second
    assert members.named("b") is second
    members.remove(first)
    assert members.get(1) is None
    assert members.named("a") is None
    third = members.admit(3, "c", 13)
    assert third is not None
    assert third.place == 0
    assert sorted(member.name for member in members) == ["b", "c"]


def test_one_more_than_there_are_words_is_refused() -> None:
    members = Members()
    for number in range(MEMBERS_MAX):
        assert members.admit(number, f"n{number}", 1) is not None
    assert members.admit(MEMBERS_MAX, "late", 1) is None
    assert len(members) == MEMBERS_MAX


def test_acknowledgements_are_exact() -> None:
    members = Members()
    member = members.admit(1, "a", 11)
    assert member is not None
    member.unacknowledged.extend([(10, 0), (20, 0), (20, 1)])
    assert members.oldest_unacknowledged() == 10
    assert member.acknowledge(20)
    assert not member.acknowledge(15)
    assert members.oldest_unacknowledged() == 10
    assert member.acknowledge(10)
    # The other invalidation at 20 is still due.
    assert members.oldest_unacknowledged() == 20
    assert member.acknowledge(20)
    assert not member.acknowledge(20)
    assert members.oldest_unacknowledged() is None


def test_reports_are_merged_below_the_lowest_floor() -> None:
    assert merge_reports([]) == []
    assert merge_reports([(5,)]) == [5]
    assert merge_reports([(3, 5, 9), (4, 7)]) == [3, 4, 5, 7]
    assert merge_reports([(0,), (4, 7)]) == [0]


def test_reports_are_bounded() -> None:
    assert report([3, 5]) == (3, 5)
    assert report(list(range(SNAPSHOTS_MAX + 1))) == (0,)


@pytest.mark.parametrize("snapshots", [[], [2, 1]])
def test_malformed_report_is_refused(snapshots: list[int]) -> None:
    with pytest.raises(ValueError):
        report(snapshots)
