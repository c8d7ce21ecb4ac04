"""What has been answered is run again at a new writer before anything new is begun there.

Its transactions held row locks. If a statement that was waiting for one of them came first, it
would get the lock, and the transaction that had it would wait: for ever, if one thread serves both
clients and holds half an answer of the second. So new work waits until every session of this proxy
whose transaction or half-answered cycle is run again is through, or a limit has passed.

Two that are run again may want one row: the old writer let go of a commit's locks before the commit
was durable, another got them, and the commit was lost. So transactions whose end is under way come
first, and are ended; then those that are open. If nothing has moved for a while all may go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from polarless.kernel.world import Clock, Timer
    from polarless.proxy.session import Session

log = logging.getLogger(__name__)

# A replay may itself wait for locks: of clients that came to the new writer by another way.
BARRIER_MAX_S: Final = 2.0
# Replaying one statement takes a millisecond.
STILL_S: Final = 0.2


class Barrier:
    """See the module. ``on_open`` is called when work may go on."""

    def __init__(self, clock: Clock, on_open: Callable[[], None]) -> None:
        self.waiting: set[Session] = set()
        # Those of them whose transaction is about to end.
        self.ending: set[Session] = set()
        self._ended = asyncio.Event()
        self._clock = clock
        self._on_open = on_open
        self._timer: Timer | None = None
        self._end = 0.0

    def close(self, sessions: Iterable[Session]) -> None:
        """There is a new writer, and these sessions have something to be run again there."""
        self._end_timer()
        self.waiting = set(sessions)
        self.ending = {session for session in self.waiting if session.is_ending}
        self._ended.clear()
        if not self.ending:
            self._ended.set()
        if self.waiting:
            self._end = self._clock.now() + BARRIER_MAX_S
            self._arm()

    def moved(self) -> None:
        """One more cycle has run again."""
        if self.waiting:
            self._end_timer()
            self._arm()

    def holds(self, session: Session) -> bool:
        """Whether the session's next cycle has to wait."""
        return bool(self.waiting) and session not in self.waiting

    def passed(self, session: Session) -> None:
        """Whatever the session had been answered is true again."""
        if session in self.waiting:
            self.waiting.discard(session)
            self.ending.discard(session)
            if not self.ending:
                self._ended.set()
            if not self.waiting:
                self._open()

    async def turn(self, session: Session) -> None:
        """Return when the session's transaction may be run again."""
        if self.ending and session not in self.ending:
            await self._ended.wait()

    def _arm(self) -> None:
        left_s = max(0.0, self._end - self._clock.now())
        self._timer = self._clock.call_later(min(STILL_S, left_s), self._too_late)

    def _too_late(self) -> None:
        log.info("%d sessions are still run again; others go on", len(self.waiting))
        self._timer = None
        self.waiting, self.ending = set(), set()
        self._ended.set()
        self._open()

    def _open(self) -> None:
        self._end_timer()
        # Not from within whatever the last session is doing.
        self._clock.call_soon(self._on_open)

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
