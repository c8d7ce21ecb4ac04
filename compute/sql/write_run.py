"""Running INSERT, UPDATE and DELETE: generated code around the transaction's write set.

    INSERT   values -> payload and key -> txn.insert, False: duplicate (or ON CONFLICT)
    UPDATE   key -> lock_and_get (newest version) -> WHERE again -> new payload -> put
    DELETE   the same with None

By full primary key, or with a handful of rows, it is one synchronous generated function. All else
is a coroutine: rows that the statement's snapshot shows are looked at one by one, each is locked,
read again at its newest version, and changed if WHERE still holds (PostgreSQL's READ COMMITTED).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compute.buffer.waits import Suspend, resumed
from compute.sql import constraints, indexes
from compute.sql.catalog import Table, check_current, key_expression
from compute.sql.expressions import Emitter, Node, ParamSlot
from compute.sql.filling import generated_columns, of_row
from compute.sql.gather import ENTRY_BYTES, Work
from compute.sql.gather import Output as Chunks
from compute.sql.mistakes import duplicate_key, named, null_in_column
from compute.sql.plan import Bound, Params, Plan, RowSink, SessionLike, command_complete
from compute.sql.rowcode import (
    base_names,
    compile_function,
    emit_params,
    emit_row,
    param_decoder,
    start_step,
)
from compute.sql.scan import ROWS_PER_STEP, Source, batches
from compute.sql.select import Output, Select
from compute.sql.select_run import Reader
from compute.sql.types import NUMERIC, to_text
from compute.sql.write import Conflict, Insert, RowSource, Update
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.btree.tree import Tree
    from compute.txn.transaction import Transaction

# Rows of VALUES that are written out one by one in the generated function.
INLINE_ROWS_MAX: Final = 32


class RowIds:
    """Counters for tables without a primary key, by tree. The largest id in use is read once; from
    then on this node, the only writer, counts by itself.
    """

    def __init__(self) -> None:
        self._counters: dict[int, Iterator[int]] = {}

    def counter(self, txn: Transaction, tree: Tree) -> Iterator[int]:
        """The tree's counter. May raise a `Suspend` the first time."""
        found = self._counters.get(tree.tree_id)
        if found is None:
            largest = _largest(txn, tree)
            found = self._counters[tree.tree_id] = itertools.count(largest + 1)
        return found

    def next(self, txn: Transaction, tree: Tree) -> int:
        """A fresh id. May raise a `Suspend`."""
        found = self._counters.get(tree.tree_id)
        return next(found if found is not None else self.counter(txn, tree))

    def forget(self) -> None:
        """The node is no writer any more."""
        self._counters.clear()


def _largest(txn: Transaction, tree: Tree) -> int:
    """The largest key that was ever committed here, deleted or not: ids may not come back."""
    largest = 0
    position: Any = None
    while True:
        _, keys, position = tree.rows_in(position, None, None, reverse=True)
        if keys:
            largest = int(max(keys))
            break
        if position is None:
            break
    own = txn.writes.get(tree.tree_id)
    return max(largest, *own) if own else largest


# -------------------------------------------------------------------------------------- common code


def not_null_violation(table: Table, index: int, *values: Any) -> CallerMistake:
    """23502 with the row, as PostgreSQL shows it."""
    shown = [
        "null" if value is None else to_text(value, column.type, column.typmod)
        for value, column in zip(values, table.columns)
    ]
    return _null_error(table, index, shown)


def _null_error(table: Table, index: int, shown: list[str]) -> CallerMistake:
    error = null_in_column(table.columns[index].name, table.name)
    named(error, table.schema, table.name)
    error.detail = f"Failing row contains ({', '.join(shown)})."[:1000]
    return error


def emit_new_row(out: Emitter, table: Table, nodes: list[Node], prefix: str = "n") -> list[str]:
    """Compute every column, check NOT NULL. Returns the names of the values."""
    names = [f"{prefix}{index}" for index in range(len(nodes))]
    last = generated_columns(table)
    for index in [*(i for i in range(len(nodes)) if i not in last), *last]:
        source = nodes[index].emit(out)
        out.line(f"{names[index]} = {source}")
    _emit_not_null(out, table, names, [node.nullable for node in nodes])
    return names


def _emit_not_null(out: Emitter, table: Table, names: list[str], nullable: list[bool]) -> None:
    for index, column in enumerate(table.columns):
        if column.not_null and nullable[index]:
            out.names |= {"not_null_violation": not_null_violation, "table": table}
            values = ", ".join(names)
            out.line(
                f"if {names[index]} is None: raise not_null_violation(table, {index}, {values})"
            )


def stored(table: Table, names: list[str]) -> str:
    """Source for the tuple that goes into the payload."""
    parts = []
    for name, column in zip(names, table.columns):
        if column.type is NUMERIC:
            known = f"str({name})"
            parts.append(known if column.not_null else f"(None if {name} is None else {known})")
        else:
            parts.append(name)
    return f"({', '.join(parts)},)" if parts else "()"


def raise_duplicate(table: Table, key: Any) -> None:
    """23505."""
    error = duplicate_key(table.constraint, table.key_names, table.key_values(key))
    raise named(error, table.schema, table.name)


def _emit_returning(
    out: Emitter, outputs: list[Output] | None, results: tuple[int, ...], append: str
) -> None:
    """Encode the row ``r`` and append it."""
    if outputs is None:
        return
    nodes = [output.node for output in outputs]
    values = [node.emit(out) for node in nodes]
    out.line(f"{append}({emit_row(out, values, nodes, results)})")


# ------------------------------------------------------------------------------------------- INSERT


def emit_insert(
    out: Emitter, found: Insert, nodes: list[Node], results: tuple[int, ...], *, many: bool
) -> None:
    """One row; ``count`` and ``append`` are in scope when they are needed, and ``seen``, the keys
    of this statement, if it has many rows.
    """
    table = found.table
    out.names |= {"tree": table.tree, "table": table, "raise_duplicate": raise_duplicate}
    names = emit_new_row(out, table, nodes)
    out.line(f"row = {stored(table, names)}")
    if table.primary_key:
        out.line(f"key = {key_expression(table, names)}")
    else:
        out.line("key = next_id(txn, tree)")
    conflict = found.conflict
    _emit_row_checks(out, table, found.parents)
    if conflict is not None and (conflict.assignments or table.indexes):
        _emit_upsert(out, found, conflict, names, many=many)
    elif conflict is not None:
        with out.block("if not txn.insert(tree, key, pack_row(row))"):
            out.line("row = None")
    else:
        _emit_insertion(out, table, names)
    with out.block("if row is not None" if conflict is not None else "if True"):
        out.line("count += 1")
        if found.returning is not None:
            out.line("r = row")
            _emit_returning(out, found.returning, results, "append")


def _emit_row_checks(out: Emitter, table: Table, parents: list[constraints.Parent]) -> None:
    """CHECK and FOREIGN KEY of ``row``."""
    if table.checks or parents:
        out.line("r = row")
        constraints.emit_checks(out, table)
        constraints.emit_foreign(out, table, parents)


def _emit_insertion(out: Emitter, table: Table, names: list[str]) -> None:
    """Write ``row`` under ``key`` with its entries, or raise 23505."""
    if not table.indexes:
        out.line("if not txn.insert(tree, key, pack_row(row)): raise_duplicate(table, key)")
        return
    out.line("if txn.lock_and_get(tree, key) is not None: raise_duplicate(table, key)")
    indexes.emit_new_entries(out, table, names)
    indexes.emit_refuse_duplicates(out, table)
    out.line("txn.put(tree, key, pack_row(row))")
    indexes.emit_put_entries(out, table)


def insert_stored(
    table: Table, parents: list[constraints.Parent], *, checked: bool = True
) -> Callable[..., None]:
    """``insert(txn, key, payload)`` of a row that is encoded already: COPY, rows that move.

    May raise a `Suspend` before it has written anything.
    """
    out = Emitter(base_names())
    out.names |= {"tree": table.tree, "table": table, "raise_duplicate": raise_duplicate}
    if not table.indexes and not parents and not (checked and table.checks):
        out.line("if not txn.insert(tree, key, payload): raise_duplicate(table, key)")
        return compile_function("insert", "txn, key, payload", out)
    out.line("r = row = unpack(payload)")
    if checked:
        _emit_row_checks(out, table, parents)
    _emit_insertion(
        out, table, [indexes.loaded(table, index, out) for index in range(len(table.columns))]
    )
    return compile_function("insert", "txn, key, payload", out)


def second_time() -> CallerMistake:
    """21000: ON CONFLICT DO UPDATE meets a row that this very statement wrote."""
    return CallerMistake(
        "ON CONFLICT DO UPDATE command cannot affect row a second time",
        sqlstate="21000",
        hint="Ensure that no rows proposed for insertion within the same command have duplicate "
        "constrained values.",
    )


def _emit_upsert(
    out: Emitter, found: Insert, conflict: Conflict, names: list[str], *, many: bool
) -> None:
    """ON CONFLICT: ``taken`` is the key of the row that is there, by any key that arbitrates."""
    table = found.table
    arbiters = conflict.arbiters
    out.line("old = txn.lock_and_get(tree, key)")
    indexes.emit_new_entries(out, table, names)
    unique = [number for number, index in enumerate(table.indexes) if index.unique]
    chosen = [number for number in unique if arbiters is None or number in arbiters]
    keyed = arbiters is None or -1 in arbiters
    out.line(f"taken = {'key' if keyed else 'None'} if old is not None else None")
    for number in chosen:
        out.line(f"if taken is None and e{number} is not None: taken = unpack(e{number})")
    with out.block("if taken is None"):
        if not keyed:
            out.line("if old is not None: raise_duplicate(table, key)")
        indexes.emit_refuse_duplicates(out, table, but=set(chosen))
        out.line("txn.put(tree, key, pack_row(row))")
        indexes.emit_put_entries(out, table)
        if many and conflict.assignments:
            out.line("seen.add(key)")
    with out.block("else"):
        if not conflict.assignments:
            out.line("row = None")
            return
        if many:
            out.names["second_time"] = second_time
            out.line("if taken in seen: raise second_time()")
            out.line("seen.add(taken)")
        out.line("if taken != key: old = txn.lock_and_get(tree, taken)")
        out.line("key = taken")
        out.line("r = unpack(old)")
        for index, name in enumerate(names):
            out.line(f"w{index} = {name}")
        with out.block("while True"):
            if conflict.where is not None:
                test = conflict.where.emit(out)
                with out.block(f"if {test} is not True"):
                    out.line("row = None")
                    out.line("break")
            _emit_changed_row(out, table, conflict.assignments, found.parents)
            out.line("row = r")
            out.line("break")


def _emit_changed_row(
    out: Emitter,
    table: Table,
    assignments: list[tuple[int, Node]],
    parents: list[constraints.Parent],
) -> None:
    """Change the row ``r``, check it, and write it and its entries under its ``key``."""
    changed = {index for index, _ in assignments}.union(generated_columns(table))
    numbers = indexes.concerned(table, changed)
    indexes.emit_old_entries(out, table, numbers)
    _emit_assignments(out, table, assignments)
    constraints.emit_checks(out, table)
    constraints.emit_foreign(out, table, parents, changed)
    indexes.emit_changed_entries(out, table, numbers)
    out.line("txn.put(tree, key, pack_row(r))")
    indexes.emit_move_entries(out, table, numbers)


def _emit_assignments(out: Emitter, table: Table, assignments: list[tuple[int, Node]]) -> None:
    """Change the list ``r``: every value is computed of the old row first."""
    values = [(index, node.emit(out), node) for index, node in assignments]
    # What is emitted may be a column itself (SET a = b, b = a): copy before the first store.
    copied: list[tuple[int, str, Node]] = []
    for index, source, node in values:
        if len(values) > 1 and source.startswith("r["):
            name = out.temp()
            out.line(f"{name} = {source}")
            source = name
        copied.append((index, source, node))
    for index, source, node in copied:
        column = table.columns[index]
        if column.not_null and node.nullable:
            out.names |= {"update_violation": _update_violation, "table": table}
            out.line(f"if {source} is None: raise update_violation(table, {index}, r)")
    for index, source, node in copied:
        if table.columns[index].type is NUMERIC:
            source = (
                f"None if {source} is None else str({source})"
                if node.nullable
                else (f"str({source})")
            )
        out.line(f"r[{index}] = {source}")
    for index in generated_columns(table):
        node = of_row(table, index)
        source = out.temp()
        out.line(f"{source} = {node.emit(out)}")
        if table.columns[index].not_null and node.nullable:
            out.names |= {"update_violation": _update_violation, "table": table}
            out.line(f"if {source} is None: raise update_violation(table, {index}, r)")
        if table.columns[index].type is NUMERIC:
            out.line(f"{source} = None if {source} is None else str({source})")
        out.line(f"r[{index}] = {source}")


def _update_violation(table: Table, index: int, row: list[Any]) -> CallerMistake:
    values = list(row)
    values[index] = None
    return _null_error(table, index, constraints.shown_row(table, values))


class InsertBound(Bound):
    """INSERT ... VALUES or SELECT with its formats."""

    __slots__ = ("_decode", "_found", "_reader", "_row_ids", "_rows_code")

    def __init__(
        self,
        plan: Plan,
        found: Insert,
        row_ids: RowIds,
        slots: list[ParamSlot],
        params: tuple[int, ...],
        results: tuple[int, ...],
        *,
        one_row: bool = False,
    ) -> None:
        self._found = found
        self._row_ids = row_ids
        fast = plan.fast and not one_row
        run = self._generate_run(slots, params, results) if fast else None
        super().__init__(plan, results, run)
        self._decode = param_decoder(slots, params) if not (one_row or fast) else None
        self._rows_code: list[Callable[..., int]] = []
        self._reader: Reader | RowSource | None = None
        if found.query is not None:
            if isinstance(found.query, Select):
                self._reader = Reader(found.query, slots, None)
            else:
                self._reader = found.query
            self._rows_code = [self._generate_row(found.rows[0], slots, results, from_query=True)]
        elif not fast:
            self._rows_code = [self._generate_row(row, slots, results) for row in found.rows]

    @property
    def row_function(self) -> Callable[..., int]:
        """``insert(session, P, txn, values, append) -> count`` of the only row."""
        return self._rows_code[0]

    def _names(self, out: Emitter) -> None:
        out.names["next_id"] = self._row_ids.next

    def _generate_run(
        self, slots: list[ParamSlot], params: tuple[int, ...], results: tuple[int, ...]
    ) -> Callable[[Any, Params], bytes | None]:
        found = self._found
        out = Emitter(base_names())
        self._names(out)
        emit_params(out, slots, params)
        out.line("txn = session.txn")
        single = len(found.rows) == 1 and found.conflict is None and found.returning is None
        if single:
            # The tag is known: INSERT 0 1.
            table = found.table
            out.names |= {"tree": table.tree, "table": table, "raise_duplicate": raise_duplicate}
            names = emit_new_row(out, table, found.rows[0])
            key = key_expression(table, names) if table.primary_key else "next_id(txn, tree)"
            out.line(f"key = {key}")
            if table.indexes or table.checks or found.parents:
                out.line(f"row = {stored(table, names)}")
                _emit_row_checks(out, table, found.parents)
                _emit_insertion(out, table, names)
            else:
                out.line(
                    f"if not txn.insert(tree, key, pack_row({stored(table, names)})): "
                    "raise_duplicate(table, key)"
                )
            out.line(f"return {command_complete('INSERT 0 1')!r}")
            return compile_function("run", "session, params", out)
        out.names["command_complete"] = command_complete
        out.line("count = 0")
        out.line("rows = []; append = rows.append")
        out.line("seen = set()")
        for row in found.rows:
            emit_insert(out, found, row, results, many=len(found.rows) > 1)
        out.line('rows.append(command_complete(f"INSERT 0 {count}"))')
        out.line('return b"".join(rows)')
        return compile_function("run", "session, params", out)

    def _generate_row(
        self,
        row: list[Node],
        slots: list[ParamSlot],
        results: tuple[int, ...],
        *,
        from_query: bool = False,
    ) -> Callable[..., int]:
        """``insert(session, P, txn, values, append) -> count``."""
        out = start_step(slots)
        self._names(out)
        if from_query:
            assert self._found.query is not None
            count = len(self._found.query.outputs)
            if count:
                out.line(f"({', '.join(f'v{i}' for i in range(count))},) = values")
        out.line("count = 0")
        emit_insert(out, self._found, row, results, many=False)
        out.line("return count")
        return compile_function("insert", "session, P, txn, values, append", out)

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        assert self._decode is not None, "a fast INSERT has no rows()"
        values = self._decode(params)
        txn = session.txn
        assert txn is not None
        await check_current(session, self._found.table, self.plan.catalog_version)
        output = Chunks(sink)
        work = Work("INSERT ... SELECT")
        count = 0
        if self._found.query is None:
            code = [(function, ()) for function in self._rows_code]
            count = await self._insert_all(session, values, txn, code, output)
        else:
            function = self._rows_code[0]
            query = self._found.query
            # A table that feeds itself would never end: read all of it before the first write.
            own = query.access is not None and query.access.table is self._found.table
            kept: list[Any] = []
            assert self._reader is not None
            async for found in self._reader.entries(session, values, txn):
                if own:
                    kept += found
                    work.add(ENTRY_BYTES * len(found))
                    continue
                code = [(function, row) for row in found]
                count += await self._insert_all(session, values, txn, code, output)
            if kept:
                code = [(function, row) for row in kept]
                count += await self._insert_all(session, values, txn, code, output)
        await output.flush()
        return f"INSERT 0 {count}"

    async def _insert_all(
        self,
        session: SessionLike,
        values: Any,
        txn: Transaction,
        code: list[tuple[Callable[..., int], Any]],
        output: Chunks,
    ) -> int:
        count = 0
        for number, (function, row) in enumerate(code, 1):
            returned: list[bytes] = []
            try:
                count += function(session, values, txn, row, returned.append)
            except Suspend as suspend:
                count += await self._retried(suspend, session, function, values, txn, row, returned)
            if returned:
                await output.add(returned)
            if number % 500 == 0:
                await session.engine.clock.sleep(0)
        return count

    async def _retried(
        self,
        suspend: Suspend,
        session: SessionLike,
        function: Callable[..., int],
        values: Any,
        txn: Transaction,
        row: Any,
        returned: list[bytes],
    ) -> int:
        while True:
            await resumed(suspend)
            await check_current(session, self._found.table, self.plan.catalog_version)
            try:
                return function(session, values, txn, row, returned.append)
            except Suspend as again:
                suspend = again


async def retried(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that changes nothing before it raises a `Suspend`, until it does not."""
    while True:
        try:
            return function(*args)
        except Suspend as suspend:
            await resumed(suspend)


# -------------------------------------------------------------------------------- UPDATE and DELETE


def _emit_change(out: Emitter, found: Update, results: tuple[int, ...], *, nothing: str) -> None:
    """From ``payload``, the newest version under lock, to the write; ``nothing`` leaves."""
    table = found.access.table
    out.line(f"if payload is None: {nothing}")
    needs_row = (
        found.assignments is not None
        or found.access.rest
        or found.returning is not None
        or table.indexes
        or found.collects
    )
    if needs_row:
        out.line("r = unpack(payload)")
    for node in found.access.rest:
        out.line(f"if {node.emit(out)} is not True: {nothing}")
    if found.collects:
        # What rows that refer to this one have to be told: see `referring`.
        out.line("before = tuple(r)")
    if found.assignments is None:
        numbers = indexes.concerned(table, None)
        indexes.emit_old_entries(out, table, numbers)
        out.line("txn.put(tree, key, None)")
        indexes.emit_drop_entries(out, table, numbers)
        return
    _emit_changed_row(out, table, found.assignments, found.parents)


class UpdateSteps(NamedTuple):
    """The generated parts of an UPDATE or DELETE that walks over rows."""

    decode: Callable[[Any], Any]
    source: Source
    matches: Callable[..., list[Any]]
    change: Callable[..., Any]


class UpdateBound(Bound):
    """UPDATE or DELETE with its formats."""

    __slots__ = ("_found", "_make", "_steps")

    def __init__(
        self,
        plan: Plan,
        found: Update,
        slots: list[ParamSlot],
        params: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        self._found = found
        run = self._generate_run(slots, params, results) if plan.fast else None
        super().__init__(plan, results, run)
        # Compiled when it is needed, which is never for a fast one.
        self._make: Callable[[], UpdateSteps] = lambda: UpdateSteps(
            param_decoder(slots, params),
            Source(found.access, None, slots),
            self._generate_matches(slots),
            self._generate_change(slots, results),
        )
        self._steps: UpdateSteps | None = None

    @property
    def _verb(self) -> str:
        return "DELETE" if self._found.assignments is None else "UPDATE"

    def _generate_run(
        self, slots: list[ParamSlot], params: tuple[int, ...], results: tuple[int, ...]
    ) -> Callable[[Any, Params], bytes | None]:
        found = self._found
        out = Emitter(base_names())
        out.names |= {"tree": found.access.table.tree}
        emit_params(out, slots, params)
        nothing = f"return {command_complete(f'{self._verb} 0')!r}"
        key = found.access.emit_point(out, empty=nothing)
        out.line(f"key = {key}")
        out.line("txn = session.txn")
        out.line("payload = txn.lock_and_get(tree, key)")
        _emit_change(out, found, results, nothing=nothing)
        done = command_complete(f"{self._verb} 1")
        if found.returning is None:
            out.line(f"return {done!r}")
        else:
            nodes = [output.node for output in found.returning]
            values = [node.emit(out) for node in nodes]
            out.line(f"return {emit_row(out, values, nodes, results)} + {done!r}")
        return compile_function("run", "session, params", out)

    def _generate_matches(self, slots: list[ParamSlot]) -> Callable[..., list[Any]]:
        """``matches(session, P, batch)``: keys of the rows that WHERE takes."""
        out = start_step(slots)
        rest = self._found.access.rest
        if not rest:
            out.line("return [key for key, _ in batch]")
            return compile_function("matches", "session, P, batch", out)
        out.line("found = []")
        out.line("for key, payload in batch:")
        out.indent += 1
        out.line("r = unpack(payload)")
        for node in rest:
            out.line(f"if {node.emit(out)} is not True: continue")
        out.line("found.append(key)")
        out.indent -= 1
        out.line("return found")
        return compile_function("matches", "session, P, batch", out)

    def _generate_change(
        self, slots: list[ParamSlot], results: tuple[int, ...]
    ) -> Callable[..., Any]:
        """``change(session, P, txn, key, append)``: True, or None if the row is gone.

        An UPDATE that moves rows deletes here and returns ``(new key, payload)``.
        """
        found = self._found
        table = found.access.table
        out = start_step(slots)
        out.names |= {"tree": table.tree}
        out.line("payload = txn.lock_and_get(tree, key)")
        if found.changes_key:
            out.line("if payload is None: return None")
            out.line("r = unpack(payload)")
            for node in found.access.rest:
                out.line(f"if {node.emit(out)} is not True: return None")
            assert found.assignments is not None
            if found.collects:
                out.line("before = tuple(r)")
            numbers = indexes.concerned(table, None)
            indexes.emit_old_entries(out, table, numbers)
            _emit_assignments(out, table, found.assignments)
            sources = [indexes.loaded(table, i, out) for i in range(len(table.columns))]
            out.line(f"moved = ({key_expression(table, sources)}, pack_row(r))")
            out.line("txn.put(tree, key, None)")
            indexes.emit_drop_entries(out, table, numbers)
            _emit_returning(out, found.returning, results, "append")
            if found.collects:
                out.line("collect((before, tuple(r)))")
            out.line("return moved")
        else:
            _emit_change(out, found, results, nothing="return None")
            _emit_returning(out, found.returning, results, "append")
            if found.collects:
                after = "None" if found.assignments is None else "tuple(r)"
                out.line(f"collect((before, {after}))")
            out.line("return True")
        return compile_function("change", "session, P, txn, key, append, collect", out)

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        steps = self._steps
        if steps is None:
            steps = self._steps = self._make()
        values = steps.decode(params)
        txn = session.txn
        assert txn is not None
        await check_current(session, self._found.access.table, self.plan.catalog_version)
        output = Chunks(sink)
        work = Work("an UPDATE of the primary key")
        moved: list[tuple[Any, bytes]] = []
        returned: list[bytes] = []
        collected: list[tuple[Any, Any]] = []
        count = 0
        moves = self._found.changes_key or self._found.changes_order
        waiting: list[list[Any]] = []
        async for batch in batches(steps.source.cursor(session, values), txn, session):
            keys = steps.matches(session, values, batch)
            if moves:
                # A row must not be met again under its new key.
                waiting.append(keys)
                work.add(ENTRY_BYTES * len(keys))
                continue
            count += await self._change_all(session, values, txn, keys, returned, moved, collected)
            if returned:
                await output.add(returned)
                returned.clear()
        for keys in waiting:
            count += await self._change_all(session, values, txn, keys, returned, moved, collected)
            work.add(sum(len(payload) for _, payload in moved[-len(keys) :]))
        if moved:
            insert = insert_stored(self._found.access.table, self._found.parents)
            for number, (key, payload) in enumerate(moved, 1):
                await retried(insert, txn, key, payload)
                if number % 500 == 0:
                    await session.engine.clock.sleep(0)
        if collected and self._found.after is not None:
            await self._found.after(session, collected)
        await output.add(returned)
        await output.flush()
        return f"{self._verb} {count}"

    async def _change_all(
        self,
        session: SessionLike,
        values: Any,
        txn: Transaction,
        keys: list[Any],
        returned: list[bytes],
        moved: list[tuple[Any, bytes]],
        collected: list[tuple[Any, Any]],
    ) -> int:
        count = 0
        assert self._steps is not None
        change = self._steps.change
        append = returned.append
        for number, key in enumerate(keys, 1):
            result: Any = None
            while True:
                try:
                    result = change(session, values, txn, key, append, collected.append)
                    break
                except Suspend as suspend:
                    await resumed(suspend)
                    await check_current(
                        session, self._found.access.table, self.plan.catalog_version
                    )
            if result is not None:
                count += 1
                if result is not True:
                    moved.append(result)
            if number % ROWS_PER_STEP == 0:
                await session.engine.clock.sleep(0)
        return count
