"""Some seeds of the simulation, and those that have found something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# 51, 65, 68, 111: a read on a reader that was just expelled ended with an error.
REGRESSIONS = (51, 65, 68, 111)


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """In a process of its own: what a seed leaves behind is no business of other tests."""
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
        env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


@pytest.mark.timeout(180)
def test_the_first_seeds_are_clean() -> None:
    done = simulate("--seeds", "1..8")
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_found_something_stay_clean(seed: int) -> None:
    done = simulate("--seed", str(seed), "--trace")
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(180)
def test_a_seed_gives_the_same_trace_again() -> None:
    one = simulate("--seed", "7", "--trace", hash_seed="1")
    other = simulate("--seed", "7", "--trace", hash_seed="2")
    assert one.stdout == other.stdout
    assert "serves as" in one.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_seeds_are_clean() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seeds", "1..300"],
        cwd=ROOT, capture_output=True, text=True, timeout=880, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
