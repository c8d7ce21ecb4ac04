"""Tables are made, changed and dropped beside reads of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.sim.client import SimClient, SimError
from tests.sim.workload import Work

ROWS = 3
# A column or index is there already, or is not there any more.
IS_SO = ("42701", "42703", "42P07", "42704")


class Tables(Work):
    """One table whose shape changes all the time, and others that come and go."""

    async def setup(self) -> None:
        client = await self.client()
        await client.query("create table shape (id int primary key, v int)")
        await client.query("insert into shape values (1, 10), (2, 20), (3, 30)")
        client.close()

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self.change(), self.come_and_go(), self.read(), self.write()]

    async def change(self) -> None:
        """Columns and indexes."""
        client = await self.client()
        while not self.stopping:
            for text in (
                "alter table shape add column more int default 7",
                "create index shape_v on shape (v)",
                "alter table shape drop column more",
                "drop index shape_v",
            ):
                await self._until_done(client, text)
                await self.rest(self.rng.uniform(0, 0.05))
        client.close()

    async def come_and_go(self) -> None:
        """In transactions: whoever sees a table sees its rows."""
        client = await self.client()
        number = 0
        while not self.stopping:
            number += 1
            name = f"guest_{number}"
            texts = (
                f"create table {name} (id int primary key)",
                f"insert into {name} values (1), (2), (3)",
            )
            if not await self.transaction(client, texts):
                rows = await client.query(f"select id from {name}")
                assert len(rows) == ROWS, f"{name} was acknowledged, and has {len(rows)} rows"
                await self.statement(client, f"drop table {name}")
            await self.rest(self.rng.uniform(0, 0.05))
        client.close()

    async def read(self) -> None:
        """On the readers: rows and values are the same in every shape."""
        client = await self.client()
        while not self.stopping:
            rows = await client.query("select id, v from shape where v > -1000000 order by id")
            assert [row[0] for row in rows] == ["1", "2", "3"], rows
            assert sum(int(row[1] or 0) for row in rows) == 60, rows
            await self.rest(0.01)
        client.close()

    async def write(self) -> None:
        """Rows change while their table does."""
        client = await self.client()
        while not self.stopping:
            one, other = self.rng.sample(range(1, 4), 2)
            texts = (
                f"update shape set v = v - 1 where id = {one}",
                f"update shape set v = v + 1 where id = {other}",
            )
            await self.transaction(client, texts)
            await self.rest(self.rng.uniform(0, 0.03))
        client.close()

    async def _until_done(self, client: SimClient, text: str) -> None:
        while True:
            try:
                await client.query(text)
                return
            except SimError as error:
                if self.outcome.disk_was_full and error.args[0] in IS_SO:
                    # It was done, and its answer said that nobody knew.
                    return
                if not self.is_expected(error):
                    raise
            await asyncio.sleep(0.2)
