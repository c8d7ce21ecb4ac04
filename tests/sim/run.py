"""One seed: a cluster, a workload, faults, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from dataclasses import replace
from typing import Final

from polarless.kernel import failpoints
from tests.sim.appends import Appends
from tests.sim.bank import Bank
from tests.sim.cluster import SimCluster
from tests.sim.damage import flip_and_check
from tests.sim.faults import Chaos
from tests.sim.lagging import Lagging
from tests.sim.leaks import no_leaks
from tests.sim.loop import VirtualLoop
from tests.sim.mutants import mutated
from tests.sim.outcome import Outcome
from tests.sim.ring import Ring
from tests.sim.tables import Tables
from tests.sim.versions import Versions
from tests.sim.workload import Work

# Beside `Bank`, which every seed has: what it costs buys seeds that differ. And beside `Lagging`,
# which every seventh has, whose nodes share no memory.
OTHERS: Final[tuple[type[Work], ...]] = (Appends, Ring, Versions, Tables)

# Of the seeds: at their end a bit flips.
DAMAGED_SHARE: Final = 0.25


async def scenario(cluster: SimCluster, outcome: Outcome) -> None:
    """The whole of one seed."""
    rng = random.Random(outcome.seed + 2)
    works: list[Work] = [Bank(cluster, outcome)]
    works += [kind(cluster, outcome) for kind in rng.sample(OTHERS, rng.choice((0, 1, 1, 2)))]
    if outcome.seed % 7 == 6:
        works.append(Lagging(cluster, outcome))
        cluster.settings = replace(cluster.settings, shared_memory=False)
    await cluster.start()
    cluster.say("workloads: " + ", ".join(type(work).__name__ for work in works))
    for work in works:
        await work.setup()
    tasks = [asyncio.ensure_future(task) for work in works for task in work.tasks()]
    chaos = asyncio.ensure_future(Chaos(cluster, outcome, random.Random(outcome.seed + 1)).run())
    done, _ = await asyncio.wait({*tasks, chaos}, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()
    await chaos
    # Liveness: once the faults are over everything serves, and clients get on.
    await cluster.until_serving(30.0)
    before = outcome.commits
    end = cluster.loop.now + 30
    while outcome.commits < before + 5:
        assert cluster.loop.now < end, "clients do not get on"
        for one in tasks:
            if one.done():
                one.result()
        await asyncio.sleep(0.01)
    for work in works:
        work.stopping = True
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    for work in works:
        await work.check()
    await no_leaks(cluster)
    ageing = random.Random(outcome.seed + 5)
    if ageing.random() < DAMAGED_SHARE:
        await flip_and_check(cluster, works, ageing)


def run_seed(seed: int, mutant: str | None = None) -> Outcome:
    """Run one seed from its beginning to its end; what went wrong is in ``problem``.

    ``mutant``: a deliberate bug, see `tests.sim.mutants`.
    """
    with mutated(mutant):
        return _run_seed(seed)


def _run_seed(seed: int) -> Outcome:
    outcome = Outcome(seed)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    logging.disable(logging.CRITICAL)
    places = random.Random(seed + 4)
    cluster = SimCluster(loop, seed, apart=places.choice((0.0, 0.0, 0.5, 1.0)))
    cluster.memory.races.share = places.choice((0.0, 0.0, 0.02, 0.2))
    outcome.trace = cluster.trace
    try:
        loop.run_until_complete(asyncio.wait_for(scenario(cluster, outcome), 120))
        assert not loop.problems, loop.problems[0]
    except (AssertionError, Exception) as error:
        outcome.problem = f"{type(error).__name__}: {error}"
        for problem in loop.problems[:3]:
            cluster.say(f"problem: {problem}")
    finally:
        logging.disable(logging.NOTSET)
        failpoints.disarm()
        cluster.say(f"{outcome.commits} commits, {outcome.transfers} transfers")
        cluster.say(f"digest of all deliveries: {cluster.network.digest:08x}")
        _discard(loop, cluster)
    return outcome


def _discard(loop: VirtualLoop, cluster: SimCluster) -> None:
    """Tasks of killed processes never end: they are dropped, not cancelled one by one."""
    for process in cluster.processes.values():
        process.alive = False
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    # What is dropped complains; nobody is left to hear. The process ends soon.
    sys.unraisablehook = lambda _: None
    with contextlib.suppress(RuntimeError):
        loop.close()
