"""One seed: a cluster, a workload, faults, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys

from polarless.kernel import failpoints
from tests.sim.client import SimClient, SimError
from tests.sim.cluster import SimCluster
from tests.sim.faults import Chaos
from tests.sim.loop import VirtualLoop
from tests.sim.mutants import mutated
from tests.sim.outcome import Outcome

ACCOUNTS = 8
TELLERS = 3
TOTAL = 1000 * ACCOUNTS


class Workload:
    """Transfers between accounts, an auditor of their sum, and rows with unique ids."""

    def __init__(self, cluster: SimCluster, outcome: Outcome) -> None:
        self.cluster = cluster
        self.outcome = outcome
        self.stopping = False
        self.acked: set[int] = set()
        # Rows whose commit has an unknown end (08007).
        self.unknown: set[int] = set()
        self.newest = 0

    async def client(self) -> SimClient:
        proxy = self.cluster.core.members["proxy-1"]
        return await SimClient.connect(self.cluster.network, proxy.sql)

    async def setup(self) -> None:
        client = await self.client()
        await client.query("create table account (id int primary key, v int)")
        await client.query("create table ledger (id int primary key)")
        for number in range(ACCOUNTS):
            await client.query(f"insert into account values ({number}, 1000)")
        client.close()

    def is_for_room(self, error: SimError) -> bool:
        """Whether a commit was refused, or left in the dark, by a full disk."""
        return self.outcome.disk_was_full and error.args[0] in ("53100", "08007")

    async def transfer(self, number: int) -> None:
        rng = random.Random((self.outcome.seed << 8) + number)
        client = await self.client()
        while not self.stopping:
            one, other = rng.sample(range(ACCOUNTS), 2)
            amount = rng.randrange(1, 50)
            try:
                await client.query("begin")
                await client.query(f"update account set v = v - {amount} where id = {one}")
                await client.query(f"update account set v = v + {amount} where id = {other}")
                await client.query("commit")
                self.outcome.transfers += 1
            except SimError as error:
                # Two that lock the same rows in the other order.
                if error.args[0] not in ("40P01", "40001") and not self.is_for_room(error):
                    raise
                await client.query("rollback")
            await asyncio.sleep(rng.uniform(0, 0.01))
        client.close()

    async def insert(self, number: int) -> None:
        client, reader = await self.client(), await self.client()
        row = number * 1_000_000
        while not self.stopping:
            row += 1
            try:
                await client.query(f"insert into ledger values ({row})")
            except SimError as error:
                if not self.is_for_room(error):
                    raise
                if error.args[0] == "08007":
                    self.unknown.add(row)
                await asyncio.sleep(0.05)
                continue
            self.acked.add(row)
            self.outcome.commits += 1
            # A message outside the database: whoever reads now sees it, on any node.
            self.newest = row
            found = await reader.query(f"select id from ledger where id = {row}")
            assert found, f"row {row} was acknowledged and is not seen at once"
            await asyncio.sleep(0.001)
        client.close()
        reader.close()

    async def audit(self) -> None:
        client = await self.client()
        while not self.stopping:
            newest = self.newest
            rows = await client.query("select v from account")
            total = sum(int(row[0] or 0) for row in rows)
            assert total == TOTAL, f"the accounts hold {total}"
            if newest:
                found = await client.query(f"select id from ledger where id = {newest}")
                assert found, f"row {newest} was acknowledged and is not seen"
            self.outcome.audits += 1
            await asyncio.sleep(0.003)
        client.close()

    async def check(self) -> None:
        """Afterwards, on every compute node itself."""
        for member in self.cluster.core.members.of_kind("compute"):
            client = await SimClient.connect(self.cluster.network, member.sql)
            rows = await client.query("select v from account")
            total = sum(int(row[0] or 0) for row in rows)
            assert total == TOTAL, f"{member.name}: the accounts hold {total}"
            there = {int(row[0] or 0) for row in await client.query("select id from ledger")}
            assert not self.acked - there, f"{member.name}: lost {sorted(self.acked - there)[:5]}"
            more = there - self.acked - self.unknown
            assert not more, f"{member.name}: {sorted(more)[:5]} unasked"
            client.close()


async def scenario(cluster: SimCluster, outcome: Outcome) -> None:
    """The whole of one seed."""
    await cluster.start()
    work = Workload(cluster, outcome)
    await work.setup()
    tasks = [asyncio.ensure_future(work.transfer(number)) for number in range(TELLERS)]
    tasks += [asyncio.ensure_future(work.insert(number)) for number in (1, 2)]
    tasks.append(asyncio.ensure_future(work.audit()))
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
    work.stopping = True
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    await work.check()


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
    cluster = SimCluster(loop, seed)
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
