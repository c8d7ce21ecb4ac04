"""From applied to acknowledged: ship groups to the log, advance the home, publish, answer.

    queue(group)   applied to the frames; its LSN is fixed by its place in this queue
      -> append    everything queued goes as one batch; at most `APPENDS_IN_FLIGHT` are under way
      -> durable   storage has synced it
      -> advance   one call per batch: stale bits, invalidations, published timestamp
      -> done      in cts order, which is LSN order

A commit is acknowledged only after its `advance` was answered (C2), and nothing of it leaves this
node before it is durable (C3). If the home is lost, what was durable but not answered waits in
``unanswered`` and is advanced at once when a new home has taken over.

While more than `WAITING_BYTES_MAX` are not durable, as when storage hangs, nothing new is applied
(`wait_for_room`): clients wait where they can still give up, and memory stays bounded.

While storage's disk is full nothing new is applied either. At `DISK_FULL_DEADLINE_S` who waits to
commit gets 53100, and who is in the queue 08007: its group is tried again until there is room,
since the frames have it and later groups lie behind it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from compute.buffer.waits import Waiters, WaitFor
from compute.pools import LogStore, MemoryPool
from polarless.errors import CommitUnknown, Fenced, Overloaded, PolarlessError
from polarless.kernel.failpoints import hit
from polarless.kernel.ids import Cts, Epoch, Lsn, PageId
from polarless.kernel.stats import Stats
from polarless.kernel.world import Clock, Timer

log = logging.getLogger(__name__)

APPENDS_IN_FLIGHT: Final = 2
# With one more group, of the largest size, still less than a storage client takes unanswered.
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
# When to try again what the storage client did not take, if nothing of ours is under way there.
FLUSH_AGAIN_S: Final = 0.05
# How long a wait for newer snapshots lasts before an advance is sent for them alone.
ADVANCE_AGAIN_S: Final = 0.005
# From storage's first refusal on; then nobody waits any longer, and new commits fail at once.
DISK_FULL_DEADLINE_S: Final = 10.0

Done = Callable[[Lsn | None, PolarlessError | None], None]


class LogStats(Stats):
    """Batches and what was in them."""

    __slots__ = ("advances", "appends", "bytes", "commits", "groups")
    advances: int
    appends: int
    bytes: int
    commits: int
    groups: int


class Entry:
    """One group on its way.

    ``done`` answers the client; ``settle`` runs before it, when the commit is visible or the node
    is fenced, also if the client was told before that its end is unknown.
    """

    __slots__ = ("cts", "done", "end_lsn", "pages", "settle")

    def __init__(
        self,
        end_lsn: Lsn,
        cts: Cts,
        pages: Sequence[PageId],
        done: Done | None,
        settle: Callable[[], None] | None = None,
    ) -> None:
        self.end_lsn = end_lsn
        self.cts = cts
        self.pages = pages
        self.done = done
        self.settle = settle


class LogWriter:
    """The commit pipeline of one incarnation of the writer."""

    def __init__(
        self,
        store: LogStore,
        pool: MemoryPool,
        clock: Clock,
        *,
        epoch: Epoch,
        tail: Lsn,
        cts: Cts,
        on_fenced: Callable[[PolarlessError], None],
        on_advanced: Callable[[Lsn, Cts, Any], None],
        on_durable: Callable[[Lsn], None],
    ) -> None:
        self.epoch = epoch
        self.tail = tail
        self.durable: Lsn = tail
        self.advanced: Lsn = tail
        self.sent: Lsn = tail
        self.published: Cts = cts
        self.stats = LogStats()
        self.stopped: PolarlessError | None = None
        self._store = store
        self._pool = pool
        self._clock = clock
        self._on_fenced = on_fenced
        self._on_advanced = on_advanced
        self._on_durable = on_durable
        self._buffer: list[bytes] = []
        self._buffered_from: Lsn = tail
        self._queued: deque[Entry] = deque()
        # Durable, and its advance not answered yet.
        self.unanswered: deque[Entry] = deque()
        self._advance_sent: Lsn = tail
        self._flush_due = False
        self._in_flight = 0
        self._home_lost = False
        self._again: Timer | None = None
        self._drained: list[Callable[[], None]] = []
        # Storage's refusal while its disk is full.
        self.full: PolarlessError | None = None
        self._overdue = False
        self._full_timer: Timer | None = None
        self._room = Waiters()

    def queue(self, group: bytes, entry: Entry) -> None:
        """Take a group whose start LSN is ``tail``; its end becomes the tail."""
        self._buffer.append(group)
        self.tail = entry.end_lsn
        self._queued.append(entry)
        if not self._flush_due and self._in_flight < APPENDS_IN_FLIGHT:
            self._flush_due = True
            self._clock.call_soon(self._flush)

    @property
    def waiting_bytes(self) -> int:
        """Bytes queued or under way that are not durable yet."""
        return self.tail - self.durable

    @property
    def is_behind(self) -> bool:
        """Whether nothing new may be applied now: `wait_for_room`."""
        return self.full is not None or self.tail - self.durable > WAITING_BYTES_MAX

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once after the next batch is durable (for whoever must not run ahead)."""
        self._drained.append(callback)

    def stop(self, error: PolarlessError) -> None:
        """This node is fenced: every commit under way has an unknown end."""
        if self.stopped is not None:
            return
        self.stopped = error
        entries = [*self.unanswered, *self._queued]
        self.unanswered.clear()
        self._queued.clear()
        self._buffer.clear()
        unknown = CommitUnknown(
            "the node lost its role while the commit was under way; it may have taken effect",
            hint="Look whether its rows are there before you run the transaction again.",
        )
        for entry in entries:
            if entry.settle is not None:
                entry.settle()
            if entry.done is not None:
                entry.done(None, unknown)
        self._end_full(error)
        self._call_drained()

    # A full disk.

    def disk_full(self, error: PolarlessError | None) -> None:
        """Storage refuses appends for want of room; None: it has taken one again."""
        if error is None:
            self._end_full(None)
        elif self.full is None and self.stopped is None:
            self.full = error
            self._full_timer = self._clock.call_later(DISK_FULL_DEADLINE_S, self._full_too_long)

    def wait_for_room(self) -> None:
        """Called while `is_behind`, before anything is applied: raises a `WaitFor`, or 53100."""
        if self._overdue:
            raise self._no_room()
        what = "room on storage's disk" if self.full is not None else "storage, which is behind"
        raise WaitFor(self._room, what)

    @property
    def is_overdue(self) -> bool:
        """Whether the disk has been full for so long that nobody waits for it any more."""
        return self._overdue

    def _no_room(self) -> PolarlessError:
        return Overloaded(
            f"could not commit: {self.full.message if self.full else 'no room'}",
            sqlstate="53100",
            hint="Free space on storage's disk and run the transaction again; reads go on.",
        )

    def _full_too_long(self) -> None:
        self._full_timer = None
        self._overdue = True
        unknown = CommitUnknown(
            "storage's disk is full, and the commit waits for room; it will take effect when there "
            "is some, unless this node is lost before",
            hint="Free space; then look whether its rows are there before you run it again.",
        )
        log.error("epoch %s: the disk is full for %g s", self.epoch, DISK_FULL_DEADLINE_S)
        for entry in list(self._queued):
            done, entry.done = entry.done, None
            if done is not None:
                done(None, unknown)
        self._room.wake(self._no_room())
        self._call_drained()

    def _end_full(self, error: PolarlessError | None) -> None:
        self.full, self._overdue = None, False
        if self._full_timer is not None:
            self._full_timer.cancel()
            self._full_timer = None
        self._room.wake(error)

    def _call_drained(self) -> None:
        drained, self._drained = self._drained, []
        for callback in drained:
            callback()

    # A lost home.

    def home_lost(self) -> None:
        """No advance is sent until `home_back`."""
        self._home_lost = True

    def home_back(self, done: Callable[[PolarlessError | None], None]) -> None:
        """A new home has taken over: advance it over everything durable, answered or not.

        Pages of answered entries were invalidated by the old home; the new one treats every page as
        changed at its rebuilt mark anyway.
        """
        self._home_lost = False
        pages = sorted({page for entry in self.unanswered for page in entry.pages})
        cts = max([self.published, *(entry.cts for entry in self.unanswered)])
        lsn = self.durable
        self._advance_sent = lsn

        def answered(result: Any, error: PolarlessError | None) -> None:
            if error is None:
                self._advance_answered(lsn, result)
            done(error)

        self._pool.advance(self.epoch, lsn, cts, pages, answered)

    def _flush(self) -> None:
        self._flush_due = False
        if not self._buffer or self.stopped is not None:
            return
        hit("commit.before_append")
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer = []
        start, self._buffered_from = self._buffered_from, self.tail
        try:
            self._store.append(self.epoch, start, data, self._appended)
        except Overloaded as error:
            # Nothing was taken. It goes in front of what was queued meanwhile.
            log.warning("epoch %s: an append waits: %s", self.epoch, error)
            self._buffer.insert(0, data)
            self._buffered_from = start
            self._flush_due = True
            self._clock.call_later(FLUSH_AGAIN_S, self._flush)
            return
        self.sent = self.tail
        self._in_flight += 1
        self.stats.appends += 1
        self.stats.bytes += len(data)

    def _appended(self, lsn: Lsn | None, error: PolarlessError | None) -> None:
        self._in_flight -= 1
        if error is not None or lsn is None:
            if self.stopped is None:
                log.error("epoch %s: append refused: %s", self.epoch, error)
                self._on_fenced(error or Fenced("append was refused"))
            return
        if self.stopped is not None:
            return
        hit("commit.after_durable")
        self.durable = max(self.durable, lsn)
        queued, unanswered = self._queued, self.unanswered
        while queued and queued[0].end_lsn <= lsn:
            unanswered.append(queued.popleft())
            self.stats.groups += 1
        self._on_durable(lsn)
        if not self._home_lost:
            self._advance()
        if self._buffer and not self._flush_due:
            self._flush()
        if self._drained:
            self._call_drained()
        if self._room.callbacks and not self.is_behind:
            self._room.wake(None)

    def _advance(self) -> None:
        lsn = self.durable
        since = self._advance_sent
        if lsn <= since:
            return
        pages: set[PageId] = set()
        cts = 0
        for entry in reversed(self.unanswered):
            if entry.end_lsn <= since:
                break
            pages.update(entry.pages)
            if entry.cts > cts:
                cts = entry.cts
        self._advance_sent = lsn
        self._send_advance(lsn, cts, sorted(pages))

    def advance_again(self) -> None:
        """Have `on_advanced` called soon even if no more commits come.

        For who waits until the readers' snapshots have moved on: their reports come with the answer
        of an advance, and everybody may be waiting. The advance names the same LSN and no page.
        """
        if self._again is None:
            self._again = self._clock.call_later(ADVANCE_AGAIN_S, self._advance_again)

    def _advance_again(self) -> None:
        self._again = None
        if self.stopped is None and not self._home_lost and self.advanced == self.tail:
            self._send_advance(self.advanced, 0, [])

    def _send_advance(self, lsn: Lsn, cts: Cts, pages: list[PageId]) -> None:
        self.stats.advances += 1
        hit("commit.before_advance")

        def answered(result: Any, error: PolarlessError | None) -> None:
            if error is None:
                self._advance_answered(lsn, result)
            elif isinstance(error, Fenced):
                self._on_fenced(error)
            else:
                # The home is gone or slow; whoever watches the connection brings the next one.
                log.warning("advance to %s was not answered: %s", lsn, error)

        self._pool.advance(self.epoch, lsn, cts, pages, answered)

    def _advance_answered(self, lsn: Lsn, result: Any) -> None:
        if self.stopped is not None:
            return
        hit("commit.after_advance")
        unanswered = self.unanswered
        self.advanced = max(self.advanced, lsn)
        ready: list[Entry] = []
        while unanswered and unanswered[0].end_lsn <= lsn:
            entry = unanswered.popleft()
            ready.append(entry)
            if entry.cts:
                self.published = entry.cts
        self._on_advanced(lsn, self.published, result)
        commits = 0
        for entry in ready:
            if entry.settle is not None:
                entry.settle()
            if entry.done is not None:
                commits += 1
                entry.done(entry.end_lsn, None)
        self.stats.commits += commits
