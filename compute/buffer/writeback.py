"""The writer gives pages to the pool: on eviction, when a reader pulls one, and in the background.

An image goes out in three steps: the page is encoded, the image is written to a slot that nobody
reads yet, and `validate` promises that it is the newest version *as of* the last advance sent when
the promise is sent. Between encoding and promise a commit may change the page: ``overtaken`` notes
where the first such commit ends, and the promise is made only if that commit's advance has not been
sent. If it has, the image is thrown away (`pool.write_back` gets a position that the home refuses).

Nothing leaves before its LSN is durable (C3): a pulled page that is not waits in ``pulls`` for it.
The background pass keeps the pool near the cache, so that after a crash most of the working set is
in the pool and valid. It is limited to `PAGES_PER_TICK` pages a tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from compute.buffer.frames import FrameCache
from compute.buffer.places import Places
from compute.pools import MemoryPool
from polarless.errors import PolarlessError
from polarless.kernel.ids import Lsn, PageId
from polarless.kernel.page import Frame, encode
from polarless.kernel.stats import Stats

log = logging.getLogger(__name__)

# While commits come in, and while none do: about 150 us of both processes' time a page.
PAGES_PER_TICK: Final = 8
PAGES_PER_IDLE_TICK: Final = 32
TICK_S: Final = 0.02
# Images that are on their way at once: 16 KiB each.
IN_FLIGHT_MAX: Final = 256
# A position that no home accepts: the image was overtaken.
NEVER: Final = (1 << 62) - 1


class WritebackStats(Stats):
    """Images by the reason they were written, and what became of them."""

    __slots__ = ("accepted", "background", "dropped", "evicted", "overtaken", "pulled", "refused")
    accepted: int
    background: int
    dropped: int
    evicted: int
    overtaken: int
    pulled: int
    refused: int


class Writeback:
    """See the module's docstring. ``sent_lsn`` and ``durable_lsn`` come from the log writer."""

    def __init__(
        self,
        cache: FrameCache,
        pool: MemoryPool,
        *,
        places: Places,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        advance_sent: Callable[[], Lsn],
        durable: Callable[[], Lsn],
    ) -> None:
        self.cache = cache
        self.pool = pool
        self.places = places
        self.stats = WritebackStats()
        self._spawn = spawn
        self._advance_sent = advance_sent
        self._durable = durable
        # Pages under way -> the end of the first commit that changed them since they were encoded.
        self.overtaken: dict[PageId, Lsn | None] = {}
        # Pages to be written in the background, oldest change first.
        self.dirty: dict[PageId, None] = {}
        # Pulled pages whose newest commit is not durable yet.
        self.pulls: dict[PageId, None] = {}
        self._applied = False

    def applied(self, pages: Sequence[PageId], end_lsn: Lsn) -> None:
        """A group changed these pages. On the commit path: nearly always two dict stores a page."""
        self._applied = True
        overtaken = self.overtaken
        dirty = self.dirty
        for page_id in pages:
            if overtaken and page_id in overtaken and overtaken[page_id] is None:
                overtaken[page_id] = end_lsn
            dirty[page_id] = None

    def evicted(self, frame: Frame) -> None:
        """A frame leaves the cache; its image goes to the pool if that has an older one."""
        if frame.dirty:
            self.stats.evicted += 1
            self.places.forget(frame.page_id)
            self._write(frame)
        else:
            self.places.evicted(frame)

    def pull(self, page_id: PageId) -> bool:
        """A reader needs the page. False if it is not in the cache: storage has it."""
        frame = self.cache.frames.get(page_id)
        if frame is None:
            return page_id in self.overtaken
        self.stats.pulled += 1
        if frame.lsn > self._durable():
            self.pulls[page_id] = None
        else:
            self._write(frame)
        return True

    def durable(self) -> None:
        """The log got further: pulled pages may go out."""
        if not self.pulls:
            return
        durable = self._durable()
        for page_id in list(self.pulls):
            frame = self.cache.frames.get(page_id)
            if frame is not None and frame.lsn > durable:
                continue
            del self.pulls[page_id]
            if frame is not None:
                self._write(frame)

    def tick(self) -> None:
        """One background pass."""
        budget = PAGES_PER_TICK if self._applied else PAGES_PER_IDLE_TICK
        self._applied = False
        durable = self._durable()
        skipped: list[PageId] = []
        frames = self.cache.frames
        while self.dirty and budget and len(self.overtaken) < IN_FLIGHT_MAX:
            page_id = next(iter(self.dirty))
            del self.dirty[page_id]
            frame = frames.get(page_id)
            if frame is None or not frame.dirty:
                continue
            budget -= 1
            if frame.lsn > durable or page_id in self.overtaken:
                skipped.append(page_id)
                continue
            self.stats.background += 1
            self._write(frame)
        for page_id in skipped:
            self.dirty[page_id] = None

    def _write(self, frame: Frame) -> None:
        page_id = frame.page_id
        # C3. A slot found after a crash counts if its LSN is what storage has: it must never hold
        # what a crash could take back.
        assert frame.lsn <= self._durable(), (frame, self._durable())
        if page_id in self.overtaken:
            return
        if len(self.overtaken) >= IN_FLIGHT_MAX:
            # The pool is a cache: storage has this page.
            self.stats.dropped += 1
            return
        self.overtaken[page_id] = None
        self._spawn(self._write_image(page_id, encode(frame), frame.lsn))

    async def _write_image(self, page_id: PageId, image: bytes, lsn: Lsn) -> None:
        def as_of() -> Lsn:
            sent = self._advance_sent()
            changed = self.overtaken.get(page_id)
            if changed is not None and changed <= sent:
                self.stats.overtaken += 1
                return NEVER
            return sent

        place = None
        try:
            place = await self.pool.write_back(page_id, image, lsn, as_of)
        except PolarlessError as error:
            log.debug("page %s was not written back: %s", page_id, error)
        finally:
            changed = self.overtaken.pop(page_id, None)
        frame = self.cache.frames.get(page_id)
        if place is not None:
            self.stats.accepted += 1
            if changed is None:
                self.places.keep(page_id, place)
            if frame is not None and frame.lsn == lsn:
                frame.dirty = False
        else:
            self.stats.refused += 1
        if frame is None:
            self.places.left(page_id)
        elif changed is not None:
            self.dirty[page_id] = None
