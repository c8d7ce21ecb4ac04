"""``failover``: how long clients wait when the writer is killed, and when it is switched.

Through the proxy, under load: from the signal to the first commit that began after it, as a client
sees it; and control's own steps. Then the throughput around a failover and around what it would be
without a pool or without materialised pages (`bench.failover_curves`). After the paper's Fig. 9.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import Any

import asyncpg

from bench import failover_curves
from bench.failover_curves import CLIENTS
from bench.shapes import Result, Row, Tell
from polarless.local import LocalCluster

WRITERS = 4


class Clients:
    """Clients that commit one row after the other and note when each was acknowledged."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acks: list[tuple[float, float]] = []
        self.errors = 0
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect and begin."""
        connection = await asyncpg.connect(self.url)
        await connection.execute("create table if not exists ledger (id bigint primary key)")
        await connection.close()
        self._tasks = [asyncio.create_task(self._commit(n)) for n in range(WRITERS)]

    async def stop(self) -> None:
        """End after the commits under way."""
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _commit(self, writer: int) -> None:
        connection = await asyncpg.connect(self.url)
        row = int(time.time() * 1000) * 1_000_000 + writer * 100_000_000_000_000_000
        while not self._stop:
            row += 1
            began = time.monotonic()
            try:
                await connection.execute("insert into ledger values ($1)", row)
            except (asyncpg.PostgresError, OSError, asyncpg.InterfaceError):
                self.errors += 1
                connection = await asyncpg.connect(self.url)
                continue
            self.acks.append((began, time.monotonic()))
        await connection.close()

    def first_acked(self, moment: float) -> float:
        """Seconds from a moment to the first acknowledgement after it."""
        return min(acked for _, acked in self.acks if acked > moment) - moment

    async def first_after(self, moment: float) -> float:
        """Wait for a commit that began after a moment; seconds to the first acknowledgement."""
        while True:
            later = [acked for began, acked in self.acks[-2000:] if began > moment]
            if later:
                return min(later) - moment
            await asyncio.sleep(0.002)


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    count = int(options.get("pairs") or (3 if quick else 50))
    table_rows = int(options.get("rows") or (10_000 if quick else 100_000))
    after_s = float(options.get("seconds") or (5 if quick else 30))
    result = asyncio.run(_run(count, tell))
    more, result.curves = failover_curves.measure(table_rows, after_s / 2, after_s, tell)
    result.rows += more
    result.settings |= {"rows": table_rows, "seconds": after_s, "clients of the curves": CLIENTS}
    return result


async def _run(count: int, tell: Tell) -> Result:
    killed = Row("writer killed, to the first new commit", "ms")
    paused = Row("the longest pause until all serve again", "ms")
    switched = Row("planned switch, to the first new commit", "ms")
    steps: dict[str, Row] = {
        key: Row(f"of that: {name}", "ms")
        for key, name in (
            ("detected", "signal to decision"), ("fenced_ms", "log and home fenced"),
            ("caught_up_ms", "caught up"), ("advanced_ms", "advanced"), ("serving_ms", "serving"),
        )
    }  # fmt: skip
    cluster = LocalCluster(ro=2)
    await asyncio.to_thread(cluster.start)
    try:
        clients = Clients(cluster.url)
        await clients.start()
        await asyncio.sleep(0.5)
        for number in range(count):
            tell("killing the writer", number / (2 * count))
            # Looked up before: what is measured begins with the signal.
            victim = await asyncio.to_thread(cluster.node, "rw")
            wall, moment = time.time(), time.monotonic()
            cluster.kill(victim)
            await asyncio.to_thread(cluster.wait_until_serving, 30)
            begin, end = await _longest_pause(clients, moment)
            paused.ours.append(1000 * (end - begin))
            decided = _steps(cluster.events(), steps, wall)
            # What is acknowledged before the decision was committed before the signal.
            killed.ours.append(1000 * clients.first_acked(moment + decided) + 1000 * decided)
        for number in range(count):
            tell("switching", 0.5 + number / (2 * count))
            moment = time.monotonic()
            await asyncio.to_thread(cluster.failover)
            begin, end = await _longest_pause(clients, moment)
            switched.ours.append(1000 * (end - begin))
            await asyncio.to_thread(cluster.wait_until_serving, 30)
        await clients.stop()
    finally:
        await asyncio.to_thread(cluster.stop)
    rows = [killed, *steps.values(), paused, switched]
    for row in rows:
        row.ours = [round(value, 2) for value in row.ours]
        row.notes["worst"] = max(row.ours, default=0.0)
    switched.notes["what"] = "the longest time without an acknowledgement while it went on"
    killed.notes["errors seen by clients"] = clients.errors
    return Result("failover", rows, {"failovers": count, "clients": WRITERS})


async def _longest_pause(clients: Clients, moment: float) -> tuple[float, float]:
    """Begin and end of the longest time without an acknowledgement since a moment."""
    await clients.first_after(time.monotonic())
    acks = sorted(acked for _, acked in clients.acks if acked > moment - 0.05)
    return max(itertools.pairwise(acks), key=lambda pair: pair[1] - pair[0])


def _steps(events: list[dict[str, Any]], rows: dict[str, Row], killed_at: float) -> float:
    """Control's own account of the last failover; seconds from the signal to its decision."""
    from datetime import datetime

    for event in reversed(events):
        if event["event"] == "failover":
            for key, row in rows.items():
                if key in event.get("steps", {}):
                    row.ours.append(event["steps"][key])
        if event["event"] == "promote":
            decided = datetime.fromisoformat(event["at"]).timestamp()
            seconds = max(0.0, decided - killed_at)
            rows["detected"].ours.append(1000 * seconds)
            return seconds
    return 0.0


def median(values: list[float]) -> float:
    """Of no values: 0."""
    return statistics.median(values) if values else 0.0
