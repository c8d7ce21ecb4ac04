"""The background work: pending records become stored pages.

One round:

1. plan     all groups up to the limit, as long as they touch at most ``fold_pages_max`` pages
2. build    each of these pages as of the plan's LSN, in slices of about a millisecond
3. stage    a few dozen images at a time, in the page store's thread
4. commit   the last pages, those that are gone, and the folded LSN become durable together
5. drop     the records, in slices; then the log below may go

A long round commits now and then between 3 and 4, so that its pages are neither in memory all at
once nor written in one burst that the log's syncs would wait for. Such pages are ahead of the
folded LSN. Their own LSN says so: records up to it are passed over, in a read and after a crash.
Pages that are gone have nothing to say it with, so they are only removed in the last transaction.

The limit is the mark that the writer announced: a reader's mark is never below what the home has
answered, so after "newer" it finds a mark at which the page can be read. A round starts when the
records take more than ``fold_start_bytes``, or when nothing has arrived for a while; the more
records a page collects before it is folded, the less is written.

Once, at a start, memory may force a fold beyond the mark, since the log above the folded LSN has to
be taken up again and no writer is there to announce. That is harmless: reads stay exact, and a
reader with an older mark is told "newer" until the writer, which advances everything durable, has
brought its mark there.

A record that does not fit its page ends folding for good (CorruptData): log and pages have parted,
and more writing would only hide it. Appends and reads of other pages go on; status says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from polarless.errors import CorruptData, Overloaded, PolarlessError
from polarless.kernel.failpoints import hit
from polarless.kernel.stats import Stats
from polarless.kernel.world import Clock
from storage.pages.folded import Folded, encode_folded
from storage.pages.materialize import Pages, build
from storage.pages.pending import Plan
from storage.pages.store import Submit

log = logging.getLogger(__name__)

# No slice holds the loop much longer than this.
SLICE_S: Final = 0.001
# A pause of twice a slice: a third of one core for folding, while there is no hurry.
PAUSE_S: Final = 0.002
STAGE_PAGES: Final = 32
# 8 MiB: what one transaction of a longer round writes.
COMMIT_PAGES: Final = 512
PLAN_GROUPS: Final = 500
FULL_RETRY_S: Final = 1.0


class FoldStats(Stats):
    """What folding did since the process started."""

    __slots__ = ("folded_groups", "folded_pages", "folds", "folds_forced", "folds_refused")
    folded_groups: int
    folded_pages: int
    folds: int
    folds_forced: int
    folds_refused: int


class Folding:
    """Folds `Pages` into their store. ``on_folded(plan)`` is called after each round.

    ``on_broken(error)``: the page store failed in a way that leaves its state unknown.
    """

    def __init__(
        self,
        pages: Pages,
        submit: Submit,
        clock: Clock,
        *,
        cluster: bytes,
        mark: int,
        start_bytes: int,
        urgent_bytes: int,
        pages_max: int,
        idle_s: float,
        on_folded: Callable[[], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.mark = mark
        self.stats = FoldStats()
        self.failed: PolarlessError | None = None
        self._pages = pages
        self._submit = submit
        self._clock = clock
        self._cluster = cluster
        self._start_bytes = start_bytes
        self._urgent_bytes = urgent_bytes
        self._pages_max = pages_max
        self._idle_s = idle_s
        self._on_folded = on_folded
        self._on_broken = on_broken
        self._wake = asyncio.Event()
        self._stopping = False
        self._ingested_then = -1

    def poke(self) -> None:
        """Something may be due: records arrived, or the mark rose."""
        if self._pages.pending.bytes >= self._start_bytes:
            self._wake.set()

    def stop(self) -> None:
        """End `run` after the slice under way; a round that is not committed is dropped."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Fold whenever it is due, until `stop`."""
        while not self._stopping:
            if not self._due():
                self._wake.clear()
                timer = self._clock.call_later(self._idle_s, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
                continue
            if not await self.round(self.limit) and not self._stopping:
                if self.failed is not None:
                    return
                await self._clock.sleep(FULL_RETRY_S)

    @property
    def limit(self) -> int:
        """How far folding may go."""
        return min(self.mark, self._pages.pending.ingested)

    def _due(self) -> bool:
        pending = self._pages.pending
        quiet = pending.ingested == self._ingested_then
        self._ingested_then = pending.ingested
        if self.limit <= pending.folded:
            return False
        return quiet or pending.bytes >= self._start_bytes

    async def round(self, limit: int, *, forced: bool = False) -> bool:
        """Fold once, up to ``limit`` at most; whether anything was folded."""
        pending = self._pages.pending
        plan = pending.plan()
        while pending.extend_plan(plan, limit, pages_max=self._pages_max, groups_max=PLAN_GROUPS):
            await self._clock.sleep(0)
        if not plan.groups:
            return False
        try:
            await self._store(plan)
        except CorruptData as error:
            self.failed = error
            log.error("folding ends at %d: %s", pending.folded, error)
            await self._in_thread(self._pages.store.abort)
            return False
        except Overloaded as error:
            self.stats.folds_refused += 1
            if self._pages.store.grow():
                log.info("the page store has grown: %s", error)
                return True
            log.error("folding waits at %d: %s", pending.folded, error)
            return False
        except Exception as error:
            self.failed = CorruptData(f"the page store failed: {error!r}")
            self._on_broken(error)
            return False
        if self._stopping and pending.folded != plan.lsn:
            return False
        self.stats.folds += 1
        self.stats.folds_forced += forced
        self.stats.folded_groups += plan.groups
        self.stats.folded_pages += len(plan.pages)
        await self._drop(plan)
        return True

    async def _store(self, plan: Plan) -> None:
        """Build, stage and commit the pages of a plan."""
        pending, store, clock = self._pages.pending, self._pages.store, self._clock
        images: list[tuple[int, bytes | None]] = []
        gone: list[tuple[int, bytes | None]] = []
        staged = 0
        until = clock.now() + SLICE_S
        for page_id in sorted(plan.pages):
            base = store.read(page_id)
            image = build(page_id, base, pending.entries(page_id), plan.lsn)
            if image is None:
                gone.append((page_id, None))
            elif image is not base:
                images.append((page_id, image))
            if len(images) >= STAGE_PAGES:
                await self._stage(images)
                staged += len(images)
                images = []
                if staged >= COMMIT_PAGES:
                    await self._commit(pending.folded, pending.folded_cts, pending.folded_next_page)
                    staged = 0
                until = clock.now() + SLICE_S
            elif clock.now() >= until:
                await self._pause()
                until = clock.now() + SLICE_S
            if self._stopping:
                await self._in_thread(store.abort)
                return
        if images or gone:
            await self._stage(images + gone)
        await self._commit(plan.lsn, plan.cts, plan.next_page)
        pending.folded_to(plan)

    async def _commit(self, lsn: int, cts: int, next_page: int) -> None:
        """Commit what is staged, with the state of a fold to ``lsn``."""
        state = encode_folded(self._cluster, Folded(lsn, cts, next_page, self.mark))

        def commit() -> None:
            hit("storage.before_fold_commit")
            self._pages.store.commit(state)
            hit("storage.after_fold_commit")

        await self._in_thread(commit)

    async def _stage(self, images: list[tuple[int, bytes | None]]) -> None:
        await self._in_thread(lambda: self._pages.store.stage(images))

    async def _drop(self, plan: Plan) -> None:
        """Free what was folded, in slices, and tell the owner."""
        pages, pending, clock = self._pages, self._pages.pending, self._clock
        until = clock.now() + SLICE_S
        for page_id in plan.pages:
            last = pending.drop(page_id)
            if last:
                pages.forget(page_id, last)
            if clock.now() >= until:
                await clock.sleep(0)
                until = clock.now() + SLICE_S
        self._on_folded()

    async def _pause(self) -> None:
        hurry = self._pages.pending.bytes >= self._urgent_bytes
        await self._clock.sleep(0 if hurry else PAUSE_S)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` in the page store's thread and wait for it."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._submit(work, done)
        return await future
