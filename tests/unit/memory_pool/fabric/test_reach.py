"""Reaching slots: breakers, what waits for a connection, what comes and goes with the nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from memory_pool.fabric.nic import NicConnection, NicStats
from memory_pool.fabric.reach import (
    CHANGED,
    FOUND,
    PAUSE_S,
    UNREACHABLE,
    WAITING_MAX,
    Reach,
)
from memory_pool.fabric.region import MAY_READ, MAY_WRITE_GUARDED, KeyTable, Region
from polarless.kernel.page import LEAF, Frame, encode
from polarless.kernel.world import World
from polarless.wire.memory import SLOT_BYTES, PoolNode, Slab, slot_contents
from tests.unit.memory_pool.fabric.wire import CLUSTER, FakeTransport, ManualClock, attach, deliver

KEY = b"k" * 16
SLOTS = 4
IMAGE = encode(Frame(7, LEAF, 1, lsn=9, keys=[1], rows={1: (9, b"x", None)}))


class FakeNetwork:
    """Connects to one passive side, when it may."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = bytearray(SLOTS * SLOT_BYTES)
        self.keys = KeyTable()
        access = MAY_READ | MAY_WRITE_GUARDED
        self.keys.grant(KEY, Region("r", memoryview(self.memory)), access, ("ro1", 5))
        self.attempts = 0
        self.up = True
        self.gate: asyncio.Event | None = None
        self.ends: list[tuple[FakeTransport, Any, FakeTransport, Any]] = []

    async def connect(self, factory: Any, host: str, port: int) -> tuple[Any, Any]:
        self.attempts += 1
        if self.gate is not None:
            await self.gate.wait()
        if not self.up:
            raise ConnectionRefusedError
        pair = factory()
        nic = NicConnection(self.keys, CLUSTER, self.clock, NicStats(), "mem1")
        passive = attach(nic)
        active = attach(pair)
        self.ends.append((active, nic, passive, pair))
        return active, pair

    async def listen(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    def pump(self) -> None:
        for active, nic, passive, pair in self.ends:
            while deliver(active, nic) + deliver(passive, pair):
                pass


class Bench:
    """A `Reach` by verbs, and what came of its reads and writes."""

    def __init__(self) -> None:
        self.network = FakeNetwork()
        unused: Any = None
        world = World(self.network, self.network.clock, unused, unused, unused)
        self.reach = Reach(world, cluster=CLUSTER, node="ro1", incarnation=5, shared_memory=False)
        self.nodes = {"mem1": PoolNode("h:1", {0: Slab(0, "shm", KEY, SLOTS)})}
        self.reach.set_nodes(self.nodes)
        self.read_done: list[tuple[int, bytes | None]] = []
        self.write_done: list[bool] = []

    def read(self, node: str = "mem1", slab: int = 0, generation: int = 3) -> None:
        self.reach.read_slot(
            node, slab, 1, 7, generation, lambda *came: self.read_done.append(came), deadline_s=1.0
        )

    def write(self, generation: int = 3) -> None:
        contents = slot_contents(7, 9, generation, IMAGE)
        self.reach.write_slot(
            "mem1", 0, 1, generation, contents, self.write_done.append, deadline_s=1.0
        )

    async def settle(self) -> None:
        """Let the connection attempts end, and the bytes go through."""
        while self.reach._tasks:
            await asyncio.wait(self.reach._tasks)
        self.network.pump()


async def test_slots_are_written_and_read_over_one_connection() -> None:
    bench = Bench()
    bench.write()
    await bench.settle()
    bench.read()
    bench.read(generation=4)
    await bench.settle()
    assert bench.write_done == [True]
    assert bench.read_done == [(FOUND, IMAGE), (CHANGED, None)]
    assert bench.network.attempts == 1
    bench.write(generation=2)
    await bench.settle()
    assert bench.write_done == [True, False]
    assert bench.reach.stats.writes_failed == 1
    bench.reach.close()


async def test_unknown_node_or_slab_is_unreachable_at_once() -> None:
    bench = Bench()
    bench.read(node="mem2")
    bench.read(slab=1)
    assert bench.read_done == [(UNREACHABLE, None)] * 2
    assert bench.network.attempts == 0
    bench.reach.close()


async def test_node_that_cannot_be_reached_is_skipped_for_a_while() -> None:
    bench = Bench()
    bench.network.up = False
    bench.read()
    bench.write()
    await bench.settle()
    bench.read()
    assert bench.read_done == [(UNREACHABLE, None)] * 2
    assert bench.write_done == [False]
    assert bench.network.attempts == 1
    # Twice as long after each failure.
    bench.network.clock.advance(PAUSE_S + 0.01)
    bench.read()
    await bench.settle()
    assert bench.network.attempts == 2
    bench.network.clock.advance(PAUSE_S + 0.01)
    bench.read()
    assert bench.network.attempts == 2
    # The home names its nodes: it may be another process by now.
    bench.network.up = True
    bench.reach.set_nodes(bench.nodes)
    bench.read()
    await bench.settle()
    assert bench.network.attempts == 3
    assert bench.read_done[-1] == (CHANGED, None)
    bench.reach.close()


async def test_lost_connection_opens_the_breaker() -> None:
    bench = Bench()
    bench.write()
    await bench.settle()
    bench.read()
    bench.network.ends[0][3].connection_lost(None)
    assert bench.read_done == [(UNREACHABLE, None)]
    bench.read()
    assert bench.read_done == [(UNREACHABLE, None)] * 2
    assert bench.network.attempts == 1
    bench.network.clock.advance(PAUSE_S + 0.01)
    bench.read()
    await bench.settle()
    assert bench.read_done[-1] == (FOUND, IMAGE)
    bench.reach.close()


@pytest.mark.parametrize("pinned", [True, False], ids=["the cells' node", "another"])
async def test_the_pause_doubles_but_where_the_cells_are(pinned: bool) -> None:
    bench = Bench()
    if pinned:
        bench.reach.pinned.add("h:1")
    bench.network.up = False
    for _ in range(4):
        bench.read()
        await bench.settle()
        bench.network.clock.advance(PAUSE_S + 0.01)
    assert (bench.network.attempts == 4) == pinned
    bench.reach.close()


async def test_connection_to_a_node_that_is_gone_is_closed() -> None:
    bench = Bench()
    bench.write()
    await bench.settle()
    pair = bench.network.ends[0][3]
    bench.reach.pinned.add("h:1")
    bench.reach.set_nodes({})
    assert not pair.closed
    bench.reach.pinned.clear()
    bench.reach.set_nodes({})
    assert pair.closed
    bench.read()
    assert bench.read_done == [(UNREACHABLE, None)]
    bench.reach.close()


async def test_what_waits_for_a_connection_is_bounded() -> None:
    bench = Bench()
    bench.network.gate = asyncio.Event()
    for _ in range(WAITING_MAX):
        bench.read()
    assert bench.read_done == []
    bench.read()
    assert bench.read_done == [(UNREACHABLE, None)]
    bench.network.gate.set()
    await bench.settle()
    assert len(bench.read_done) == WAITING_MAX + 1
    bench.reach.close()


async def test_closing_ends_everything_that_waits() -> None:
    bench = Bench()
    bench.network.gate = asyncio.Event()
    bench.read()
    bench.write()
    bench.reach.close()
    assert bench.read_done == [(UNREACHABLE, None)]
    assert bench.write_done == [False]
    bench.network.gate.set()
    while bench.reach._tasks:
        await asyncio.wait(bench.reach._tasks)
    bench.read()
    assert bench.read_done == [(UNREACHABLE, None)] * 2


@pytest.mark.parametrize("revoked", [True, False])
async def test_write_with_a_revoked_key_fails(revoked: bool) -> None:
    bench = Bench()
    if revoked:
        bench.network.keys.revoke(("ro1", 5))
    bench.write()
    await bench.settle()
    assert bench.write_done == [not revoked]
    assert any(bench.network.memory) is not revoked
    bench.reach.close()
