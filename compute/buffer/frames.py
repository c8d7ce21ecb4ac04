"""The local page cache: decoded frames within a byte budget.

``frames`` is a plain dict from page id to `Frame`; hot code looks pages up in it directly and sets
``frame.visited``. Everything else goes through the methods.

* A frame may leave only when its LSN is at most ``evictable_lsn``, the last position whose
  `advance` was answered: before that neither the pool nor storage may be asked for it (C3, and the
  pool would not yet know that its copy is old).
* Frames of the catalog's tree never leave by eviction: as long as a node plans with a catalog it is
  a holder of that catalog's pages, and so learns of every change to them.
* A frame that is newer than the pool's copy (``dirty``) is handed to ``on_evict`` as it leaves.
* The budget counts decoded size, an estimate: `weigh`.
"""

from __future__ import annotations

from collections.abc import Callable

from compute.buffer.replacement import Sieve
from polarless.kernel.ids import FIRST_FREE_TREE, Lsn, PageId
from polarless.kernel.page import LEAF, Frame
from polarless.kernel.stats import Stats

# A decoded row: two dict slots and a list slot (~110), key (32), tuple (64), bytes object (33).
_ROW_BYTES = 235
_BRANCH_BYTES = 80
_FRAME_BYTES = 600
# Frames that leave in one `trim`: two milliseconds, as most of them are written back.
TRIM_FRAMES = 32


def weigh(frame: Frame) -> int:
    """About how many bytes the decoded frame takes."""
    per_key = _ROW_BYTES if frame.kind == LEAF else _BRANCH_BYTES
    return _FRAME_BYTES + frame.used_bytes + per_key * len(frame.keys)


class CacheStats(Stats):
    """What the cache did since the start."""

    __slots__ = ("evicted", "installed", "invalidated", "over_budget")
    evicted: int
    installed: int
    invalidated: int
    over_budget: int


class FrameCache:
    """Frames by page id; see the module's docstring."""

    def __init__(self, budget_bytes: int) -> None:
        self.frames: dict[PageId, Frame] = {}
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.evictable_lsn: Lsn = 0
        # Page id -> how many commits need it to stay until they are done.
        self.pinned: dict[PageId, int] = {}
        self.stats = CacheStats()
        # Told of every frame that leaves by eviction.
        self.on_evict: Callable[[Frame], None] = lambda frame: None
        self._sieve = Sieve()
        # After a pass that found nothing to evict: do not look again below this many bytes.
        self._retry_bytes = 0
        self._fruitless_lsn: Lsn = -1

    def pin(self, page_id: PageId) -> None:
        """The page stays in the cache, or comes into it and stays, until it is unpinned."""
        self.pinned[page_id] = self.pinned.get(page_id, 0) + 1

    def unpin(self, page_id: PageId) -> None:
        """Undo one `pin`."""
        count = self.pinned[page_id] - 1
        if count:
            self.pinned[page_id] = count
        else:
            del self.pinned[page_id]

    def install(self, frame: Frame, *, shrink: bool = True) -> None:
        """Put a frame in, in the place of an older one of the same page.

        Without ``shrink`` nothing leaves for it: call `shrink_if_over` soon.
        """
        page_id = frame.page_id
        old = self.frames.get(page_id)
        if old is not None:
            self.used_bytes -= old.weight
        else:
            self._sieve.add(page_id)
        frame.weight = weigh(frame)
        self.used_bytes += frame.weight
        self.frames[page_id] = frame
        self.stats.installed += 1
        if shrink:
            self.shrink_if_over(page_id)

    def shrink_if_over(self, keep: PageId | None = None) -> None:
        """Evict what is over the budget, unless it is known that nothing can go."""
        if self.used_bytes > self.budget_bytes and self.used_bytes > self._retry_bytes:
            self.shrink(keep)

    def reweigh(self, frame: Frame) -> None:
        """A frame's content changed by a good deal (a split, a merge)."""
        self.used_bytes -= frame.weight
        frame.weight = weigh(frame)
        self.used_bytes += frame.weight

    def remove(self, page_id: PageId) -> Frame | None:
        """Take a frame out without asking (an invalidation, a freed page)."""
        frame = self.frames.pop(page_id, None)
        if frame is not None:
            self.used_bytes -= frame.weight
            self._sieve.remove(page_id)
        return frame

    def clear(self) -> None:
        """Drop everything: this node was expelled or starts cold."""
        for page_id in list(self.frames):
            self.remove(page_id)

    def trim(self) -> None:
        """Evict some of what could not leave when room was wanted; called now and then."""
        if self.used_bytes > self.budget_bytes and self.evictable_lsn != self._fruitless_lsn:
            self.shrink(limit=TRIM_FRAMES)

    def shrink(self, keep: PageId | None = None, *, limit: int = 1 << 62) -> None:
        """Evict until the budget holds, or nothing more may leave, at most ``limit`` frames."""
        frames = self.frames

        def spare(page_id: PageId) -> bool:
            frame = frames[page_id]
            if frame.visited:
                frame.visited = False
                return True
            return (
                page_id == keep
                or frame.lsn > self.evictable_lsn
                or frame.tree_id < FIRST_FREE_TREE
                or page_id in self.pinned
            )

        for page_id in self._sieve.victims(spare):
            victim = self.remove(page_id)
            assert victim is not None
            self.stats.evicted += 1
            self.on_evict(victim)
            limit -= 1
            if not limit or self.used_bytes <= self.budget_bytes:
                self._retry_bytes = 0
                return
        self._retry_bytes = self.used_bytes + self.budget_bytes // 64
        self._fruitless_lsn = self.evictable_lsn
        self.stats.over_budget += 1
