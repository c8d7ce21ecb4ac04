from __future__ import annotations

import numpy as np

from memory_pool.directory.claims import Claims
from memory_pool.slots import SCAN_DTYPE, SlabTable
from polarless.wire.memory import CONFIRM_PAGES


def table(number: int, slots: int, rows: list[tuple[int, int, int, int]]) -> SlabTable:
    made = SlabTable(number, f"mem{number}", 0, slots)
    made.claim(np.array(rows, SCAN_DTYPE))
    return made


def many(count: int) -> Claims:
    """Page n + 1 in slot n, with a higher generation the higher the page."""
    claims = Claims()
    claims.collect([table(0, count, [(n, n + 1, 5, n) for n in range(count)])])
    return claims


def test_one_claim_a_page_and_it_is_the_newest() -> None:
    claims = Claims()
    one = table(0, 4, [(0, 7, 50, 3), (1, 7, 60, 1), (3, 8, 10, 4)])
    two = table(1, 4, [(2, 7, 60, 2), (3, 9, 5, 5)])
    losers = claims.collect([one, two])
    # Equal LSNs are equal bytes; the later generation is taken.
    assert sorted(losers) == [one.base + 0, one.base + 1]
    assert claims.found == len(claims) == 3
    question = claims.ask(as_of=70, deadline_us=100)
    assert question is not None
    ticket, asked = question
    assert asked == [(7, 60, two.base + 2), (8, 10, one.base + 3), (9, 5, two.base + 3)]
    verdict = claims.verdict(ticket, b"\1\0\1")
    assert verdict == (70, [(asked[0], True), (asked[1], False), (asked[2], True)])
    assert not claims


def test_nothing_found_is_nothing_to_ask() -> None:
    claims = Claims()
    assert claims.collect([SlabTable(0, "mem1", 0, 4)]) == []
    assert claims.ask(as_of=70, deadline_us=100) is None
    assert claims.pop_oldest() is None
    assert not claims


def test_one_question_at_a_time_and_the_newest_generations_first() -> None:
    claims = many(CONFIRM_PAGES * 2 + 1)
    pages: list[int] = []
    sizes = []
    while (question := claims.ask(as_of=70, deadline_us=100)) is not None:
        assert claims.ask(as_of=70, deadline_us=100) is None
        ticket, asked = question
        sizes.append(len(asked))
        pages[:0] = [page for page, _, _ in asked]
        assert claims.verdict(ticket, b"\1" * len(asked)) is not None
    assert sizes == [CONFIRM_PAGES, CONFIRM_PAGES, 1]
    assert pages == list(range(1, CONFIRM_PAGES * 2 + 2))
    assert not claims


def test_answer_that_does_not_fit_confirms_nothing() -> None:
    claims = many(2)
    question = claims.ask(as_of=70, deadline_us=100)
    assert question is not None
    ticket, _ = question
    assert claims.verdict(ticket + 1, b"\1\1") is None
    verdict = claims.verdict(ticket, b"\1")
    assert verdict is not None
    assert [good for _, good in verdict[1]] == [False, False]
    assert claims.verdict(ticket, b"\1\1") is None


def test_question_that_is_put_back_is_asked_again_under_another_number() -> None:
    claims = many(3)
    first = claims.ask(as_of=70, deadline_us=100)
    assert first is not None
    claims.put_back()
    # Nobody waits for it any more.
    assert claims.verdict(first[0], b"\1\1\1") is None
    again = claims.ask(as_of=80, deadline_us=100)
    assert again is not None
    assert again[1] == first[1]
    assert claims.verdict(first[0], b"\1\1\1") is None
    verdict = claims.verdict(again[0], b"\1\1\1")
    assert verdict is not None
    assert verdict[0] == 80


def test_question_without_an_answer_is_asked_again_after_a_while() -> None:
    claims = many(3)
    assert claims.ask(as_of=70, deadline_us=100) is not None
    claims.expire(99)
    assert claims.ask(as_of=70, deadline_us=200) is None
    claims.expire(100)
    assert claims.ask(as_of=70, deadline_us=200) is not None


def test_oldest_goes_first_and_nothing_that_is_being_asked() -> None:
    count = CONFIRM_PAGES + 2
    claims = many(count)
    assert claims.pop_oldest() == 0
    question = claims.ask(as_of=70, deadline_us=100)
    assert question is not None
    assert claims.pop_oldest() == 1
    assert claims.pop_oldest() is None
    assert claims.addresses() == list(range(2, count))
    claims.put_back()
    assert claims.pop_oldest() == 2


def test_header_of_a_slot_that_is_not_there_is_dropped() -> None:
    made = table(0, 2, [(5, 7, 50, 3), (1, 8, 60, 1)])
    assert made.free_slots() == [0]
