"""Runs the log: batches go to the device, answers come back, the epoch is checked on the way.

    loop                                        the log's thread
    append -> chunk -> batch ---- submit -----> [create segment] append, sync
    answers, pages  <--- call_soon_threadsafe --- done

Writing happens in the same thread as the sync, in the order of submission. A fence submits its
record behind the batch under way and in front of everything of the new epoch, and is answered when
the record is durable: by then that batch is, too, and is in the tail it answers with.

The first sync that fails ends the process: the kernel has dropped the pages that it could not
write, so a second sync would report success for data that is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from polarless.errors import CorruptData, Overloaded, PolarlessError
from polarless.kernel.failpoints import hit
from polarless.kernel.stats import Stats
from storage.log import segment
from storage.log.chunk import Batch, Chunk, Reply
from storage.log.device import LogDevice, Submit

log = logging.getLogger(__name__)


class LogStats(Stats):
    """What the log did since the process started."""

    __slots__ = (
        "appends", "batch_appends_max", "batch_bytes_max", "bytes", "disk_full", "fences",
        "refused", "segments_created", "segments_removed", "syncs",
    )  # fmt: skip
    appends: int
    batch_appends_max: int
    batch_bytes_max: int
    bytes: int
    disk_full: int
    fences: int
    refused: int
    segments_created: int
    segments_removed: int
    syncs: int


class LogWriter:
    """The one writer of a `LogDevice`. ``segments`` are the start LSNs of all, ascending.

    ``on_durable(start LSN, pieces)`` gets every byte once, in order, after its append was answered.
    ``on_broken(error)`` is called at most once: end the process.
    """

    def __init__(
        self,
        device: LogDevice,
        submit: Submit,
        chunk: Chunk,
        *,
        cluster: bytes,
        segments: list[int],
        segment_bytes: int,
        on_durable: Callable[[int, list[bytes]], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self.chunk = chunk
        self.segments = segments
        self.stats = LogStats()
        self.broken: BaseException | None = None
        self._device = device
        self._submit = submit
        self._cluster = cluster
        self._segment_bytes = segment_bytes
        self._on_durable = on_durable
        self._on_broken = on_broken
        self._drained: list[Callable[[], None]] = []

    def append(self, epoch: int, start_lsn: int, data: bytes, reply: Reply) -> None:
        """Take an append; ``reply`` is answered when it is durable. Raises as the chunk does."""
        self._check_broken()
        durable = self.chunk.append(epoch, start_lsn, data, reply)
        self.stats.appends += 1
        if durable is not None:
            reply.answer(durable)
        else:
            self._next_batch()

    def fence(self, epoch: int, done: Callable[[PolarlessError | None], None]) -> None:
        """Refuse lower epochs; ``done(None)`` when that is durable. Raises `Fenced`."""
        self._check_broken()
        chunk = self.chunk
        for append in chunk.fence(epoch):
            self.stats.refused += 1
            try:
                chunk.check_epoch(append.epoch)
            except PolarlessError as error:
                append.reply.fail(error)
        state = segment.encode_state(self._cluster, epoch=epoch, durable_lsn=chunk.durable)

        def write() -> None:
            hit("storage.before_fence")
            self._device.write_state(state)
            hit("storage.after_fence")

        def written(_: Any, error: BaseException | None) -> None:
            if error is None:
                self.stats.fences += 1
                chunk.fence_durable(epoch)
                done(None)
                # For the next one: a failover must not wait for room on the disk.
                self._submit(lambda: self._device.reserve_state(len(state)), lambda *_: None)
            elif isinstance(error, Overloaded):
                done(error)
            else:
                self._break(error)
                done(self._lost())

        self._submit(write, written)

    def remove_below(self, lsn: int) -> None:
        """Forget the segments that lie wholly below ``lsn``; the newest one always stays."""
        count = 0
        while count + 1 < len(self.segments) and self.segments[count + 1] <= lsn:
            count += 1
        if not count or self.broken is not None:
            return
        gone = self.segments[:count]
        del self.segments[:count]
        device = self._device

        def remove() -> None:
            for start in gone:
                device.remove(start)

        def removed(_: Any, error: BaseException | None) -> None:
            if error is not None:
                # The file stays behind, below the others; the next start finds it in its place.
                log.warning("segments %s were not removed: %s", gone, error)
            else:
                self.stats.segments_removed += count

        self._submit(remove, removed)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back when everything that was accepted so far is durable, or the log is broken."""
        if not self.chunk.queued_bytes or self.broken is not None:
            callback()
        else:
            self._drained.append(callback)

    def seal(self, done: Callable[[BaseException | None], None]) -> None:
        """Write down how far the log is durable: the last thing before a clean end."""
        chunk = self.chunk
        state = segment.encode_state(
            self._cluster, epoch=chunk.durable_epoch, durable_lsn=chunk.durable
        )
        self._submit(lambda: self._device.write_state(state), lambda _, error: done(error))

    def _next_batch(self) -> None:
        batch = self.chunk.take_batch()
        if batch is None:
            return
        device = self._device
        pieces = batch.pieces
        if not pieces:
            self._synced(batch)
            return
        header = None
        if batch.start - self.segments[-1] >= self._segment_bytes:
            header = segment.encode_header(self._cluster, batch.start)

        def write() -> None:
            if header is not None and self.segments[-1] != batch.start:
                device.create(batch.start, header)
                self.segments.append(batch.start)
                self.stats.segments_created += 1
            hit("storage.before_write")
            device.append(pieces)
            hit("storage.before_sync")
            device.sync()
            hit("storage.after_sync")

        def written(_: Any, error: BaseException | None) -> None:
            if error is None:
                self._synced(batch)
            elif isinstance(error, Overloaded):
                self._full(error)
            else:
                self._break(error)

        self._submit(write, written)

    def _synced(self, batch: Batch) -> None:
        stats, chunk = self.stats, self.chunk
        chunk.batch_synced()
        stats.syncs += 1
        stats.bytes += batch.end - batch.start
        if len(batch.appends) > stats.batch_appends_max:
            stats.batch_appends_max = len(batch.appends)
        if batch.end - batch.start > stats.batch_bytes_max:
            stats.batch_bytes_max = batch.end - batch.start
        # The next batch first: the disk works while the answers are written.
        self._next_batch()
        durable = batch.end
        for append in batch.appends:
            append.reply.answer(durable)
        if batch.pieces:
            self._on_durable(batch.start, batch.pieces)
        if self._drained and not chunk.queued_bytes:
            self._call_drained()

    def _full(self, error: Overloaded) -> None:
        self.stats.disk_full += 1
        lost = self.chunk.batch_refused()
        log.error("disk full: %d appends from %d refused: %s", len(lost), self.chunk.durable, error)
        for append in lost:
            append.reply.fail(error)
        self._call_drained()

    def _break(self, error: BaseException) -> None:
        if self.broken is not None:
            return
        self.broken = error
        log.error("the log's device failed at %d: %r", self.chunk.durable, error)
        # Nobody is answered: whether these appends are durable is not known.
        self._call_drained()
        self._on_broken(error)

    def _call_drained(self) -> None:
        drained, self._drained = self._drained, []
        for callback in drained:
            callback()

    def _check_broken(self) -> None:
        if self.broken is not None:
            raise self._lost()

    def _lost(self) -> PolarlessError:
        return CorruptData(f"the log's device failed ({self.broken!r}); this node is ending")
