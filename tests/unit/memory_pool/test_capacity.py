"""Slabs that lend more and fewer slots while pages are in them."""

from __future__ import annotations

import numpy as np

from memory_pool.directory.claims import Claim
from memory_pool.directory.members import Members
from memory_pool.slots import FREE, SCAN_DTYPE
from memory_pool.tables import LEFTOVERS_MAX, PageTables


def tables(slots: int = 8, slabs: int = 2) -> tuple[PageTables, Members]:
    made, members = PageTables(1), Members()
    for slab in range(slabs):
        made.attach("mem1", slab, slots // slabs, None)
    members.admit(1, "c1", 7)
    return made, members


def fill(made: PageTables, members: Members, count: int, *, held: bool = False) -> None:
    member = members.get(1)
    assert member is not None
    for page_id in range(1, count + 1):
        if held:
            made.register(page_id, member.place, scan=False)
        offer = made.offer(page_id, 5, member, scan=False, now_us=0)
        assert offer is not None
        table, slot, _ = offer
        assert made.validate(member, table.base + slot, lsn=5, as_of=5, mark=5)


def test_fewer_slots_are_lent_over_all_slabs_and_the_rest_is_emptied() -> None:
    made, members = tables()
    fill(made, members, 8, held=True)
    made.capacity.lend("mem1", 5)
    assert made.capacity.lent("mem1") == 5
    assert made.empty_leftovers() == ["mem1"]
    assert made.empty_leftovers() == []
    made.check()
    assert len(made.addresses) == 5
    assert made.stats.dropped == 3
    assert [table.limit for table in made.capacity] == [4, 1]


def test_emptying_goes_in_small_steps_from_the_end() -> None:
    made, members = tables(slots=LEFTOVERS_MAX + 10, slabs=1)
    fill(made, members, LEFTOVERS_MAX + 10)
    made.capacity.lend("mem1", 4)
    assert made.empty_leftovers() == []
    assert len(made.addresses) == 10
    made.check()
    assert made.empty_leftovers() == ["mem1"]
    assert len(made.addresses) == 4
    made.check()


def test_a_slot_that_is_being_written_is_waited_for() -> None:
    made, members = tables()
    member = members.get(1)
    assert member is not None
    offers = [made.offer(page_id, 5, member, scan=False, now_us=0) for page_id in range(1, 9)]
    made.capacity.lend("mem1", 0)
    assert made.empty_leftovers() == []
    for offer in offers:
        assert offer is not None
        made.validate(member, offer[0].base + offer[1], lsn=5, as_of=5, mark=5)
    assert made.empty_leftovers() == ["mem1"]
    assert not made.addresses
    assert all(table.count(FREE) == table.slot_count for table in made.capacity)
    assert made.offer(1, 6, member, scan=False, now_us=0) is None


def test_more_slots_are_used_at_once() -> None:
    made, members = tables()
    made.capacity.lend("mem1", 2)
    fill(made, members, 2, held=True)
    member = members.get(1)
    assert member is not None
    assert made.offer(9, 5, member, scan=False, now_us=0) is None
    made.capacity.lend("mem1", 3)
    assert made.offer(9, 5, member, scan=False, now_us=0) is not None
    made.check()


def test_a_detached_node_shrinks_no_more() -> None:
    made, members = tables()
    fill(made, members, 8)
    made.capacity.lend("mem1", 1)
    made.detach("mem1", members)
    assert made.empty_leftovers() == []
    made.check()


def test_a_miss_of_an_evicted_page_is_a_ghost_hit_once() -> None:
    made, members = tables(slots=2, slabs=1)
    member = members.get(1)
    assert member is not None
    fill(made, members, 3)
    assert made.stats.evictions == 1
    for _ in range(2):
        assert made.register(1, member.place, scan=False) is None
    assert made.register(99, member.place, scan=False) is None
    assert made.stats.ghost_hits == 1
    made.check()


def claim(made: PageTables, slots: int) -> list[Claim]:
    """A new home finds page n + 1 at LSN 5 in slot n of a new node, and is about to ask."""
    rows = [(slot, slot + 1, 5, slot + 1) for slot in range(slots)]
    made.attach("mem2", 0, slots, np.array(rows, SCAN_DTYPE))
    assert made.claims.collect(made.capacity) == []
    question = made.claims.ask(as_of=9, deadline_us=0)
    assert question is not None
    return question[1]


def test_slots_that_were_found_are_not_waited_for() -> None:
    made = PageTables(1)
    claims = claim(made, 8)
    made.capacity.lend("mem2", 5)
    assert made.empty_leftovers() == ["mem2"]
    # The verdict on what is gone comes too late.
    for one in claims:
        made.adopt(one, True, as_of=9, mark=9)
    assert made.claims.verdict(1, b"") is not None
    assert sorted(made.addresses) == [1, 2, 3, 4, 5]
    made.check()


def test_verdict_on_a_slot_that_was_given_away_meanwhile_is_for_nobody() -> None:
    made, members = tables(slots=0)
    (first, _) = claim(made, 2)
    made.claims.put_back()
    member = members.get(1)
    assert member is not None
    # The oldest claim's slot gets page 9.
    offer = made.offer(9, 5, member, scan=False, now_us=0)
    assert offer is not None
    assert offer[0].base + offer[1] == first[2]
    made.adopt(first, True, as_of=9, mark=9)
    assert made.validate(member, first[2], lsn=5, as_of=9, mark=9)
    made.adopt(first, True, as_of=9, mark=9)
    assert dict(made.addresses) == {9: first[2]}
    made.check()


def test_verdict_on_slots_of_a_node_that_is_gone_is_for_nobody() -> None:
    made = PageTables(1)
    claims = claim(made, 2)
    made.detach("mem2", [])
    for one in claims:
        made.adopt(one, True, as_of=9, mark=9)
    assert not made.addresses


def test_page_that_changed_after_the_question_is_not_kept() -> None:
    made = PageTables(1)
    first, second = claim(made, 2)
    made.make_stale(1, (12, 9))
    made.adopt(first, True, as_of=9, mark=12)
    made.adopt(second, True, as_of=9, mark=12)
    assert list(made.addresses) == [2]
    assert made.stats.adopted == 1
