"""``tpcc``: the five transactions of TPC-C beside PostgreSQL, small and without think times.

One warehouse and eight terminals, so that all of them want the same rows: what is measured is how
dear conflicts are. The clients are threads of one Python process, on both sides alike.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import psycopg

from bench.counters import Counters
from bench.servers import Postgres
from bench.shapes import Result, Row, Tell
from bench.tpcc_load import CONDITIONS, SCHEMA, Terminal
from polarless.errors import PolarlessError
from polarless.local import LocalCluster

TERMINALS: Final = 8
# Each terminal's payments have numbers of their own.
PAYMENTS: Final = 10_000_000


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    pairs = int(options.get("pairs") or (1 if quick else 5))
    seconds = float(options.get("seconds") or (2 if quick else 10))
    row = Row("all five transactions", "transactions/s", notes={"failed": 0})
    with Postgres() as postgres, LocalCluster(ro=0) as cluster:
        tell("loading", 0)
        ours = cluster.sql_url("rw")
        for url in (ours, postgres.url):
            _load(url)
        for number in range(pairs):
            tell("transactions", number / pairs)
            order = [(ours, row.ours), (postgres.url, row.theirs)]
            for url, values in order if number % 2 == 0 else order[::-1]:
                counters = Counters.of_role(cluster, "rw")
                tps, failed = _measure(url, number, seconds)
                values.append(round(tps, 1))
                if url == ours:
                    row.notes |= {"failed": row.notes["failed"] + failed, **counters.notes()}
        _check(ours)
    settings = {"pairs": pairs, "seconds": seconds, "terminals": TERMINALS, "warehouses": 1}
    return Result("tpcc", [row], settings)


def _load(url: str) -> None:
    with psycopg.connect(url) as connection:
        for text in SCHEMA:
            connection.execute(text.rstrip(";"))
        Terminal(connection, seed=1).load()


def _measure(url: str, number: int, seconds: float) -> tuple[float, int]:
    """(transactions per second, those that were rolled back for a conflict)."""
    counts, failed = [0] * TERMINALS, [0] * TERMINALS
    end = time.monotonic() + seconds

    def work(index: int) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            terminal = Terminal(connection, seed=1000 * number + index)
            terminal.payments = (number * TERMINALS + index) * PAYMENTS
            while time.monotonic() < end:
                try:
                    terminal.run(1)
                    counts[index] += 1
                except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                    failed[index] += 1
                terminal.seen.clear()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(TERMINALS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds, sum(failed)


def _check(url: str) -> None:
    """The benchmark's own conditions of consistency. Raises PolarlessError."""
    with psycopg.connect(url, autocommit=True) as connection:
        for condition in CONDITIONS:
            found = connection.execute(condition).fetchall()
            if found:
                raise PolarlessError(f"TPC-C's condition does not hold: {condition}: {found[:3]}")
