from __future__ import annotations

import pytest

from memory_pool.capacity import Capacity
from memory_pool.eviction import Eviction
from memory_pool.slots import FREE, OFFERED, Generations, SlabTable
from polarless.wire.memory import GENERATION_BITS


def test_generations_of_a_later_home_are_higher() -> None:
    first, second = Generations(1), Generations(2)
    taken = [first.take() for _ in range(1000)]
    assert taken == sorted(set(taken))
    assert second.take() > taken[-1]


def test_generations_never_run_into_the_next_home() -> None:
    generations = Generations(1)
    generations._next = (2 << GENERATION_BITS) - 2
    generations.take()
    with pytest.raises(OverflowError):
        generations.take()


def test_a_released_slot_is_offered_again() -> None:
    table = SlabTable(0, "mem1", 0, 2)
    slot = table.take()
    assert slot == 0
    table.offer(slot, 7, 10, 99, 1)
    assert table.count(OFFERED) == 1
    table.release(slot)
    assert table.count(FREE) == 2
    assert [table.take(), table.take()] == [0, 1]
    assert table.free_count == 0


def test_slots_come_from_the_emptiest_slab() -> None:
    capacity = Capacity()
    small = capacity.attach("mem1", 0, 1)
    large = capacity.attach("mem2", 0, 3)
    taken = [capacity.allocate() for _ in range(5)]
    assert taken == [large.base, large.base + 1, small.base, large.base + 2, None]
    assert capacity.find("mem2", 0, 2) == large.base + 2
    assert capacity.find("mem2", 0, 3) is None
    assert capacity.find("mem2", 0, -1) is None
    assert capacity.find("mem3", 0, 0) is None
    assert capacity.nodes() == ["mem1", "mem2"]


def test_addresses_of_a_detached_slab_stay_dead() -> None:
    capacity = Capacity()
    old = capacity.attach("mem1", 0, 2)
    assert capacity.detach("mem1") == [old]
    new = capacity.attach("mem1", 0, 2)
    assert not capacity.has(old.base)
    assert capacity.has(new.base)
    assert capacity.find("mem1", 0, 0) == new.base


def test_stale_slots_are_evicted_first_then_the_least_recently_used() -> None:
    eviction = Eviction()
    for address in (1, 2, 3):
        eviction.unreferenced(address)
    eviction.stale(4)
    eviction.referenced(1)
    eviction.unreferenced(1)
    assert [eviction.pick() for _ in range(5)] == [4, 2, 3, 1, None]


def test_a_scan_leaves_a_slot_in_its_place() -> None:
    eviction = Eviction()
    eviction.unreferenced(1)
    eviction.unreferenced(2)
    eviction.unreferenced(1)  # let go by a scan, which had not taken it out
    assert eviction.pick() == 1
    assert not eviction.admits(scan=True)
    assert eviction.admits(scan=False)
