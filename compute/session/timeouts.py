"""statement_timeout, lock_timeout and the idle timeouts of one session, with one timer.

Nothing is armed for a statement that does not wait: the time it could take is bounded by what one
step may do. The statement's deadline is set when it waits for the first time, a few microseconds
after it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compute.session.waits import Parked, Wait, interrupt
from polarless.errors import CallerMistake, DeadlineExceeded, PolarlessError

if TYPE_CHECKING:
    from compute.session.session import Session
    from polarless.kernel.world import Timer


class Timeouts:
    """See the module's docstring. ``armed`` is True while the session is idle under a timer."""

    __slots__ = ("_deadline", "_lock_seen", "_session", "_timer", "armed")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._timer: Timer | None = None
        # When the statement at hand has to end; 0: not known yet.
        self._deadline = 0.0
        self._lock_seen: Any = None
        self.armed = False

    def waiting(self, wait: Wait) -> None:
        """The statement waits: arm what applies to it."""
        settings = self._session.settings
        statement_s, lock_s = settings.statement_timeout_s, settings.lock_timeout_s
        if not statement_s and not lock_s:
            return
        clock = self._session.clock
        now = clock.now()
        delays: list[float] = []
        if statement_s:
            if not self._deadline:
                self._deadline = now + statement_s
            delays.append(max(0.0, self._deadline - now))
        if lock_s:
            if not isinstance(wait, Parked):
                # A task may wait for several locks, one after the other: look again and again.
                delays.append(lock_s / 2)
            elif wait.for_lock:
                delays.append(lock_s)
        if delays:
            self.cancel()
            self._timer = clock.call_later(min(delays), self._expired)

    def statement_over(self) -> None:
        """The statement has ended."""
        self._deadline = 0.0
        self._session.sql.sleeps_until = 0.0
        self._lock_seen = None
        if self._timer is not None:
            self.cancel()

    def idle(self) -> None:
        """The session waits for its client."""
        session = self._session
        settings = session.settings
        delay = settings.idle_in_transaction_s if session.explicit else settings.idle_s
        if delay:
            self.cancel()
            self.armed = True
            self._timer = session.clock.call_later(delay, self._idle_too_long)

    def heard(self) -> None:
        """The client has sent something."""
        self.armed = False
        self.cancel()

    def cancel(self) -> None:
        """No timer any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _idle_too_long(self) -> None:
        self._timer = None
        if not self.armed:
            return
        self.armed = False
        session = self._session
        if session.explicit:
            what, sqlstate = "idle-in-transaction", "25P03"
        else:
            what, sqlstate = "idle-session", "57P05"
        session.die(
            PolarlessError(f"terminating connection due to {what} timeout", sqlstate=sqlstate)
        )

    def _expired(self) -> None:
        self._timer = None
        session = self._session
        wait = session.wait
        if wait is None:
            return
        if self._deadline and session.clock.now() >= self._deadline:
            interrupt(
                session,
                DeadlineExceeded("canceling statement due to statement timeout", sqlstate="57014"),
            )
            return
        if session.settings.lock_timeout_s:
            if isinstance(wait, Parked):
                waits_for: Any = wait if wait.for_lock else None
                seen = waits_for
            else:
                waits_for = getattr(session.txn, "waits_for", None)
                seen, self._lock_seen = self._lock_seen, waits_for
            if waits_for is not None and waits_for is seen:
                interrupt(
                    session,
                    CallerMistake("canceling statement due to lock timeout", sqlstate="55P03"),
                )
                return
        self.waiting(wait)
