"""What a reader does with the messages of its channel to the home; and when it must start cold.

The channel is ordered, and every message carries the home's mark. `ReaderEvents` keeps C1: each
frame in the cache is the page exactly as of the mark, because every page that changed up to a mark
is dropped before that mark counts.

    invalidate(lsn, pages)   drop the frames, restart fetches under way, acknowledge
    held                     (see `compute.buffer.fetch`) queue it, acknowledge at the release
    expelled / lost          drop everything; the node joins anew
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from compute.buffer.fetch import Fetcher
from compute.buffer.frames import FrameCache
from polarless.kernel.ids import CATALOG_TREE, Lsn, PageId


class ReaderEvents:
    """Applies invalidations to one node's cache. ``ack(lsn)`` answers one that was held back."""

    def __init__(self, cache: FrameCache, fetcher: Fetcher, *, ack: Callable[[Lsn], None]) -> None:
        self.cache = cache
        self.fetcher = fetcher
        self.mark: Lsn = 0
        # Told when a page of the catalog's tree was dropped.
        self.on_catalog: Callable[[], None] = lambda: None
        self._ack = ack
        self._holds = 0
        self._held: deque[tuple[Lsn, Sequence[PageId], Lsn]] = deque()
        fetcher.hold = self.hold
        fetcher.release = self.release
        fetcher.mark = lambda: self.mark

    def invalidate(self, lsn: Lsn, pages: Sequence[PageId], mark: Lsn) -> bool:
        """Take an invalidation; False if its acknowledgement must wait."""
        if self._holds:
            self._held.append((lsn, pages, mark))
            return False
        self._drop(pages)
        self.mark = max(self.mark, mark)
        return True

    def advance_mark(self, mark: Lsn) -> None:
        """A message brought a mark and no invalidation."""
        if self._holds:
            # It may be ahead of invalidations that are held; it comes again with the release.
            self._held.append((-1, (), mark))
        else:
            self.mark = max(self.mark, mark)

    def hold(self) -> None:
        """Process nothing more until `release`."""
        self._holds += 1

    def release(self) -> None:
        """Process what was held back, in order."""
        self._holds -= 1
        while self._held and not self._holds:
            lsn, pages, mark = self._held.popleft()
            self._drop(pages)
            self.mark = max(self.mark, mark)
            if lsn >= 0:
                self._ack(lsn)

    def drop_all(self) -> None:
        """Start cold: this node was expelled, so what it holds may be old."""
        self._held.clear()
        self.cache.clear()
        self.fetcher.restart_all()
        self.on_catalog()

    def _drop(self, pages: Sequence[PageId]) -> None:
        cache = self.cache
        for page_id in pages:
            self.fetcher.invalidated(page_id)
            frame = cache.remove(page_id)
            if frame is not None:
                cache.stats.invalidated += 1
                if frame.tree_id == CATALOG_TREE:
                    self.on_catalog()
