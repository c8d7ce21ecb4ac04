"""Functions that wait: pg_sleep, and the advisory locks.

They raise a `Suspend` as everything that waits does, and the statement runs again from its start.
So what a function did before its statement waited must not be done twice:

* pg_sleep keeps the end of its pause in the session's `SqlState`, until it has come.
* An advisory lock waits only while somebody else holds it. A session that is asked to lock again
  what it holds counts, as PostgreSQL does, and unlocks as often.

Advisory locks are rows of a tree that does not exist, in the writer's lock table; they are held by
sessions (`AdvisoryLocks` is the owner) and go with them. A cycle of advisory locks is found; one
that goes over a row lock as well is not, and ends by ``lock_timeout``. They do not outlive the
writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from compute.buffer.waits import Resume, Suspend
from compute.txn.locks import LockTable, LockWait, Owner
from polarless.errors import CallerMistake, Reroute

if TYPE_CHECKING:
    from compute.sql.plan import SessionLike
    from polarless.kernel.world import Timer

# No page has this id, so no tree has this root.
ADVISORY_TREE: Final = -1
# Held by one session at a time.
ADVISORY_LOCKS_MAX: Final = 10_000


class Sleep(Suspend):
    """A pause of one statement."""

    reason = "pg_sleep"

    def __init__(self, session: SessionLike, seconds: float) -> None:
        super().__init__(self.reason)
        self._clock = session.engine.clock
        self._seconds = seconds
        self._timer: Timer | None = None

    def subscribe(self, resume: Resume) -> None:
        self._timer = self._clock.call_later(self._seconds, lambda: resume(None))

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def sleep(session: SessionLike, seconds: float) -> str:
    """pg_sleep(seconds)."""
    state, now = session.sql, session.engine.clock.now()
    if not state.sleeps_until:
        if not seconds > 0:
            return ""
        state.sleeps_until = now + min(seconds, 1e9)
    # A timer may be early by less than what a clock can tell.
    if state.sleeps_until - now > 0.0005:
        raise Sleep(session, state.sleeps_until - now)
    state.sleeps_until = 0.0
    return ""


class AdvisoryLocks(Owner):
    """One session's: key -> how often it was locked for the session, and for its transaction."""

    __slots__ = ("counts", "table")

    def __init__(self, table: LockTable) -> None:
        super().__init__()
        self.table = table
        self.counts: dict[Any, list[int]] = {}

    @property
    def for_session(self) -> bool:
        """Whether something is locked beyond the transaction."""
        return any(count[0] for count in self.counts.values())

    def hold(self, key: Any, *, transaction: bool, wait: bool) -> bool:
        """Lock; False if it is taken and ``wait`` is not set. May raise a `Suspend`."""
        holder = self.table.rows.get(ADVISORY_TREE, {}).get(key)
        if holder is not self:
            if holder is not None and not wait:
                return False
            if len(self.counts) >= ADVISORY_LOCKS_MAX:
                raise CallerMistake(
                    f"this session holds {ADVISORY_LOCKS_MAX} advisory locks",
                    sqlstate="53200",
                    hint="Unlock some, or use one lock for several things.",
                )
            try:
                self.table.acquire(self, ADVISORY_TREE, key)
            except LockWait:
                raise _AdvisoryWait(self, key) from None
        self.counts.setdefault(key, [0, 0])[transaction] += 1
        return True

    def give_up(self, key: Any) -> bool:
        """Unlock once what was locked for the session; False if it was not."""
        count = self.counts.get(key)
        if count is None or not count[0]:
            return False
        count[0] -= 1
        self._release_unused()
        return True

    def end_session(self) -> None:
        """Unlock what was locked for the session."""
        for count in self.counts.values():
            count[0] = 0
        self._release_unused()

    def end_all(self) -> None:
        """The session is over."""
        self.counts.clear()
        self._release_unused()

    def end_transaction(self) -> None:
        """Unlock what was locked for the transaction."""
        for count in self.counts.values():
            count[1] = 0
        self._release_unused()

    def _release_unused(self) -> None:
        """Let go of every lock that nothing counts, handed over or held."""
        self.counts = {key: count for key, count in self.counts.items() if any(count)}
        unused = [held for held in self.locks if held[1] not in self.counts]
        if unused:
            kept = [held for held in self.locks if held[1] in self.counts]
            self.locks = unused
            self.table.release(self)
            self.locks = kept + self.locks


class _AdvisoryWait(LockWait):
    """Somebody else has the lock."""

    owner: AdvisoryLocks

    def __init__(self, owner: AdvisoryLocks, key: Any) -> None:
        super().__init__(owner.table, owner, ADVISORY_TREE, key)

    @property
    def reason(self) -> str:  # type: ignore[override]
        return f"advisory lock {self.key!r}"

    def cancel(self) -> None:
        super().cancel()
        # It may have been handed over a moment ago.
        self.owner._release_unused()


def locks_of(session: SessionLike) -> AdvisoryLocks:
    """The session's advisory locks, on the writer."""
    if not session.engine.writable:
        raise Reroute(
            "advisory locks are kept by the writer (RW), and this node is a reader",
            hint="Connect to the cluster's URL (`polarless status` shows it): it leads to the "
            "writer (RW).",
        )
    locks: AdvisoryLocks | None = session.sql.advisory
    if locks is None:
        locks = session.sql.advisory = AdvisoryLocks(session.engine.locks)
    return locks


def lock(session: SessionLike, *key: int) -> str:
    """pg_advisory_lock."""
    locks_of(session).hold(key, transaction=False, wait=True)
    return ""


def try_lock(session: SessionLike, *key: int) -> bool:
    """pg_try_advisory_lock."""
    return locks_of(session).hold(key, transaction=False, wait=False)


def xact_lock(session: SessionLike, *key: int) -> str:
    """pg_advisory_xact_lock; outside of a transaction it ends with the statement."""
    locks = locks_of(session)
    locks.hold(key, transaction=True, wait=True)
    if session.txn is None:
        locks.end_transaction()
    return ""


def try_xact_lock(session: SessionLike, *key: int) -> bool:
    """pg_try_advisory_xact_lock."""
    locks = locks_of(session)
    held = locks.hold(key, transaction=True, wait=False)
    if session.txn is None:
        locks.end_transaction()
    return held


def unlock(session: SessionLike, *key: int) -> bool:
    """pg_advisory_unlock: false, and a warning, if the session did not hold it."""
    locks: AdvisoryLocks | None = session.sql.advisory
    if locks is not None and locks.give_up(key):
        return True
    session.notice("WARNING", "01000", "you don't own a lock of type ExclusiveLock")
    return False


def unlock_all(session: SessionLike) -> str:
    """pg_advisory_unlock_all."""
    locks: AdvisoryLocks | None = session.sql.advisory
    if locks is not None:
        locks.end_session()
    return ""


def no_shared(session: SessionLike, *key: int) -> str:
    """The shared kind: locks have one mode here."""
    raise CallerMistake(
        "shared advisory locks are not supported",
        sqlstate="0A000",
        hint="Use the exclusive kind, without _shared.",
    )
