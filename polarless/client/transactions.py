"""One transaction on one connection. Made by `Database.transaction` and `Database.run`."""

from __future__ import annotations

from typing import Any

import asyncpg

from polarless.client.kv import Table
from polarless.client.results import Row, translated


class Transaction:
    """What a body gets: tables, and SQL. Nothing is repeated inside a transaction."""

    def __init__(
        self, connection: asyncpg.Connection, key_columns: dict[str, tuple[str, ...]]
    ) -> None:
        # A table that this transaction creates must not be remembered if it rolls back.
        self.key_columns = dict(key_columns)
        self._connection = connection

    def table(self, name: str) -> Table:
        """The table of this name as keys and rows, inside this transaction."""
        return Table(self, name)

    async def execute(self, statement: str, *args: Any) -> list[Row]:
        """Run one statement with ``$1, $2, ...``; its rows."""
        with translated():
            return [dict(row) for row in await self._connection.fetch(statement, *args)]

    fetch = execute
    read = execute

    async def fetchrow(self, statement: str, *args: Any) -> Row | None:
        """The first row of `execute`, or None."""
        rows = await self.execute(statement, *args)
        return rows[0] if rows else None
