"""`connect`: a database behind a URL, through a small pool of connections.

    async with polarless.connect("postgresql://127.0.0.1:5433/postgres") as db:
        await db.table("fruit").put("apple", {"stock": 3})
        rows = await db.execute("SELECT * FROM fruit WHERE stock > $1", 1)

        async with db.transaction() as tx:           # one attempt
            await tx.table("fruit").delete("apple")

        await db.run(move)                           # again after 40001 or 40P01

When the writer changes, connections end. What happens then:

* reads outside a transaction are repeated on a new connection, until ``deadline_s``;
* anything that was not sent yet waits for a connection, until ``deadline_s``;
* a write that was sent and not answered raises `ConnectionLost` or `CommitUnknown`: it may have
  taken effect, and only the caller knows whether it may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Literal, Self, TypeVar

import asyncpg

from polarless.client.kv import Table
from polarless.client.results import Row, to_error, translated
from polarless.client.transactions import Transaction
from polarless.errors import (
    CallerMistake,
    Conflict,
    ConnectionLost,
    Fenced,
    PolarlessError,
    Reroute,
)

T = TypeVar("T")

Isolation = Literal["read_committed", "repeatable_read", "serializable"]

POOL_SIZE: Final = 8
DEADLINE_S: Final = 15.0
ATTEMPTS: Final = 10
# Pauses between attempts: doubled each time, half of it by chance.
PAUSE_FIRST_S: Final = 0.005
PAUSE_MAX_S: Final = 0.5


def connect(url: str, *, pool_size: int = POOL_SIZE, deadline_s: float = DEADLINE_S) -> Database:
    """The database at ``postgresql://host:port/name``; use it as ``async with``.

    At most ``pool_size`` statements run at once, others wait. ``deadline_s`` bounds how long a
    statement may wait for a connection, and how long a read is repeated.
    """
    return Database(url, pool_size=pool_size, deadline_s=deadline_s)


class Database:
    """See the module's docstring. Safe to use from many tasks at once."""

    def __init__(self, url: str, *, pool_size: int, deadline_s: float) -> None:
        self.key_columns: dict[str, tuple[str, ...]] = {}
        self._url = url
        self._pool_size = pool_size
        self._deadline_s = deadline_s
        self._free: list[asyncpg.Connection] = []
        self._slots = asyncio.Semaphore(pool_size)
        self._closed = True

    async def __aenter__(self) -> Self:
        self._closed = False
        # A wrong URL should fail here and not at the first statement.
        async with self._connection():
            pass
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; what still runs ends with `ConnectionLost`."""
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            with contextlib.suppress(OSError, asyncpg.PostgresError, TimeoutError):
                await connection.close(timeout=2)

    def table(self, name: str) -> Table:
        """The table of this name as keys and rows."""
        return Table(self, name)

    async def execute(self, statement: str, *args: Any) -> list[Row]:
        """Run one statement with ``$1, $2, ...``; its rows. A transaction of its own."""
        async with self._connection() as connection:
            with translated():
                return [dict(row) for row in await connection.fetch(statement, *args)]

    fetch = execute

    async def read(self, statement: str, *args: Any) -> list[Row]:
        """`execute` for a statement that changes nothing: repeated if its connection ends."""
        end = time.monotonic() + self._deadline_s
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return await self.execute(statement, *args)
            except (ConnectionLost, Fenced):
                if time.monotonic() + pause_s > end:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def fetchrow(self, statement: str, *args: Any) -> Row | None:
        """The first row of `execute`, or None."""
        rows = await self.execute(statement, *args)
        return rows[0] if rows else None

    @contextlib.asynccontextmanager
    async def transaction(
        self, isolation: Isolation = "read_committed", *, read_only: bool = False
    ) -> AsyncIterator[Transaction]:
        """One attempt at a transaction: commits at the end, rolls back if the body raises.

        Raises `Conflict` when another transaction won; `run` begins again then.
        """
        async with self._connection() as connection:
            mode = " READ ONLY" if read_only else ""
            with translated():
                await connection.execute(
                    f"BEGIN ISOLATION LEVEL {isolation.replace('_', ' ').upper()}{mode}"
                )
            try:
                yield Transaction(connection, self.key_columns)
            except BaseException:
                with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await connection.execute("ROLLBACK")
                raise
            with translated():
                answer = await connection.execute("COMMIT")
            if answer == "ROLLBACK":
                raise Conflict("the transaction had failed before its COMMIT: nothing was written")

    async def run(
        self,
        body: Callable[[Transaction], Awaitable[T]],
        *,
        isolation: Isolation = "read_committed",
        attempts: int = ATTEMPTS,
    ) -> T:
        """Run ``body(tx)`` in a transaction, again after a `Conflict` or `Deadlock`.

        ``body`` must have no effect but through ``tx``. Raises the last error after ``attempts``.
        """
        pause_s = PAUSE_FIRST_S
        for attempt in range(1, attempts + 1):
            try:
                async with self.transaction(isolation) as tx:
                    return await body(tx)
            except Conflict:
                if attempt == attempts:
                    raise
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        raise AssertionError("unreachable")

    # Connections.

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        if self._closed:
            raise CallerMistake("this database is closed", hint="Use `async with connect(...)`.")
        async with self._slots:
            connection = await self._take()
            good = False
            try:
                yield connection
                good = True
            except (ConnectionLost, Fenced, Reroute):
                # Whoever answered so is not the writer any more: look for the new one.
                raise
            except PolarlessError:
                good = True
                raise
            finally:
                if good and not self._closed and not connection.is_closed():
                    self._free.append(connection)
                else:
                    connection.terminate()

    async def _take(self) -> asyncpg.Connection:
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
        end = time.monotonic() + self._deadline_s
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return await asyncpg.connect(self._url, timeout=self._deadline_s)
            except (OSError, TimeoutError, asyncpg.PostgresError) as error:
                late = time.monotonic() + pause_s > end
                if late or isinstance(error, asyncpg.SyntaxOrAccessError):
                    raise to_error(error) from error
            except (ValueError, asyncpg.InterfaceError) as error:
                where = self._url.rpartition("@")[2]
                raise CallerMistake(f"cannot connect to {where}: {error}") from error
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
