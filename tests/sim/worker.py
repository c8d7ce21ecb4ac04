"""One seed in a process of its own: nothing that it leaves behind reaches the next one.

The parent kills a process that does not end within its limit of real time, and hears of one that
dies; both are said of the seed, and the others go on.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from tests.sim.outcome import Outcome
from tests.sim.run import run_seed

# Forked from a process that has only imported things: a spawned one would import for a second.
_FORK: Any = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Job:
    """A seed to run, perhaps with a deliberate bug."""

    seed: int
    mutant: str | None = None
    limit_s: float = 60.0


class _Running:
    """A process that runs a job, and its end of a pipe."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.pipe, other = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=_run, args=(job, other), daemon=True)
        self.process.start()
        other.close()
        self.late_at = time.monotonic() + job.limit_s

    def outcome(self) -> Outcome:
        """What it has said; or that it died, or is too slow, which is not the same as a find."""
        try:
            if self.pipe.poll():
                said: Outcome = self.pipe.recv()
                return said
        except EOFError:
            return Outcome(self.job.seed, problem="its process died", gave_up=True)
        finally:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        text = f"gave up after {self.job.limit_s:g} s of real time"
        return Outcome(self.job.seed, problem=text, gave_up=True)


def _run(job: Job, pipe: Any) -> None:
    leave_the_parents_objects()
    warnings.simplefilter("ignore", RuntimeWarning)
    outcome = run_seed(job.seed, job.mutant)
    outcome.cpu_s = time.process_time()
    # Tasks of killed processes complain when they are collected; nobody is left to hear.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    pipe.send(outcome)


def leave_the_parents_objects() -> None:
    """In a forked process: collect none of the objects that came along.

    The parent may be a test run that has left cycles with connections, threads and mapped files in
    them, and what closes these must not run in a copy of it: that ended in a crash.
    """
    gc.freeze()


def run_jobs(jobs: Iterable[Job], count: int) -> Iterator[tuple[Job, Outcome]]:
    """Run each, ``count`` at a time, and give what ends first first."""
    queue = iter(jobs)
    running: list[_Running] = []
    try:
        while True:
            while len(running) < count and (job := next(queue, None)) is not None:
                running.append(_Running(job))
            if not running:
                return
            until_late = min(one.late_at for one in running) - time.monotonic()
            ready = connection.wait([one.pipe for one in running], max(0.0, until_late))
            now = time.monotonic()
            over = [one for one in running if one.pipe in ready or one.late_at <= now]
            for one in over:
                running.remove(one)
                yield one.job, one.outcome()
    finally:
        for one in running:
            one.process.kill()
