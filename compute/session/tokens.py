"""Commit tokens: the LSN of a session's last commit, and waiting until this node has seen one.

    SHOW polarless.last_commit_lsn;          the token; 0 before the first commit
    SET polarless.wait_for_lsn = '123456';   in any session, on any node

Strong reads need no token: whoever begins after an acknowledgement sees the commit. Tokens are for
those who cannot know of the acknowledgement, or want to be sure that they wait for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from compute.buffer.waits import Resume, Suspend
from polarless.errors import CallerMistake, DeadlineExceeded

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.txn.engine import Engine
    from polarless.kernel.world import Timer

POLL_S: Final = 0.01
DEADLINE_S: Final = 30.0


class LsnWait(Suspend):
    """Waits until this node has seen everything up to an LSN."""

    def __init__(self, engine: Engine, lsn: int) -> None:
        self.reason = f"commit {lsn}"
        super().__init__(self.reason)
        self._engine = engine
        self._lsn = lsn
        self._until = engine.clock.now() + DEADLINE_S
        self._resume: Resume | None = None
        self._timer: Timer | None = None

    def subscribe(self, resume: Resume) -> None:
        self._resume = resume
        self._timer = self._engine.clock.call_later(POLL_S, self._look)

    def cancel(self) -> None:
        self._resume = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        resume = self._resume
        if resume is None:
            return
        if seen(self._engine) >= self._lsn:
            resume(None)
        elif self._engine.clock.now() > self._until:
            resume(
                DeadlineExceeded(
                    f"commit {self._lsn} was not seen within {DEADLINE_S:.0f} s; this node is at "
                    f"{seen(self._engine)}",
                    hint="Is it a token of this cluster (SHOW polarless.last_commit_lsn)?",
                )
            )
        else:
            self._timer = self._engine.clock.call_later(POLL_S, self._look)


def seen(engine: Engine) -> int:
    """The LSN up to which this node shows every commit."""
    return engine.log.advanced if engine.log is not None else engine.fetcher.mark()


def token_settings(
    session: Session,
) -> dict[str, tuple[Callable[[], str], Callable[[str], None]]]:
    """How the two settings are read and changed."""

    def last() -> str:
        return str(session.last_commit_lsn)

    def refuse(value: str) -> None:
        raise CallerMistake(
            'parameter "polarless.last_commit_lsn" cannot be changed', sqlstate="55P02"
        )

    def wait(value: str) -> None:
        if not value.isdecimal() or len(value) > 19:
            raise CallerMistake(
                f'invalid value for parameter "polarless.wait_for_lsn": "{value}"',
                sqlstate="22023",
                hint="SHOW polarless.last_commit_lsn gives such a number.",
            )
        if seen(session.engine) < int(value):
            raise LsnWait(session.engine, int(value))
        session.waited_for_lsn = int(value)

    return {
        "polarless.last_commit_lsn": (last, refuse),
        "polarless.wait_for_lsn": (lambda: str(session.waited_for_lsn), wait),
    }
