"""Reading the columns that a query needs from our tables, at the statement's snapshot.

A `Scan` is one mention of a table in FROM. While the query is bound it learns which columns are
used, and which conditions concern it alone; these narrow the range of keys that is read, and are
checked before a row is kept. DuckDB checks them again, so leaving one out changes no result.

What is collected is counted in bytes, for all scans of a statement together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from compute.buffer.waits import Suspend, resumed
from compute.sql.access import Access, choose
from compute.sql.analytics.carriers import Carrier, carrier_of, element_of, from_value
from compute.sql.analytics.leaves import current
from compute.sql.binder import Binder, Parameters, Scope
from compute.sql.catalog import ENCODER_NAMES, ENCODERS, Table
from compute.sql.catalogs import objects
from compute.sql.catalogs.relations import Virtual
from compute.sql.expressions import ColumnRef, Node, ParamSlot
from compute.sql.operators import all_of
from compute.sql.plan import SessionLike
from compute.sql.rowcode import compile_function, start_step
from compute.sql.scan import Source, batches
from compute.sql.types import NUMERIC, TEXT, SqlType
from polarless.errors import Overloaded, PolarlessError
from polarless.kernel import keycode

if TYPE_CHECKING:
    from compute.txn.transaction import Transaction

BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024
CHUNK_ROWS: Final = 16 * 1024
# Rows of another scan whose values are looked at, how many of them are looked up, and how many of
# these one step may do.
LOOKUP_ROWS_MAX: Final = 20_000
LOOKUPS_MAX: Final = 2000
LOOKUPS_PER_STEP: Final = 300
# A value in a list and in an array, beside the bytes of its text.
VALUE_BYTES: Final = 24

Collect = Callable[[Any, Any, Any, list[list[Any]]], int]


class Budget:
    """The bytes that the scans of one statement may keep."""

    def __init__(self) -> None:
        self.byte_count = 0

    def add(self, byte_count: int) -> None:
        """Raises `Overloaded`."""
        self.byte_count += byte_count
        if self.byte_count > BUFFER_BYTES_MAX:
            raise Overloaded(
                f"the tables' columns in this query exceed {BUFFER_BYTES_MAX} bytes",
                hint="Narrow each table with WHERE, or select fewer columns.",
            )


class Lookup(NamedTuple):
    """``column`` of a scan equals a column of another one in every row that can count."""

    column: int
    source: Scan
    source_column: int


class Scan:
    """See the module's docstring. ``name`` is the table's name in DuckDB."""

    def __init__(self, name: str, table: Table, alias: str, *, exact: bool) -> None:
        self.name = name
        self.table = table
        self.alias = alias
        # What the query calls it.
        self.place = ""
        self.exact = exact
        self.used: set[int] = set()
        # Trees of conditions on this table alone, from clauses that may narrow it.
        self.conditions: list[Any] = []
        self.access = Access(table)
        # What may make a full scan unnecessary: keys that another scan has read.
        self.lookups: list[Lookup] = []
        # (column, array) of ``column = ANY (array)`` with an array that is known before any row.
        self.key_arrays: list[tuple[int, Node]] = []
        self._array_keys: Callable[[Any, Any], Any] | None = None
        self.virtual: Virtual | None = None
        self._source: Source | None = None
        self._collect: Collect | None = None

    def carrier(self, index: int) -> Carrier:
        """What carries a column."""
        column = self.table.columns[index]
        return carrier_of(column.type, column.typmod, exact=self.exact)

    @property
    def columns(self) -> list[int]:
        """The used columns, or one of them all if only rows are counted."""
        return sorted(self.used) or [0]

    def sql(self) -> str:
        """The table as a relation of DuckDB: its columns with their types."""
        if not self.table.columns:
            return f"(SELECT * FROM {self.name})"
        parts = [f"CAST(c{i} AS {self.carrier(i).sql}) AS c{i}" for i in self.columns]
        return f"(SELECT {', '.join(parts)} FROM {self.name})"

    def describe(self) -> str:
        """For EXPLAIN."""
        if self.virtual is not None:
            return f"Catalog Scan on {self.table.name}"
        shown = self.access.describe()
        if self._array_keys is not None:
            shown = f"Primary Key Lookups on {self.table.name}"
        return shown if self.alias == self.table.name else f"{shown} {self.alias}"

    def settle(self, parameters: Parameters, text: str) -> None:
        """Everything is bound: choose the way to the rows."""
        if self.virtual is not None:
            return
        binder = Binder(Scope(self.table, self.alias), parameters, text)
        nodes = []
        for tree in self.conditions:
            try:
                nodes.append(binder.condition(tree, "WHERE"))
            except PolarlessError:
                # DuckDB will apply it, or has been refused it already.
                continue
        self.access = choose(self.table, all_of(nodes) if nodes else None)
        self.lookups = [found for found in self.lookups if self._can_look_up(found)]

    def _can_look_up(self, found: Lookup) -> bool:
        """Whether the column leads the key, and its values are such as the other scan gives."""
        return self._leads(found.column, found.source.table.columns[found.source_column].type)

    def _leads(self, column: int, kind: SqlType) -> bool:
        """Whether values of a type are keys, or their beginnings, in a column."""
        key = self.table.primary_key
        if self.access.is_bounded or not key or key[0] != column:
            return False
        mine = self.table.columns[column].type.family
        return mine == kind.family and mine in ("int", "text", "date", "time")

    def keys_of_array(self, session: SessionLike, values: Any) -> list[Any] | None:
        """The values that ``= ANY (array)`` leaves; None if there are too many, or no array."""
        if self._array_keys is None:
            return None
        array = self._array_keys(session, values)
        found = {item for item in array or () if item is not None and not isinstance(item, list)}
        return sorted(found) if len(found) <= LOOKUPS_MAX else None

    def keys_of(self, found: Lookup, arrays: Mapping[str, Any]) -> list[Any] | None:
        """The values to look up in a scan that was read; None if there are too many."""
        array = arrays[f"c{found.source_column}"]
        if len(array) > LOOKUP_ROWS_MAX:
            return None
        values = {value for value in array.tolist() if value is not None}
        return sorted(values) if len(values) <= LOOKUPS_MAX else None

    def compile(self, slots: list[ParamSlot]) -> None:
        """Make the code that reads; once the parameters' types are known."""
        if self.virtual is not None:
            return
        self._source = Source(self.access, None, slots)
        for place, array in self.key_arrays:
            element = element_of(array.type)
            if element is not None and self._leads(place, element):
                keys = start_step(slots)
                keys.line(f"return {array.emit(keys)}")
                self._array_keys = compile_function("keys", "session, P", keys)
        out = start_step(slots)
        out.line("size = 0")
        for position in range(len(self.columns)):
            out.line(f"add{position} = lists[{position}].append")
        out.line("for key, payload in batch:")
        out.indent += 1
        out.line("r = unpack(payload)")
        for node in self.access.rest:
            out.line(f"if {node.emit(out)} is not True: continue")
        out.line("size += len(payload)")
        for position, index in enumerate(self.columns):
            if index >= len(self.table.columns):
                out.line(f"add{position}(None)")
                continue
            column = self.table.columns[index]
            # A numeric is stored as its text, which is what DuckDB is given.
            kind = TEXT if column.type is NUMERIC else column.type
            node = ColumnRef(
                self.table.name, column.name, index, kind, -1, nullable=not column.not_null
            )
            value = node.emit(out)
            converter = None if column.type is NUMERIC else from_value(self.carrier(index))
            if converter is not None:
                out.names[f"give{position}_"] = converter
                value = f"None if {value} is None else give{position}_({value})"
            out.line(f"add{position}({value})")
        out.indent -= 1
        out.line("return size")
        self._collect = compile_function("collect", "session, P, batch, lists", out)

    async def read(
        self, session: SessionLike, values: Any, txn: Transaction, budget: Budget
    ) -> dict[str, Any]:
        """The columns as arrays, over many turns of the loop."""
        assert self._source is not None and self._collect is not None
        columns = self.columns
        columns_of = Columns([self.carrier(i) for i in columns] if self.table.columns else [_ANY])
        collect = self._collect
        async for batch in batches(self._source.cursor(session, values), txn, session):
            lists = columns_of.lists
            before = len(lists[0])
            size = collect(session, values, batch, lists)
            budget.add(size + (len(lists[0]) - before) * VALUE_BYTES * len(columns))
            columns_of.pack()
        arrays = columns_of.arrays()
        return {f"c{index}": array for index, array in zip(columns, arrays)}

    async def look_up(
        self, session: SessionLike, values: Any, txn: Transaction, budget: Budget, keys: list[Any]
    ) -> dict[str, Any]:
        """As `read`, but only the rows whose key begins with one of ``keys``."""
        assert self._collect is not None
        table, columns = self.table, self.columns
        gathered = Columns([self.carrier(index) for index in columns])
        encode = ENCODERS[ENCODER_NAMES[table.columns[table.primary_key[0]].type.family]]
        whole = len(table.primary_key) == 1
        for number, value in enumerate(keys, 1):
            key = value if table.tree.int_keys else encode(value)
            rows: list[tuple[Any, Any]] = []
            if whole:
                payload = await retried(partial(txn.get, table.tree, key))
                if payload is not None:
                    rows.append((key, payload))
            else:
                position: Any = None
                end = keycode.prefix_end(key)
                while True:
                    part, position = await retried(
                        partial(txn.batch, table.tree, key, end, after=position)
                    )
                    rows += part
                    if position is None:
                        break
            before = len(gathered.lists[0])
            size = self._collect(session, values, rows, gathered.lists)
            budget.add(size + (len(gathered.lists[0]) - before) * VALUE_BYTES * len(columns))
            gathered.pack()
            if number % LOOKUPS_PER_STEP == 0:
                await session.engine.clock.sleep(0)
        return {f"c{index}": array for index, array in zip(columns, gathered.arrays())}

    def made(self, session: SessionLike, budget: Budget) -> dict[str, Any]:
        """The columns of a relation of the catalogs; `current` is set."""
        virtual, columns = self.virtual, self.columns
        assert virtual is not None
        gathered = Columns([self.carrier(index) for index in columns])
        converters = [from_value(self.carrier(index)) for index in columns]
        for row in virtual.rows(objects.of(current), session, columns):
            budget.add(VALUE_BYTES * len(row))
            for values, value, converter in zip(gathered.lists, row, converters):
                values.append(value if value is None or converter is None else converter(value))
        return {f"c{index}": array for index, array in zip(columns, gathered.arrays())}


async def retried(step: Callable[[], Any]) -> Any:
    """Call something that may raise a `Suspend`, until it does not."""
    while True:
        try:
            return step()
        except Suspend as suspend:
            waiting = suspend
        await resumed(waiting)


_ANY: Final = Carrier("INTEGER", "int")


class Columns:
    """Lists of values that become arrays of DuckDB, a chunk at a time."""

    def __init__(self, carriers: list[Carrier]) -> None:
        self._carriers = carriers
        self.lists: list[list[Any]] = [[] for _ in carriers]
        self._chunks: list[list[Any]] = [[] for _ in carriers]

    def pack(self, *, all_: bool = False) -> None:
        """Turn what has gathered into arrays, if it is worth it."""
        if not all_ and len(self.lists[0]) < CHUNK_ROWS:
            return
        for values, carrier, chunks in zip(self.lists, self._carriers, self._chunks):
            chunks.append(to_array(values, carrier))
            values.clear()

    def arrays(self) -> list[Any]:
        """One array per column."""
        self.pack(all_=True)
        result = []
        for chunks in self._chunks:
            if len(chunks) == 1:
                result.append(chunks[0])
                continue
            mixed = len({chunk.dtype.kind for chunk in chunks}) > 1
            if mixed:
                chunks = [
                    chunk if chunk.dtype.kind == "O" else _as_texts(chunk) for chunk in chunks
                ]
            if any(isinstance(chunk, np.ma.MaskedArray) for chunk in chunks):
                result.append(np.ma.concatenate(chunks))  # type: ignore[no-untyped-call]
            else:
                result.append(np.concatenate(chunks))
        return result


_KINDS: Final = {
    "SMALLINT": "int16", "INTEGER": "int32", "BIGINT": "int64", "DOUBLE": "float64",
    "BOOLEAN": "bool",
}  # fmt: skip


def to_array(values: list[Any], carrier: Carrier) -> Any:
    """Values of a column, None for NULL, as DuckDB takes them."""
    kind = _KINDS.get(carrier.sql)
    if kind is None:
        array = np.empty(len(values), dtype=object)
        # Assigning a list of lists would make a table of it.
        if carrier.kind == "list":
            for index, value in enumerate(values):
                array[index] = value
        else:
            array[:] = values
        return array
    if kind == "float64" and any(value != value for value in values):
        # DuckDB takes a NaN of numpy's for NULL; a text it reads as what it says.
        array = np.empty(len(values), dtype=object)
        array[:] = [None if value is None else repr(value) for value in values]
        return array
    if None not in values:
        return np.array(values, dtype=kind)
    mask = [value is None for value in values]
    return np.ma.array([0 if v is None else v for v in values], dtype=kind, mask=mask)


def _as_texts(numbers: Any) -> Any:
    """An array of floats as that of a chunk with NaN."""
    array = np.empty(len(numbers), dtype=object)
    array[:] = [None if value is None else repr(value) for value in numbers.tolist()]
    return array
