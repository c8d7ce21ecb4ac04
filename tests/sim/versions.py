"""A table whose tree splits and merges, against a dict for each of its versions.

One client changes many rows at a time, some wide, and counts its commits in row 0. Whoever reads
the table knows from that row which dict it has to equal: in one statement on the readers, and again
and again in a transaction that is kept open while the rows go on changing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from tests.sim.client import SimClient
from tests.sim.workload import Work

ROWS = 150
WIDTH_MAX = 1500
# How often an open transaction looks, and how long it rests in between.
LOOKS = 6
REST_S = 0.05


class Versions(Work):
    """See the module."""

    async def setup(self) -> None:
        # The count in row 0 -> the other rows.
        self.known: dict[int, dict[int, str]] = {0: {}}
        client = await self.client()
        await client.query("create table version (id int primary key, v text)")
        await client.query("insert into version values (0, '0')")
        client.close()

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self.change(), self.read(), self.look_again()]

    async def change(self) -> None:
        """Ranges of rows come, change and go."""
        client = await self.client()
        count = 0
        while not self.stopping:
            rows = dict(self.known[count])
            texts = self._change(rows)
            self.known[count + 1] = rows
            texts.append(f"update version set v = '{count + 1}' where id = 0")
            state = await self.transaction(client, texts)
            if state == "08007":
                # It may come yet: once a later commit is acknowledged, so is its fate.
                count = await self._settled(client)
            elif not state:
                count += 1
            await self.rest(self.rng.uniform(0, 0.02))
        client.close()

    async def _settled(self, client: SimClient) -> int:
        # A write in the same row, behind the one that is unknown.
        while await self.statement(client, "update version set v = v where id = 0"):
            await self.rest(0.5)
        rows = await client.query("select v from version where id = 0")
        return int(rows[0][0] or 0)

    def _change(self, rows: dict[int, str]) -> list[str]:
        rng = self.rng
        low = rng.randrange(1, ROWS)
        high = min(ROWS, low + rng.choice((1, 3, 40)))
        if rng.random() < 0.35:
            for row in range(low, high):
                rows.pop(row, None)
            return [f"delete from version where id >= {low} and id < {high}"]
        width = rng.choice((10, 300, WIDTH_MAX))
        texts = []
        new = [row for row in range(low, high) if row not in rows]
        if len(new) < high - low:
            texts.append(f"update version set v = repeat('u', {width}) "
                         f"where id >= {low} and id < {high}")  # fmt: skip
        if new:
            values = ", ".join(f"({row}, '{'i' * width}')" for row in new)
            texts.append(f"insert into version values {values}")
        for row in range(low, high):
            rows[row] = ("i" if row in new else "u") * width
        return texts

    async def read(self) -> None:
        """On the readers, and not always all of it."""
        client = await self.client()
        while not self.stopping:
            await self._compare(client, "a reader", self.rng.choice((1, ROWS // 2, ROWS)))
            await self.rest(0.02)
        client.close()

    async def look_again(self) -> None:
        """One snapshot, for a long time."""
        client = await self.client()
        while not self.stopping:
            await self.transaction(client, partial(self._look, client), "repeatable read")
        client.close()

    async def _look(self, client: SimClient) -> None:
        first = await self._compare(client, "a snapshot")
        for _ in range(LOOKS):
            await asyncio.sleep(REST_S)
            again = await self._compare(client, "an old snapshot")
            assert again == first, f"a snapshot moved from {first} to {again}"

    async def _compare(self, client: SimClient, who: str, below: int = ROWS) -> int:
        rows = await client.query(f"select id, v from version where id < {below} order by id")
        found = [(int(key or 0), value) for key, value in rows]
        assert found, f"{who}: row 0 is gone"
        count = int(found[0][1] or 0)
        expected = [(key, self.known[count][key]) for key in sorted(self.known[count])]
        assert found[1:] == [(key, text) for key, text in expected if key < below], (
            f"{who}: version {count} differs from what was written, below {below}"
        )
        return count

    async def check(self) -> None:
        for member in self.cluster.core.members.of_kind("compute"):
            client = await self.direct(member.name)
            await self._compare(client, member.name)
            client.close()
