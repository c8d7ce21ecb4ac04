"""``remote-memory``: analytic queries while the pool holds an eighth to all of the data.

Sums over ranges of a secondary index whose order is not the table's, so that each query reads a
hundred pages from all over. The reader's own cache is small. The rate rises with the pool until it
holds what the queries read: the knee of the paper's Fig. 13. Each row stands beside the rate with
all pages in the pool, so a ratio of 1 is no loss.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from bench.counters import Counters
from bench.load import fill_keyed, script_tps, warm
from bench.shapes import Curve, Result, Row, Tell
from polarless.local import LocalCluster

SHARES: Final = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1.0)
SHARES_QUICK: Final = (1 / 8, 1 / 2, 1.0)
ENTRIES: Final = 100
QUERY: Final = (
    "\\set low random(1, {rows} - {entries})\n"
    "select count(*), sum(id), max(pad) from keyed where k between :low and :low + {entries} - 1;\n"
)
CLIENTS: Final = 4
CACHE_MB: Final = 4
# A leaf holds rows of 15 KB on 16 KiB; a slot of the pool holds one leaf.
LEAVES_PER_ROW: Final = 1 / 15


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    count = int(options.get("rows") or (20_000 if quick else 150_000))
    seconds = float(options.get("seconds") or (2 if quick else 15))
    data_mb = round(count * LEAVES_PER_ROW * 16384 / 2**20)
    rate = Curve("sums over an index", "transactions/s", "pool, % of the data")
    hits = Curve("pool hits", "share", "pool, % of the data")
    rows = []
    # Room for inner pages, the index and replaced images beside the table's leaves.
    beside_mb = 8
    smallest_mb = beside_mb + round(data_mb * SHARES[0])
    with LocalCluster(ro=1, cache_mb=CACHE_MB, pool_mb=smallest_mb) as cluster:
        tell("loading", 0)
        fill_keyed(cluster.sql_url("rw"), "keyed", count)
        with psycopg.connect(cluster.sql_url("rw"), autocommit=True) as connection:
            connection.execute("create index on keyed (k)")
        reader = cluster.node("ro")
        script = [(QUERY.format(rows=count, entries=ENTRIES), 1)]
        arguments = ("-M", "prepared", "-c", str(CLIENTS))
        shares = SHARES_QUICK if quick else SHARES
        for index, share in enumerate(shares):
            tell(f"pool of {share:.0%} of the data", (index + 0.5) / (len(shares) + 1))
            cluster.scale(pool_mb=beside_mb + round(data_mb * share))
            warm(reader.sql_url, "keyed", "id", count)
            script_tps(reader.sql_url, script, *arguments, seconds=seconds / 2)
            counters = Counters(cluster, reader.name)
            tps, _ = script_tps(reader.sql_url, script, *arguments, seconds=seconds)
            found = counters.notes()
            notes = {"against": "all in the pool", **found}
            rows.append(Row(f"pool {share:.0%}", "transactions/s", [round(tps, 1)], notes=notes))
            rate.add(100 * share, tps)
            hits.add(100 * share, found["pool hits"])
    for row in rows:
        row.theirs = list(rows[-1].ours)
    settings = {"rows": count, "data MiB": data_mb, "seconds": seconds, "cache MiB": CACHE_MB}
    return Result("remote-memory", rows, settings, [rate, hits])
