"""Afterwards nothing is left of what has ended: no locks, pins, waits, holders, slots (C7)."""

from __future__ import annotations

import asyncio
from typing import Any

from compute.node import ComputeNode
from memory_pool.node import MemoryNode
from memory_pool.slots import CLAIMED, OFFERED, STATE_NAMES
from tests.sim.cluster import SimCluster

# What is under way ends, and offers that nobody validated are taken back.
QUIET_S = 20.0


async def no_leaks(cluster: SimCluster) -> None:
    """Wait until all is quiet. Raises AssertionError if something stays."""
    end = cluster.loop.now + QUIET_S
    while found := leaks(cluster):
        assert cluster.loop.now < end, f"left behind: {found[0]}"
        await asyncio.sleep(0.1)


def leaks(cluster: SimCluster) -> list[str]:
    """What is there now, in words."""
    found: list[str] = []
    for name, node in sorted(cluster.nodes.items()):
        if isinstance(node, ComputeNode):
            found += [f"{name}: {what}" for what in _of_compute(node)]
        elif isinstance(node, MemoryNode) and node._home is not None:
            names = {member.name for member in cluster.core.members.of_kind("compute")}
            found += [f"{name}: {what}" for what in _of_home(node._home._core.state, names)]
    return found


def _of_compute(node: ComputeNode) -> list[str]:
    engine, locks, writer = node.engine, node.engine.locks, node.engine.log
    found = {
        "row locks": [key for rows in locks.rows.values() for key in rows],
        "table locks": list(locks.exclusive),
        "queues for locks": [key for key, queue in locks._queues.items() if queue],
        "snapshots in use": list(engine.pins),
        "pinned pages": list(node.cache.pinned),
        "unfinished commits": [*writer._queued, *writer.unanswered] if writer else [],
    }
    return [f"{what}: {things[:3]}" for what, things in found.items() if things]


def _of_home(state: Any, names: set[str]) -> list[str]:
    tables, members = state.tables, {member.place: member for member in state.members}
    found = [
        f"{len(pages)} pages are held by place {place}, which nobody has"
        for relation in (tables.references, tables.watchers)
        for place, pages in relation._pages.items()
        if pages and place not in members
    ]
    found += [f"{m.name} is a member and gone" for m in members.values() if m.name not in names]
    for table in tables.capacity:
        for slot_state in (OFFERED, CLAIMED):
            count = int((table.state == slot_state).sum())
            if count:
                found.append(f"{count} slots are {STATE_NAMES[slot_state]}")
    return found
