"""What a session can be waiting for. While it does, no further message of its client is handled.

* `Parked`: a `Suspend` of a fast statement; the message is handled again from its start.
* `Working`: a task (a long result, DDL, COPY). ``cause`` says why it was cancelled.
* `Committing`: the acknowledgement of a commit. Nothing interrupts this: the commit has happened,
  or will, and the session must not claim otherwise.

The functions here begin and end these waits. Ending one goes on with the session at once, but only
with the one message that waited: it may be the only one that may use what has come (a timestamp
fetched for it), and the caller may be in the middle of something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from compute.buffer.waits import Suspend
from compute.sql import environment
from compute.txn.locks import LockWait
from polarless.errors import ConnectionLost, PolarlessError

if TYPE_CHECKING:
    from compute.session.session import Handler, Session
    from compute.session.statements import Then


class Parked:
    """Waits until ``suspend`` resumes it; then ``handler(session, body)``."""

    __slots__ = ("body", "handler", "suspend")

    def __init__(self, suspend: Suspend, handler: Handler, body: Any) -> None:
        self.suspend = suspend
        self.handler = handler
        self.body = body

    @property
    def for_lock(self) -> bool:
        """Whether another transaction has to end first."""
        return isinstance(self.suspend, LockWait)

    @property
    def reason(self) -> str:
        """Shown beside the session."""
        return self.suspend.reason


class Working:
    """Waits for a task of its own."""

    __slots__ = ("cause", "reason", "task")

    def __init__(self, task: asyncio.Task[bytes], reason: str) -> None:
        self.task = task
        self.reason = reason
        self.cause: PolarlessError | None = None


class Committing:
    """Waits for the engine to acknowledge; then ``then(session, answer)``."""

    __slots__ = ("answer", "then")
    reason = "commit"

    def __init__(self, then: Then, answer: bytes) -> None:
        self.then = then
        self.answer = answer


Wait = Parked | Working | Committing


def park(session: Session, suspend: Suspend, handler: Handler, body: Any) -> None:
    """Handle the message again when ``suspend`` says so."""
    wait = session.wait = Parked(suspend, handler, body)
    session.stats.suspends += 1
    session.timeouts.waiting(wait)
    try:
        suspend.subscribe(partial(_resumed, session, wait))
    except PolarlessError as error:
        session.wait = None
        session.fail(error)


def _resumed(session: Session, wait: Parked, error: PolarlessError | None) -> None:
    if session.wait is not wait:
        return
    if wait.for_lock:
        # We are inside another transaction's commit or rollback, which is not over yet.
        session.clock.call_soon(partial(_woken, session, wait, error))
    else:
        _woken(session, wait, error)


def _woken(session: Session, wait: Parked, error: PolarlessError | None) -> None:
    if session.wait is not wait:
        return
    session.wait = None
    if error is None:
        session.handle(wait.handler, wait.body)
    else:
        session.handle(_fail, error)


def _fail(session: Session, error: PolarlessError) -> None:
    session.fail(error)


def work(session: Session, job: Coroutine[Any, Any, bytes], then: Then, reason: str) -> None:
    """Run ``job`` as a task; ``then(session, its result)``."""
    if session.settings.environment is not None:
        job = environment.under(session.settings.environment, job)
    task = asyncio.get_running_loop().create_task(job)
    wait = session.wait = Working(task, reason)
    session.timeouts.waiting(wait)
    task.add_done_callback(partial(_worked, session, wait, then))


def _worked(session: Session, wait: Working, then: Then, task: asyncio.Task[bytes]) -> None:
    error: PolarlessError | None = None
    answer = b""
    if task.cancelled():
        error = wait.cause or ConnectionLost("the statement was cancelled")
    else:
        failure = task.exception()
        if failure is None:
            answer = task.result()
        elif isinstance(failure, PolarlessError):
            error = failure
        else:
            error = session.unexpected(failure)
    if session.wait is not wait:
        return
    session.wait = None
    if session.closing:
        session.roll_back()
    elif error is None:
        session.handle(call_then, (then, answer))
    else:
        session.handle(_fail, error)


def call_then(session: Session, call: tuple[Then, bytes]) -> None:
    """A handler that goes on after a wait."""
    call[0](session, call[1])


def interrupt(session: Session, error: PolarlessError) -> None:
    """End the statement that waits with this error. A commit under way is not touched."""
    wait = session.wait
    if type(wait) is Parked:
        wait.suspend.cancel()
        session.wait = None
        session.handle(_fail, error)
    elif type(wait) is Working and wait.cause is None:
        wait.cause = error
        wait.task.cancel()


def abandon(session: Session, error: PolarlessError) -> None:
    """The connection is over. Whoever still works on the transaction lets go of it first."""
    wait = session.wait
    if type(wait) is Parked:
        wait.suspend.cancel()
        session.wait = wait = None
    elif type(wait) is Working and wait.cause is None:
        wait.cause = error
        wait.task.cancel()
    if wait is None:
        session.roll_back()
