"""``vs-postgres``: the same load on polarless and on PostgreSQL, in turn, in one run.

pgbench's scripts, sysbench's mixes, and updates of one hot row. Both servers sync each commit; both
share the processors with their client. PostgreSQL is vacuumed before each pair of the loads that
update few rows often. Ratios above 1 are in our favour. ``proxied`` rows compare our own proxy with
a direct connection.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from bench.counters import Counters
from bench.load import script_tps, sysbench
from bench.servers import Postgres, pgbench_load, pgbench_tps
from bench.shapes import Result, Row, Tell
from polarless.local import LocalCluster

HOT_ROW: Final = "update hot set n = n + 1 where id = 1;\n"
TABLES: Final = 4


@dataclass(frozen=True, slots=True)
class Case:
    """One load: a name, pgbench's arguments or sysbench's workload, and what it needs before."""

    name: str
    pgbench: tuple[str, ...] = ()
    sysbench: str = ""
    script: str = ""
    scale_one: bool = False
    vacuum: bool = False
    proxied: bool = False


def _c(kind: str, mode: str, clients: int) -> tuple[str, ...]:
    arguments = ("-M", mode, "-c", str(clients))
    return (kind, *arguments) if kind else arguments


CASES: Final = (
    Case("select prepared c16", _c("-S", "prepared", 16)),
    Case("select simple c16", _c("-S", "simple", 16)),
    Case("update prepared c16", _c("-N", "prepared", 16)),
    Case("select prepared c1", _c("-S", "prepared", 1)),
    Case("update prepared c1", _c("-N", "prepared", 1)),
    Case("proxied select prepared c16", _c("-S", "prepared", 16), proxied=True),
    Case("proxied update prepared c16", _c("-N", "prepared", 16), proxied=True),
    Case("sysbench point select c16", sysbench="oltp_point_select"),
    Case("sysbench read only c16", sysbench="oltp_read_only"),
    Case("sysbench read write c16", sysbench="oltp_read_write"),
    Case("hot row c16", _c("", "prepared", 16), script=HOT_ROW, vacuum=True),
    Case("hot row c1", _c("", "prepared", 1), script=HOT_ROW, vacuum=True),
    Case("default scale 1 c16", _c("", "prepared", 16), scale_one=True, vacuum=True),
    Case("default scale 1 c1", _c("", "prepared", 1), scale_one=True, vacuum=True),
)


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    scale = int(options.get("scale") or (1 if quick else 10))
    pairs = int(options.get("pairs") or (1 if quick else 5))
    seconds = float(options.get("seconds") or (1 if quick else 8))
    size = int(options.get("rows") or (1_000 if quick else 50_000))
    rows: list[Row] = []
    with Postgres() as postgres, LocalCluster(ro=2) as cluster:
        settings = {
            "scale": scale, "pairs": pairs, "seconds": seconds, "sysbench rows": TABLES * size,
            "postgres": postgres.version,
        }  # fmt: skip
        both = (cluster.sql_url("rw"), postgres.url)
        tell("loading", 0)
        for url in both:
            _load(url, scale, size)
        for index, case in enumerate(CASES):
            row = Row(case.name, "transactions/s", notes={"failed": 0})
            if case.scale_one and not CASES[index - 1].scale_one and scale != 1:
                for url in both:
                    pgbench_load(url, 1)
            for number in range(pairs):
                tell(case.name, (index + number / pairs) / len(CASES))
                if case.vacuum:
                    _vacuum(postgres.url)
                _pair(row, number, case, cluster, both[1], seconds, size)
            rows.append(row)
    return Result("vs-postgres", rows, settings)


def _load(url: str, scale: int, size: int) -> None:
    pgbench_load(url, scale)
    sysbench(url, "oltp_read_write", "prepare", *_sysbench_sizes(size))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table hot (id int primary key, n bigint)")
        connection.execute("insert into hot values (1, 0)")


def _sysbench_sizes(size: int) -> tuple[str, ...]:
    return (f"--tables={TABLES}", f"--table-size={size}", "--threads=16")


def _pair(
    row: Row, number: int, case: Case, cluster: LocalCluster, postgres: str, seconds: float,
    size: int,
) -> None:  # fmt: skip
    """One pair; the order alternates, so that neither always finds the machine warm."""
    direct = cluster.sql_url("rw")
    ours, theirs = (cluster.url, direct) if case.proxied else (direct, postgres)

    def load(url: str) -> tuple[float, int]:
        if case.sysbench:
            sizes = _sysbench_sizes(size)
            return sysbench(url, case.sysbench, "run", *sizes, seconds=seconds), 0
        if case.script:
            return script_tps(url, [(case.script, 1)], *case.pgbench, seconds=seconds)
        return pgbench_tps(url, *case.pgbench, seconds=seconds)

    def measure_ours() -> None:
        counters = Counters.of_role(cluster, "rw")
        _note(row, row.ours, load(ours))
        row.notes.update({"against": "direct"} if case.proxied else counters.notes())

    def measure_theirs() -> None:
        _note(row, row.theirs, load(theirs))

    steps: list[Callable[[], None]] = [measure_ours, measure_theirs]
    for step in steps if number % 2 == 0 else steps[::-1]:
        step()


def _note(row: Row, values: list[float], measured: tuple[float, int]) -> None:
    tps, failed = measured
    values.append(round(tps, 1))
    row.notes["failed"] += failed


def _vacuum(url: str) -> None:
    subprocess.run(["psql", "-q", "-c", "vacuum", url], check=True, capture_output=True, timeout=60)
