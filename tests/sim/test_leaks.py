"""The search for leaks finds what is there: the simulation's other checks rely on nobody's word."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sim.client import SimClient
from tests.sim.cluster import SimCluster
from tests.sim.directed import run_directed
from tests.sim.leaks import leaks, no_leaks


async def prepared(cluster: SimCluster) -> SimClient:
    client = await SimClient.connect(cluster.network, cluster.core.members["compute-1"].sql)
    await client.query("create table t (id int primary key, v int)")
    await client.query("insert into t values (1, 10)")
    await no_leaks(cluster)
    return client


def home_of(cluster: SimCluster) -> Any:
    member = next(m for m in cluster.core.members.members.values() if m.role == "home")
    return cluster.nodes[member.name]._home._core.state


def is_found(cluster: SimCluster, *whats: str) -> None:
    found = leaks(cluster)
    for what in whats:
        assert any(what in text for text in found), f"{what!r} is not among {found}"


async def an_open_transaction(cluster: SimCluster) -> None:
    client = await prepared(cluster)
    await client.query("begin isolation level repeatable read")
    await client.query("update t set v = 11 where id = 1")
    is_found(cluster, "row locks", "snapshots in use")
    with pytest.raises(AssertionError, match="left behind"):
        await no_leaks(cluster)
    await client.query("rollback")
    await no_leaks(cluster)
    await client.query("begin")
    await client.query("lock table t in access exclusive mode")
    is_found(cluster, "table locks")
    await client.query("rollback")
    await no_leaks(cluster)


async def a_commit_under_way(cluster: SimCluster) -> None:
    client = await prepared(cluster)
    cluster.sync_s = 1.0
    writing = asyncio.ensure_future(client.query("update t set v = 11 where id = 1"))
    await asyncio.sleep(0.1)
    is_found(cluster, "unfinished commits")
    await writing
    await no_leaks(cluster)


async def what_the_home_forgot(cluster: SimCluster) -> None:
    await prepared(cluster)
    state = home_of(cluster)
    member = next(iter(state.members))
    far = state.now_us + 3600 * 1_000_000
    offered = state.tables.offer(999, 1, member, scan=False, now_us=far)
    assert offered is not None
    state.tables.references.add(998, 60)
    is_found(cluster, "slots are offered", "which nobody has")
    table, slot, _ = offered
    state.tables.drop_offer(member, table.base + slot)
    state.tables.references.drop(60)
    member.name = "compute-9"
    is_found(cluster, "compute-9 is a member and gone")


@pytest.mark.parametrize(
    "scenario", [an_open_transaction, a_commit_under_way, what_the_home_forgot]
)
def test_it_is_found(scenario: Any) -> None:
    run_directed(scenario)
