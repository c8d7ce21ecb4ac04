"""``prefetch``: scans of a secondary index, with and without prefetch, from pool and storage.

An index in another order than the table makes each row a page of its own. With prefetch the pages
of many index entries are asked for together; without, one after the other. The cache is cold before
each scan, as the node has just been restarted. After the paper's Fig. 15.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any, Final

import psycopg

from bench.counters import Counters
from bench.load import fill_keyed, warm
from bench.shapes import Result, Row, Tell
from polarless.local import LocalCluster

SCAN: Final = "select k, pad from keyed where k between {low} and {high} order by k"
# Share of the table's rows that one scan reads.
SHARE: Final = 0.05
PLACES: Final = ("pool", "storage")


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it. Ours is the rate of scans with prefetch, theirs without."""
    count = int(options.get("rows") or (10_000 if quick else 100_000))
    pairs = int(options.get("pairs") or (1 if quick else 5))
    rows = {place: Row(f"pages in {place}", "rows/s") for place in PLACES}
    with tempfile.TemporaryDirectory(prefix="bench-prefetch-") as folder:
        tell("loading", 0)
        with _cluster(folder, count, prefetch=True) as cluster:
            fill_keyed(cluster.sql_url("rw"), "keyed", count)
            with psycopg.connect(cluster.sql_url("rw"), autocommit=True) as connection:
                connection.execute("create index on keyed (k)")
        for number in range(pairs):
            for index, place in enumerate(PLACES):
                for prefetch in (True, False) if number % 2 == 0 else (False, True):
                    tell(f"{place}, prefetch {prefetch}", (number + index / 2) / pairs)
                    with _cluster(folder, count, prefetch=prefetch) as cluster:
                        rate, notes = _scan(cluster, place, count)
                    row = rows[place]
                    (row.ours if prefetch else row.theirs).append(round(rate, 1))
                    said = "with" if prefetch else "without"
                    row.notes[f"round trips per row {said}"] = notes
    settings = {"rows": count, "pairs": pairs, "share": SHARE, "against": "without prefetch"}
    return Result("prefetch", list(rows.values()), settings)


class _cluster:  # noqa: N801 - read as a function
    """The cluster on the folder's data, stopped but kept at the end."""

    def __init__(self, folder: str, count: int, *, prefetch: bool) -> None:
        pool_mb = 64 + 3 * count // 1000
        self._cluster = LocalCluster(f"{folder}/data", ro=1, pool_mb=pool_mb, prefetch=prefetch)

    def __enter__(self) -> LocalCluster:
        self._cluster.start()
        return self._cluster

    def __exit__(self, *exc: object) -> None:
        self._cluster.stop(keep=True)


def _scan(cluster: LocalCluster, place: str, count: int) -> tuple[float, float]:
    """Rows per second of one scan on a reader whose cache is cold; round trips per row."""
    if place == "pool":
        warm(cluster.sql_url("rw"), "keyed", "id", count)
    reader = cluster.node("ro")
    read = int(count * SHARE)
    with psycopg.connect(reader.sql_url, autocommit=True) as connection:
        # The catalogue and the inner nodes are warm, as they are in any server that is in use.
        connection.execute(SCAN.format(low=0, high=0))
        counters = Counters(cluster, reader.name)
        began = time.perf_counter()
        connection.execute(SCAN.format(low=count // 2, high=count // 2 + read)).fetchall()
        seconds = time.perf_counter() - began
    trips = counters.notes()["round trips per statement"] / read
    return read / seconds, round(trips, 3)
