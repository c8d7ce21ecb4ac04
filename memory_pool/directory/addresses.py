"""Where each page's image is: page id -> slot address (the paper's PAT, section 1.2)."""

from __future__ import annotations


class Addresses(dict[int, int]):
    """At most one address a page: that of its newest validated image, possibly stale by now.

    Slots that are only offered are not here: their page is wherever it was before.
    """

    def switch(self, page_id: int, address: int) -> int | None:
        """Point the page to ``address``; the address it had before."""
        old = self.get(page_id)
        self[page_id] = address
        return old
