"""``scaling``: how cost grows with clients, rows, readers and pages; nothing may grow faster.

Commits per second at 1 to 256 clients; point selects on 10^4 and more rows with everything cached,
which has to stay about level as only the depth of the tree grows; selects over a growing number of
readers through the proxy; and commits with more and more pages in the pool, which costs no more.
"""

from __future__ import annotations

from typing import Any, Final

from bench.load import POINT_SELECT, fill_keyed, script_tps, warm
from bench.servers import pgbench_load, pgbench_tps
from bench.shapes import Curve, Result, Row, Tell
from polarless.local import LocalCluster

CLIENTS: Final = (1, 4, 16, 64, 256)
CLIENTS_QUICK: Final = (1, 16, 64)
ROWS: Final = (10_000, 100_000, 1_000_000)
ROWS_QUICK: Final = (1_000, 10_000)
READERS: Final = (0, 1, 2, 4)
READERS_QUICK: Final = (0, 1)
NARROW: Final = "create table narrow{rows} (id bigint primary key, k bigint not null)"
POINT: Final = "\\set id random(1, {rows})\nselect k from narrow{rows} where id = :id;\n"
WRITE: Final = "\\set id random(1, {rows})\nupdate keyed set k = k + 1 where id = :id;\n"
PREPARED: Final = ("-M", "prepared")


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    seconds = float(options.get("seconds") or (1 if quick else 5))
    curves: list[Curve] = []
    with LocalCluster(ro=0, pool_mb=700) as cluster:
        tell("loading", 0)
        pgbench_load(cluster.sql_url("rw"), 1 if quick else 10)
        for share, part in enumerate((_clients, _rows, _pages, _readers)):
            tell(part.__name__.strip("_"), share / 4)
            curves.append(part(cluster, quick, seconds))
    rows = [
        Row(f"{curve.name}: {x:,.0f}", "transactions/s", [y])
        for curve in curves
        for x, y in zip(curve.x, curve.y, strict=True)
    ]
    return Result("scaling", rows, {"seconds": seconds}, curves)


def _clients(cluster: LocalCluster, quick: bool, seconds: float) -> Curve:
    curve = Curve("commits by clients", "commits/s", "clients", log_x=True)
    url = cluster.sql_url("rw")
    for count in CLIENTS_QUICK if quick else CLIENTS:
        curve.add(count, pgbench_tps(url, "-N", *PREPARED, "-c", str(count), seconds=seconds)[0])
    return curve


def _rows(cluster: LocalCluster, quick: bool, seconds: float) -> Curve:
    import psycopg

    curve = Curve("selects by rows", "selects/s", "rows of the table", log_x=True)
    url = cluster.sql_url("rw")
    for count in ROWS_QUICK if quick else ROWS:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(NARROW.format(rows=count))
            for low in range(1, count + 1, 100_000):
                high = min(count, low + 99_999)
                connection.execute(
                    f"insert into narrow{count} select g, g from generate_series({low}, {high}) g"
                )
        script = POINT.format(rows=count)
        curve.add(count, script_tps(url, [(script, 1)], *PREPARED, "-c", "16", seconds=seconds)[0])
    return curve


def _pages(cluster: LocalCluster, quick: bool, seconds: float) -> Curve:
    curve = Curve("commits by pages", "commits/s", "pages in the pool")
    url = cluster.sql_url("rw")
    count = 5_000 if quick else 50_000
    fill_keyed(url, "keyed", count)
    for _ in range(3):
        script = WRITE.format(rows=1000)
        tps, _failed = script_tps(url, [(script, 1)], *PREPARED, "-c", "16", seconds=seconds)
        home = cluster.control.node(cluster.node("home").name)["home"]
        curve.add(home["pages"], tps)
        table = f"more{len(curve.x)}"
        fill_keyed(url, table, count)
        warm(url, table, "id", count)
    return curve


def _readers(cluster: LocalCluster, quick: bool, seconds: float) -> Curve:
    curve = Curve("selects by readers", "selects/s through the proxy", "readers")
    script = POINT_SELECT.format(rows=1000)
    for count in READERS_QUICK if quick else READERS:
        cluster.scale(ro=count)
        found = script_tps(cluster.url, [(script, 1)], *PREPARED, "-c", "16", seconds=seconds)
        curve.add(count, found[0])
    return curve
