"""Under POLARLESS_VERIFY=1 a node compares its cached pages with the log's truth, all the time.

C1 says that every page in a reader's cache is exactly that page as of the reader's mark; on the
writer the same holds for each frame that has not changed since the last answered advance. Storage
can say what a page was as of a mark: it builds it from the log, independently of the pool and of
everything this node was told. So each step takes the next frames in turn, remembers their bytes and
the mark *at one moment*, asks storage, and compares. A difference is `CorruptData`, which ends the
process: it is a bug of the coherence protocol, never of the world.

Off by default: a step costs a round trip and two encodings a page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from compute.buffer.frames import FrameCache
from compute.pools import LogStore
from polarless.errors import CorruptData, Retry
from polarless.kernel.ids import Lsn, PageId
from polarless.kernel.page import encode

PAGES_PER_STEP: Final = 4
DEADLINE_S: Final = 5.0


class CacheAuditor:
    """Walks round the cache; ``checked`` counts comparisons that were made."""

    def __init__(self, cache: FrameCache, store: LogStore, mark: Callable[[], Lsn]) -> None:
        self.checked = 0
        self._cache = cache
        self._store = store
        self._mark = mark
        self._round: list[PageId] = []

    async def step(self) -> None:
        """Compare the next few frames. Raises `CorruptData` naming the page."""
        for _ in range(PAGES_PER_STEP):
            if not self._round:
                self._round = list(self._cache.frames)
                if not self._round:
                    return
            await self._compare(self._round.pop())

    async def _compare(self, page_id: PageId) -> None:
        frame = self._cache.frames.get(page_id)
        mark = self._mark()
        if frame is None or frame.lsn > mark or frame.lsn == 0:
            # Gone, or the writer has changed it since: its truth is still on the way.
            return
        mine, lsn = encode(frame), frame.lsn
        try:
            truth = await self._store.read_page(page_id, mark, deadline_s=DEADLINE_S)
        except Retry:
            return
        if truth is not None and not isinstance(truth, (bytes, memoryview)):
            # Storage has folded beyond that mark; it cannot say any more.
            return
        self.checked += 1
        if truth is None or bytes(truth) != mine:
            raise CorruptData(
                f"C1: page {page_id} in the cache (LSN {lsn}) is not the page as of mark {mark}"
                + (" (storage has none)" if truth is None else "")
            )
