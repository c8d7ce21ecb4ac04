"""What happens to rows that refer to a row that is deleted, or whose key changes.

When an UPDATE or DELETE has changed all its rows, each foreign key that refers to the table is
looked at: for each key that is gone the rows that refer to it are refused (NO ACTION, RESTRICT), or
deleted or changed by a statement of their own, which does the same for those that refer to them.

These statements read the newest versions, not the snapshot: a row that refers to the key may have
been committed after it was taken. None can come any more, since inserting it takes the lock on the
row that it refers to, and that lock is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from compute.sql.catalog import Catalog, ForeignKey, Table
from compute.sql.catalogs.objects import quote
from compute.sql.mistakes import named
from compute.sql.plan import LITERAL_FORMAT, Bound, SessionLike
from compute.sql.types import TEXT_OUTPUT
from compute.sql.write_run import retried
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.planner import Planner
    from compute.txn.transaction import Transaction

ROWS_PER_TURN = 200


class Referring(NamedTuple):
    """A foreign key and the table that has it."""

    table: Table
    key: ForeignKey


def referring_to(table: Table, catalog: Catalog, columns: set[int] | None) -> list[Referring]:
    """The foreign keys that a change of these columns concerns; None: a DELETE."""
    return [
        Referring(other, key)
        for other in catalog.tables.values()
        for key in other.foreign
        if key.other == table.table_id and (columns is None or columns & set(key.other_columns))
    ]


@contextmanager
def newest(txn: Transaction) -> Iterator[None]:
    """Read the newest versions meanwhile."""
    before = txn.snapshot
    txn.pin()
    txn.snapshot = max(txn.engine.next_cts, before)
    try:
        yield
    finally:
        txn.snapshot = before


class _Nothing:
    """A sink that only counts."""

    def __init__(self) -> None:
        self.byte_count = 0

    async def rows(self, data: bytes) -> None:
        self.byte_count += len(data)


class References:
    """Made for a plan; called with the rows that were changed, as ``(before, after or None)``."""

    def __init__(self, planner: Planner, table: Table, referring: list[Referring]) -> None:
        self._planner = planner
        self._table = table
        self._referring = referring

    async def __call__(self, session: SessionLike, changed: list[tuple[Any, Any]]) -> None:
        txn = session.txn
        assert txn is not None
        with newest(txn):
            for found in self._referring:
                columns = found.key.other_columns
                for number, (before, after) in enumerate(changed, 1):
                    gone = [before[i] for i in columns]
                    if any(value is None for value in gone):
                        continue
                    fresh = None if after is None else [after[i] for i in columns]
                    if fresh != gone:
                        await self._one(session, found, gone, fresh)
                    if number % ROWS_PER_TURN == 0:
                        await session.engine.clock.sleep(0)

    async def _one(
        self, session: SessionLike, found: Referring, gone: list[Any], fresh: list[Any] | None
    ) -> None:
        table, key = found
        action = key.on_delete if fresh is None else key.on_update
        name = f"{quote(table.schema)}.{quote(table.name)}"
        columns = [quote(table.columns[i].name) for i in key.columns]
        where = " AND ".join(f"{column} = ${i}" for i, column in enumerate(columns, 1))
        texts = self._texts(key, gone)
        if action in ("a", "r"):
            sink = await self._run(session, f"SELECT 1 FROM {name} WHERE {where} LIMIT 1", texts)
            if sink.byte_count:
                raise self._still_referenced(found, texts)
            return
        if action == "c" and fresh is None:
            await self._run(session, f"DELETE FROM {name} WHERE {where}", texts)
            return
        if action == "c":
            assert fresh is not None
            places = [f"{c} = ${i}" for i, c in enumerate(columns, len(columns) + 1)]
            texts = texts + self._texts(key, fresh)
            sets = ", ".join(places)
        else:
            word = "NULL" if action == "n" else "DEFAULT"
            sets = ", ".join(f"{column} = {word}" for column in columns)
        await self._run(session, f"UPDATE {name} SET {sets} WHERE {where}", texts)

    def _texts(self, key: ForeignKey, values: list[Any]) -> list[str | None]:
        result: list[str | None] = []
        for index, value in zip(key.other_columns, values):
            kind = self._table.columns[index].type
            if value is None or kind.family == "numeric":
                result.append(value)
            else:
                result.append(TEXT_OUTPUT[kind](value).decode())
        return result

    def _still_referenced(self, found: Referring, texts: list[str | None]) -> CallerMistake:
        names = [self._table.columns[i].name for i in found.key.other_columns]
        error = CallerMistake(
            f'update or delete on table "{self._table.name}" violates foreign key constraint '
            f'"{found.key.name}" on table "{found.table.name}"',
            sqlstate="23503",
            detail=f"Key ({', '.join(names)})=({', '.join(map(str, texts))}) is still referenced "
            f'from table "{found.table.name}".',
        )
        return named(error, found.table.schema, found.table.name, found.key.name)

    async def _run(self, session: SessionLike, text: str, texts: list[str | None]) -> _Nothing:
        txn = session.txn
        assert txn is not None
        sink = _Nothing()

        def step() -> tuple[Bound, bytes | None]:
            plan = self._planner.prepare(session, text)
            bound = plan.bind((LITERAL_FORMAT,) * len(texts), ())
            mark = txn.savepoint()
            try:
                return bound, bound.run(session, texts) if plan.fast else None
            except BaseException:
                txn.rollback_to(mark)
                raise

        bound, data = await retried(step)
        if data is None:
            await bound.rows(session, texts, sink)
        elif data[:1] == b"D":
            sink.byte_count = len(data)
        return sink
