"""Writers that know which of their commits were acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import asyncpg

from polarless.local import LocalCluster

LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Ledger:
    """``acked`` must be there in the end; ``in_doubt`` may be."""

    def __init__(self, cluster: LocalCluster, *, writers: int = 6) -> None:
        self.cluster = cluster
        self.acked: set[int] = set()
        self.in_doubt: set[int] = set()
        self.errors: list[str] = []
        self._count = writers
        self._stopping = False
        self._acknowledged = asyncio.Event()
        self._began = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write while the body runs, then stop after the commits under way."""
        connection = await asyncpg.connect(self.cluster.url)
        await connection.execute("drop table if exists ledger")
        await connection.execute("create table ledger (id bigint primary key, note text)")
        await connection.close()
        tasks = [asyncio.create_task(self._write(writer)) for writer in range(self._count)]
        try:
            await self.progress()
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)

    async def progress(self, commits: int = 200) -> None:
        """Wait for so many commits that began and were acknowledged from now on."""
        self._began = time.monotonic()
        goal = len(self.acked) + commits
        while len(self.acked) < goal:
            self._acknowledged.clear()
            await asyncio.wait_for(self._acknowledged.wait(), 20)

    async def _write(self, writer: int) -> None:
        connection: asyncpg.Connection | None = None
        number = 0
        while not self._stopping:
            number += 1
            row = writer * 1_000_000_000 + number
            try:
                if connection is None:
                    connection = await asyncpg.connect(self.cluster.url, timeout=5)
                began = time.monotonic()
                self.in_doubt.add(row)
                await connection.execute("insert into ledger values ($1, $2)", row, f"row {row}")
            except LOST as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                if connection is not None:
                    connection.terminate()
                connection = None
                # The server is away: not a busy loop, and nothing is waited for but time.
                await asyncio.sleep(0.005)
                continue
            self.in_doubt.discard(row)
            self.acked.add(row)
            if began >= self._began:
                self._acknowledged.set()
        if connection is not None:
            await connection.close()

    async def check(self) -> None:
        """Compare with what every compute node says."""
        for node in self.cluster.nodes():
            if not node.sql_url:
                continue
            connection = await asyncpg.connect(node.sql_url)
            there = {row["id"] for row in await connection.fetch("select id from ledger")}
            await connection.close()
            assert not self.acked - there, f"{node.name}: {len(self.acked - there)} lost"
            assert not there - self.acked - self.in_doubt, f"{node.name}: rows out of nowhere"
