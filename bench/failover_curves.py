"""Throughput around a failover: planned, crashed with pool, crashed without, replaying the log.

The four curves of the paper's Fig. 9. Clients read and update rows of a table that fits in every
cache, through the proxy; the reader that takes over has read nothing. With a pool it finds the
pages there, without one (4 MiB, the least there can be) in storage. Nothing of ours replays a log
before it serves, so the fourth curve is an ablation: the log since a checkpoint, applied to the
checkpoint's pages by one process, is what a server without materialised pages would wait for.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.load import POINT_SELECT, fill_keyed, warm
from bench.replay import replay
from bench.shapes import Curve, Row, Tell
from polarless.errors import CallerMistake
from polarless.local import LocalCluster

UPDATE: Final = "\\set id random(1, {rows})\nupdate keyed set k = k + 1 where id = :id;\n"
CLIENTS: Final = 8
SLOT_S: Final = 0.05
# The rate of so many slots together is compared: a slot alone is too noisy.
WINDOW: Final = 6
RECOVERED: Final = 0.95
# (name, is there a pool, is the writer killed)
CASES: Final = (
    ("planned", True, False), ("crash with pool", True, True), ("crash without pool", False, True),
)  # fmt: skip
SMALLEST_POOL_MB: Final = 4


def measure(
    count: int, before_s: float, after_s: float, tell: Tell
) -> tuple[list[Row], list[Curve]]:
    """Rows and curves of all cases, with a table of ``count`` rows of about 1,000 bytes."""
    rows: list[Row] = []
    curves: list[Curve] = []
    with tempfile.TemporaryDirectory(prefix="bench-failover-") as root:
        data, checkpoint = Path(root) / "data", Path(root) / "checkpoint"
        tell("loading", 0)
        with _Kept(data, count, pool=True) as cluster:
            fill_keyed(cluster.sql_url("rw"), "keyed", count)
        shutil.copytree(data / "storage", checkpoint)
        for index, (name, pool, crash) in enumerate(CASES):
            tell(name, (index + 0.5) / (len(CASES) + 1))
            with _Kept(data, count, pool=pool) as cluster:
                warm(cluster.sql_url("rw"), "keyed", "id", count)
                acks, at = _load(cluster, count, before_s, after_s, crash=crash)
            found, curve = _judge(name, acks, at, before_s, after_s)
            rows += found
            curves.append(curve)
        tell("replaying the log", 0.95)
        byte_count, pages, seconds = replay(checkpoint, data / "storage")
    first = next(row for row in rows if row.name == "crash without pool, to the first commit")
    rows.append(
        Row(
            "crash without materialised pages, to the first commit", "ms",
            [round(first.median + 1000 * seconds, 1)],
            notes={"log since the checkpoint, MB": round(byte_count / 1e6, 1),
                   "pages changed": pages, "replay, s": round(seconds, 2)},
        )
    )  # fmt: skip
    with_pool, without = (
        next(row for row in rows if row.name == f"{name}, to {RECOVERED:.0%} of the rate")
        for name in ("crash with pool", "crash without pool")
    )
    with_pool.theirs = list(without.ours)
    with_pool.notes["against"] = "without pool; less is better"
    return rows, curves


class _Kept:
    """A cluster on a directory that stays."""

    def __init__(self, data: Path, count: int, *, pool: bool) -> None:
        size = 64 + 3 * count // 1000
        self._cluster = LocalCluster(
            data, ro=1, cache_mb=size, pool_mb=size if pool else SMALLEST_POOL_MB
        )

    def __enter__(self) -> LocalCluster:
        self._cluster.start()
        return self._cluster

    def __exit__(self, *exc: object) -> None:
        self._cluster.stop(keep=True)


def _load(
    cluster: LocalCluster, count: int, before_s: float, after_s: float, *, crash: bool
) -> tuple[list[float], float]:
    """When each transaction ended, and when the writer was killed or told to hand over."""
    tool = shutil.which("pgbench")
    if tool is None:
        raise CallerMistake("pgbench is not installed", hint="`make postgres` installs it")
    with tempfile.TemporaryDirectory(prefix="bench-failover-log-") as folder:
        select, update = Path(folder) / "select.sql", Path(folder) / "update.sql"
        select.write_text(POINT_SELECT.format(rows=count))
        update.write_text(UPDATE.format(rows=count))
        seconds = round(before_s + after_s + 1)
        with subprocess.Popen(
            [
                tool, "-n", "-T", str(seconds), "-M", "prepared", "-c", str(CLIENTS), "-l",
                "-f", f"{select}@4", "-f", f"{update}@1", cluster.url,
            ],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            time.sleep(1 + before_s)
            victim = cluster.node("rw")
            at = time.time()
            if crash:
                cluster.kill(victim)
            else:
                cluster.failover()
            _, said = process.communicate(timeout=seconds + 60)
        if process.returncode:
            raise CallerMistake(f"pgbench failed: {said.strip()[-500:]}")
        lines = next(Path(folder).glob("pgbench_log.*")).read_text().splitlines()
    fields = (line.split() for line in lines)
    return sorted(int(field[4]) + int(field[5]) / 1e6 for field in fields), at


def _judge(
    name: str, acks: list[float], at: float, before_s: float, after_s: float
) -> tuple[list[Row], Curve]:
    """The longest pause, the time to the old rate, and the rate over time."""
    slots = Counter(int((ack - at) // SLOT_S) for ack in acks)
    rates = [slots[n] / SLOT_S for n in range(-round(before_s / SLOT_S), 0)]
    usual = statistics.median(rates)
    curve = Curve(name, "share of the usual rate", "seconds since the failover began")
    recovered = after_s
    for slot in range(-round(before_s / SLOT_S), round(after_s / SLOT_S)):
        curve.add(slot * SLOT_S, slots[slot] / SLOT_S / usual)
        window = sum(slots[slot + n] for n in range(WINDOW)) / WINDOW / SLOT_S
        if slot >= 0 and window >= RECOVERED * usual:
            recovered = min(recovered, (slot + 1) * SLOT_S)
    near = [ack for ack in acks if at - 0.05 < ack < at + after_s]
    pause = max((b - a for a, b in pairwise(near)), default=after_s)
    return [
        Row(f"{name}, to the first commit", "ms", [round(1000 * pause, 1)],
            notes={"usual rate": round(usual, 1)}),
        Row(f"{name}, to {RECOVERED:.0%} of the rate", "s", [round(recovered, 2)]),
    ], curve  # fmt: skip
