"""Loading many rows into a new tree: COPY into a fresh table, ALTER TABLE ... ADD PRIMARY KEY.

Rows that come in key order stream through the bulk loader. Those that do not are gathered, sorted
and written as runs, each a temporary tree of its own; at the end the runs are merged into one more
tree. So any order works in bounded memory, and the common case costs nothing extra.

    in order  ------------------------------------> tree
    out of order -> pending (16 MiB) -> run, run, ... --merge with tree--> another tree
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from compute.buffer.waits import Suspend, resumed
from compute.sql import ddl, definitions, indexes
from compute.sql.catalog import Table, has_int_keys, key_expression, make_table
from compute.sql.expressions import Emitter
from compute.sql.index_parts import part_names
from compute.sql.mistakes import duplicate_in_table, named
from compute.sql.plan import Bound, Params, Plan, RowSink, SessionLike
from compute.sql.rowcode import base_names, compile_function
from compute.sql.scan import ROWS_PER_STEP
from compute.sql.types import NUMERIC
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.btree.bulk import BulkLoader
    from compute.btree.tree import Tree
    from compute.txn.transaction import Transaction

# Above every timestamp.
NEWEST: Final = 1 << 62
PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
# What a pending row takes beside its payload.
_ROW_BYTES: Final = 150

Rows = list[tuple[Any, bytes]]
Duplicate = Callable[[Any], CallerMistake]


class Loader:
    """Feed it rows in any order; `finish` gives the tree. ``duplicate(key)`` makes the error."""

    def __init__(self, session: SessionLike, *, int_keys: bool, duplicate: Duplicate) -> None:
        self._session = session
        self._int_keys = int_keys
        self._duplicate = duplicate
        self.tree, self._bulk = self._new()
        self._last: Any = None
        self._pending: Rows = []
        self._pending_bytes = 0
        self._runs: list[Tree] = []
        self.row_count = 0

    def _new(self) -> tuple[Tree, BulkLoader]:
        engine, txn = self._session.engine, ddl.transaction_of(self._session)
        tree = engine.new_tree(txn, int_keys=self._int_keys)
        return tree, engine.bulk_loader(txn, tree)

    async def add(self, rows: Rows) -> None:
        """Take rows, in whatever order."""
        if not rows:
            return
        self.row_count += len(rows)
        last = self._last
        ordered: Rows = []
        for row in rows:
            key = row[0]
            if last is None or key > last:
                ordered.append(row)
                last = key
            else:
                self._pending.append(row)
                self._pending_bytes += len(row[1]) + _ROW_BYTES
        self._last = last
        await self._bulk.add(ordered)
        if self._pending_bytes > PENDING_BYTES_MAX:
            await self._write_run()

    async def _write_run(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        pending.sort(key=_first)
        tree, bulk = self._new()
        await self._feed(bulk, pending)
        await bulk.finish()
        self._runs.append(tree)

    async def _feed(self, bulk: BulkLoader, rows: Rows) -> None:
        previous: Any = None
        for start in range(0, len(rows), ROWS_PER_STEP):
            part = rows[start : start + ROWS_PER_STEP]
            for key, _ in part:
                if key == previous:
                    raise self._duplicate(key)
                previous = key
            await bulk.add(part)
            await self._session.engine.clock.sleep(0)

    async def finish(self) -> Tree:
        """All rows are there: the tree that holds them. Raises 23505."""
        await self._bulk.finish()
        if self._pending:
            await self._write_run()
        if not self._runs:
            return self.tree
        runs = [self.tree, *self._runs]
        result, bulk = self._new()
        batch: Rows = []
        async for row in merged([self._read(run) for run in runs]):
            if batch and batch[-1][0] == row[0]:
                raise self._duplicate(row[0])
            batch.append(row)
            if len(batch) > ROWS_PER_STEP:
                # The last row stays, to be compared with the next one.
                await bulk.add(batch[:-1])
                batch = batch[-1:]
                await self._session.engine.clock.sleep(0)
        await bulk.add(batch)
        await bulk.finish()
        self.drop(runs)
        return result

    def drop(self, trees: list[Tree]) -> None:
        """Trees that are not needed any more."""
        txn = ddl.transaction_of(self._session)
        for tree in trees:
            self._session.engine.drop_tree(txn, tree)

    async def _read(self, tree: Tree) -> AsyncIterator[Rows]:
        async for batch in tree_batches(self._session, tree):
            yield batch


async def tree_batches(session: SessionLike, tree: Tree) -> AsyncIterator[Rows]:
    """All rows of a tree that this transaction made or has locked, as they are now.

    Not as of its snapshot: a commit that held the table before has given up its locks when it was
    applied, and may not be published yet. What is built of its rows lies behind it in the log.
    """
    txn: Transaction = ddl.transaction_of(session)
    position: Any = None
    while True:
        snapshot, txn.snapshot = txn.snapshot, NEWEST
        missing: Suspend | None = None
        try:
            rows, position = txn.batch(tree, None, None, after=position)
        except Suspend as suspend:
            rows, missing = [], suspend
        finally:
            txn.snapshot = snapshot
        if missing is not None:
            await resumed(missing)
            continue
        if rows:
            yield rows
        if position is None:
            return


async def merged(sources: list[AsyncIterator[Rows]]) -> AsyncIterator[tuple[Any, bytes]]:
    """Rows of sorted sources in one order."""
    heap: list[tuple[Any, int]] = []
    current: list[Rows] = [[] for _ in sources]
    positions = [0] * len(sources)

    async def refill(index: int) -> None:
        rows = await anext(sources[index], None)
        if rows:
            current[index], positions[index] = rows, 0
            heapq.heappush(heap, (rows[0][0], index))

    for index in range(len(sources)):
        await refill(index)
    while heap:
        _, index = heapq.heappop(heap)
        rows, position = current[index], positions[index]
        yield rows[position]
        position += 1
        positions[index] = position
        if position < len(rows):
            heapq.heappush(heap, (rows[position][0], index))
        else:
            await refill(index)


def _first(row: tuple[Any, bytes]) -> Any:
    return row[0]


# ------------------------------------------------------------------------------------------ indexes


async def fill_indexes(session: SessionLike, table: Table) -> Table:
    """The table, whose rows were just loaded, with indexes that show them. Raises 23505."""
    for number in range(len(table.indexes)):
        table = await fill_index(session, table, number)
    return table


async def fill_index(session: SessionLike, table: Table, number: int) -> Table:
    """The table with one index built of its rows; the tree that the index had is dropped."""
    index = table.indexes[number]

    def duplicate(key: Any) -> CallerMistake:
        names = part_names(table, index)
        error = duplicate_in_table(index.name, names, indexes.values_of(table, key, index))
        return named(error, table.schema, table.name, index.name)

    loader = Loader(session, int_keys=False, duplicate=duplicate)
    entries = _entries(table, number)
    read = 0
    async for batch in tree_batches(session, table.tree):
        await loader.add(entries(batch))
        read += len(batch)
        if read > ROWS_PER_STEP:
            read = 0
            await session.engine.clock.sleep(0)
    tree = await loader.finish()
    session.engine.drop_tree(ddl.transaction_of(session), index.tree)
    made = list(table.indexes)
    made[number] = replace(index, tree=tree)
    return replace(table, indexes=tuple(made))


def _entries(table: Table, number: int) -> Callable[[Rows], Rows]:
    """From rows to the entries of an index."""
    out = Emitter(base_names())
    out.line("rows = []; append = rows.append")
    out.line("for key, payload in batch:")
    out.indent += 1
    out.line("r = unpack(payload)")
    sources = [indexes.loaded(table, index, out) for index in range(len(table.columns))]
    indexes.emit_entry(out, table, number, sources, "x")
    test = "" if table.indexes[number].where is None else "if x is not None: "
    out.line(f"{test}append((x, pack_row(key)))")
    out.indent -= 1
    out.line("return rows")
    return compile_function("entries", "batch", out)


# ---------------------------------------------------------------------- ALTER TABLE ADD PRIMARY KEY


class AlterBound(Bound):
    """DDL that takes its time."""

    __slots__ = ("_action",)

    def __init__(self, plan: Plan, results: tuple[int, ...], action: Any) -> None:
        super().__init__(plan, results, None)
        self._action = action

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        await _catalog_read(session)
        tag: str = await self._action(session)
        return tag


async def _catalog_read(session: SessionLike) -> None:
    """Names of types mean from now on what they mean in the newest catalog."""
    while True:
        try:
            ddl.current_catalog(session)
            return
        except Suspend as suspend:
            await resumed(suspend)


async def add_primary_key(
    session: SessionLike,
    name: definitions.Name,
    wanted: list[str],
    constraint: str | None,
    *,
    if_exists: bool,
) -> None:
    """Rebuild the table under its new key. Raises 23505, 23502, 42P16, 42703."""
    table = await _locked(session, name)
    if table is None:
        if if_exists:
            session.notice("NOTICE", "42P01", f'relation "{name.written}" does not exist, skipping')
            return
        raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
    if table.primary_key:
        raise CallerMistake(
            f'multiple primary keys for table "{table.name}" are not allowed', sqlstate="42P16"
        )
    names = [column.name for column in table.columns]
    key = definitions.key_columns(wanted, names)
    columns = tuple(
        replace(c, not_null=c.not_null or i in key) for i, c in enumerate(table.columns)
    )
    label = constraint or ddl.default_constraint(table.name)
    int_keys = has_int_keys(columns, key)

    def duplicate(found: Any) -> CallerMistake:
        return duplicate_in_table(label, tuple(wanted), after.key_values(found))

    loader = Loader(session, int_keys=int_keys, duplicate=duplicate)
    after = make_table(table.table_id, table.schema, table.name, columns, key, label, loader.tree)
    rekey = _rekey(after)
    read = 0
    async for batch in tree_batches(session, table.tree):
        rows, null = rekey(batch)
        if null is not None:
            raise CallerMistake(
                f'column "{columns[null].name}" of relation "{table.name}" contains null values',
                sqlstate="23502",
            )
        await loader.add(rows)
        read += len(batch)
        if read > ROWS_PER_STEP:
            read = 0
            await session.engine.clock.sleep(0)
    tree = await loader.finish()
    session.engine.drop_tree(ddl.transaction_of(session), table.tree)
    after = replace(
        after.with_tree(tree),
        indexes=table.indexes,
        checks=table.checks,
        foreign=table.foreign,
        comments=table.comments,
    )
    # Entries carry the rows' keys, which are others now.
    ddl.store(session, await fill_indexes(session, after))


async def _locked(session: SessionLike, name: definitions.Name) -> Table | None:
    while True:
        try:
            table = ddl.newest(session, ddl.located(session, name))
            if table is not None:
                ddl.lock_table(session, table)
            return table
        except Suspend as suspend:
            await resumed(suspend)


def _rekey(table: Table) -> Callable[[Rows], tuple[Rows, int | None]]:
    """From rows to rows under the table's key, and the key column that is NULL, if any is."""
    out = Emitter(base_names())
    out.line("rows = []; append = rows.append")
    out.line("for _, payload in batch:")
    out.indent += 1
    out.line("r = unpack(payload)")
    for index in table.primary_key:
        out.line(f"if r[{index}] is None: return rows, {index}")
    sources = []
    for index, column in enumerate(table.columns):
        if column.type is NUMERIC:
            from decimal import Decimal

            out.names["Decimal_"] = Decimal
            sources.append(f"Decimal_(r[{index}])")
        else:
            sources.append(f"r[{index}]")
    out.line(f"append(({key_expression(table, sources)}, payload))")
    out.indent -= 1
    out.line("return rows, None")
    return compile_function("rekey", "batch", out)
