"""``elastic-memory``: the pool grows and shrinks while range queries run.

The pool's size goes 1 : 10 : 6 : 16, as in the paper's Fig. 8: throughput has to rise gradually as
a larger pool fills, fall at once to what a smaller one gives, and never stop. The reader's own
cache is small, so that it lives on the pool.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

from bench.counters import Counters
from bench.load import ROWS_PER_PAGE, Series, fill_keyed
from bench.shapes import Curve, Result, Row, Tell
from polarless.local import LocalCluster

STEPS: Final = (1, 10, 6, 16)
# The rows of about two pages.
RANGE: Final = (
    "\\set low random(1, {rows})\n"
    "select k, pad from keyed where id between :low and :low + {length} - 1;\n"
)
CLIENTS: Final = 4
CACHE_MB: Final = 4


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    count = int(options.get("rows") or (20_000 if quick else 150_000))
    seconds = float(options.get("seconds") or (3 if quick else 25))
    # The largest pool holds all pages, with room for replaced images.
    unit_mb = max(4, round(1.4 * count / 1000 / STEPS[-1]))
    rate = Curve("range queries", "transactions/s", "seconds")
    size = Curve("pool", "MiB", "seconds")
    rows = []
    with LocalCluster(ro=1, cache_mb=CACHE_MB, pool_mb=unit_mb * STEPS[0]) as cluster:
        tell("loading", 0)
        fill_keyed(cluster.sql_url("rw"), "keyed", count)
        reader = cluster.node("ro")
        script = RANGE.format(rows=count, length=2 * ROWS_PER_PAGE)
        load = Series(
            reader.sql_url, script, "-M", "prepared", "-c", str(CLIENTS),
            seconds=seconds * len(STEPS) + 2,
        )  # fmt: skip
        changes = []
        for index, step in enumerate(STEPS):
            tell(f"pool of {unit_mb * step} MiB", index / len(STEPS))
            counters = Counters(cluster, reader.name)
            began = time.monotonic()
            if index:
                cluster.scale(pool_mb=unit_mb * step)
            took_ms = 1000 * (time.monotonic() - began)
            size.add(time.monotonic() - load.began, unit_mb * step)
            changes.append((began - load.began, took_ms))
            time.sleep(
                max(0.0, changes[0][0] + load.began + seconds * (index + 1) - time.monotonic())
            )
            size.add(time.monotonic() - load.began, unit_mb * step)
            notes = {"resize, ms": round(took_ms, 1), **counters.notes()}
            rows.append(
                Row(f"{index + 1}. pool of {unit_mb * step} MiB", "transactions/s", notes=notes)
            )
        found = load.wait(60)
    for at, tps in found:
        rate.add(at, tps)
        index = max((i for i, change in enumerate(changes) if change[0] <= at - 0.5), default=0)
        rows[index].ours.append(tps)
    for row in rows:
        row.notes["slowest second"] = min(row.ours, default=0.0)
        row.notes["last"] = round(statistics.mean(row.ours[-2:]), 1) if row.ours else 0.0
    settings = {"rows": count, "seconds": seconds, "clients": CLIENTS, "cache MiB": CACHE_MB}
    return Result("elastic-memory", rows, settings, [rate, size])
