"""The log's decisions: who may append, in which order, and what is durable.

    append --> queue --> batch under way --> durable
               one batch at a time: whatever arrives during its sync becomes the next

Invariants:

* ``durable <= sent <= accepted``; groups are accepted in LSN order without a gap, and synced in it.
* The epoch is checked when an append is taken, and again, by the fence, until its batch is sent:
  a fence takes everything of a lower epoch out of the queue. So what is written after a fence is
  of the new epoch (C5).
* Nothing of an epoch is taken before its fence is durable.
* What was accepted is never different from what was sent for its place before: an append that is
  sent again is compared with what is there.

No I/O: the writer carries out what is decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from polarless.errors import Fenced, LocalProtocolError, PolarlessError
from polarless.kernel import redo

# One write and one sync; what is queued beyond waits for the next.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


class Reply(Protocol):
    """Whoever waits for an append: `polarless.net.rpc.Call` is one."""

    def answer(self, result: int) -> None:
        """It is durable up to here."""

    def fail(self, error: PolarlessError) -> None:
        """It did not happen, as far as this side knows."""


class Append:
    """An append on its way; ``data`` is what of it was new."""

    __slots__ = ("cts", "data", "end", "epoch", "next_page", "reply")

    def __init__(
        self, epoch: int, end: int, data: bytes, cts: int, next_page: int, reply: Reply
    ) -> None:
        self.epoch = epoch
        self.end = end
        self.data = data
        self.cts = cts
        self.next_page = next_page
        self.reply = reply


class Batch:
    """What one sync makes durable: the bytes from ``start`` to ``end``."""

    __slots__ = ("appends", "end", "pieces", "start")

    def __init__(self, start: int, appends: list[Append]) -> None:
        self.start = start
        self.appends = appends
        self.pieces = [append.data for append in appends if append.data]
        self.end = appends[-1].end


class Chunk:
    """The newest part of the log, from the durable LSN on, and the fence before it."""

    def __init__(
        self,
        *,
        epoch: int,
        tail: int,
        cts: int,
        next_page: int,
        mark: int,
        read: Callable[[int, int], bytes],
    ) -> None:
        self.epoch = epoch
        self.durable_epoch = epoch
        self.durable = tail
        self.sent = tail
        self.accepted = tail
        self.cts = cts
        self.next_page = next_page
        self.mark = mark
        self._read = read
        self._queue: deque[Append] = deque()
        self._under_way: Batch | None = None

    def check_epoch(self, epoch: int) -> None:
        """Raises `Fenced` for a lower epoch than the current one."""
        if epoch < self.epoch:
            raise Fenced(f"epoch {epoch} is over: the log was fenced by epoch {self.epoch}")
        if epoch != self.durable_epoch:
            raise LocalProtocolError(
                f"epoch {epoch} has not fenced the log, whose epoch is {self.durable_epoch}"
            )

    def append(self, epoch: int, start_lsn: int, data: bytes, reply: Reply) -> int | None:
        """Take an append. The durable LSN if all of it is durable already, else None: it waits.

        Raises `Fenced`, or `LocalProtocolError` for a gap or for bytes that are not its groups.
        """
        self.check_epoch(epoch)
        if start_lsn > self.accepted:
            raise LocalProtocolError(
                f"log gap: an append starts at {start_lsn}, the log ends at {self.accepted}"
            )
        end = start_lsn + len(data)
        if start_lsn < self.accepted:
            skipped = self._skip_known(start_lsn, data)
            data = data[skipped:]
            start_lsn += skipped
            if end <= self.durable:
                return self.durable
        cts, next_page = check_groups(data, start_lsn, epoch)
        self._queue.append(Append(epoch, end, data, cts, next_page, reply))
        self.accepted = max(self.accepted, end)
        return None

    def take_batch(self) -> Batch | None:
        """The next batch to write and sync; None while one is under way or nothing waits."""
        queue = self._queue
        if not queue or self._under_way is not None:
            return None
        appends = [queue.popleft()]
        size = len(appends[0].data)
        while queue and size + len(queue[0].data) <= BATCH_BYTES_MAX:
            append = queue.popleft()
            size += len(append.data)
            appends.append(append)
        batch = Batch(self.sent, appends)
        # An append whose bytes were all known already may end below what is sent.
        batch.end = max(self.sent, max(append.end for append in appends))
        self.sent = batch.end
        self._under_way = batch
        return batch

    def batch_synced(self) -> Batch:
        """The batch under way is durable; its appends may be answered with ``durable``."""
        batch = self._under_way
        assert batch is not None
        self._under_way = None
        self.durable = batch.end
        for append in batch.appends:
            if append.data:
                if append.cts > self.cts:
                    self.cts = append.cts
                self.next_page = append.next_page
        return batch

    def batch_refused(self) -> list[Append]:
        """Nothing of the batch under way was written: it and all behind it did not happen."""
        batch = self._under_way
        assert batch is not None
        self._under_way = None
        lost = [*batch.appends, *self._queue]
        self._queue.clear()
        self.sent = self.accepted = self.durable
        return lost

    def fence(self, epoch: int) -> list[Append]:
        """Refuse lower epochs from now on; the appends that this stops. Raises `Fenced`.

        The batch under way is not stopped: it is in the tail that the fence answers with.
        """
        if epoch < self.epoch:
            raise Fenced(f"epoch {epoch} is over: the log was fenced by epoch {self.epoch}")
        self.epoch = epoch
        stopped = [append for append in self._queue if append.epoch < epoch]
        if stopped:
            # Epochs only rise, so what is left would start behind a gap: there is nothing left.
            assert len(stopped) == len(self._queue), (len(stopped), len(self._queue), epoch)
            self._queue.clear()
            self.accepted = self.sent
        return stopped

    def fence_durable(self, epoch: int) -> None:
        """The record of a fence is durable: that epoch may append."""
        self.durable_epoch = max(self.durable_epoch, epoch)

    def announce(self, epoch: int, mark: int) -> bool:
        """Raise the mark; False if the epoch is over or the mark is not a new, durable one."""
        if epoch != self.epoch or mark <= self.mark or mark > self.durable:
            return False
        self.mark = mark
        return True

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted and not durable."""
        return self.accepted - self.durable

    def _skip_known(self, start_lsn: int, data: bytes) -> int:
        """How many bytes at the start of ``data`` are in the log already.

        Headers are compared; their CRCs stand for the rest. Raises `LocalProtocolError` if they
        differ: then two writers have written different things for one place.
        """
        offset = 0
        while offset < len(data) and start_lsn + offset < self.accepted:
            found = redo.read_header(data, offset)
            position = start_lsn + offset
            if found is None:
                raise LocalProtocolError(f"append: no group at log position {position}")
            header = data[offset : offset + redo.HEADER_BYTES]
            if header != self._header_at(position):
                raise LocalProtocolError(
                    f"append: log position {position} holds something else already"
                )
            offset += found[1]
        return offset

    def _header_at(self, lsn: int) -> bytes:
        """The 64 bytes that stand at an LSN below ``accepted``."""
        if lsn < self.durable:
            return self._read(lsn, redo.HEADER_BYTES)
        waiting = list(self._queue)
        if self._under_way is not None:
            waiting = [*self._under_way.appends, *waiting]
        for append in waiting:
            start = append.end - len(append.data)
            if start <= lsn < append.end:
                return append.data[lsn - start : lsn - start + redo.HEADER_BYTES]
        raise AssertionError(f"position {lsn} is neither durable nor waiting")


def check_groups(data: bytes, start_lsn: int, epoch: int) -> tuple[int, int]:
    """(highest cts, last next page) of the groups in ``data``; (0, 0) if it is empty.

    Raises `LocalProtocolError` for anything but whole, valid groups of that epoch in their place.
    """
    offset, size, cts_max, next_page = 0, len(data), 0, 0
    unpack, header_bytes = redo.HEADER.unpack_from, redo.HEADER_BYTES
    while offset < size:
        position = start_lsn + offset
        if size - offset < header_bytes:
            raise LocalProtocolError(f"append: a cut group at log position {position}")
        magic, fmt, _, body_bytes, _, group_epoch, start, cts, _, _, next_page = unpack(
            data, offset
        )
        total = header_bytes + body_bytes
        if magic != redo.MAGIC or fmt != redo.GROUP_FORMAT or body_bytes > redo.BODY_BYTES_MAX:
            raise LocalProtocolError(f"append: no group at log position {position}")
        if start != position or group_epoch != epoch:
            raise LocalProtocolError(
                f"append: a group of position {start} and epoch {group_epoch} "
                f"at position {position} of epoch {epoch}"
            )
        if not redo.verify_group(data, offset, total):
            raise LocalProtocolError(f"append: group CRC does not match at position {position}")
        if cts > cts_max:
            cts_max = cts
        offset += total
    return cts_max, next_page
