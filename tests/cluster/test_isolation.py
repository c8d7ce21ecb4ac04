"""Hermitage's cases: two or three transactions, step by step, at each isolation level.

Each case says what PostgreSQL does. Steps run on real connections; a step that has to wait for
another transaction is started, and must still be waiting when the other goes on.

At SERIALIZABLE PostgreSQL watches for dangerous patterns among transactions, and this system looks
at the commit whether what was read has changed. Both let through only what is serializable; one may
refuse where the other does not, and at another step; so there the cases ask for what matters: that
not all of the transactions commit where no order explains what they saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

READ_COMMITTED: Final = "read committed"
REPEATABLE_READ: Final = "repeatable read"
SERIALIZABLE: Final = "serializable"
LEVELS: Final = (READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE)
SNAPSHOT: Final = (REPEATABLE_READ, SERIALIZABLE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("isolation") / "data", ro=0)
    try:
        made.start()
        yield made
    finally:
        made.stop()
    assert_nothing_left(made)


class Txn:
    """One transaction on a connection of its own. `run` gives rows, or the SQLSTATE of an error."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection

    async def run(self, statement: str) -> list[tuple[Any, ...]] | str:
        try:
            return [tuple(row) for row in await self.connection.fetch(statement)]
        except asyncpg.PostgresError as error:
            return str(error.sqlstate)

    async def commit(self) -> str:
        """COMMIT, ROLLBACK, or a SQLSTATE."""
        try:
            return str(await self.connection.execute("commit"))
        except asyncpg.PostgresError as error:
            return str(error.sqlstate)

    async def waiting(self, statement: str) -> asyncio.Task[Any]:
        """Start a statement that has to wait for another transaction."""
        task = asyncio.create_task(self.run(statement))
        async with asyncio.timeout(10):
            while not await self._waits():
                assert not task.done(), f"{statement} did not wait: {task.result()}"
        return task

    async def _waits(self) -> bool:
        return bool(
            await self.watcher.fetchval(
                "select count(*) from polarless.sessions where pid = $1 and wait like 'lock%'",
                self.connection.get_server_pid(),
            )
        )

    watcher: asyncpg.Connection[Any]


@asynccontextmanager
async def transactions(cluster: LocalCluster, level: str, count: int) -> AsyncIterator[list[Txn]]:
    """So many transactions that have begun, over a table with two rows: (1, 10), (2, 20)."""
    connections = [
        await asyncpg.connect(cluster.url, statement_cache_size=0) for _ in range(count + 1)
    ]
    try:
        watcher = connections.pop()
        await watcher.execute("drop table if exists test")
        await watcher.execute("create table test (id int primary key, value int)")
        await watcher.execute("insert into test values (1, 10), (2, 20)")
        made = []
        for connection in connections:
            await connection.execute(f"begin isolation level {level}")
            txn = Txn(connection)
            txn.watcher = watcher
            made.append(txn)
        yield made
    finally:
        for connection in (*connections, watcher):
            await connection.close()


async def committed(txn: Txn) -> list[tuple[Any, ...]]:
    """The table as anybody sees it now."""
    rows = await txn.watcher.fetch("select id, value from test order by id")
    return [tuple(row) for row in rows]


ALL: Final = "select id, value from test order by id"


@pytest.mark.parametrize("level", LEVELS)
async def test_g0_dirty_write(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        await one.run("update test set value = 11 where id = 1")
        second = await two.waiting("update test set value = 12 where id = 1")
        await one.run("update test set value = 21 where id = 2")
        assert await one.commit() == "COMMIT"
        if level == READ_COMMITTED:
            assert await second == []
            assert await committed(one) == [(1, 11), (2, 21)]
            await two.run("update test set value = 22 where id = 2")
            assert await two.commit() == "COMMIT"
            assert await committed(one) == [(1, 12), (2, 22)]
        else:
            assert await second == "40001"
            assert await two.commit() == "ROLLBACK"
            assert await committed(one) == [(1, 11), (2, 21)]


@pytest.mark.parametrize("level", LEVELS)
async def test_g1a_aborted_read(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        await one.run("update test set value = 101 where id = 1")
        assert await two.run(ALL) == [(1, 10), (2, 20)]
        await one.run("rollback")
        assert await two.run(ALL) == [(1, 10), (2, 20)]
        assert await two.commit() == "COMMIT"


@pytest.mark.parametrize("level", LEVELS)
async def test_g1b_intermediate_read(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        await one.run("update test set value = 101 where id = 1")
        assert await two.run(ALL) == [(1, 10), (2, 20)]
        await one.run("update test set value = 11 where id = 1")
        assert await one.commit() == "COMMIT"
        seen = [(1, 11), (2, 20)] if level == READ_COMMITTED else [(1, 10), (2, 20)]
        assert await two.run(ALL) == seen
        assert await two.commit() == "COMMIT"


@pytest.mark.parametrize("level", LEVELS)
async def test_g1c_circular_information_flow(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        await one.run("update test set value = 11 where id = 1")
        await two.run("update test set value = 22 where id = 2")
        assert await one.run("select value from test where id = 2") == [(20,)]
        assert await two.run("select value from test where id = 1") == [(10,)]
        ends = [await one.commit(), await two.commit()]
        if level == SERIALIZABLE:
            assert ends == ["COMMIT", "40001"]
        else:
            assert ends == ["COMMIT", "COMMIT"]


@pytest.mark.parametrize("level", LEVELS)
async def test_otv_observed_transaction_vanishes(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 3) as (one, two, three):
        await one.run("update test set value = 11 where id = 1")
        await one.run("update test set value = 19 where id = 2")
        second = await two.waiting("update test set value = 12 where id = 1")
        assert await one.commit() == "COMMIT"
        first_seen = await three.run("select value from test where id = 1")
        assert first_seen == [(11,)]
        if level == READ_COMMITTED:
            assert await second == []
            await two.run("update test set value = 18 where id = 2")
            assert await three.run("select value from test where id = 2") == [(19,)]
            assert await two.commit() == "COMMIT"
            assert await three.run(ALL) == [(1, 12), (2, 18)]
        else:
            assert await second == "40001"
            assert await three.run(ALL) == [(1, 11), (2, 19)]
        assert await three.commit() == "COMMIT"


@pytest.mark.parametrize("level", LEVELS)
async def test_pmp_predicate_many_preceders(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        assert await one.run("select id from test where value = 30") == []
        await two.run("insert into test values (3, 30)")
        assert await two.commit() == "COMMIT"
        seen = [(3,)] if level == READ_COMMITTED else []
        assert await one.run("select id from test where value % 3 = 0 order by id") == seen
        assert await one.commit() == "COMMIT"


@pytest.mark.parametrize("level", LEVELS)
async def test_pmp_with_write_predicates(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        await one.run("update test set value = value + 10")
        second = await two.waiting("delete from test where value = 20")
        assert await one.commit() == "COMMIT"
        if level == READ_COMMITTED:
            # Row 1 has become 20, but only row 2 was looked at again, and it is 30 now.
            assert await second == []
            assert await two.run(ALL) == [(1, 20), (2, 30)]
            assert await two.commit() == "COMMIT"
        else:
            assert await second == "40001"
            assert await two.commit() == "ROLLBACK"
        assert await committed(one) == [(1, 20), (2, 30)]


@pytest.mark.parametrize("level", LEVELS)
async def test_p4_lost_update(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        assert await one.run("select value from test where id = 1") == [(10,)]
        assert await two.run("select value from test where id = 1") == [(10,)]
        await one.run("update test set value = 11 where id = 1")
        second = await two.waiting("update test set value = 11 where id = 1")
        assert await one.commit() == "COMMIT"
        assert await second == ([] if level == READ_COMMITTED else "40001")
        assert await two.commit() == ("COMMIT" if level == READ_COMMITTED else "ROLLBACK")


@pytest.mark.parametrize("level", LEVELS)
async def test_g_single_read_skew(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        assert await one.run("select value from test where id = 1") == [(10,)]
        await two.run("update test set value = 12 where id = 1")
        await two.run("update test set value = 18 where id = 2")
        assert await two.commit() == "COMMIT"
        seen = 18 if level == READ_COMMITTED else 20
        assert await one.run("select value from test where id = 2") == [(seen,)]
        assert await one.commit() == "COMMIT"


@pytest.mark.parametrize("level", LEVELS)
async def test_g_single_with_predicates(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        assert await one.run("select id from test where value % 5 = 0 order by id") == [(1,), (2,)]
        await two.run("update test set value = 12 where value = 10")
        assert await two.commit() == "COMMIT"
        seen = [] if level == READ_COMMITTED else [(1,)]
        assert await one.run("select id from test where value in (10, 12) and value <> 12") == seen
        assert await one.commit() == "COMMIT"


@pytest.mark.parametrize("level", LEVELS)
async def test_g_single_with_a_write(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        assert await one.run("select value from test where id = 1") == [(10,)]
        assert await two.run(ALL) == [(1, 10), (2, 20)]
        await two.run("update test set value = 12 where id = 1")
        await two.run("update test set value = 18 where id = 2")
        assert await two.commit() == "COMMIT"
        deleted = await one.run("delete from test where value = 20 returning id")
        if level == READ_COMMITTED:
            assert deleted == []
            assert await one.commit() == "COMMIT"
        else:
            assert deleted == "40001"
            assert await one.commit() == "ROLLBACK"
        assert await committed(one) == [(1, 12), (2, 18)]


@pytest.mark.parametrize("level", LEVELS)
async def test_g2_item_write_skew(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        for txn in (one, two):
            both = await txn.run("select value from test where id in (1, 2) order by id")
            assert both == [(10,), (20,)]
        await one.run("update test set value = 11 where id = 1")
        await two.run("update test set value = 21 where id = 2")
        ends = [await one.commit(), await two.commit()]
        assert ends == ["COMMIT", "40001" if level == SERIALIZABLE else "COMMIT"]


@pytest.mark.parametrize("level", LEVELS)
async def test_g2_anti_dependency_cycles(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        for txn in (one, two):
            assert await txn.run("select id from test where value % 3 = 0") == []
        await one.run("insert into test values (3, 30)")
        await two.run("insert into test values (4, 42)")
        ends = [await one.commit(), await two.commit()]
        assert ends == ["COMMIT", "40001" if level == SERIALIZABLE else "COMMIT"]
        count = 3 if level == SERIALIZABLE else 4
        assert len(await committed(one)) == count


async def test_g2_with_two_edges(cluster: LocalCluster) -> None:
    """Fekete's anomaly: a reader sees an order that the two writers' commits do not allow."""
    async with transactions(cluster, SERIALIZABLE, 3) as (one, two, three):
        assert await one.run(ALL) == [(1, 10), (2, 20)]
        await two.run("update test set value = value + 5 where id = 2")
        assert await two.commit() == "COMMIT"
        assert await three.run(ALL) == [(1, 10), (2, 25)]
        assert await three.commit() == "COMMIT"
        await one.run("update test set value = 0 where id = 1")
        assert await one.commit() in ("40001", "ROLLBACK")


@pytest.mark.parametrize("level", SNAPSHOT)
async def test_a_transaction_sees_itself(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        await one.run("update test set value = 11 where id = 1")
        await one.run("insert into test values (3, 30)")
        await one.run("delete from test where id = 2")
        assert await one.run(ALL) == [(1, 11), (3, 30)]
        assert await two.run(ALL) == [(1, 10), (2, 20)]
        assert await one.commit() == "COMMIT"
        assert await two.run(ALL) == [(1, 10), (2, 20)]
        assert await two.commit() == "COMMIT"


@pytest.mark.parametrize("level", LEVELS)
async def test_an_insert_of_the_same_key_waits(cluster: LocalCluster, level: str) -> None:
    async with transactions(cluster, level, 2) as (one, two):
        await one.run("insert into test values (3, 30)")
        second = await two.waiting("insert into test values (3, 31)")
        await one.run("rollback")
        assert await second == []
        assert await two.commit() == "COMMIT"
        assert await committed(one) == [(1, 10), (2, 20), (3, 31)]
