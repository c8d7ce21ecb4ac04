"""How a statement waits: it does not. It raises a `Suspend`, and runs again from its start later.

Reading and changing pages is plain synchronous code. Whatever is not at hand (a page, a row lock,
the published timestamp over TCP) is raised as a `Suspend`; the session subscribes, parks, and runs
the statement from its start when it is woken. So a traversal never sees a page change under it, no
latch is needed, and the path without a wait costs nothing.

Coroutines (scans, DDL, COPY) wait for the same objects with ``await resumed(suspend)``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polarless.errors import PolarlessError

Resume = Callable[[PolarlessError | None], None]


class Suspend(Exception):
    """Raised by synchronous code that must wait. ``reason`` is shown beside the session."""

    reason = "?"

    def subscribe(self, resume: Resume) -> None:
        """Call ``resume(error)`` once, later: None means run the statement again."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The session gave up; ``resume`` is not called any more."""
        raise NotImplementedError


class Waiters:
    """Callbacks that wait for one thing; woken all at once."""

    __slots__ = ("callbacks",)

    def __init__(self) -> None:
        self.callbacks: list[Resume] = []

    def wake(self, error: PolarlessError | None) -> None:
        """Call everybody once."""
        callbacks, self.callbacks = self.callbacks, []
        for resume in callbacks:
            resume(error)


class WaitFor(Suspend):
    """Wait on a `Waiters`."""

    def __init__(self, waiters: Waiters, reason: str) -> None:
        super().__init__(reason)
        self.waiters = waiters
        self.reason = reason
        self._resume: Resume | None = None

    def subscribe(self, resume: Resume) -> None:
        self._resume = resume
        self.waiters.callbacks.append(resume)

    def cancel(self) -> None:
        if self._resume in self.waiters.callbacks:
            self.waiters.callbacks.remove(self._resume)


async def resumed(suspend: Suspend) -> None:
    """Wait until the statement may run again. Raises what the wait ended with."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def resume(error: PolarlessError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    suspend.subscribe(resume)
    try:
        await future
    except asyncio.CancelledError:
        suspend.cancel()
        raise
