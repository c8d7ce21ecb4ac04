"""Deliberate bugs, switched on in the simulator only: what proves that it would find real ones.

Each replaces one function of the product for the time of a seed. ``python -m tests.sim --mutants``
runs seeds until each is found, and prints how many it took.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from compute.buffer.coherence import ReaderEvents
from compute.buffer.fetch import Fetcher
from compute.buffer.places import Places
from compute.session.relay import Relayed
from compute.txn import recovery
from compute.txn.engine import Engine
from compute.txn.locks import LockTable, LockWait
from compute.txn.log_writer import LogWriter
from compute.txn.reuse import Reuse
from compute.txn.transaction import Transaction
from memory_pool.directory.members import Members
from memory_pool.directory.staleness import Staleness
from memory_pool.fabric import shared
from memory_pool.home_members import Membership
from polarless.proxy.record import Memory
from storage.backends.memory import MemoryLog
from storage.log.chunk import Chunk
from storage.pages.verdicts import Verdicts


def _nothing(*args: Any, **keywords: Any) -> None:
    return None


def _ack_when_durable(self: LogWriter) -> None:
    """The commit is acknowledged when it is durable, before anybody's cache knows."""
    for entry in self.unanswered:
        if entry.done is not None:
            entry.done(entry.end_lsn, None)
            entry.done = None
    _advance(self)


_advance = LogWriter._advance


def _ack_before_durable(self: LogWriter, group: bytes, entry: Any) -> None:
    _queue(self, group, entry)
    done, entry.done = entry.done, None
    if done is not None:
        self._clock.call_soon(lambda: done(entry.end_lsn, None))


_queue = LogWriter.queue


def _sync_lies(self: MemoryLog) -> None:
    self.syncs += 1


def _keep_frames(self: ReaderEvents, pages: Any) -> None:
    """Invalidations are acknowledged, and the frames stay."""


def _absent(self: Verdicts, transaction_id: int, from_lsn: int) -> Any:
    return ("absent", 0, b"")


def _committed(self: Verdicts, transaction_id: int, from_lsn: int) -> Any:
    return ("committed", 1, b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I")


def _now(self: Relayed) -> int:
    """Statements that run again take a new snapshot."""
    return 0


def _no_transaction(self: Memory, cycle: Any, status: int) -> None:
    """What an open transaction did is not kept."""
    _finished(self, cycle, status)
    self.transaction.clear()


_finished = Memory.finished


def _prune_all(self: Engine) -> None:
    """Old versions go, whoever still reads them."""
    assert self.log is not None
    self.keep = (1 << 62,)


def _always_newest(self: Staleness, *args: Any, **keywords: Any) -> bool:
    """A page image is taken for the newest without a look."""
    return True


def _forget_restart(self: Fetcher, page_id: Any) -> None:
    """A fetch that an invalidation overtook is installed all the same."""


def _miss_a_page(self: LogWriter, group: bytes, entry: Any) -> None:
    """One page of each commit is not invalidated anywhere."""
    entry.pages = entry.pages[1:]
    _queue(self, group, entry)


def _never_expel(self: Membership, member: Any, reason: str, out: Any) -> None:
    """A reader that does not answer stays a member."""


def _always_warm(self: Membership, event: Any, out: Any, *, cold: bool, floor: int = 0) -> bool:
    """Whoever comes back keeps its cache, whatever it has missed."""
    return _admit(self, event, out, cold=False, floor=floor)


_admit = Membership._admit


def _no_redo(engine: Any, group: Any, changed: dict[Any, Any]) -> None:
    """A new writer names the pages of the log behind the mark, and leaves its frames alone."""
    for record in group.records:
        changed[record[1]] = engine.cache.frames.get(record[1])


def _wait_for_ever(self: LockTable, owner: Any, tree_id: Any, key: Any) -> None:
    """Nobody looks for deadlocks."""
    if self._holder(tree_id, key) is not None:
        raise LockWait(self, owner, tree_id, key)


def _wake_nobody(self: LockTable, tree_id: Any, key: Any) -> None:
    """Whoever waits for a row is not told that it is free."""


def _late_snapshot(self: Transaction) -> None:
    """Each statement's snapshot is older by a few commits."""
    _start_statement(self)
    self.snapshot = max(1, self.snapshot - 3)


_start_statement = Transaction.start_statement


def _any_age(self: Reuse, cts: Any, age_s: float) -> bool:
    """A session is given what is there, whatever it has committed."""
    return age_s <= self.age_s


# Name -> (class, method, what it is replaced by).
MUTANTS: Final[dict[str, tuple[Any, str, Callable[..., Any]]]] = {
    "acknowledge when durable, before the advance": (LogWriter, "_advance", _ack_when_durable),
    "acknowledge before the commit is durable": (LogWriter, "queue", _ack_before_durable),
    "a sync that does nothing": (MemoryLog, "sync", _sync_lies),
    "a reader keeps invalidated frames": (ReaderEvents, "_drop", _keep_frames),
    "publish before readers have acknowledged": (
        Members, "oldest_unacknowledged", lambda self: None,
    ),
    "no row locks": (LockTable, "acquire", _nothing),
    "the verdict is always absent": (Verdicts, "ask", _absent),
    "the verdict is always committed": (Verdicts, "ask", _committed),
    "an open transaction is not run again": (Memory, "finished", _no_transaction),
    "pruning looks at nobody's snapshot": (Engine, "refresh_keep", _prune_all),
    "any image is the newest": (Staleness, "is_newest", _always_newest),
    "whatever a slot holds is its page": (shared, "_is_page", lambda image, page_id: True),
    "a lower epoch may append": (Chunk, "check_epoch", _nothing),
    "an overtaken fetch is installed": (Fetcher, "invalidated", _forget_restart),
    "a page of each commit is not invalidated": (LogWriter, "queue", _miss_a_page),
    "a reader that does not answer stays": (Membership, "_expel", _never_expel),
    "whoever comes back keeps its cache": (Membership, "_admit", _always_warm),
    "a new writer does not apply the log": (recovery, "_apply_group", _no_redo),
    "nobody looks for deadlocks": (LockTable, "_wait", _wait_for_ever),
    "a place outlives its invalidation": (Places, "forget", _nothing),
    "a free row wakes nobody": (LockTable, "_wake", _wake_nobody),
    "a session's own commits do not count": (Reuse, "may_take", _any_age),
    "snapshots are a little old": (Transaction, "start_statement", _late_snapshot),
}  # fmt: skip


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run the body with one bug in the product; None: as it is."""
    if name is None:
        yield
        return
    owner, method, replacement = MUTANTS[name]
    with mock.patch.object(owner, method, replacement):
        yield
