"""Slots as the home sees them: one table of arrays a slab, and the generations of their uses.

An address is one int, ``table number << 32 | slot``. A slot's life::

    FREE --offer--> OFFERED --validate--> VALID --advance--> STALE
      ^                |                    |                  |
      +--- refused, ---+------ evicted -----+---- evicted, ----+
           dropped, lost                          replaced

After a home loss a slot found with an image is CLAIMED until storage has judged it, VALID or FREE;
or until its room is wanted.

Every OFFERED slot has a generation of its own, which a memory node compares with the one in the
slot's header: a WRITE that was delayed until the slot was given away again does nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from polarless.wire.memory import GENERATION_BITS

FREE: Final = 0
OFFERED: Final = 1
VALID: Final = 2
STALE: Final = 3
CLAIMED: Final = 4
STATE_NAMES: Final = {
    FREE: "free",
    OFFERED: "offered",
    VALID: "valid",
    STALE: "stale",
    CLAIMED: "claimed",
}

TABLE_SHIFT: Final = 32
SLOT_MASK: Final = (1 << TABLE_SHIFT) - 1

# What a memory node tells of the slots that hold an image; see `memory_pool.slab_node`.
SCAN_DTYPE: Final = np.dtype(
    [("slot", "<u8"), ("page_id", "<u8"), ("lsn", "<u8"), ("generation", "<u8")]
)

Scan = npt.NDArray[np.void]


class Generations:
    """Numbers that never repeat, also not across homes. Raises OverflowError after 2^40 of them."""

    def __init__(self, home_epoch: int) -> None:
        self._next = home_epoch << GENERATION_BITS
        self._end = (home_epoch + 1) << GENERATION_BITS

    def take(self) -> int:
        """The next generation."""
        self._next += 1
        if self._next >= self._end:
            raise OverflowError("a home has handed out all of its generations")
        return self._next


class SlabTable:
    """The slots of one slab, in columns; ``owner`` is the connection that was offered the slot.

    Slots from ``limit`` on are not lent: they are never offered, and what they hold is on its way
    out.
    """

    __slots__ = (
        "_fresh", "_released", "generation", "limit", "lsn", "node", "number", "owner", "page",
        "slab", "slot_count", "state",
    )  # fmt: skip

    def __init__(self, number: int, node: str, slab: int, slot_count: int) -> None:
        self.number = number
        self.node = node
        self.slab = slab
        self.slot_count = slot_count
        self.state = np.zeros(slot_count, np.uint8)
        self.page = np.zeros(slot_count, np.uint64)
        self.lsn = np.zeros(slot_count, np.uint64)
        self.generation = np.zeros(slot_count, np.uint64)
        self.owner = np.zeros(slot_count, np.int64)
        self.limit = slot_count
        # Low slots first, so that a small working set touches little memory: those that were in
        # use and are free again, then those from ``_fresh`` on, which are free up to the limit.
        self._released: list[int] = []
        self._fresh = 0

    @property
    def base(self) -> int:
        """The address of slot 0."""
        return self.number << TABLE_SHIFT

    def claim(self, scan: Scan) -> None:
        """Take over what a memory node found in the slots' headers. Unlikely rows are dropped."""
        scan = scan[scan["slot"] < self.slot_count]
        slots = scan["slot"].astype(np.int64)
        self.state[slots] = CLAIMED
        self.page[slots] = scan["page_id"]
        self.lsn[slots] = scan["lsn"]
        self.generation[slots] = scan["generation"]
        self._list_free()

    def lend(self, limit: int) -> None:
        """Lend the first ``limit`` slots and no others."""
        self.limit = min(limit, self.slot_count)
        self._list_free()

    def leftovers(self, count: int) -> list[int]:
        """At most ``count`` slots that are not lent and not free yet, the last ones first."""
        found = np.nonzero(self.state[self.limit :] != FREE)[0][-count:][::-1]
        return [int(slot) + self.limit for slot in found]

    def _list_free(self) -> None:
        used = np.nonzero(self.state)[0]
        self._fresh = min(self.limit, int(used[-1]) + 1) if len(used) else 0
        self._released = np.nonzero(self.state[: self._fresh] == FREE)[0][::-1].tolist()

    @property
    def free_count(self) -> int:
        """How many slots can be had."""
        return len(self._released) + self.limit - self._fresh

    def free_slots(self) -> list[int]:
        """All of them, ascending; to look at."""
        return sorted([*self._released, *range(self._fresh, self.limit)])

    def take(self) -> int:
        """A free slot. The caller gives it a state at once, and knows that there is one."""
        if self._released:
            return self._released.pop()
        slot = self._fresh
        assert slot < self.limit, f"{self.node}/{self.slab}: no slot is free"
        self._fresh = slot + 1
        return slot

    def offer(self, slot: int, page_id: int, lsn: int, generation: int, owner: int) -> None:
        """A free slot is given to ``owner`` to write ``page_id`` into."""
        self.state[slot] = OFFERED
        self.page[slot] = page_id
        self.lsn[slot] = lsn
        self.generation[slot] = generation
        self.owner[slot] = owner

    def release(self, slot: int) -> None:
        """The slot is free; its bytes and its header's generation stay as they are."""
        assert self.state[slot] != FREE, f"{self.node}/{self.slab}: slot {slot} is freed twice"
        self.state[slot] = FREE
        if slot < self.limit:
            self._released.append(slot)

    def count(self, state: int) -> int:
        """How many slots are in ``state``."""
        return int(np.count_nonzero(self.state == state))
