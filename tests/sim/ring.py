"""A ring of rows, each of which names the next, stays a ring while its links are exchanged."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from functools import partial
from typing import Any

from tests.sim.client import SimClient
from tests.sim.workload import Work

SIZE = 12
CLIENTS = 2


class Ring(Work):
    """See the module. ``a > b > c > d`` becomes ``a > c > b > d``."""

    async def setup(self) -> None:
        client = await self.client()
        await client.query("create table ring (id int primary key, next int)")
        for row in range(SIZE):
            await client.query(f"insert into ring values ({row}, {(row + 1) % SIZE})")
        client.close()

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [*(self.exchange(number) for number in range(CLIENTS)), self.walk()]

    async def exchange(self, number: int) -> None:
        """Transactions that read three links and write them."""
        rng = random.Random((self.outcome.seed << 8) + 200 + number)
        client = await self.client()
        while not self.stopping:
            exchange = partial(_exchange, client, rng.randrange(SIZE))
            await self.transaction(client, exchange, "repeatable read")
            await self.rest(rng.uniform(0, 0.02))
        client.close()

    async def walk(self) -> None:
        """On the readers."""
        client = await self.client()
        while not self.stopping:
            await self._walk(client, "a reader")
            await self.rest(0.005)
        client.close()

    async def _walk(self, client: SimClient, where: str) -> None:
        links = {int(a or 0): int(b or 0) for a, b in await client.query("select * from ring")}
        way = [0]
        while (following := links[way[-1]]) not in way:
            way.append(following)
        assert (following, len(way)) == (0, SIZE), f"{where}: no ring of {SIZE} any more: {links}"

    async def check(self) -> None:
        for member in self.cluster.core.members.of_kind("compute"):
            client = await self.direct(member.name)
            await self._walk(client, member.name)
            client.close()


async def _exchange(client: SimClient, one: int) -> None:
    two = await _next(client, one)
    three = await _next(client, two)
    four = await _next(client, three)
    for row, following in ((one, three), (three, two), (two, four)):
        await client.query(f"update ring set next = {following} where id = {row}")


async def _next(client: SimClient, row: int) -> int:
    rows = await client.query(f"select next from ring where id = {row}")
    return int(rows[0][0] or 0)
