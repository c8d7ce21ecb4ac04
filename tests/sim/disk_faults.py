"""Faults of storage's disk. Each begins, waits, and ends what does not end by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sim.cluster import SYNC_S

if TYPE_CHECKING:
    from tests.sim.faults import Chaos


async def sync_fails(chaos: Chaos) -> None:
    """The disk refuses one sync; whatever was written since the last one may be gone."""
    cluster = chaos.cluster
    if chaos.rng.random() < 0.3:
        chaos.say("the next commit of pages fails")
        cluster.disk_pages.faults.sync = True
    else:
        chaos.say("the next sync fails")
        cluster.disk_log.faults.sync = True


async def sync_is_slow(chaos: Chaos) -> None:
    """A disk that takes its time."""
    chaos.say("slow syncs")
    chaos.cluster.sync_s = chaos.rng.choice((0.005, 0.05))
    await asyncio.sleep(0.3)
    chaos.cluster.sync_s = SYNC_S


async def write_is_torn(chaos: Chaos) -> None:
    """The next write stops half-way, and says so."""
    chaos.say("the next write is torn")
    chaos.cluster.disk_log.faults.torn_write = chaos.rng.choice((0, 1, 40, 200))


async def full(chaos: Chaos) -> None:
    """The disk is full, for shorter or longer than clients wait; perhaps a node dies meanwhile."""
    room, seconds = chaos.rng.choice((0, 500, 20_000)), chaos.rng.choice((0.3, 2.0, 4.0, 14.0))
    chaos.say(f"the disk has room for {room} bytes, for {seconds} s")
    chaos.outcome.disk_was_full = True
    _set_room(chaos, room)
    if chaos.rng.random() < 0.3:
        await chaos.wait(seconds / 2)
        await chaos.kill()
        seconds /= 2
    await chaos.wait(seconds)
    _set_room(chaos, None)


def _set_room(chaos: Chaos, room: int | None) -> None:
    chaos.cluster.disk_log.faults.room_bytes = room
    chaos.cluster.disk_pages.faults.room_bytes = room


def end(chaos: Chaos) -> None:
    """No fault that was ordered happens from now on."""
    for faults in (chaos.cluster.disk_log.faults, chaos.cluster.disk_pages.faults):
        faults.sync, faults.torn_write, faults.room_bytes = False, None, None
