"""How late a process's event loop is: what its callbacks, its garbage collector and the host cost.

A timer that is due every 10 ms notes how much later it ran. That is the time that a message which
came in that moment would have waited. A pause that only others saw (the host gave the processor to
somebody else) is counted too, and told apart by the processor time that this thread used meanwhile:
``busy`` counts delays of which it used more than half.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final

from polarless.kernel.world import Clock

PERIOD_S: Final = 0.01
BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100)
# Counted up to each bound, and beyond the last.
NAMES: Final = (*(f"to_{bound}_ms" for bound in BOUNDS_MS), f"over_{BOUNDS_MS[-1]}_ms")


class LoopLag:
    """Delays of one loop since `start`. ``thread_time()``: processor seconds of this thread."""

    def __init__(self, clock: Clock, thread_time: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._thread_time = thread_time
        self._due = 0.0
        self._used = 0.0
        self._collecting_since = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        self.counts = [0] * len(NAMES)
        self.busy = [0] * len(NAMES)
        self.worst_ms = 0.0
        self.worst_busy_ms = 0.0
        self.worst_collection_ms = 0.0
        self._due = self._clock.now() + PERIOD_S
        self._used = self._thread_time()

    def start(self) -> None:
        """Measure from now on."""
        gc.callbacks.append(self.collecting)
        self._arm()

    def _arm(self) -> None:
        self._due = self._clock.now() + PERIOD_S
        self._used = self._thread_time()
        self._clock.call_later(PERIOD_S, self._tick)

    def _tick(self) -> None:
        late_ms = 1000 * max(0.0, self._clock.now() - self._due)
        used_ms = 1000 * (self._thread_time() - self._used)
        bucket = bisect_left(BOUNDS_MS, late_ms)
        self.counts[bucket] += 1
        self.worst_ms = max(self.worst_ms, late_ms)
        if used_ms > late_ms / 2:
            self.busy[bucket] += 1
            self.worst_busy_ms = max(self.worst_busy_ms, late_ms)
        self._arm()

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """Told by the garbage collector."""
        now = self._clock.now()
        if phase == "start":
            self._collecting_since = now
        else:
            pause_ms = 1000 * (now - self._collecting_since)
            self.worst_collection_ms = max(self.worst_collection_ms, pause_ms)

    def snapshot(self) -> dict[str, Any]:
        """Histograms and maxima, milliseconds."""
        return {
            "delays": dict(zip(NAMES, self.counts, strict=True)),
            "busy_delays": dict(zip(NAMES, self.busy, strict=True)),
            "worst_ms": round(self.worst_ms, 2),
            "worst_busy_ms": round(self.worst_busy_ms, 2),
            "worst_collection_ms": round(self.worst_collection_ms, 2),
        }


_of_process: LoopLag | None = None


def watch_process(clock: Clock) -> None:
    """Measure this process's loop, once; called inside of it."""
    global _of_process
    if _of_process is None:
        _of_process = LoopLag(clock)
        _of_process.start()


def restart() -> None:
    """Count from now on: what a process does before it serves delays nobody."""
    if _of_process is not None:
        _of_process.reset()


def status() -> dict[str, Any]:
    """For a node's status: ``{"loop": ...}``, or nothing where nobody measures."""
    return {} if _of_process is None else {"loop": _of_process.snapshot()}
