"""What operators do while clients are at work, and what becomes of control."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from polarless.control.decisions import RestartAsked
from polarless.control.elastic import all_well

if TYPE_CHECKING:
    from tests.sim.faults import Chaos


async def switch(chaos: Chaos) -> None:
    """A planned switch."""
    chaos.say("a planned switch")
    chaos.cluster.switch()


async def scale(chaos: Chaos) -> None:
    """Other numbers of readers and memory nodes; perhaps the next fault comes meanwhile."""
    ro, memory_nodes = chaos.rng.choice((0, 1, 2, 3)), chaos.rng.choice((1, 2, 3))
    chaos.say(f"{ro} readers and {memory_nodes} memory nodes are wanted")
    chaos.cluster.control.scale(ro=ro, memory_nodes=memory_nodes)
    await asyncio.sleep(chaos.rng.choice((0.05, 0.5, 2.0)))


async def restart(chaos: Chaos) -> None:
    """A rolling restart of one role; that of the home moves it."""
    role = chaos.rng.choice(("ro", "rw", "home", "memory", "storage", "compute"))
    if not all_well(chaos.cluster.core):
        return
    chaos.say(f"a rolling restart of {role}")
    chaos.cluster.control.emit(RestartAsked(role))
    await asyncio.sleep(chaos.rng.choice((0.05, 0.5, 2.0)))


async def control_dies(chaos: Chaos) -> None:
    """Control is gone for a while; perhaps somebody dies whom it would have replaced."""
    chaos.cluster.control_dies()
    await asyncio.sleep(chaos.rng.choice((0.0, 0.01, 0.3)))
    if chaos.rng.random() < 0.5:
        await chaos.kill()
    await chaos.wait(chaos.rng.choice((0.01, 0.3, 2.0)))
    chaos.say("control is started again")
    chaos.cluster.control_returns()
