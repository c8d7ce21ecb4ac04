"""A seed that does not end, or whose process dies, is told from one that has found something."""

from __future__ import annotations

import os
import time

import pytest

from tests.sim import worker
from tests.sim.outcome import Outcome
from tests.sim.worker import Job, run_jobs


def fake(seed: int, mutant: str | None) -> Outcome:
    if seed == 1:
        # As a callback that never ends does, it hears of no signal that can be handled.
        time.sleep(600)
    if seed == 2:
        os._exit(3)
    return Outcome(seed, problem="found" if seed == 3 else "")


@pytest.mark.timeout(60)
def test_who_does_not_end_or_dies_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "run_seed", fake)
    jobs = [Job(seed, limit_s=0.5 if seed == 1 else 30) for seed in range(1, 6)]
    said = {job.seed: outcome for job, outcome in run_jobs(jobs, 2)}
    assert {seed: (o.problem, o.gave_up) for seed, o in said.items()} == {
        1: ("gave up after 0.5 s of real time", True),
        2: ("its process died", True),
        3: ("found", False),
        4: ("", False),
        5: ("", False),
    }
