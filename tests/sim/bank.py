"""Transfers between accounts with an auditor, and rows with unique ids that are seen at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from tests.sim.client import SimError
from tests.sim.cluster import SimCluster
from tests.sim.outcome import Outcome
from tests.sim.workload import Work

ACCOUNTS = 8
TELLERS = 3
TOTAL = 1000 * ACCOUNTS


class Bank(Work):
    """Transfers between accounts, an auditor of their sum, and rows with unique ids."""

    def __init__(self, cluster: SimCluster, outcome: Outcome) -> None:
        super().__init__(cluster, outcome)
        self.acked: set[int] = set()
        # Rows whose commit has an unknown end (08007).
        self.unknown: set[int] = set()
        self.newest = 0

    async def setup(self) -> None:
        client = await self.client()
        await client.query("create table account (id int primary key, v int)")
        await client.query("create table ledger (id int primary key)")
        for number in range(ACCOUNTS):
            await client.query(f"insert into account values ({number}, 1000)")
        client.close()

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        transfers = [self.transfer(number) for number in range(TELLERS)]
        return [*transfers, self.insert(1), self.insert(2), self.audit()]

    async def transfer(self, number: int) -> None:
        rng = random.Random((self.outcome.seed << 8) + number)
        client = await self.client()
        while not self.stopping:
            one, other = rng.sample(range(ACCOUNTS), 2)
            amount = rng.randrange(1, 50)
            texts = (
                f"update account set v = v - {amount} where id = {one}",
                f"update account set v = v + {amount} where id = {other}",
            )
            # Two that lock the same rows in the other order are in each other's way.
            if not await self.transaction(client, texts):
                self.outcome.transfers += 1
            await self.rest(rng.uniform(0, 0.01))
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
            await self.rest(0.001)
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
            await self.rest(0.003)
        client.close()

    async def check(self) -> None:
        """Afterwards, on every compute node itself."""
        for member in self.cluster.core.members.of_kind("compute"):
            client = await self.direct(member.name)
            rows = await client.query("select v from account")
            total = sum(int(row[0] or 0) for row in rows)
            assert total == TOTAL, f"{member.name}: the accounts hold {total}"
            there = {int(row[0] or 0) for row in await client.query("select id from ledger")}
            assert not self.acked - there, f"{member.name}: lost {sorted(self.acked - there)[:5]}"
            more = there - self.acked - self.unknown
            assert not more, f"{member.name}: {sorted(more)[:5]} unasked"
            client.close()
