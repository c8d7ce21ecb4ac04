"""Transactions append to lists and read them; `tests.sim.isolation` judges the history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from tests.sim.client import SimClient, SimError
from tests.sim.isolation import COMMITTED, FAILED, Txn, anomalies
from tests.sim.workload import Work

KEYS = 5
CLIENTS = 3


class Appends(Work):
    """See the module. Lists are texts, ``"1 2 3 "``."""

    async def setup(self) -> None:
        self.level = self.rng.choice(("repeatable read", "serializable"))
        self.history: list[Txn] = []
        self.used = 0
        client = await self.client()
        await client.query("create table list (k int primary key, v text)")
        for key in range(KEYS):
            await client.query(f"insert into list values ({key}, '')")
        client.close()

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [*(self.append(number) for number in range(CLIENTS)), self.read()]

    async def append(self, number: int) -> None:
        """Transactions of a few operations on the writer."""
        rng = random.Random((self.outcome.seed << 8) + 100 + number)
        client = await self.client()
        while not self.stopping:
            txn = Txn(began=self.now)
            self.history.append(txn)
            try:
                await client.query(f"begin isolation level {self.level}")
                for _ in range(rng.randrange(1, 4)):
                    await self._operation(client, txn, rng)
                await client.query("commit")
                txn.state, txn.ended = COMMITTED, self.now
            except SimError as error:
                if not self.is_expected(error):
                    raise
                if error.args[0] != "08007":
                    txn.state = FAILED
                await client.query("rollback")
            await asyncio.sleep(rng.uniform(0, 0.02))
        client.close()

    async def _operation(self, client: SimClient, txn: Txn, rng: random.Random) -> None:
        key = rng.randrange(KEYS)
        if rng.random() < 0.5:
            self.used += 1
            value = self.used
            # Noted first: it may have happened, whatever is answered.
            txn.ops.append((key, value))
            await client.query(f"update list set v = v || '{value} ' where k = {key}")
        else:
            rows = await client.query(f"select v from list where k = {key}")
            txn.ops.append((key, _values(rows[0][0])))

    async def read(self) -> None:
        """All lists in one statement, on the readers."""
        client = await self.client()
        while not self.stopping:
            await self._read_all(client)
            await asyncio.sleep(0.007)
        client.close()

    async def _read_all(self, client: SimClient) -> None:
        began = self.now
        rows = await client.query("select k, v from list")
        ops: list[Any] = [(int(key or 0), _values(value)) for key, value in rows]
        self.history.append(Txn(ops, COMMITTED, began, self.now))

    async def check(self) -> None:
        for member in self.cluster.core.members.of_kind("compute"):
            client = await self.direct(member.name)
            await self._read_all(client)
            client.close()
        found = anomalies(self.history, serializable=self.level == "serializable")
        assert not found, f"{self.level}: {found[0]}"
        assert any(txn.state == COMMITTED for txn in self.history)


def _values(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, (text or "").split()))
