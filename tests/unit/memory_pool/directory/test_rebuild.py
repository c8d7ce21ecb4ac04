from __future__ import annotations

import numpy as np

from memory_pool.directory.rebuild import Rebuild
from memory_pool.slots import SCAN_DTYPE, SlabTable
from polarless.wire.memory import CONFIRM_PAGES


def table(number: int, slots: int, rows: list[tuple[int, int, int, int]]) -> SlabTable:
    made = SlabTable(number, f"mem{number}", 0, slots)
    made.claim(np.array(rows, SCAN_DTYPE))
    return made


def test_one_claim_a_page_and_it_is_the_newest() -> None:
    rebuild = Rebuild(0)
    one = table(0, 4, [(0, 7, 50, 3), (1, 7, 60, 1), (3, 8, 10, 4)])
    two = table(1, 4, [(2, 7, 60, 2), (3, 9, 5, 5)])
    losers = rebuild.collect([one, two])
    # Equal LSNs are equal bytes; the later generation is taken.
    assert sorted(losers) == [one.base + 0, one.base + 1]
    [(ticket, claims)] = rebuild.questions()
    assert claims == [(7, 60, two.base + 2), (8, 10, one.base + 3), (9, 5, two.base + 3)]
    assert not rebuild.confirmed
    verdict = rebuild.verdict(ticket, b"\1\0\1")
    assert verdict == [(claims[0], True), (claims[1], False), (claims[2], True)]
    assert rebuild.confirmed


def test_nothing_to_claim_is_confirmed_at_once() -> None:
    rebuild = Rebuild(0)
    assert rebuild.collect([SlabTable(0, "mem1", 0, 4)]) == []
    assert rebuild.questions() == []
    assert rebuild.confirmed


def test_no_question_is_longer_than_one_step_of_the_writer() -> None:
    rebuild = Rebuild(0)
    count = CONFIRM_PAGES * 2 + 1
    rebuild.collect([table(0, count, [(n, n + 1, 5, n) for n in range(count)])])
    questions = rebuild.questions()
    assert [len(claims) for _, claims in questions] == [CONFIRM_PAGES, CONFIRM_PAGES, 1]
    for ticket, claims in reversed(questions):
        assert not rebuild.confirmed
        rebuild.verdict(ticket, b"\1" * len(claims))
    assert rebuild.confirmed


def test_answer_that_does_not_fit_confirms_nothing() -> None:
    rebuild = Rebuild(0)
    rebuild.collect([table(0, 4, [(0, 7, 50, 3), (1, 8, 60, 1)])])
    [(ticket, _)] = rebuild.questions()
    assert rebuild.verdict(ticket + 1, b"\1\1") is None
    verdict = rebuild.verdict(ticket, b"\1")
    assert verdict is not None
    assert [good for _, good in verdict] == [False, False]
    assert rebuild.verdict(ticket, b"\1\1") is None


def test_header_of_a_slot_that_is_not_there_is_dropped() -> None:
    made = table(0, 2, [(5, 7, 50, 3), (1, 8, 60, 1)])
    assert made.free_slots() == [0]
