"""An event loop whose time is what the next timer says, and the processes that share it.

A *process* is a name in the context of tasks and callbacks. When it is killed, nothing of it runs
any more: not its tasks, not its timers, not what arrives for it. When it is stopped (SIGSTOP), what
was due meanwhile runs when it goes on.

The loop is asyncio's from the outside. Inside it has a queue and a heap of its own: there is
nothing to select, and asyncio's handles and their comparisons were a quarter of what a seed costs.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
from collections import deque
from collections.abc import Callable
from typing import Any, Final

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
# Timers that were cancelled stay in the heap until there are so many, and most of it.
CANCELLED_MAX: Final = 1000
# So many rounds at one time, and somebody asks again and again at once for what does not come.
ROUNDS_MAX: Final = 50_000


class Killed(BaseException):
    """Unwinds the callback in which its own process was killed."""


class Process:
    """One simulated process. ``on_kill``: connections to break, in order."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.alive = True
        self.stopped = False
        self.on_kill: list[Callable[[], None]] = []
        # What was due while it was stopped.
        self.late: list[Callback] = []

    def kill(self) -> None:
        """Nothing of it runs from now on."""
        self.alive = False
        self.late.clear()
        for action in self.on_kill:
            action()
        self.on_kill.clear()

    def go_on(self, loop: VirtualLoop) -> None:
        """SIGCONT."""
        self.stopped = False
        late, self.late = self.late, []
        loop.run_again(late)


class Callback:
    """Something to call, now or at a time: what asyncio calls a handle."""

    __slots__ = ("_args", "_at", "_callback", "_context", "_is_cancelled", "_loop")

    def __init__(
        self, loop: VirtualLoop, callback: Any, args: Any, context: Any, at: float
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._args = args
        self._context = context
        self._at = at
        self._is_cancelled = False

    def cancel(self) -> None:
        """It is not called any more."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self._callback = self._args = None
            if self._at:
                self._loop.timer_cancelled()

    def cancelled(self) -> bool:
        return self._is_cancelled

    def when(self) -> float:
        """For timers."""
        return self._at

    def __repr__(self) -> str:
        return f"{self._callback}"

    def run(self) -> None:
        """Call it, if its process runs."""
        if self._is_cancelled:
            return
        process = self._context.get(PROCESS)
        if process is not None:
            if not process.alive:
                return
            if process.stopped:
                process.late.append(self)
                return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            context = {"message": f"an exception in {self._callback}", "exception": error}
            self._loop.call_exception_handler(context)


class _NoSelector(selectors.BaseSelector):
    """There is nothing to wait for but time."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> Any:
        return None

    def select(self, timeout: float | None = None) -> list[Any]:
        return []

    def get_map(self) -> Any:
        return {}

    def get_key(self, fileobj: Any) -> Any:
        raise KeyError(fileobj)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._due: deque[Callback] = deque()
        # (time, number, callback): those of one time run in the order in which they were made.
        self._timers: list[tuple[float, int, Callback]] = []
        self._timer_count = 0
        self._cancelled_count = 0
        self._rounds = 0
        super().__init__(_NoSelector())
        self.problems: list[dict[str, Any]] = []
        self.set_exception_handler(self._problem)

    def _problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Tasks of a killed process never end, and are found by the collector.
        if isinstance(context.get("exception"), Killed):
            return
        if "was destroyed but it is pending" not in context["message"]:
            self.problems.append(context)

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Callback:
        if context is None:
            context = contextvars.copy_context()
        handle = Callback(self, callback, args, context, 0.0)
        self._due.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Callback:
        if context is None:
            context = contextvars.copy_context()
        handle = Callback(self, callback, args, context, when)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Callback:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def run_again(self, callbacks: list[Callback]) -> None:
        """What a stopped process has missed."""
        self._due.extend(callbacks)

    def timer_cancelled(self) -> None:
        """Most time-outs do not come: they would fill the heap."""
        self._cancelled_count += 1
        if self._cancelled_count > max(CANCELLED_MAX, len(self._timers) // 2):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def _run_once(self) -> None:
        """Everything that is due; if that is nothing, go to the time of the next timer."""
        due, timers = self._due, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not due and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise RuntimeError("the simulation waits for nothing: a deadlock")
            if timers[0][0] > self.now:
                self.now = timers[0][0]
                self._rounds = 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise RuntimeError(f"time stands still, for {due[0] if due else None}")
        while timers and timers[0][0] <= self.now:
            due.append(heapq.heappop(timers)[2])
        # What they make due comes in the next round.
        for _ in range(len(due)):
            due.popleft().run()
