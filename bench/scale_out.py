"""``scale-out``: how long a new reader takes, whatever the size of the data.

From the command to the reader's first answer, and to where nearly all statements are served from
its own cache. Beside it PostgreSQL's way to a reader: ``pg_basebackup``, then start a standby.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import psycopg

from bench.counters import Counters
from bench.load import POINT_SELECT, Series, fill_keyed, warm
from bench.servers import Postgres
from bench.shapes import Curve, Result, Row, Tell
from bench.standby import Standby
from polarless.local import LocalCluster

QUERY: Final = "select k from keyed where id = 1"
WARM: Final = 0.95
WARM_DEADLINE_S: Final = 60.0


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it. Ours is a new reader of polarless, theirs a new standby of PostgreSQL."""
    count = int(options.get("rows") or (5_000 if quick else 100_000))
    readers = int(options.get("pairs") or (1 if quick else 4))
    first = Row("command to first answer", "s", notes={"less is better": ""})
    hot = Row(f"first answer to {WARM:.0%} served locally", "s")
    curve = Curve("polarless", "seconds to the first answer", "readers")
    other = Curve("PostgreSQL", "seconds to the first answer", "readers")
    with Postgres() as postgres, LocalCluster(ro=0, pool_mb=64 + 3 * count // 1000) as cluster:
        tell("loading", 0)
        for url in (cluster.sql_url("rw"), postgres.url):
            fill_keyed(url, "keyed", count)
        warm(cluster.sql_url("rw"), "keyed", "id", count)
        for number in range(1, readers + 1):
            tell(f"reader {number}", (number - 1) / readers)
            first.ours.append(round(_new_reader(cluster, number), 3))
            hot.ours.append(round(_until_warm(cluster, count), 3))
            first.theirs.append(round(_new_standby(postgres), 3))
            curve.add(number, first.ours[-1])
            other.add(number, first.theirs[-1])
        settings = {"rows": count, "readers": readers, "postgres": postgres.version}
    return Result("scale-out", [first, hot], settings, [curve, other])


def _new_reader(cluster: LocalCluster, number: int) -> float:
    """Seconds from the command to the new reader's first answer."""
    known = {node.name for node in cluster.nodes()}
    began = time.perf_counter()
    scaling = threading.Thread(target=cluster.scale, args=(number,))
    scaling.start()
    while True:
        for node in cluster.nodes():
            if node.role == "ro" and node.name not in known and node.sql_url:
                try:
                    with psycopg.connect(node.sql_url, connect_timeout=5) as connection:
                        connection.execute(QUERY).fetchall()
                except psycopg.OperationalError:
                    continue
                seconds = time.perf_counter() - began
                scaling.join()
                return seconds
        time.sleep(0.002)


def _until_warm(cluster: LocalCluster, count: int) -> float:
    """Seconds of load until a slice of it is served from the reader's cache."""
    newest = [node for node in cluster.nodes() if node.role == "ro"][-1]
    script = POINT_SELECT.format(rows=count)
    arguments = ("-M", "prepared", "-c", "4")
    load = Series(newest.sql_url, script, *arguments, seconds=WARM_DEADLINE_S)
    try:
        began = time.perf_counter()
        while time.perf_counter() - began < WARM_DEADLINE_S and load.is_running():
            counters = Counters(cluster, newest.name)
            time.sleep(0.1)
            notes = counters.notes()
            if notes["statements"] and notes["served locally"] >= WARM:
                break
        return time.perf_counter() - began
    finally:
        load.stop()


def _new_standby(postgres: Postgres) -> float:
    """Seconds from ``pg_basebackup`` to the standby's first answer; it is removed again."""
    began = time.perf_counter()
    with Standby(postgres) as standby, psycopg.connect(standby.url) as connection:
        connection.execute(QUERY).fetchall()
        return time.perf_counter() - began
