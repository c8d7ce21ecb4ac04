"""DDL that reads a table's rows, behind commits that are applied and not published yet."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.client import SimClient
from tests.sim.cluster import SimCluster
from tests.sim.directed import run_directed


async def an_index(cluster: SimCluster, ddl: str) -> None:
    clients = []
    for _ in range(2):
        address = cluster.core.members["compute-1"].sql
        clients.append(await SimClient.connect(cluster.network, address))
    one, other = clients
    await one.query("create table t (id int primary key, v int)")
    await one.query("insert into t values (1, 10), (2, 20)")
    # The update has given up its locks long before it is durable.
    cluster.sync_s = 0.05
    updating = asyncio.ensure_future(one.query("update t set v = 15 where id = 1"))
    await asyncio.sleep(0.005)
    await other.query(ddl)
    await updating
    await one.query("update t set v = 16 where id = 1")
    for client in clients:
        rows = await client.query("select id, v from t where v > 0 order by id")
        assert rows == [("1", "16"), ("2", "20")]
        assert await client.query("select v from t where id = 1") == [("16",)]


async def a_rewrite(cluster: SimCluster, ddl: str) -> None:
    address = cluster.core.members["compute-1"].sql
    one = await SimClient.connect(cluster.network, address)
    other = await SimClient.connect(cluster.network, address)
    await one.query("create table t (id int, v int)")
    await one.query("insert into t values (1, 10), (2, 20)")
    cluster.sync_s = 0.05
    updating = asyncio.ensure_future(one.query("update t set v = 15 where id = 1"))
    await asyncio.sleep(0.005)
    await other.query(ddl)
    await updating
    rows = await one.query("select id, v from t order by id")
    assert [(row[0], float(row[1] or 0)) for row in rows] == [("1", 15.0), ("2", 20.0)]


async def asked_of_an_expelled_reader(cluster: SimCluster) -> None:
    members = cluster.core.members
    writer = await SimClient.connect(cluster.network, members["compute-1"].sql)
    reader = await SimClient.connect(cluster.network, members["compute-2"].sql)
    await writer.query("create table t (id int primary key)")
    assert await reader.query("select id from t") == []
    home = next(m.name for m in members.members.values() if m.role == "home")
    cluster.network.cut(home, "compute-2", both=False)
    # Acknowledged once the reader that cannot hear of it is expelled.
    await writer.query("create table u (id int primary key)")
    asking = asyncio.ensure_future(reader.query("select id from u"))
    await asyncio.sleep(0.1)
    cluster.network.mend()
    assert await asking == []


def test_a_reader_that_is_expelled_does_not_say_that_a_new_table_is_not_there() -> None:
    run_directed(asked_of_an_expelled_reader)


@pytest.mark.parametrize("ddl", ["create index on t (v)", "create unique index on t (v)"])
def test_an_index_has_the_rows_that_were_just_committed(ddl: str) -> None:
    run_directed(lambda cluster: an_index(cluster, ddl))


@pytest.mark.parametrize(
    "ddl", ["alter table t add primary key (id)", "alter table t alter column v type text"]
)
def test_a_table_that_is_rewritten_keeps_what_was_just_committed(ddl: str) -> None:
    run_directed(lambda cluster: a_rewrite(cluster, ddl))
