"""One seed in a process of its own: nothing that it leaves behind reaches the next one.

A seed that does not end within its limit of real time has found something too, or is too slow: it
says so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.sim.outcome import Outcome
from tests.sim.run import run_seed


@dataclass(frozen=True)
class Job:
    """A seed to run, perhaps with a deliberate bug."""

    seed: int
    mutant: str | None = None
    limit_s: int = 60


class TooSlow(BaseException):
    """The limit of real time is over."""


def run_job(job: Job) -> tuple[Job, Outcome, float]:
    """Run it; with the seconds that it took."""
    began = time.monotonic()

    def over(number: int, frame: object) -> None:
        raise TooSlow

    warnings.simplefilter("ignore", RuntimeWarning)
    signal.signal(signal.SIGALRM, over)
    signal.alarm(job.limit_s)
    try:
        outcome = run_seed(job.seed, job.mutant)
    except TooSlow:
        outcome = Outcome(job.seed, problem=f"gave up after {job.limit_s} s of real time")
    signal.alarm(0)
    # Tasks of killed processes complain when they are collected; nobody is left to hear.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return job, outcome, time.monotonic() - began


def run_jobs(jobs: Iterable[Job], count: int) -> Iterator[tuple[Job, Outcome, float]]:
    """Run each in a fresh process, ``count`` at a time, and give what comes first first.

    Forked from a process that has only imported things: a spawned one would import for a second.
    """
    context: Any = multiprocessing.get_context("fork")
    with context.Pool(count, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run_job, jobs, chunksize=1)
