"""What the workloads of a seed have in common: clients, transactions that may fail, an end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from tests.sim.client import SimClient, SimError
from tests.sim.cluster import SimCluster
from tests.sim.outcome import Outcome

# Two that want the same rows: the transaction is run again.
CONFLICTS = ("40P01", "40001")


class Work:
    """One workload. ``tasks`` loop until ``stopping``; each ends with what it found wrong."""

    def __init__(self, cluster: SimCluster, outcome: Outcome) -> None:
        self.cluster = cluster
        self.outcome = outcome
        self.rng = random.Random((outcome.seed << 8) + len(type(self).__name__))
        self.stopping = False

    async def client(self) -> SimClient:
        """A session through the proxy."""
        proxy = self.cluster.core.members["proxy-1"]
        return await SimClient.connect(self.cluster.network, proxy.sql)

    async def direct(self, name: str) -> SimClient:
        """A session at a compute node itself."""
        return await SimClient.connect(self.cluster.network, self.cluster.core.members[name].sql)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.cluster.loop.now

    def is_for_room(self, error: SimError) -> bool:
        """Whether a commit was refused, or left in the dark, by a full disk."""
        return self.outcome.disk_was_full and error.args[0] in ("53100", "08007")

    def is_expected(self, error: SimError) -> bool:
        """Whether the transaction is to be run again."""
        return error.args[0] in CONFLICTS or self.is_for_room(error)

    async def transaction(
        self,
        client: SimClient,
        body: Iterable[str] | Callable[[], Awaitable[object]],
        level: str = "read committed",
    ) -> str:
        """BEGIN, the statements of ``body`` or what it calls, COMMIT.

        Returns "" if it was acknowledged. Else it was rolled back for a reason that is expected,
        and this is its SQLSTATE: after 08007 it may have happened. Raises `SimError` for others.
        """
        try:
            await client.query(f"begin isolation level {level}")
            if callable(body):
                await body()
            else:
                for text in body:
                    await client.query(text)
            await client.query("commit")
        except SimError as error:
            if not self.is_expected(error):
                raise
            await client.query("rollback")
            return str(error.args[0])
        return ""

    async def statement(self, client: SimClient, text: str) -> str:
        """One that is its own transaction; returns and raises as `transaction` does."""
        try:
            await client.query(text)
        except SimError as error:
            if not self.is_expected(error):
                raise
            return str(error.args[0])
        return ""

    async def rest(self, seconds: float) -> None:
        """Between two things that a client does; longer while a long fault goes on and on."""
        await asyncio.sleep(seconds * self.outcome.pace)

    async def setup(self) -> None:
        """Make the tables."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What runs while faults happen."""
        raise NotImplementedError

    async def check(self) -> None:
        """Afterwards, when everything serves and the tasks have ended."""
