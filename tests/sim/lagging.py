"""Reads that need not be the newest: a session sees its own commits, nobody goes back too far.

The cluster of such a seed shares no memory: each strong read is a trip to the home, which weaker
ones save.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from tests.sim.client import SimClient
from tests.sim.cluster import SimCluster
from tests.sim.outcome import Outcome
from tests.sim.workload import Work

WRITERS: Final = 2
STALENESS_S: Final = 0.3


class Lagging(Work):
    """Each writer counts up two rows, which are always equal."""

    def __init__(self, cluster: SimCluster, outcome: Outcome) -> None:
        super().__init__(cluster, outcome)
        # By writer: (when it was acknowledged, count), and the last that was tried.
        self.acknowledged: list[list[tuple[float, int]]] = [[(0.0, 0)] for _ in range(WRITERS)]
        self.tried = [0] * WRITERS

    async def setup(self) -> None:
        client = await self.client()
        await client.query("create table lag (id int primary key, v int)")
        for row in range(2 * WRITERS):
            await client.query(f"insert into lag values ({row}, 0)")
        client.close()
        # Who minds no more than this may not know of the rows before.
        await asyncio.sleep(STALENESS_S + 0.01)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [*(self.count(number) for number in range(WRITERS)), self.lag(), self.follow()]

    async def count(self, number: int) -> None:
        """A session that looks at what it has written."""
        client = await self._weak("session")
        while not self.stopping:
            self.tried[number] += 1
            count = self.tried[number]
            texts = [
                f"update lag set v = {count} where id = {2 * number + side}" for side in (0, 1)
            ]
            if not await self.transaction(client, texts):
                self.acknowledged[number].append((self.now, count))
            found = (await self._read(client))[number]
            newest = self.acknowledged[number][-1][1]
            assert newest <= found, f"a session has written {newest} and reads {found}"
            await self.rest(self.rng.uniform(0, 0.01))
        client.close()

    async def lag(self) -> None:
        """Somebody who minds no more than `STALENESS_S`."""
        client = await self._weak("bounded")
        while not self.stopping:
            begun = self.now
            found = await self._read(client)
            for number, told in enumerate(self.acknowledged):
                oldest = max(count for at, count in told if at <= begun - STALENESS_S)
                assert oldest <= found[number], (
                    f"{found[number]} is read, {oldest} was there {STALENESS_S} s before"
                )
            await self.rest(0.003)
        client.close()

    async def follow(self) -> None:
        """A session that only reads never goes back, whichever node answers."""
        client = await self._weak("session")
        seen = [0] * WRITERS
        while not self.stopping:
            found = await self._read(client)
            assert all(now >= before for now, before in zip(found, seen, strict=True)), (
                f"{found} is read after {seen}"
            )
            seen = found
            await self.rest(0.003)
        client.close()

    async def _weak(self, level: str) -> SimClient:
        client = await self.client()
        await client.query(f"set polarless.read_consistency = {level}")
        await client.query(f"set polarless.max_staleness = '{STALENESS_S * 1000:.0f}ms'")
        return client

    async def _read(self, client: SimClient) -> list[int]:
        """The counts, by writer."""
        rows = {int(a or 0): int(b or 0) for a, b in await client.query("select id, v from lag")}
        found = []
        for number in range(WRITERS):
            one, other = rows[2 * number], rows[2 * number + 1]
            assert one == other <= self.tried[number], f"half a transaction is seen: {rows}"
            found.append(one)
        return found

    async def check(self) -> None:
        reused = 0
        for member in self.cluster.core.members.of_kind("compute"):
            reused += self.cluster.nodes[member.name].engine.snapshots_reused
            client = await self.direct(member.name)
            found = await self._read(client)
            assert all(
                told[-1][1] <= count for told, count in zip(self.acknowledged, found, strict=True)
            ), f"{member.name}: {found}"
            client.close()
        self.cluster.say(f"{reused} reads took what was there, on the readers that are left")
