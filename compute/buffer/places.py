"""Where pages lie in the pool that this node is a holder of, whether it still has a copy or not.

A page that leaves the cache need not be asked for again: the node tells the home that its copy is
gone (``release``) but goes on being told of changes, and keeps the place. A later miss is one read
of that slot, with no message to anybody. This is what the paper's one-sided reads are for; its home
node still answers a call for each miss.

Why what is read is right: a slot's content never changes under one generation, so the image is the
page as it was when the home named the place. Nothing has changed the page since up to this node's
mark, or an invalidation would have taken the place away before that mark counted (C1). If the slot
was given to another page meanwhile, its generation says so, and the home is asked.
(docs/decisions/0039)

What leaves the cache is told to the home many at a time: it only decides what the home may evict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from compute.pools import MemoryPool
from polarless.kernel.ids import Lsn, PageId
from polarless.kernel.page import Frame
from polarless.wire.memory import Place

# A place takes about 300 bytes. An eighth of the cache's budget may go to them, and at least what
# the places of a pool of 256 MB take: a small cache needs them most.
BYTES_PER_PLACE: Final = 300 * 8
PLACES_MIN: Final = 16_384
# So many pages are told of in one message, at the latest with the next `flush`.
TOLD_TOGETHER: Final = 64
# Places are asked for when at least so many are unknown, and not twice before so many others were.
LOOK_AROUND_MIN: Final = 8
LOOK_AROUND_MAX: Final = 4096


class Places:
    """See the module's docstring. ``frames`` are those of the cache."""

    def __init__(self, pool: MemoryPool, frames: dict[PageId, Frame], budget_bytes: int) -> None:
        self.known: dict[PageId, Place] = {}
        self._pool = pool
        self._frames = frames
        self._limit = max(PLACES_MIN, budget_bytes // BYTES_PER_PLACE)
        # Read unasked by a scan: the home believes them gone, and rightly so.
        self._scanned: set[PageId] = set()
        # Places asked for that have not been found.
        self._asked: set[PageId] = set()
        self._released: dict[PageId, None] = {}
        self._unregistered: dict[PageId, None] = {}

    def keep(self, page_id: PageId, place: Place) -> None:
        """The page lies there, as of this node's mark, and this node is a holder of it."""
        known = self.known
        known.pop(page_id, None)
        known[page_id] = place
        if len(known) > self._limit:
            oldest = next(iter(known))
            del known[oldest]
            if oldest not in self._frames:
                self._leave(oldest)

    def look_around(self, page_ids: Sequence[PageId]) -> None:
        """Ask for the places of pages that may be needed soon, if enough are not known."""
        known, frames, asked = self.known, self._frames, self._asked
        unknown = [
            page_id for page_id in page_ids
            if page_id not in known and page_id not in frames and page_id not in asked
        ]  # fmt: skip
        if len(unknown) < LOOK_AROUND_MIN:
            return
        if len(asked) > LOOK_AROUND_MAX:
            # Those that the pool does not have stay in it: they may come into it.
            asked.clear()
        asked.update(unknown)
        # What has left must be told before, or it would end what is asked for now.
        self.flush()
        self._pool.locate(unknown, self._found)

    def stop_asking(self) -> None:
        """What is answered from now on may be old already."""
        self._asked.clear()

    def _found(self, page_id: PageId, place: Place) -> None:
        if page_id in self._asked:
            self._asked.discard(page_id)
            self.keep(page_id, place)

    def forget(self, page_id: PageId) -> None:
        """The page has changed, or is not there any more."""
        self.known.pop(page_id, None)
        self._scanned.discard(page_id)

    def clear(self) -> None:
        """This node is a holder of nothing."""
        self.known.clear()
        self._scanned.clear()
        self._asked.clear()
        self._released.clear()
        self._unregistered.clear()

    def is_at_hand(self, page_id: PageId) -> bool:
        """Whether `read` is likely to succeed."""
        place = self.known.get(page_id)
        return place is not None and self._pool.is_mapped(place)

    def read(self, page_id: PageId, mark: Lsn, *, scan: bool) -> bytes | None:
        """The page's image if its place is known and can be read at once.

        A place may be ahead of the mark of a node that holds its channel.
        """
        place = self.known.get(page_id)
        if place is None or place.lsn > mark:
            return None
        image = self._pool.read_now(page_id, place)
        if image is None:
            return None
        self._released.pop(page_id, None)
        if scan:
            self._scanned.add(page_id)
        return image

    def asking(self, page_id: PageId) -> None:
        """The home is about to be asked for the page: what it was not told yet is not true now."""
        self.known.pop(page_id, None)
        self._released.pop(page_id, None)
        self._unregistered.pop(page_id, None)

    def evicted(self, frame: Frame) -> None:
        """The copy is gone. The place stays known if it holds the same image."""
        place = self.known.get(frame.page_id)
        if place is not None and place.lsn != frame.lsn:
            self.forget(frame.page_id)
        self.left(frame.page_id)

    def left(self, page_id: PageId) -> None:
        """The copy is gone; if a place is known it has the newest image."""
        if page_id not in self.known:
            self._leave(page_id)
        elif page_id in self._scanned:
            self._scanned.discard(page_id)
        else:
            self._released[page_id] = None
            if len(self._released) >= TOLD_TOGETHER:
                self.flush()

    def _leave(self, page_id: PageId) -> None:
        self._released.pop(page_id, None)
        self._asked.discard(page_id)
        self._unregistered[page_id] = None
        if len(self._unregistered) >= TOLD_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Tell the home what has left the cache."""
        if self._released:
            self._pool.release(list(self._released))
            self._released.clear()
        if self._unregistered:
            self._pool.unregister(list(self._unregistered))
            self._unregistered.clear()
