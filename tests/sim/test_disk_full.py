"""Storage's disk is full: who gets which answer, and what holds when there is room again."""

from __future__ import annotations

import asyncio

import pytest

from compute.txn.log_writer import DISK_FULL_DEADLINE_S
from tests.sim.client import SimClient, SimError
from tests.sim.cluster import SimCluster
from tests.sim.directed import run_directed


async def client_of(cluster: SimCluster, name: str) -> SimClient:
    return await SimClient.connect(cluster.network, cluster.core.members[name].sql)


async def error_of(client: SimClient, text: str) -> tuple[str, float]:
    """The SQLSTATE of what a statement ends with, and after how many virtual seconds."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(SimError) as caught:
        await client.query(text)
    return caught.value.args[0], asyncio.get_running_loop().time() - began


async def answers(cluster: SimCluster) -> None:
    writer = next(m.name for m in cluster.core.members.of_kind("compute") if m.role == "rw")
    sessions = [await client_of(cluster, name) for name in (writer, "proxy-1", writer, "proxy-1")]
    queued, proxied, late, reading = sessions
    await queued.query("create table t (id int primary key)")
    cluster.disk_log.faults.room_bytes = 0
    # The first two are applied before storage refuses; the other waits with nothing applied.
    first = asyncio.ensure_future(error_of(queued, "insert into t values (1)"))
    second = asyncio.ensure_future(error_of(proxied, "create table u (id int primary key)"))
    await asyncio.sleep(0.5)
    third = asyncio.ensure_future(error_of(late, "insert into t values (3)"))
    await asyncio.sleep(0.5)
    assert await reading.query("select id from t") == []
    for task, state in ((first, "08007"), (second, "08007"), (third, "53100")):
        found, seconds = await task
        assert found == state
        assert seconds == pytest.approx(DISK_FULL_DEADLINE_S, abs=1.0)
    # From now on nobody waits, and the sessions go on; the table that may exist is locked.
    found, seconds = await error_of(late, "insert into t values (4)")
    assert (found, seconds < 0.1) == ("53100", True)
    assert (await queued.query("select count(*) from t"))[0] == ("0",)
    cluster.disk_log.faults.room_bytes = None
    await asyncio.sleep(2)
    # What was unknown has happened, what was refused has not.
    await late.query("insert into t values (5)")
    await proxied.query("insert into u values (1)")
    for client in sessions:
        rows = await client.query("select id from t order by id")
        assert rows == [("1",), ("5",)]


async def a_short_shortage(cluster: SimCluster) -> None:
    client = await client_of(cluster, "proxy-1")
    await client.query("create table t (id int primary key)")
    cluster.disk_log.faults.room_bytes = 0
    writing = asyncio.ensure_future(client.query("insert into t values (1)"))
    await asyncio.sleep(DISK_FULL_DEADLINE_S / 2)
    assert not writing.done()
    cluster.disk_log.faults.room_bytes = None
    await writing
    assert await client.query("select id from t") == [("1",)]


async def the_writer_dies(cluster: SimCluster) -> None:
    client = await client_of(cluster, "proxy-1")
    await client.query("create table t (id int primary key)")
    cluster.disk_log.faults.room_bytes = 0
    found, _ = await error_of(client, "insert into t values (1)")
    assert found == "08007"
    writer = next(m.name for m in cluster.core.members.of_kind("compute") if m.role == "rw")
    cluster.kill(writer)
    await asyncio.sleep(1)
    cluster.disk_log.faults.room_bytes = None
    await cluster.until_serving(30)
    # Its end was unknown; it never became durable, and the next writer has no trace of it.
    await client.query("insert into t values (1)")
    assert await client.query("select id from t") == [("1",)]


@pytest.mark.parametrize("scenario", [answers, a_short_shortage, the_writer_dies])
def test_a_full_disk(scenario: object) -> None:
    run_directed(scenario)  # type: ignore[arg-type]
