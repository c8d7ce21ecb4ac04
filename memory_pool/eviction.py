"""Which slot goes next, and what is not let in at all.

1. A stale slot: nobody will ever read it.
2. A slot that a new home found full and knows nothing of yet; see `memory_pool.tables`.
3. The least recently used valid slot that no node holds a copy of. (A page that a node has cached
   is likely to be asked for by another; and dropping it would free nothing in that node.)

A slot may be dropped even if it is the newest copy, since storage can rebuild it. So eviction is
one step without I/O.

Pages of large scans stay out: they are not admitted, and registering a page for a scan leaves its
place in the order as it was, so a scan neither pushes out nor promotes anything.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

# Pages that were evicted and are remembered by their number only: a gigabyte of them.
GHOSTS_MAX: Final = 65_536


class Ghosts:
    """Pages that were in the pool. A miss of one of them would be a hit in a larger pool."""

    def __init__(self) -> None:
        self._pages: OrderedDict[int, None] = OrderedDict()

    def add(self, page_id: int) -> None:
        """The page is in no slot any more, for want of room."""
        self._pages[page_id] = None
        if len(self._pages) > GHOSTS_MAX:
            self._pages.popitem(last=False)

    def take(self, page_id: int) -> bool:
        """Whether the page was there; asked once."""
        return self._pages.pop(page_id, 0) is None


class Eviction:
    """Addresses that may be evicted, oldest first."""

    def __init__(self) -> None:
        self._stale: OrderedDict[int, None] = OrderedDict()
        self._unreferenced: OrderedDict[int, None] = OrderedDict()

    def admits(self, *, scan: bool) -> bool:
        """Whether a page may be offered."""
        return not scan

    def referenced(self, address: int) -> None:
        """A node holds a copy: the slot stays."""
        self._unreferenced.pop(address, None)

    def unreferenced(self, address: int) -> None:
        """The last holder has let go; counts as a use, unless a scan left the slot in its place."""
        self._unreferenced.setdefault(address)

    def used(self, address: int) -> None:
        """A node that is not known to hold a copy has read it."""
        if address in self._unreferenced:
            self._unreferenced.move_to_end(address)

    def oldest(self, address: int) -> None:
        """If the slot may be evicted at all: before all others."""
        if address in self._unreferenced:
            self._unreferenced.move_to_end(address, last=False)

    @property
    def stale_count(self) -> int:
        """How many stale slots there are."""
        return len(self._stale)

    def stale(self, address: int) -> None:
        """The slot's image is old."""
        self._unreferenced.pop(address, None)
        self._stale[address] = None

    def forget(self, address: int) -> None:
        """The slot was freed or detached."""
        self._unreferenced.pop(address, None)
        self._stale.pop(address, None)

    def pick(self) -> int | None:
        """The address to free next, taken out of the order; None if everything is in use."""
        if self._stale:
            return self._stale.popitem(last=False)[0]
        if self._unreferenced:
            return self._unreferenced.popitem(last=False)[0]
        return None

    def __contains__(self, address: int) -> bool:
        return address in self._unreferenced or address in self._stale
