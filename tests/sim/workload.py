"""What the workloads of a seed have in common: clients, an end, and what a full disk may answer."""

from __future__ import annotations

import random
from collections.abc import Coroutine
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

    async def setup(self) -> None:
        """Make the tables."""

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What runs while faults happen."""
        raise NotImplementedError

    async def check(self) -> None:
        """Afterwards, when everything serves and the tasks have ended."""
