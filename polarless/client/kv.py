"""A table as keys and rows.

A key is the primary key's value, or a tuple of values if it has several columns; a row is a dict
with a value per column, the key's columns included. Everything here is one SQL statement, so keys
and SQL can be mixed freely.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

from polarless.client.results import Row
from polarless.errors import CallerMistake

# A primary key's value; a tuple for several columns.
Key = Any

SCAN_ROWS: Final = 500

_KEY_COLUMNS: Final = (
    "SELECT kcu.column_name FROM information_schema.table_constraints tc "
    "JOIN information_schema.key_column_usage kcu USING (constraint_schema, constraint_name) "
    "WHERE tc.constraint_type = 'PRIMARY KEY' AND tc.table_name = $1 "
    "ORDER BY kcu.ordinal_position"
)


class Runner(Protocol):
    """What runs a table's statements: a database, or a transaction."""

    key_columns: dict[str, tuple[str, ...]]

    async def read(self, statement: str, *args: Any) -> list[Row]:
        """Run a statement that changes nothing; may be repeated after a lost connection."""

    async def execute(self, statement: str, *args: Any) -> list[Row]:
        """Run a statement; its rows."""


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class Table:
    """One table, through one runner. Made by ``db.table(name)`` or ``tx.table(name)``."""

    def __init__(self, runner: Runner, name: str) -> None:
        self.name = name
        self._runner = runner

    async def get(self, key: Key) -> Row | None:
        """The row with this key, or None."""
        columns, values = await self._key(key)
        where = " AND ".join(f"{quoted(c)} = ${i}" for i, c in enumerate(columns, 1))
        rows = await self._runner.read(f"SELECT * FROM {quoted(self.name)} WHERE {where}", *values)
        return rows[0] if rows else None

    async def put(self, key: Key, row: Mapping[str, Any]) -> None:
        """Insert a row, or set these columns of the one that is there.

        ``row`` need not name the key's columns; if it does, they must be the key.
        """
        columns, values = await self._key(key)
        given = dict(row)
        for column, value in zip(columns, values):
            if given.pop(column, value) != value:
                raise CallerMistake(f"the row's {column} is not the key's", sqlstate="22023")
        names = [quoted(column) for column in (*columns, *given)]
        places = ", ".join(f"${i}" for i in range(1, len(names) + 1))
        conflict = ", ".join(quoted(column) for column in columns)
        changes = ", ".join(f"{quoted(c)} = EXCLUDED.{quoted(c)}" for c in given)
        action = f"UPDATE SET {changes}" if changes else "NOTHING"
        await self._runner.execute(
            f"INSERT INTO {quoted(self.name)} ({', '.join(names)}) VALUES ({places}) "
            f"ON CONFLICT ({conflict}) DO {action}", *values, *given.values(),
        )  # fmt: skip

    async def delete(self, key: Key) -> bool:
        """Remove the row with this key; whether there was one."""
        columns, values = await self._key(key)
        where = " AND ".join(f"{quoted(c)} = ${i}" for i, c in enumerate(columns, 1))
        rows = await self._runner.execute(
            f"DELETE FROM {quoted(self.name)} WHERE {where} RETURNING 1 AS one", *values
        )
        return bool(rows)

    async def scan(
        self,
        low: Key | None = None,
        high: Key | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[Row]:
        """Rows in key order, from ``low`` on, up to but not including ``high``; or backwards.

        Reads `SCAN_ROWS` rows at a time. Outside a transaction each batch is a snapshot of its own.
        Only for keys of one column.
        """
        (column,) = await self._single_column()
        name, left = quoted(column), limit
        while left is None or left > 0:
            conditions, values = [], []
            for bound, operator in ((low, ">="), (high, "<")):
                if bound is not None:
                    values.append(bound)
                    conditions.append(f"{name} {operator} ${len(values)}")
            where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            count = SCAN_ROWS if left is None else min(left, SCAN_ROWS)
            order = f" ORDER BY {name}{' DESC' if reverse else ''} LIMIT {count + 1}"
            rows = await self._runner.read(
                f"SELECT * FROM {quoted(self.name)}{where}{order}", *values
            )
            for row in rows[:count]:
                yield row
            if len(rows) <= count:
                return
            # The row beyond the batch is where the next one starts.
            if reverse:
                high = rows[count - 1][column]
            else:
                low = rows[count][column]
            left = None if left is None else left - count

    async def _key(self, key: Key) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        columns = await self._columns()
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(columns):
            raise CallerMistake(
                f"a key of {self.name} has {len(columns)} values ({', '.join(columns)}), "
                f"not {len(values)}",
                sqlstate="22023",
            )
        return columns, values

    async def _single_column(self) -> tuple[str]:
        columns = await self._columns()
        if len(columns) != 1:
            raise CallerMistake(
                f"{self.name} has a key of {len(columns)} columns; scan needs one",
                sqlstate="0A000",
                hint="Use execute() with ORDER BY and LIMIT.",
            )
        return (columns[0],)

    async def _columns(self) -> tuple[str, ...]:
        known = self._runner.key_columns.get(self.name)
        if known is None:
            rows = await self._runner.read(_KEY_COLUMNS, self.name)
            known = tuple(row["column_name"] for row in rows)
            if not known:
                raise CallerMistake(
                    f"there is no table {self.name} with a primary key",
                    sqlstate="42P01",
                    hint="Create it with a PRIMARY KEY; names are case-sensitive here.",
                )
            self._runner.key_columns[self.name] = known
        return known
