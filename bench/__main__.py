"""``python -m bench NAME [--quick] [--json] [--plot DIR] [--compare FILE]``: one benchmark.

It starts the servers that it needs and removes them. Exit codes: 0 done, 1 it failed, 2 usage.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import report
from polarless.errors import PolarlessError
from polarless.local import REMOTE_LATENCY

BENCHMARKS: Final = {
    "vs-postgres": "pgbench on both servers in turn, and through our proxy",
    "verbs": "one-sided operations beside a raw socket and a memcpy",
    "local-memory": "throughput while the cache holds 2 % to 100 % of the data",
    "ycsb": "workloads A to F beside PostgreSQL",
    "prefetch": "secondary-index scans with and without prefetch, from pool and storage",
    "elastic-memory": "range queries while the pool grows and shrinks",
    "remote-memory": "analytic queries while the pool holds an eighth to all of the data",
    "scale-out": "a new reader's first answer, beside a standby of PostgreSQL",
    "vs-peers": "get and put of keys beside Redis and ZEO, a lost writer beside a standby",
    "scaling": "cost over clients, rows, readers and pages",
    "tpcc": "five transactions beside PostgreSQL",
    "tpch": "22 queries beside PostgreSQL",
    "failover": "what clients wait for when the writer is killed or switched",
}


def main() -> int:
    """Parse, run, print; the exit code."""
    listing = "\n".join(f"  {name:14} {what}" for name, what in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog=f"benchmarks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("name", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--quick", action="store_true", help="small sizes, one pair")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write a PNG there")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the JSON there too")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="JSON of an earlier run")
    parser.add_argument("--pairs", type=int, help="how many measurements of each kind")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--scale", type=int, help="pgbench's scale")
    parser.add_argument("--rows", type=int, help="of the tables, where a benchmark has its own")
    parser.add_argument(
        "--remote-latency-us", type=int, metavar="US",
        help="no shared memory, and each verb takes that much longer: a model of a network",
    )  # fmt: skip
    options = parser.parse_args()
    if options.remote_latency_us is not None:
        os.environ[REMOTE_LATENCY] = str(options.remote_latency_us)
    names = list(BENCHMARKS) if options.name == "all" else [options.name]
    try:
        for name in names:
            _one(name, options)
    except PolarlessError as error:
        print(f"bench: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    return 0


def _one(name: str, options: argparse.Namespace) -> None:
    module = importlib.import_module(f"bench.{name.replace('-', '_')}")
    errors = Console(stderr=True)
    with errors.status(name) as spinner:

        def tell(what: str, share: float) -> None:
            spinner.update(f"{name}: {what}, {share:.0%}")

        result = module.run(quick=options.quick, tell=tell, options=vars(options))
    if options.remote_latency_us is not None:
        result.settings["remote latency, us"] = options.remote_latency_us
    earlier = json.loads(options.compare.read_text()) if options.compare else None
    if options.json:
        report.as_json(result)
    else:
        report.table(result, earlier)
    if options.out:
        report.keep(result, options.out)
    if options.plot:
        errors.print(str(report.plot(result, options.plot)))


if __name__ == "__main__":
    sys.exit(main())
