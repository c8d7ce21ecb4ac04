"""Bringing a missing page into the cache, and large values.

A statement that needs page p first tries `Fetcher.recall`: if this node still knows where the page
lies in the pool (`compute.buffer.places`) and the slot's memory is shared, the page is there at
once. Else it raises `PageMiss`. One `Fetch` per page serves everybody who waits.

1. ``pool.register(p)`` makes this node a holder *first*, then reads the pool's copy.
2. If the pool has none: storage, as of this node's mark; then the image is offered to the pool.
3. The frame is installed, and whoever waited runs again from the start.

An invalidation that names p while this is under way makes it start again (`Fetch.restart`), so what
is installed is the page as of the mark (C1). On a page that is written all the time that might
never end. So after `RESTARTS_BEFORE_HOLD` restarts the reader registers once more and then *holds*
its channel: invalidations queue up unacknowledged, its mark stands still, the page is read as of
that mark, installed, the waiting statements run, and then the channel goes on. The writer waits for
that acknowledgement as it would for any other, so progress is certain and bounded by the time-out
after which a silent reader is expelled (docs/decisions/0003).

Large values lie on overflow pages, which never change once written and whose ids are never used
again. So a copy is valid for ever: they are read from storage directly, need no holder entry, and
are kept whole in `LargeValues`, not as frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from compute.buffer.frames import FrameCache
from compute.buffer.places import Places
from compute.buffer.waits import Suspend, Waiters, WaitFor, resumed
from compute.pools import LogStore, MemoryPool
from polarless.errors import ConnectionLost, CorruptData, PolarlessError, Retry
from polarless.kernel.ids import Lsn, PageId
from polarless.kernel.page import Frame, decode, decode_verified, verify
from polarless.kernel.stats import Stats

log = logging.getLogger(__name__)

RESTARTS_BEFORE_HOLD: Final = 3
FETCH_DEADLINE_S: Final = 10.0
MEMBER_DEADLINE_S: Final = 15.0
IN_FLIGHT_MAX: Final = 64
PREFETCH_PAGES: Final = 16
# Pages under way per this many bytes of cache budget: a decoded leaf has about 40 KiB.
PREFETCH_SHARE_BYTES: Final = 8 * 40 * 1024
OVERFLOW_CHUNK: Final = 32
# Pages that are read within one turn of the loop: about two milliseconds of it.
RECALLS_PER_TURN: Final = 32


class FetchStats(Stats):
    """Where pages came from."""

    __slots__ = (
        "holds", "pool_hits", "pool_misses", "prefetched", "recalled", "restarts", "storage_reads",
    )  # fmt: skip
    holds: int
    pool_hits: int
    pool_misses: int
    prefetched: int
    recalled: int
    restarts: int
    storage_reads: int


class Fetch:
    """One page under way."""

    __slots__ = ("page_id", "restart", "scan", "waiters")

    def __init__(self, page_id: PageId, scan: bool) -> None:
        self.page_id = page_id
        self.scan = scan
        self.restart = False
        self.waiters = Waiters()


class PageMiss(Suspend):
    """A page is not in the cache. Subscribing starts the fetch.

    ``also`` are fetched too; of those ``near`` only the places are asked for.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        page_id: PageId,
        *,
        scan: bool = False,
        also: Sequence[PageId] = (),
        near: Sequence[PageId] = (),
    ) -> None:
        super().__init__(page_id)
        self.fetcher = fetcher
        self.page_id = page_id
        self.scan = scan
        self.also = also
        self.near = near
        self._wait: WaitFor | None = None

    @property
    def reason(self) -> str:  # type: ignore[override]
        """Shown beside the session."""
        return f"page {self.page_id}"

    def subscribe(self, resume: Callable[[PolarlessError | None], None]) -> None:
        fetch = self.fetcher.start(self.page_id, scan=self.scan)
        self._wait = WaitFor(fetch.waiters, self.reason)
        self._wait.subscribe(resume)
        if self.also:
            self.fetcher.prefetch(self.also, scan=self.scan)
        if self.near:
            self.fetcher.places.look_around(self.near)

    def cancel(self) -> None:
        if self._wait is not None:
            self._wait.cancel()


class LargeValues:
    """Large values, whole, by their first overflow page; least recently used leave first.

    A value that this writer wrote and that is not durable yet is pinned: storage cannot give it.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._values: dict[PageId, tuple[bytes, Lsn]] = {}
        self.durable_lsn: Lsn = 0

    def get(self, first_page: PageId) -> bytes | None:
        """The value, or None."""
        entry = self._values.pop(first_page, None)
        if entry is None:
            return None
        self._values[first_page] = entry
        return entry[0]

    def put(self, first_page: PageId, value: bytes, lsn: Lsn = 0) -> None:
        """Keep a value; ``lsn`` is its group's end if it was written here."""
        old = self._values.pop(first_page, None)
        if old is not None:
            self.used_bytes -= len(old[0])
        self._values[first_page] = (value, lsn)
        self.used_bytes += len(value)
        if self.used_bytes > self.budget_bytes:
            for page_id in list(self._values)[:-1]:
                if self._values[page_id][1] <= self.durable_lsn:
                    self.used_bytes -= len(self._values.pop(page_id)[0])
                    if self.used_bytes <= self.budget_bytes:
                        break


class Fetcher:
    """All fetches of a node.

    ``mark()`` is the position that pages are read as of. ``hold`` and ``release`` are set on a
    reader only: the writer is not invalidated by anybody.
    """

    def __init__(
        self,
        cache: FrameCache,
        pool: MemoryPool,
        store: LogStore,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        large_bytes: int,
        prefetch: bool = True,
    ) -> None:
        self.cache = cache
        self.pool = pool
        self.store = store
        self.stats = FetchStats()
        self.values = LargeValues(large_bytes)
        self.places = Places(pool, cache.frames, cache.budget_bytes)
        self.in_flight: dict[PageId, Fetch] = {}
        self.mark: Callable[[], Lsn] = lambda: pool.mark
        self.hold: Callable[[], None] | None = None
        self.release: Callable[[], None] | None = None
        self._spawn = spawn
        # Off only where somebody measures what it is worth.
        self._prefetches = prefetch
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        # Pages that may still be recalled in this turn of the loop.
        self._recalls_left = RECALLS_PER_TURN
        self._values_in_flight: dict[PageId, Waiters] = {}
        # Woken when this node is a member of the pool again.
        self.member = Waiters()
        self._absent: dict[PageId, int] = {}

    def recall(self, page_id: PageId, *, scan: bool = False) -> Frame | None:
        """The page's frame if it can be read in this very call, now in the cache; else None.

        Nothing leaves the cache before the loop's turn is over: the caller may have other frames.
        """
        left = self._recalls_left
        if not left or page_id in self.in_flight:
            return None
        image = self.places.read(page_id, self.mark(), scan=scan)
        if image is None:
            return None
        if left == RECALLS_PER_TURN:
            asyncio.get_running_loop().call_soon(self._turn_over)
        self._recalls_left = left - 1
        self.stats.pool_hits += 1
        self.stats.recalled += 1
        frame = self._current(decode_verified(image, page_id))
        self.cache.install(frame, shrink=False)
        return frame

    def _turn_over(self) -> None:
        self._recalls_left = RECALLS_PER_TURN
        self.cache.shrink_if_over()

    def start(self, page_id: PageId, *, scan: bool = False) -> Fetch:
        """The fetch of this page; begins it if there is none."""
        fetch = self.in_flight.get(page_id)
        if fetch is None:
            fetch = self.in_flight[page_id] = Fetch(page_id, scan)
            self._spawn(self._run(fetch))
        return fetch

    def prefetch(self, page_ids: Iterable[PageId], *, scan: bool = False) -> None:
        """Begin fetches that nobody waits for yet."""
        if not self._prefetches:
            return
        frames = self.cache.frames
        # A small cache must not lose to pages that may be needed the one that is.
        budget = min(IN_FLIGHT_MAX, self.cache.budget_bytes // PREFETCH_SHARE_BYTES)
        for page_id in page_ids:
            if (
                page_id not in frames
                and page_id not in self.in_flight
                and not self.places.is_at_hand(page_id)
            ):
                if len(self.in_flight) >= budget:
                    return
                self.stats.prefetched += 1
                self.start(page_id, scan=scan)

    def restart_all(self) -> None:
        """The channel ended: what is under way, or was kept, is unknown to the next home."""
        self.places.clear()
        for fetch in self.in_flight.values():
            fetch.restart = True

    def invalidated(self, page_id: PageId) -> None:
        """The page changed: a fetch under way must start again, and it lies somewhere else."""
        self.places.forget(page_id)
        fetch = self.in_flight.get(page_id)
        if fetch is not None:
            fetch.restart = True

    async def _run(self, fetch: Fetch) -> None:
        page_id = fetch.page_id
        error: PolarlessError | None = None
        try:
            async with self._slots:
                await self._fetch(fetch)
        except PolarlessError as caught:
            error = caught
        except asyncio.CancelledError:
            error = Retry(f"page {page_id}: the node is stopping")
            raise
        finally:
            if self.in_flight.get(page_id) is fetch:
                del self.in_flight[page_id]
            fetch.waiters.wake(error)

    async def _fetch(self, fetch: Fetch) -> None:
        attempts = 0
        while True:
            fetch.restart = False
            hold = attempts >= RESTARTS_BEFORE_HOLD and self.hold is not None
            try:
                if await self._once(fetch, hold=hold):
                    return
            except ConnectionLost as error:
                # The home is gone or this node was expelled: it joins again by itself.
                await self._member_again(error)
                continue
            attempts += 1
            self.stats.restarts += 1

    async def _member_again(self, error: PolarlessError) -> None:
        wait = WaitFor(self.member, "membership in the pool")
        try:
            await asyncio.wait_for(resumed(wait), MEMBER_DEADLINE_S)
        except TimeoutError:
            raise Retry(
                f"this node is not a member of the pool: {error}",
                hint="The memory pool is being rebuilt or out of reach; try again.",
            ) from None

    async def _once(self, fetch: Fetch, *, hold: bool) -> bool:
        """One try; False if an invalidation overtook it. With ``hold`` none can, once the home has
        answered: from there to the end the channel stands still."""
        page_id, places = fetch.page_id, self.places
        known = places.known.get(page_id)
        if known is not None and known.lsn <= self.mark():
            image = await self.pool.read_place(page_id, known, deadline_s=FETCH_DEADLINE_S)
            if fetch.restart:
                return False
            if image is not None:
                return await self._complete(fetch, image, hold=False)
        places.asking(page_id)
        found = await self.pool.register(page_id, fetch.scan, deadline_s=FETCH_DEADLINE_S)
        if fetch.restart:
            return False
        if found.place is not None:
            places.keep(page_id, found.place)
        if self.hold is not None and found.mark > self.mark():
            # Another fetch holds the channel. Nobody tells this node of what has changed before it
            # asked: the page as of its mark would stay when the channel goes on (C1).
            return False
        if not hold:
            return await self._complete(fetch, found.image, hold=False)
        assert self.hold is not None
        assert self.release is not None
        self.stats.holds += 1
        release = self.release
        self.hold()
        try:
            done = await self._complete(fetch, found.image, hold=True)
            if done:
                fetch.waiters.wake(None)
        finally:
            release()
        return done

    async def _complete(self, fetch: Fetch, image: bytes | None, *, hold: bool) -> bool:
        """Decode and install the pool's image, or storage's as of the mark."""
        page_id = fetch.page_id
        if image is not None:
            self.stats.pool_hits += 1
            frame = decode_verified(image, page_id)
        else:
            self.stats.pool_misses += 1
            as_of = self.mark()
            image = await self._from_storage(page_id, as_of, refresh=not hold)
            if fetch.restart or image == b"":
                return False
            if image is None:
                # The branch page that named it was invalidated meanwhile, or something is broken:
                # the statement runs again, and meets this page again only if the tree still has it.
                self._missing(page_id)
                return True
            if not hold and not fetch.scan:
                self._spawn(self._offer(page_id, image, as_of))
            frame = decode(image, page_id)
        if frame.lsn > self.mark() and self.hold is not None and not hold:
            # Another fetch holds the channel: the mark comes when that is over.
            return False
        self._current(frame)
        self._absent.pop(page_id, None)
        # Somebody waits for it: it must still be here when they run, whatever else arrives.
        frame.visited = bool(fetch.waiters.callbacks)
        self.cache.install(frame)
        return True

    def _current(self, frame: Frame) -> Frame:
        """C1 and C3: nothing newer than what this node's channel has announced is installed."""
        if frame.lsn > self.mark():
            raise CorruptData(
                f"page {frame.page_id} has LSN {frame.lsn}, beyond this node's mark {self.mark()}"
            )
        return frame

    async def _from_storage(self, page_id: PageId, as_of: Lsn, *, refresh: bool) -> bytes | None:
        """The page as of a mark; empty if storage left it behind and it may not be refreshed."""
        for _ in range(8):
            self.stats.storage_reads += 1
            answer = await self.store.read_page(page_id, as_of, deadline_s=FETCH_DEADLINE_S)
            if answer is None:
                return None
            if isinstance(answer, (bytes, memoryview)):
                return bytes(answer)
            if not refresh:
                return b""
            as_of = max(await self.pool.refresh_mark(), self.mark())
        raise Retry(f"page {page_id}: storage is ahead of this node's mark {as_of}")

    async def _offer(self, page_id: PageId, image: bytes, as_of: Lsn) -> None:
        try:
            lsn = verify(image, page_id)
            place = await self.pool.write_back(page_id, image, lsn, lambda: as_of)
        except PolarlessError as error:
            # The pool is a cache: a lost offer costs a read of storage later, nothing else.
            log.debug("page %s was not offered to the pool: %s", page_id, error)
            return
        frame = self.cache.frames.get(page_id)
        # The frame is the page as of the mark: so is an image with its LSN.
        if place is not None and frame is not None and frame.lsn == lsn:
            self.places.keep(page_id, place)

    def _missing(self, page_id: PageId) -> None:
        count = self._absent.get(page_id, 0) + 1
        self._absent[page_id] = count
        if count > 20:
            raise CorruptData(f"page {page_id} is named by a tree, and storage does not have it")

    # Large values.

    def large(self, first_page: PageId, page_count: int, value_bytes: int) -> bytes:
        """A large value. Raises a `Suspend` while it is on its way."""
        value = self.values.get(first_page)
        if value is not None:
            return value
        waiters = self._values_in_flight.get(first_page)
        if waiters is None:
            waiters = self._values_in_flight[first_page] = Waiters()
            self._spawn(self._read_large(first_page, page_count, value_bytes))
        raise WaitFor(waiters, f"large value at page {first_page}")

    async def _read_large(self, first_page: PageId, page_count: int, value_bytes: int) -> None:
        error: PolarlessError | None = None
        try:
            pieces: list[bytes] = []
            for start in range(first_page, first_page + page_count, OVERFLOW_CHUNK):
                ids = list(range(start, min(start + OVERFLOW_CHUNK, first_page + page_count)))
                pieces.extend(await self._overflow_pages(ids))
            value = b"".join(pieces)
            if len(value) != value_bytes:
                raise CorruptData(
                    f"large value at page {first_page} has {len(value)} bytes, not {value_bytes}"
                )
            self.values.put(first_page, value)
        except PolarlessError as caught:
            error = caught
        self._values_in_flight.pop(first_page).wake(error)

    async def _overflow_pages(self, page_ids: list[PageId]) -> list[bytes]:
        for _ in range(8):
            self.stats.storage_reads += len(page_ids)
            answers = await self.store.read_pages(
                page_ids, self.mark(), deadline_s=FETCH_DEADLINE_S
            )
            if all(isinstance(answer, (bytes, memoryview)) for answer in answers):
                pieces = []
                for page_id, image in zip(page_ids, answers, strict=True):
                    verify(image, page_id)
                    pieces.append(decode(image, page_id).blob)
                return pieces
            if any(answer is None for answer in answers):
                raise Retry(f"large value at page {page_ids[0]} is gone; run the statement again")
            await self.pool.refresh_mark()
        raise Retry(f"large value at page {page_ids[0]}: storage is ahead of this node's mark")
