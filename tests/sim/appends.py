"""Transactions append to lists and read them; `tests.sim.isolation` judges the history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine
from functools import partial
from typing import Any

from tests.sim.client import SimClient
from tests.sim.isolation import COMMITTED, FAILED, Txn, anomalies
from tests.sim.workload import Work

KEYS = 5
CLIENTS = 3
LENGTH_MAX = 40


class Appends(Work):
    """See the module. Lists are texts, ``"1 2 3 "``."""

    async def setup(self) -> None:
        self.level = self.rng.choice(("repeatable read", "serializable"))
        self.history: list[Txn] = []
        self.used = 0
        # Those that are in use, and how many values each has been given.
        self.keys = list(range(KEYS))
        self.made = KEYS
        self.lengths: Counter[int] = Counter()
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
            body = partial(self._operations, client, txn, rng)
            state = await self.transaction(client, body, self.level)
            if not state:
                txn.state, txn.ended = COMMITTED, self.now
            elif state != "08007":
                txn.state = FAILED
            await self._replace_long(client)
            await self.rest(rng.uniform(0, 0.02))
        client.close()

    async def _operations(self, client: SimClient, txn: Txn, rng: random.Random) -> None:
        # Those of now: its snapshot shows no list that is made later.
        keys = list(self.keys)
        for _ in range(rng.randrange(1, 4)):
            await self._operation(client, txn, rng, rng.choice(keys))

    async def _operation(self, client: SimClient, txn: Txn, rng: random.Random, key: int) -> None:
        if rng.random() < 0.5:
            self.used += 1
            self.lengths[key] += 1
            value = self.used
            # Noted first: it may have happened, whatever is answered.
            txn.ops.append((key, value))
            await client.query(f"update list set v = v || '{value} ' where k = {key}")
        else:
            rows = await client.query(f"select v from list where k = {key}")
            txn.ops.append((key, _values(rows[0][0])))

    async def _replace_long(self, client: SimClient) -> None:
        """A list that has become long gives way to a new one: whoever reads it pays for it."""
        key = max(self.keys, key=lambda key: self.lengths[key])
        if self.lengths[key] < LENGTH_MAX:
            return
        new, self.made = self.made, self.made + 1
        # Nobody else replaces it meanwhile; the new one is used once it is surely there.
        self.lengths[key] = 0
        if not await self.statement(client, f"insert into list values ({new}, '')"):
            self.keys[self.keys.index(key)] = new

    async def read(self) -> None:
        """All lists in use, in one statement, on the readers."""
        client = await self.client()
        while not self.stopping:
            await self._read_from(client, min(self.keys))
            await self.rest(0.007)
        client.close()

    async def _read_from(self, client: SimClient, first: int) -> None:
        began = self.now
        rows = await client.query(f"select k, v from list where k >= {first}")
        ops: list[Any] = [(int(key or 0), _values(value)) for key, value in rows]
        self.history.append(Txn(ops, COMMITTED, began, self.now))

    async def check(self) -> None:
        for member in self.cluster.core.members.of_kind("compute"):
            client = await self.direct(member.name)
            await self._read_from(client, 0)
            client.close()
        found = anomalies(self.history, serializable=self.level == "serializable")
        assert not found, f"{self.level}: {found[0]}"
        assert any(txn.state == COMMITTED for txn in self.history)


def _values(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, (text or "").split()))
