"""An event loop whose time is what the next timer says, and the processes that share it.

A *process* is a name in the context of tasks and callbacks. When it is killed, nothing of it runs
any more: not its tasks, not its timers, not what arrives for it. When it is stopped (SIGSTOP), what
was due meanwhile runs when it goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable
from typing import Any

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


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
        self._late: list[tuple[contextvars.Context, Callable[..., Any], tuple[Any, ...]]] = []

    def run(self, context: contextvars.Context, callback: Callable[..., Any], args: Any) -> None:
        """Run a callback of this process, or do not."""
        if not self.alive:
            return
        if self.stopped:
            self._late.append((context, callback, args))
        else:
            callback(*args)

    def kill(self) -> None:
        """Nothing of it runs from now on."""
        self.alive = False
        self._late.clear()
        for action in self.on_kill:
            action()
        self.on_kill.clear()

    def go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """SIGCONT."""
        self.stopped = False
        late, self._late = self._late, []
        for context, callback, args in late:
            loop.call_soon(callback, *args, context=context)


class _NoSelector(selectors.BaseSelector):
    """There is nothing to wait for but time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> Any:
        return None

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulation waits for nothing: a deadlock")
        if timeout > 0:
            self._loop.now += timeout
        return []

    def get_map(self) -> Any:
        return {}

    def get_key(self, fileobj: Any) -> Any:
        raise KeyError(fileobj)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_NoSelector(self))
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
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.run, context, callback, args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.run, context, callback, args, context=context)
