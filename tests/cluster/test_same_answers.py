"""What happens to the processes changes no answer: one workload, undisturbed and disturbed.

Invariant C8. The statements come from one seed; everything that they answer, and the rows that are
there in the end, must be the same, whatever is scaled, stopped, switched or killed meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import asyncpg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

KEYS = 200
# Each disturbance begins at one of these and goes on while the statements run.
STATEMENTS_EACH = 120


@pytest.fixture
def running(data: Path) -> Iterator[LocalCluster]:
    """Caches that hold a part of the rows."""
    with running_cluster(data, ro=2, pool_mb=16, cache_mb=4) as cluster:
        yield cluster


class Workload:
    """One client's statements on one table, by seed."""

    def __init__(self, connection: asyncpg.Connection, table: str, seed: int) -> None:
        self.connection = connection
        self.table = table
        self.random = Random(seed)
        self.answers: list[str] = []

    async def prepare(self) -> None:
        await self.connection.execute(
            f"create table {self.table} (id int primary key, v int not null, note text)"
        )
        await self.connection.execute(f"create index on {self.table} (v)")

    async def run(self, count: int) -> None:
        for _ in range(count):
            await self._statement(self.random.random())

    async def _statement(self, chance: float) -> None:
        table, random = self.table, self.random
        key, value = random.randrange(KEYS), random.randrange(10)
        if chance < 0.25:
            note = "x" * random.choice((5, 50, 3000))
            await self._do(
                f"insert into {table} values ($1, $2, $3) on conflict (id) do update "
                "set v = excluded.v, note = excluded.note returning id, v",
                key, value, note,
            )  # fmt: skip
        elif chance < 0.45:
            await self._do(f"update {table} set v = v + $2 where id = $1", key, value)
        elif chance < 0.5:
            await self._do(f"insert into {table} values ($1, $2)", key, value)
        elif chance < 0.6:
            await self._do(f"delete from {table} where v = $1 and id < $2", value, key)
        elif chance < 0.75:
            await self._do(f"select id, v, length(note) from {table} where id = $1", key)
        elif chance < 0.9:
            await self._do(f"select count(*), sum(v) from {table} where id >= $1", key)
        else:
            transaction = self.connection.transaction(
                isolation=random.choice(("read_committed", "repeatable_read"))
            )
            await transaction.start()
            for _ in range(random.randrange(1, 4)):
                await self._do(
                    f"update {table} set v = v - 1 where id between $1 and $2 returning id, v",
                    key, key + 3,
                )  # fmt: skip
                await self._do(f"select count(*) from {table} where v = $1", value)
            if random.random() < 0.3:
                await transaction.rollback()
            else:
                await transaction.commit()

    async def _do(self, text: str, *values: object) -> None:
        try:
            rows = await self.connection.fetch(text, *values)
            answer = repr([tuple(row) for row in rows])
        except asyncpg.UniqueViolationError as error:
            answer = error.sqlstate
        self.answers.append(answer)

    async def content(self) -> str:
        """A hash over all rows."""
        rows = await self.connection.fetch(f"select id, v, note from {self.table} order by id")
        return hashlib.sha256(repr([tuple(row) for row in rows]).encode()).hexdigest()


def stop_for_a_while(cluster: LocalCluster) -> None:
    """Longer than control waits for a hung writer."""
    old = cluster.pause("rw")
    try:
        cluster.wait_until(
            "another writes", lambda s: any(n["role"] == "rw" and n["name"] != old.name
                                            for n in s["nodes"])
        )  # fmt: skip
    finally:
        cluster.resume(old)


async def test_no_answer_depends_on_what_happens_to_the_processes(running: LocalCluster) -> None:
    disturbances: list[Callable[[], object]] = [
        lambda: running.scale(3),
        lambda: running.kill("rw"),
        lambda: running.scale(pool_mb=8),
        lambda: running.failover(),
        lambda: running.kill("home"),
        lambda: running.scale(1),
        lambda: stop_for_a_while(running),
        lambda: running.kill("storage"),
        lambda: running.rolling_restart("proxy"),
        lambda: running.scale(pool_mb=32),
        lambda: running.kill("memory"),
    ]
    count = STATEMENTS_EACH * len(disturbances)
    found = []
    for table in ("calm", "disturbed"):
        connection = await asyncpg.connect(running.url)
        workload = Workload(connection, table, seed=8)
        await workload.prepare()
        if table == "calm":
            await workload.run(count)
        else:
            for disturb in disturbances:
                under_way = asyncio.create_task(asyncio.to_thread(disturb))
                await workload.run(STATEMENTS_EACH)
                await under_way
                await asyncio.to_thread(running.wait_until_serving, 30)
        found.append((workload.answers, await workload.content()))
        await connection.close()
    (calm, calm_rows), (disturbed, disturbed_rows) = found
    assert len(calm) == len(disturbed)
    differing = [
        at for at, pair in enumerate(zip(calm, disturbed, strict=True)) if len({*pair}) > 1
    ]
    assert not differing, [(at, calm[at], disturbed[at]) for at in differing[:3]]
    assert calm_rows == disturbed_rows
