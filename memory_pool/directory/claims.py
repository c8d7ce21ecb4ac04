"""Pages that a new home found in slots, and that nobody has vouched for yet.

A slot's header claims: page p at LSN l. Storage knows which LSN the page has as of the home's mark;
if that is l, the slot holds the page. (No image leaves a compute node before it is durable, C3, so
equal page and LSN are equal bytes.) The home asks through the writer while it serves already::

      oldest generation                                       newest generation
    |   evicted   |          not asked yet          |   asked    |    judged    |
    +-------------+---------------------------------+------------+--------------+
                first ->                         <- last     <- asked_end

Newest first, so that what was written last, and is likely to be read next, counts soonest. When
room is wanted, the oldest goes. One question is out at a time. If no answer comes, or the writer is
lost, the question is put back, and an answer that still comes is not listened to.

A claim may be over before its verdict: its slot was emptied, or its node is gone. The slot's state
says so, not this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from memory_pool.slots import CLAIMED, SlabTable
from polarless.wire.memory import CONFIRM_PAGES

Claim = tuple[int, int, int]  # page id, LSN, address

_NONE: Final[npt.NDArray[np.uint64]] = np.zeros(0, np.uint64)


class Claims:
    """One claim a page, oldest generation first. ``len``: those that still wait for a verdict."""

    def __init__(self) -> None:
        # How many there were at first; and whether they have been looked for.
        self.found = 0
        self.collected = False
        self._page = self._lsn = self._address = _NONE
        self._first = self._last = self._asked_end = 0
        self._ticket = 0
        self._as_of = 0
        self._deadline_us = 0

    def __len__(self) -> int:
        return self._asked_end - self._first

    def collect(self, tables: Iterable[SlabTable]) -> list[int]:
        """Choose one claim a page from all slots; the addresses of those that are not chosen."""
        self.collected = True
        columns = []
        for table in tables:
            slots = np.nonzero(table.state == CLAIMED)[0]
            address = slots.astype(np.uint64) + np.uint64(table.base)
            columns.append((table.page[slots], table.lsn[slots], table.generation[slots], address))
        if not columns:
            return []
        page, lsn, generation, address = (np.concatenate(column) for column in zip(*columns))
        # All are at most what is durable, so only the highest LSN can be the newest. Equal ones are
        # equal bytes; the highest generation is one choice like any other.
        order = np.lexsort((generation, lsn, page))
        last = np.ones(len(order), np.bool_)
        last[:-1] = page[order[:-1]] != page[order[1:]]
        losers: list[int] = address[order[~last]].tolist()
        chosen = order[last]
        chosen = chosen[np.argsort(generation[chosen], kind="stable")]
        self._page, self._lsn, self._address = page[chosen], lsn[chosen], address[chosen]
        self.found = len(chosen)
        self._first, self._last, self._asked_end = 0, self.found, self.found
        return losers

    def ask(self, *, as_of: int, deadline_us: int) -> tuple[int, list[Claim]] | None:
        """The next question, (ticket, claims); None if one is out, or there is nothing to ask."""
        if self._last != self._asked_end or self._first == self._last:
            return None
        self._last = max(self._first, self._last - CONFIRM_PAGES)
        self._ticket += 1
        self._as_of = as_of
        self._deadline_us = deadline_us
        return self._ticket, self._asked()

    def verdict(self, ticket: int, verdicts: bytes) -> tuple[int, list[tuple[Claim, bool]]] | None:
        """The LSN as of which was asked, and each claim with what was said of it.

        None if that is not the question that is out. An answer that does not fit confirms nothing.
        """
        if ticket != self._ticket or self._last == self._asked_end:
            return None
        claims = self._asked()
        self._asked_end = self._last
        if len(verdicts) != len(claims):
            verdicts = bytes(len(claims))
        return self._as_of, [(claim, good != 0) for claim, good in zip(claims, verdicts)]

    def _asked(self) -> list[Claim]:
        part = slice(self._last, self._asked_end)
        columns = self._page[part], self._lsn[part], self._address[part]
        return list(zip(*(column.tolist() for column in columns)))

    def put_back(self) -> None:
        """Whoever was asked is gone: ask again."""
        self._last = self._asked_end

    def expire(self, now_us: int) -> None:
        """Put back a question that was not answered in time."""
        if self._last != self._asked_end and now_us >= self._deadline_us:
            self.put_back()

    def pop_oldest(self) -> int | None:
        """The address of the oldest claim that nobody was asked about, taken out."""
        if self._first == self._last:
            return None
        self._first += 1
        return self._address.item(self._first - 1)

    def addresses(self) -> list[int]:
        """Of all that wait for a verdict; for tests."""
        found: list[int] = self._address[self._first : self._asked_end].tolist()
        return found
