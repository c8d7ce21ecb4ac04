"""``python -m tests.sim [--seeds A..B | --seed S --trace | --mutants]``: run seeds.

Exits with 1 if a seed fails, or, with ``--mutants``, if a deliberate bug is not found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.sim.mutants import MUTANTS
from tests.sim.run import Outcome, run_seed

# A bug that takes longer is not found.
MUTANT_SEEDS_MAX = 30


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--seeds", default="1..200", help="a range, first..last")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--mutants", action="store_true", help="find the deliberate bugs")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    if options.seed is not None:
        outcome = run_seed(options.seed)
        if options.trace:
            print("\n".join(outcome.trace))
        return _report([outcome])
    if options.mutants:
        return _mutants(options.jobs)
    first, _, last = options.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    # A process for each few seeds: what one leaves behind is no business of the next.
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, maxtasksperchild=20) as pool:
        for outcome in pool.imap_unordered(run_seed, seeds):
            outcomes.append(outcome)
            if outcome.problem:
                print(f"seed {outcome.seed}: {outcome.problem}", flush=True)
            if sys.stderr.isatty():
                print(f"\r{len(outcomes)} of {len(seeds)}", end="", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"{len(outcomes)} seeds in {seconds:.0f} s")
    return _report(outcomes)


def _find(name: str) -> tuple[str, int, str]:
    """(name, seeds needed or 0, what was seen)."""
    for seed in range(1, MUTANT_SEEDS_MAX + 1):
        problem = run_seed(seed, name).problem
        if problem:
            return name, seed, problem[:90]
    return name, 0, "not found"


def _mutants(jobs: int) -> int:
    found = 0
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for name, seeds, problem in pool.imap_unordered(_find, MUTANTS):
            found += bool(seeds)
            print(f"{seeds or '-':>4}  {name}: {problem}", flush=True)
    print(f"{found} of {len(MUTANTS)} found")
    return 0 if found == len(MUTANTS) else 1


def _report(outcomes: list[Outcome]) -> int:
    failed = sorted(outcome.seed for outcome in outcomes if outcome.problem)
    for outcome in outcomes:
        if len(outcomes) == 1 and outcome.problem:
            print(outcome.problem)
    if failed:
        print(f"failed: {failed}; replay one with `polarless sim --seed {failed[0]} --trace`")
        return 1
    commits = sum(outcome.commits for outcome in outcomes)
    audits = sum(outcome.audits for outcome in outcomes)
    print(f"clean: {commits} commits, {audits} audits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
