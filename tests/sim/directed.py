"""A scenario written out instead of drawn by seed, in a process of its own as seeds are."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Awaitable, Callable
from typing import Any

from tests.sim.cluster import SimCluster
from tests.sim.loop import VirtualLoop
from tests.sim.worker import leave_the_parents_objects

Scenario = Callable[[SimCluster], Awaitable[None]]


def run_directed(scenario: Scenario, *, limit_s: float = 300) -> None:
    """Run it on a cluster that serves. ``limit_s`` is virtual. Raises AssertionError."""
    context: Any = multiprocessing.get_context("fork")
    pipe, other = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(scenario, limit_s, other), daemon=True)
    process.start()
    other.close()
    try:
        problem = pipe.recv() if pipe.poll(60) else "it does not end"
    except EOFError:
        process.join()
        problem = f"its process died: exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
        pipe.close()
    assert not problem, problem


def _run(scenario: Scenario, limit_s: float, pipe: Any) -> None:
    leave_the_parents_objects()
    logging.disable(logging.CRITICAL)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    cluster = SimCluster(loop, 1)

    async def whole() -> None:
        await cluster.start()
        await scenario(cluster)

    try:
        loop.run_until_complete(asyncio.wait_for(whole(), limit_s))
        pipe.send(str(loop.problems[0]) if loop.problems else "")
    except BaseException as error:
        text = "\n".join(cluster.trace[-20:])
        pipe.send(f"{type(error).__name__}: {error}\n{text}")
    # What is left of it goes with the process, and needs no collecting.
    pipe.close()
    multiprocessing.process.current_process().kill()
