"""``python -m tests.sim [--seeds A..B | --seed S --trace | --mutants]``: run seeds.

Exits with 1 if a seed fails, or, with ``--mutants``, if a deliberate bug is not found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time

from tests.sim.mutants import MUTANTS
from tests.sim.outcome import Outcome
from tests.sim.worker import Job, run_jobs

# A bug that takes longer is not found.
MUTANT_SEEDS_MAX = 60


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--seeds", default="1..200", help="a range, first..last")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--mutants", action="store_true", help="find the deliberate bugs")
    parser.add_argument("--mutant", help="only the bugs whose name has this in it, or with --seed")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    if options.mutants:
        names = [name for name in MUTANTS if (options.mutant or "") in name]
        return _mutants(names, options.jobs, options.json)
    if options.seed is not None:
        began = time.monotonic()
        ((_, outcome),) = run_jobs([Job(options.seed, options.mutant, 600)], 1)
        if options.trace:
            print("\n".join(outcome.trace))
        return _report([outcome], time.monotonic() - began, options.json)
    first, _, last = options.seeds.partition("..")
    jobs = [Job(seed) for seed in range(int(first), int(last or first) + 1)]
    began = time.monotonic()
    outcomes: list[Outcome] = []
    for _, outcome in run_jobs(jobs, options.jobs):
        outcomes.append(outcome)
        if outcome.problem and not options.json:
            print(f"seed {outcome.seed}: {outcome.problem}", flush=True)
        _progress(f"{len(outcomes)} of {len(jobs)} seeds")
    return _report(outcomes, time.monotonic() - began, options.json)


def _mutants(names: list[str], count: int, as_json: bool) -> int:
    """All bugs, each with seed after seed until it is found.

    A seed counts that is clean without the bug; one that does not end finds nothing.
    """
    needed: dict[str, int] = {}
    seen: dict[str, str] = {}
    for seed in range(1, MUTANT_SEEDS_MAX + 1):
        missing = [name for name in names if name not in needed]
        if not missing:
            break
        ((_, clean),) = run_jobs([Job(seed)], 1)
        if clean.problem:
            print(f"seed {seed} fails without any bug: {clean.problem}", file=sys.stderr)
            continue
        for job, outcome in run_jobs([Job(seed, name) for name in missing], count):
            if outcome.problem and not outcome.gave_up:
                name = job.mutant or ""
                needed[name], seen[name] = seed, outcome.problem
                if not as_json:
                    print(f"{seed:>4}  {name}: {outcome.problem[:90]}", flush=True)
        _progress(f"{len(needed)} of {len(names)} found, seed {seed}")
    missing = [name for name in names if name not in needed]
    if as_json:
        print(json.dumps({"found": needed, "seen": seen, "missing": missing}))
    else:
        for name in missing:
            print(f"   -  {name}: not found in {MUTANT_SEEDS_MAX} seeds")
        print(f"{len(needed)} of {len(names)} found")
    return 1 if missing else 0


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text} ", end="", file=sys.stderr, flush=True)


def _report(outcomes: list[Outcome], seconds: float, as_json: bool) -> int:
    problems = {o.seed: o.problem for o in sorted(outcomes, key=lambda o: o.seed) if o.problem}
    commits = sum(outcome.commits for outcome in outcomes)
    audits = sum(outcome.audits for outcome in outcomes)
    cpu_s = sum(outcome.cpu_s for outcome in outcomes) / max(1, len(outcomes))
    if as_json:
        fields = {"seeds": len(outcomes), "failed": problems, "commits": commits, "audits": audits}
        print(json.dumps({**fields, "seconds": round(seconds, 1), "cpu_s": round(cpu_s, 2)}))
    elif problems:
        if len(outcomes) == 1:
            print(*problems.values())
        seed = next(iter(problems))
        print(f"failed: {list(problems)}; replay with `polarless sim --seed {seed} --trace`")
    else:
        print(f"clean: {len(outcomes)} seeds, {commits} commits, {audits} audits")
        if len(outcomes) > 1:
            print(f"a seed took {cpu_s:.2f} s of a processor on average")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
