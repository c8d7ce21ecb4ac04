"""When each page was last made stale (the LSN that goes with the paper's PIB bit, section 1.2).

An image of page ``p`` that is the newest *as of* LSN ``a`` is still the newest at the home's mark
``m`` exactly if ``a <= m`` and no advance in ``(a, m]`` named ``p``: the rule of `validate`.

A second look costs nothing: the advance to ``l`` that named ``p`` last came after one to ``k``, so
``p`` changed in ``(k, l]``, and an image of it with an LSN up to ``k`` is old whatever its sender
says. That catches a writer that forgot that a commit has overtaken its write-back. (A writer's
first advance repeats what may have been announced before: there ``k`` is -1.)

Only recent advances are remembered page by page. What is older is one number, the floor: every page
counts as made stale there. Raising it only refuses images that took that long on their way. After
a home loss the floor is the rebuilt mark.
"""

from __future__ import annotations

from typing import Final

# About 10 MB, and seconds of changes at full speed: promises are milliseconds old.
PAGES_MAX: Final = 1 << 16

# (LSN of an advance, LSN of the advance before it or -1): one tuple for all pages of the advance.
Change = tuple[int, int]
_NEVER: Final[Change] = (0, -1)


class Staleness:
    """Two generations of page -> change; the older one is dropped when the newer one is full."""

    def __init__(self, *, pages_max: int = PAGES_MAX) -> None:
        self.floor = 0
        self._pages_max = pages_max
        self._recent: dict[int, Change] = {}
        self._older: dict[int, Change] = {}
        # No entry of `_older` has an LSN above this one.
        self._older_lsn = 0

    def stale(self, page_id: int, change: Change) -> None:
        """An advance changed the page. LSNs never go back."""
        recent = self._recent
        recent[page_id] = change
        if len(recent) > self._pages_max:
            self.floor = max(self.floor, self._older_lsn)
            self._older, self._recent = recent, {}
            self._older_lsn = change[0]

    def since(self, page_id: int) -> int:
        """The LSN that made the page's earlier images stale, or an upper bound of it."""
        return max(self._change(page_id)[0], self.floor)

    def raise_floor(self, lsn: int) -> None:
        """Every page counts as made stale at ``lsn``."""
        self.floor = max(self.floor, lsn)

    def is_newest(self, page_id: int, *, lsn: int, as_of: int, mark: int) -> bool:
        """Whether the image with ``lsn``, the newest as of ``as_of``, is still so at ``mark``."""
        stale_lsn, before = self._change(page_id)
        return before < lsn <= as_of <= mark and stale_lsn <= as_of and self.floor <= as_of

    def _change(self, page_id: int) -> Change:
        found = self._recent.get(page_id)
        return self._older.get(page_id, _NEVER) if found is None else found
