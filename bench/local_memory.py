"""``local-memory``: how much throughput a compute node loses when its cache holds less.

The pool holds all pages; the cache of the writer holds 2 % to 100 % of them. Point selects and
sysbench's read-write mix, with keys drawn uniformly and skewed. Each row is the rate with a small
cache beside the rate with all pages local, so a ratio of 1 is no loss. After the paper's Fig. 11.
"""

from __future__ import annotations

import tempfile
from typing import Any, Final

from bench.counters import Counters
from bench.load import POINT_SELECT, fill_keyed, script_tps, sysbench, warm
from bench.shapes import Curve, Result, Row, Tell
from polarless.local import LocalCluster

SHARES: Final = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
SHARES_QUICK: Final = (1.0, 0.25)
CACHE_MB_MIN: Final = 4
CLIENTS: Final = 16
TABLES: Final = 4
# Three quarters of the draws go to 1 % of the keys, as with sysbench's own default; a multiplier
# scatters these over the pages.
POINT: Final = {
    "uniform": POINT_SELECT,
    "skewed": (
        "\\set z random_zipfian(1, {rows}, 1.1)\n\\set id 1 + :z * 7919 % {rows}\n"
        "select k from keyed where id = :id;\n"
    ),
}
MIX: Final = {"uniform": "uniform", "skewed": "pareto"}


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    rows = int(options.get("rows") or (20_000 if quick else 250_000))
    seconds = float(options.get("seconds") or (1 if quick else 6))
    shares = SHARES_QUICK if quick else SHARES
    sizes = {"rows": rows, "mix rows": TABLES * (rows // 10), "seconds": seconds}
    study = _Study(rows, seconds)
    with tempfile.TemporaryDirectory(prefix="bench-local-") as folder:
        tell("loading", 0)
        study.load(folder)
        for index, share in enumerate(shares):
            study.measure(folder, share, tell, (index + 1) / (len(shares) + 1))
    return Result("local-memory", study.rows(), {**sizes, **study.data}, study.curves())


class _Study:
    """The same loads at each size of the cache."""

    def __init__(self, rows: int, seconds: float) -> None:
        self._rows = rows
        self._mix_rows = rows // 10
        self._seconds = seconds
        # Twice the encoded pages: replaced images need room beside the newest ones.
        self._pool_mb = 64 + 3 * rows // 1000
        self.data: dict[str, int] = {}
        # Load, then share of the data that the cache may hold, then what was measured.
        self._found: dict[str, dict[float, tuple[float, dict[str, float]]]] = {}

    def _cluster(self, folder: str, cache_mb: int) -> LocalCluster:
        return LocalCluster(f"{folder}/data", ro=0, cache_mb=cache_mb, pool_mb=self._pool_mb)

    def load(self, folder: str) -> None:
        """Fill the tables and find how many bytes their pages take in a cache."""
        cluster = self._cluster(folder, 100 + 4 * self._rows // 1000)
        cluster.start()
        try:
            url = cluster.sql_url("rw")
            fill_keyed(url, "keyed", self._rows)
            warm(url, "keyed", "id", self._rows)
            self.data["keyed MB"] = self._cached(cluster)
            self._sysbench(url, "prepare")
            self.data["mix MB"] = self._cached(cluster) - self.data["keyed MB"]
        finally:
            cluster.stop(keep=True)

    def measure(self, folder: str, share: float, tell: Tell, over: float) -> None:
        """All loads with a cache of this share."""
        for load, name in (("point select", "keyed MB"), ("sysbench mix", "mix MB")):
            cache_mb = max(
                CACHE_MB_MIN, round(share * self.data[name] * (1.1 if share == 1 else 1))
            )
            cluster = self._cluster(folder, cache_mb)
            cluster.start()
            try:
                for keys in ("uniform", "skewed"):
                    tell(f"{load}, {keys} keys, {share:.0%} of {self.data[name]} MB", over)
                    self._one(cluster, share, load, keys)
            finally:
                cluster.stop(keep=True)

    def _one(self, cluster: LocalCluster, share: float, load: str, keys: str) -> None:
        url = cluster.sql_url("rw")
        if load == "point select":
            if keys == "uniform":
                warm(url, "keyed", "id", self._rows)
            self._point(url, keys, self._seconds / 3)
            counters = Counters.of_role(cluster, "rw")
            tps = self._point(url, keys, self._seconds)
        else:
            for table in range(1, TABLES + 1) if keys == "uniform" else ():
                warm(url, f"sbtest{table}", "id", self._mix_rows, 40)
            counters = Counters.of_role(cluster, "rw")
            tps = self._sysbench(url, "run", f"--rand-type={MIX[keys]}")
        found = self._found.setdefault(f"{load}, {keys} keys", {})
        found[share] = (tps, counters.notes())

    def _point(self, url: str, keys: str, seconds: float) -> float:
        script = POINT[keys].format(rows=self._rows)
        arguments = ("-M", "prepared", "-c", str(CLIENTS))
        return script_tps(url, [(script, 1)], *arguments, seconds=seconds)[0]

    def _sysbench(self, url: str, step: str, *more: str) -> float:
        sizes = (f"--tables={TABLES}", f"--table-size={self._mix_rows}", f"--threads={CLIENTS}")
        return sysbench(url, "oltp_read_write", step, *sizes, *more, seconds=self._seconds)

    @staticmethod
    def _cached(cluster: LocalCluster) -> int:
        counted = cluster.control.node(cluster.node("rw").name)
        cached: int = counted["cache"]["bytes"]
        return max(1, round(cached / 1e6))

    def rows(self) -> list[Row]:
        """Each load and share beside the same load with all pages local."""
        return [
            Row(
                f"{load}, cache {share:.0%}", "transactions/s", [round(tps, 1)],
                [round(found[1.0][0], 1)], {"against": "all local", **notes},
            )
            for load, found in self._found.items()
            for share, (tps, notes) in found.items()
        ]  # fmt: skip

    def curves(self) -> list[Curve]:
        """Share of the all-local rate over the cache's share of the data."""
        curves = []
        for load, found in self._found.items():
            curve = Curve(load, "share of the all-local rate", "cache, % of the data", log_x=True)
            for share, (tps, _) in sorted(found.items()):
                curve.add(100 * share, tps / found[1.0][0])
            curves.append(curve)
        return curves
