"""Storage without its port: the log, the pages folded from it, and what ties them together.

    append --> (held while folding lags) --> log --> durable --> answer --> pending --> folding
    read_page ------------------------------------------------> stored page + pending records

Start: `examine_both` reads log and page store and changes neither; only when they fit, `start` cuts
a torn tail, and takes up again what is above the folded LSN.

Back-pressure: pending records are bounded by ``pending_bytes_max``. Beyond it appends wait in
arrival order, with a log line and a counter, until folding has caught up. Folding waits for the
mark, and the mark for the writer's advance over what is durable already, so this always ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from polarless.config import StorageConfig
from polarless.errors import CorruptData, Fenced, LocalProtocolError, PolarlessError
from polarless.kernel.world import Clock
from polarless.wire.storage import READ_LOG_BYTES_MAX, LogTail
from storage.log.chunk import Chunk, Reply
from storage.log.device import LogDevice
from storage.log.device import Submit as LogSubmit
from storage.log.reader import LogReader
from storage.log.recovery import Examined, examine, prepare
from storage.log.writer import LogWriter
from storage.pages.folded import Folded, decode_folded
from storage.pages.folding import Folding
from storage.pages.materialize import Answer, Pages
from storage.pages.pending import Pending
from storage.pages.store import PageStore
from storage.pages.store import Submit as PageSubmit
from storage.pages.verdicts import Verdict

log = logging.getLogger(__name__)

# So much of the log below the folded LSN is looked at for verdicts when storage starts.
VERDICT_BYTES = 4 * 1024 * 1024

# One step of decoding: well under a millisecond.
INGEST_BYTES = 128 * 1024

EXIT_UNREADABLE = 1
EXIT_DISK_FAILED = 4


def examine_both(
    device: LogDevice, store_state: bytes | None, cluster: bytes, *, accept_loss_at: int | None
) -> tuple[Examined, Folded]:
    """Examine log and pages together without changing either. Raises `CorruptData`."""
    folded = decode_folded(store_state, cluster)
    examined = examine(
        device,
        cluster,
        known_lsn=max(folded.lsn, folded.mark),
        accept_loss_at=accept_loss_at,
    )
    if examined.segments and examined.segments[0] > folded.lsn:
        raise CorruptData(
            f"pages are folded to {folded.lsn}, but the log is kept only from "
            f"{examined.segments[0]} on"
        )
    return examined, folded


class Engine:
    """One log and its pages. ``on_broken(exit code)``: the process has to end; called once."""

    def __init__(
        self,
        clock: Clock,
        config: StorageConfig,
        *,
        cluster: bytes,
        device: LogDevice,
        store: PageStore,
        submit_log: LogSubmit,
        submit_pages: PageSubmit,
        examined: Examined,
        folded: Folded,
        on_broken: Callable[[int], None],
    ) -> None:
        self.appends_held = 0
        self.torn_bytes = examined.torn_bytes
        self._clock = clock
        self._config = config
        self._store = store
        self._on_broken = on_broken
        self._held: deque[tuple[int, int, bytes, Reply]] = deque()
        self._holding = False
        # (LSN, what to do once everything up to it is decoded)
        self._early: list[tuple[int, Callable[[], None]]] = []
        self._ingest_due = False
        self._folding_task: asyncio.Task[None] | None = None
        self._boundaries = examined.boundaries
        prepare(device, cluster, examined)
        self.reader = LogReader(device, examined.segments)
        self.chunk = Chunk(
            epoch=examined.epoch,
            tail=examined.tail,
            cts=max(examined.cts, folded.cts),
            next_page=max(examined.next_page, folded.next_page),
            mark=folded.mark,
            read=self.reader.bytes_at,
        )
        self.writer = LogWriter(
            device,
            submit_log,
            self.chunk,
            cluster=cluster,
            segments=examined.segments,
            segment_bytes=config.segment_bytes,
            on_durable=self._on_durable,
            on_broken=self._disk_failed,
        )
        self.pending = Pending(folded.lsn, folded.cts, folded.next_page)
        self.pages = Pages(store, self.pending, cache_bytes_max=config.cache_bytes_max)
        self.folding = Folding(
            self.pages,
            submit_pages,
            clock,
            cluster=cluster,
            mark=self.chunk.mark,
            start_bytes=config.fold_start_bytes,
            urgent_bytes=config.pending_bytes_max * 3 // 4,
            pages_max=config.fold_pages_max,
            idle_s=config.fold_idle_s,
            on_folded=self._on_folded,
            on_broken=self._disk_failed,
        )

    async def start(self) -> None:
        """Decode the log above the folded LSN, then fold in the background.

        If memory may not hold it all it is folded on the way, up to the last known mark if that
        suffices, else beyond it: see `storage.pages.folding`.
        """
        pending, tail = self.pending, self.chunk.durable
        self._index_verdicts()
        for position, data in self.reader.chunks(pending.folded, tail):
            pending.feed(position, data)
            while pending.step(INGEST_BYTES):
                pass
            while pending.bytes > self._config.pending_bytes_max:
                forced = self.folding.limit <= pending.folded
                limit = pending.ingested if forced else self.folding.limit
                if not await self.folding.round(limit, forced=forced):
                    raise self.folding.failed or CorruptData("folding made no progress")
        log.info(
            "log from %d to %d, epoch %d, folded to %d, %d groups taken up",
            self.reader.first, tail, self.chunk.epoch, pending.folded, pending.groups,
        )  # fmt: skip
        self._folding_task = asyncio.get_running_loop().create_task(self.folding.run())

    def _index_verdicts(self) -> None:
        """Know the last transactions below the folded LSN too: a proxy may still ask for them."""
        folded = self.pending.folded
        wanted = max(self.reader.first, folded - VERDICT_BYTES)
        since = max((at for at in self._boundaries if at <= wanted), default=folded)
        if since < folded:
            verdicts = self.pending.verdicts
            verdicts.since = since
            for _, data in self.reader.chunks(since, folded):
                verdicts.index(data)

    async def stop(self) -> None:
        """Make durable what was accepted, end folding, write down the end of the log."""
        # What is held was never accepted: its writer sends it again to whoever serves next.
        self._held.clear()
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[None] = loop.create_future()
        self.writer.when_idle(lambda: idle.set_result(None))
        await idle
        self.folding.stop()
        if self._folding_task is not None:
            await self._folding_task
        sealed: asyncio.Future[None] = loop.create_future()
        self.writer.seal(lambda _: sealed.set_result(None))
        await sealed

    # The log.

    def append(self, epoch: int, start_lsn: int, groups: bytes, reply: Reply) -> None:
        """Take an append now, or when folding has caught up. Raises as `Chunk.append` does."""
        if self._held or self._over_bound():
            # Fenced ones need not wait to hear it.
            self.chunk.check_epoch(epoch)
            self._hold((epoch, start_lsn, groups, reply))
        else:
            self.writer.append(epoch, start_lsn, groups, reply)

    def forget(self, is_gone: Callable[[Reply], bool]) -> None:
        """Let go of the appends that wait for folding and whose writer's connection is gone.

        It sends them again over the next one; kept here they would add up.
        """
        self._held = deque(waiting for waiting in self._held if not is_gone(waiting[3]))

    def fence(self, epoch: int, done: Callable[[PolarlessError | None], None]) -> None:
        """Refuse lower epochs; ``done(None)`` when that is durable. Raises `Fenced`."""
        self.writer.fence(epoch, done)
        held, self._held = self._held, deque()
        for waiting in held:
            if waiting[0] >= epoch:
                self._held.append(waiting)
            else:
                waiting[3].fail(Fenced(f"epoch {waiting[0]} is over: fenced by epoch {epoch}"))

    def announce(self, epoch: int, mark: int) -> None:
        """Pages may be folded up to ``mark``. Nothing happens if the epoch is not current."""
        if self.chunk.announce(epoch, mark):
            self.folding.mark = self.chunk.mark
            self.folding.poke()

    def tail(self) -> LogTail:
        """Where the log stands."""
        chunk, folded = self.chunk, self.pending.folded
        return LogTail(chunk.durable, chunk.cts, chunk.next_page, chunk.mark, folded, chunk.epoch)

    def read_log(self, from_lsn: int, max_bytes: int) -> tuple[bytes, int]:
        """Whole durable groups and the LSN behind them; raises as `LogReader.read` does."""
        byte_count = min(max(max_bytes, 1), READ_LOG_BYTES_MAX)
        return self.reader.read(from_lsn, byte_count, self.chunk.durable)

    # Pages.

    def when_ingested(self, as_of: int, callback: Callable[[], None]) -> None:
        """Call back, at once or soon, when pages can be read as of a durable LSN.

        Raises `LocalProtocolError` if it is not durable.
        """
        if as_of > self.chunk.durable:
            raise LocalProtocolError(
                f"a page as of {as_of} was asked for, the log is durable to {self.chunk.durable}"
            )
        if as_of <= self.pending.ingested:
            callback()
        else:
            self._early.append((as_of, callback))

    def read_page(self, page_id: int, as_of: int) -> Answer:
        """The answer of `polarless.wire.storage`; only inside `when_ingested`."""
        return self.pages.read(page_id, as_of)

    def page_lsns(self, page_ids: Sequence[int], as_of: int) -> list[int]:
        """The answer of `polarless.wire.storage`; only inside `when_ingested`."""
        return self.pages.lsns(page_ids, as_of)

    def verdict(self, transaction_id: int, from_lsn: int) -> Verdict:
        """What became of a proxied transaction; only inside `when_ingested` of the tail."""
        return self.pending.verdicts.ask(transaction_id, from_lsn)

    def status(self) -> dict[str, Any]:
        """Numbers for people and tests; LSNs and bytes."""
        chunk, pending = self.chunk, self.pending
        return {
            "epoch": chunk.epoch,
            "tail": chunk.accepted,
            "durable": chunk.durable,
            "mark": chunk.mark,
            "folded": pending.folded,
            "cts": chunk.cts,
            "next_page": chunk.next_page,
            "first": self.reader.first,
            "segments": len(self.writer.segments),
            "pending_bytes": pending.bytes,
            "pending_pages": len(pending.pages),
            "pending_groups": pending.groups,
            "verdicts": len(pending.verdicts),
            "cache_bytes": self.pages.cache_bytes,
            "torn_bytes": self.torn_bytes,
            "appends_held": self.appends_held,
            "holding": len(self._held),
            "folding": str(self.folding.failed) if self.folding.failed else "ok",
            **self.writer.stats.snapshot(),
            **self.folding.stats.snapshot(),
            **self.pages.stats.snapshot(),
            **self._store.statistics(),
        }

    # From below.

    def _over_bound(self) -> bool:
        waiting = self.pending.bytes + self.chunk.queued_bytes
        return waiting > self._config.pending_bytes_max

    def _hold(self, waiting: tuple[int, int, bytes, Reply]) -> None:
        self._held.append(waiting)
        self.appends_held += 1
        if not self._holding:
            self._holding = True
            log.warning(
                "back-pressure: appends wait, %d bytes of records are not folded "
                "(folded %d, mark %d, durable %d)",
                self.pending.bytes, self.pending.folded, self.chunk.mark, self.chunk.durable,
            )  # fmt: skip

    def _release(self) -> None:
        while self._held and not self._over_bound():
            epoch, start_lsn, groups, reply = self._held.popleft()
            try:
                self.writer.append(epoch, start_lsn, groups, reply)
            except PolarlessError as error:
                reply.fail(error)
        if self._holding and not self._held:
            self._holding = False
            log.info("back-pressure: over, folded to %d", self.pending.folded)

    def _on_durable(self, start_lsn: int, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.pending.feed(start_lsn, piece)
            start_lsn += len(piece)
        if not self._ingest_due:
            self._ingest()

    def _ingest(self) -> None:
        self._ingest_due = False
        try:
            more = self.pending.step(INGEST_BYTES)
        except PolarlessError as error:
            # The group was checked when it came; what it says is beyond this node.
            log.error("records cannot be decoded: %s", error)
            self._on_broken(EXIT_UNREADABLE)
            return
        if more:
            self._ingest_due = True
            self._clock.call_soon(self._ingest)
        if self._early:
            early, self._early = self._early, []
            for as_of, callback in early:
                self.when_ingested(as_of, callback)
        self.folding.poke()

    def _on_folded(self) -> None:
        keep = self.chunk.durable - self._config.retention_bytes
        self.writer.remove_below(min(self.pending.folded, keep))
        if self._held:
            self._release()

    def _disk_failed(self, error: BaseException) -> None:
        log.critical("storage ends: a write to its disk failed: %r", error)
        self._on_broken(EXIT_DISK_FAILED)
