"""Who holds a copy of which page (the paper's PRD, section 1.2, and the refcounts of its PAT).

A member is a small number, its place among the admission words. Per page the holders are one int
used as a bit set, and per member its pages are a set, so that a node that is lost leaves nothing
behind (C7) without a walk over all pages.
"""

from __future__ import annotations

from collections.abc import Iterable


class References:
    """The two views of one relation; they always agree."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._pages: dict[int, set[int]] = {}

    def holders(self, page_id: int) -> int:
        """The members that hold the page, as bits; 0 if nobody does."""
        return self._holders.get(page_id, 0)

    def pages(self, member: int) -> frozenset[int]:
        """What a member holds."""
        return frozenset(self._pages.get(member, ()))

    def page_count(self, member: int) -> int:
        """How many pages a member holds."""
        return len(self._pages.get(member, ()))

    def add(self, page_id: int, member: int) -> None:
        """The member holds the page, or is about to read it."""
        self._holders[page_id] = self._holders.get(page_id, 0) | 1 << member
        pages = self._pages.get(member)
        if pages is None:
            pages = self._pages[member] = set()
        pages.add(page_id)

    def remove(self, page_id: int, member: int) -> bool:
        """The member let the page go; whether it was the last holder."""
        mask = self._holders.get(page_id, 0)
        bit = 1 << member
        if not mask & bit:
            return False
        self._pages[member].discard(page_id)
        if mask == bit:
            del self._holders[page_id]
            return True
        self._holders[page_id] = mask ^ bit
        return False

    def drop(self, member: int) -> list[int]:
        """The member is gone; the pages that nobody holds any more."""
        orphans = []
        bit = 1 << member
        for page_id in self._pages.pop(member, ()):
            mask = self._holders[page_id] ^ bit
            if mask:
                self._holders[page_id] = mask
            else:
                del self._holders[page_id]
                orphans.append(page_id)
        return orphans

    def check(self) -> None:
        """Both views agree; for tests."""
        seen: dict[int, int] = {}
        for member, pages in self._pages.items():
            for page_id in pages:
                seen[page_id] = seen.get(page_id, 0) | 1 << member
        assert seen == self._holders, (seen, self._holders)

    def members(self) -> Iterable[int]:
        """Members that hold something; for tests."""
        return [member for member, pages in self._pages.items() if pages]
