"""When each page was last made stale (the LSN that goes with the paper's PIB bit, section 1.2).

An image of page ``p`` that is the newest *as of* LSN ``a`` is still the newest at the home's mark
``m`` exactly if ``a <= m`` and no advance in ``(a, m]`` named ``p``: the rule of `validate`.

Only recent advances are remembered page by page. What is older is one number, the floor: every page
counts as made stale there. Raising it only refuses images that took that long on their way. After
a home loss the floor is the rebuilt mark.
"""

from __future__ import annotations

from typing import Final

PAGES_MAX: Final = 1 << 18


class Staleness:
    """Two generations of page -> LSN; the older one is dropped when the newer one is full."""

    def __init__(self, *, pages_max: int = PAGES_MAX) -> None:
        self.floor = 0
        self._pages_max = pages_max
        self._recent: dict[int, int] = {}
        self._older: dict[int, int] = {}
        # No entry of `_older` has an LSN above this one.
        self._older_lsn = 0

    def stale(self, page_id: int, lsn: int) -> None:
        """An advance at ``lsn`` changed the page. LSNs never go back."""
        recent = self._recent
        recent[page_id] = lsn
        if len(recent) > self._pages_max:
            self.floor = max(self.floor, self._older_lsn)
            self._older, self._recent = recent, {}
            self._older_lsn = lsn

    def since(self, page_id: int) -> int:
        """The LSN that made the page's earlier images stale, or an upper bound of it."""
        found = self._recent.get(page_id)
        if found is None:
            found = self._older.get(page_id, 0)
        return max(found, self.floor)

    def raise_floor(self, lsn: int) -> None:
        """Every page counts as made stale at ``lsn``."""
        self.floor = max(self.floor, lsn)

    def is_newest(self, page_id: int, *, as_of: int, mark: int) -> bool:
        """Whether the newest image as of ``as_of`` is still the newest as of ``mark``."""
        return as_of <= mark and self.since(page_id) <= as_of
