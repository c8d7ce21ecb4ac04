"""``vs-postgres``: the same pgbench on polarless and on PostgreSQL, in turn, in one run.

Both sync each commit; both share the processors with their client. PostgreSQL is vacuumed before
each pair of the default script. Ratios above 1 are in our favour. ``proxied`` rows compare our own
proxy with a direct connection.
"""

from __future__ import annotations

import subprocess
from typing import Any, Final

from bench.servers import Postgres, pgbench_load, pgbench_tps
from bench.shapes import Result, Row, Tell
from polarless.local import LocalCluster

# (name, pgbench arguments, needs a vacuum of PostgreSQL before)
CASES: Final = (
    ("select prepared c16", ("-S", "-M", "prepared", "-c", "16"), False),
    ("select simple c16", ("-S", "-M", "simple", "-c", "16"), False),
    ("update prepared c16", ("-N", "-M", "prepared", "-c", "16"), False),
    ("default prepared c16", ("-M", "prepared", "-c", "16"), True),
    ("select prepared c1", ("-S", "-M", "prepared", "-c", "1"), False),
    ("update prepared c1", ("-N", "-M", "prepared", "-c", "1"), False),
)
PROXIED: Final = (
    ("proxied select prepared c16", ("-S", "-M", "prepared", "-c", "16")),
    ("proxied update prepared c16", ("-N", "-M", "prepared", "-c", "16")),
)


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    scale = int(options.get("scale") or (1 if quick else 10))
    pairs = int(options.get("pairs") or (1 if quick else 5))
    seconds = float(options.get("seconds") or (2 if quick else 8))
    rows: list[Row] = []
    steps = pairs * (len(CASES) + len(PROXIED))
    done = 0
    with Postgres() as postgres, LocalCluster(ro=2) as cluster:
        settings = {
            "scale": scale, "pairs": pairs, "seconds": seconds, "postgres": postgres.version,
        }  # fmt: skip
        tell("loading", 0)
        pgbench_load(postgres.url, scale)
        pgbench_load(cluster.url, scale)
        direct = cluster.sql_url("rw")
        for name, arguments, vacuum in CASES:
            row = Row(name, "transactions/s", notes={"failed": 0})
            for number in range(pairs):
                tell(name, done / steps)
                done += 1
                if vacuum:
                    _vacuum(postgres.url)
                _pair(row, number, direct, postgres.url, arguments, seconds)
            rows.append(row)
        for name, arguments in PROXIED:
            row = Row(name, "transactions/s", notes={"failed": 0, "against": "direct"})
            for number in range(pairs):
                tell(name, done / steps)
                done += 1
                _pair(row, number, cluster.url, direct, arguments, seconds)
            rows.append(row)
    return Result("vs-postgres", rows, settings)


def _pair(
    row: Row, number: int, ours: str, theirs: str, arguments: tuple[str, ...], seconds: float
) -> None:
    """One pair; the order alternates, so that neither always finds the machine warm."""
    order = [(ours, row.ours), (theirs, row.theirs)]
    for url, values in order if number % 2 == 0 else reversed(order):
        tps, failed = pgbench_tps(url, *arguments, seconds=seconds)
        values.append(round(tps, 1))
        row.notes["failed"] += failed


def _vacuum(url: str) -> None:
    subprocess.run(["psql", "-q", "-c", "vacuum", url], check=True, capture_output=True, timeout=60)
