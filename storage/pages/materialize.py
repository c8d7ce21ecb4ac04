"""A stored page and its pending records make the page as of a mark.

The answer is exact or it is not given:

* The stored image has the folded state. If its LSN is above the mark asked for, the page as of that
  mark is gone: "newer".
* Otherwise the image is also the page as of its own LSN and all later ones up to the first pending
  record, and the pending records up to the mark are applied to it.
* No image and no record: the page does not exist as of the folded LSN or later. As of an earlier
  mark it may have existed and been freed since: "newer", unless the first pending record creates it
  (ids are never used twice, so it cannot have existed before).

Images that took work are kept in a cache of bounded size, least recently used out first. A cached
image is a better start than the stored one for any mark at or above its LSN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polarless.errors import CorruptData
from polarless.kernel import page, redo
from polarless.kernel.apply import apply
from polarless.kernel.stats import Stats
from polarless.wire.storage import ABSENT, NEWER, PAGE
from storage.pages.folded import decode_folded
from storage.pages.pending import Entry, Pending
from storage.pages.store import PageStore

Answer = tuple[Any, ...]


class ReadStats(Stats):
    """How pages were read."""

    __slots__ = ("absent", "cache_hits", "materialized", "newer", "pages_read", "stored")
    absent: int
    cache_hits: int
    materialized: int
    newer: int
    pages_read: int
    stored: int


def build(page_id: int, base: bytes | None, entries: Sequence[Entry], as_of: int) -> bytes | None:
    """Apply the records up to ``as_of`` that ``base`` does not have; None if the page is gone.

    Raises `CorruptData` if base and records do not fit.
    """
    frame = None if base is None else page.decode(base, page_id)
    # Several records of one group have one LSN: what the base has is decided once, before them.
    floor = -1 if frame is None else frame.lsn
    changed = False
    for (lsn, cts, horizon), record in entries:
        if lsn > as_of:
            break
        if lsn > floor:
            frame = apply(frame, record, lsn=lsn, cts=cts, horizon=horizon)
            changed = True
    if not changed:
        return base
    return None if frame is None else page.encode(frame)


class Pages:
    """Reads pages as of any mark that is still of use. Used in the loop only."""

    def __init__(self, store: PageStore, pending: Pending, *, cache_bytes_max: int) -> None:
        self.store = store
        self.pending = pending
        self.stats = ReadStats()
        self.cache_bytes = 0
        self._cache_bytes_max = cache_bytes_max
        # page id -> (LSN, image), least recently used first.
        self._cache: dict[int, tuple[int, bytes]] = {}

    def read(self, page_id: int, as_of: int) -> Answer:
        """("page", image), ("newer", lsn) or ("absent",). ``as_of`` must be ingested.

        Raises `CorruptData`, naming page and LSN.
        """
        stats = self.stats
        stats.pages_read += 1
        entries = self.pending.entries(page_id)
        base: bytes | None = None
        lsn = -1
        if entries:
            cached = self._cache.get(page_id)
            # Records that are stored already, and not dropped yet, are not among the entries: an
            # image from before them must not be built upon.
            if cached is not None and self.pending.passed_over(page_id) <= cached[0] <= as_of:
                lsn, base = cached
                stats.cache_hits += 1
        if base is None:
            base = self.store.read(page_id)
            if base is None:
                return self._without_base(page_id, entries, as_of)
            lsn = page.verify(base, page_id)
            if lsn > as_of:
                stats.newer += 1
                return (NEWER, lsn)
        if not entries or entries[0][0][0] > as_of:
            stats.stored += 1
            return (PAGE, base)
        return self._built(page_id, base, entries, as_of)

    def lsns(self, page_ids: Sequence[int], as_of: int) -> list[int]:
        """The LSN that each page has as of ``as_of``, which must be ingested.

        0 where there is no such page then, or where storage has folded beyond it. No image is
        built or checked: an LSN says which image is the newest, not that it is whole.
        """
        lsns = []
        heads = self.store.heads(page_ids, page.HEADER_BYTES)
        for page_id, head in zip(page_ids, heads):
            lsn = 0 if head is None else int(page.HEADER.unpack(head)[5])
            if lsn > as_of:
                lsns.append(0)
                continue
            for origin, record in self.pending.entries(page_id):
                if origin[0] > as_of:
                    break
                # The store may have a fold already whose report is on its way to the loop.
                if origin[0] >= lsn:
                    lsn = 0 if record[0] == redo.FREE else origin[0]
            lsns.append(lsn)
        return lsns

    def forget(self, page_id: int, dropped_lsn: int) -> None:
        """Records up to ``dropped_lsn`` were dropped: an older image leads nowhere any more."""
        cached = self._cache.get(page_id)
        if cached is not None and (cached[0] < dropped_lsn or page_id not in self.pending.pages):
            del self._cache[page_id]
            self.cache_bytes -= len(cached[1])

    def _without_base(self, page_id: int, entries: Sequence[Entry], as_of: int) -> Answer:
        folded = self.pending.folded
        if entries:
            # The store may have committed a fold whose report is still on its way to the loop, and
            # with it removed this page. Then some of these records are folded, too.
            folded = max(folded, decode_folded(self.store.read_state(), None).lsn)
            entries = [entry for entry in entries if entry[0][0] > folded]
            if entries and entries[0][1][0] != redo.FORMAT:
                raise CorruptData(
                    f"page {page_id}: a record of LSN {entries[0][0][0]} changes it, but it is not "
                    f"among the pages folded to {folded}"
                )
        if entries:
            if entries[0][0][0] <= as_of:
                return self._built(page_id, None, entries, as_of)
        elif as_of < folded:
            self.stats.newer += 1
            return (NEWER, folded)
        self.stats.absent += 1
        return (ABSENT,)

    def _built(
        self, page_id: int, base: bytes | None, entries: Sequence[Entry], as_of: int
    ) -> Answer:
        image = build(page_id, base, entries, as_of)
        if image is None:
            self.stats.absent += 1
            return (ABSENT,)
        if image is not base:
            self.stats.materialized += 1
        self._keep(page_id, image)
        return (PAGE, image)

    def _keep(self, page_id: int, image: bytes) -> None:
        """Put an image at the cache's young end, unless a newer one is there."""
        lsn = page.HEADER.unpack_from(image)[5]
        cache = self._cache
        old = cache.pop(page_id, None)
        if old is not None:
            if old[0] > lsn:
                cache[page_id] = old
                return
            self.cache_bytes -= len(old[1])
        cache[page_id] = (lsn, image)
        self.cache_bytes += len(image)
        while self.cache_bytes > self._cache_bytes_max and cache:
            oldest = next(iter(cache))
            self.cache_bytes -= len(cache.pop(oldest)[1])
