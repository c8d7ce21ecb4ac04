"""Runs an analytic statement: scan, hand over, fetch, encode.

    slot in line -> constants -> each scan's columns -> DuckDB in a thread -> rows, 1000 at a time

A query whose DECIMALs overflow is built once more with numerics as exact text, and that is what is
kept for the next run.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from compute.sql.analytics.carriers import Carrier, from_value, to_value
from compute.sql.analytics.engine import Engine, Job, NeedsExact, Rows
from compute.sql.analytics.leaves import Leaf, current
from compute.sql.analytics.lower import SLOT
from compute.sql.analytics.query import Builder, Piece, Query, finished
from compute.sql.analytics.scans import Budget, Lookup, Scan, retried
from compute.sql.analytics.sources import scan_mark
from compute.sql.binder import Parameters
from compute.sql.catalog import Catalog
from compute.sql.expressions import Local, Node, ParamSlot
from compute.sql.plan import Bound, Params, Plan, RowSink, SessionLike
from compute.sql.roles import Access
from compute.sql.rowcode import (
    compile_function,
    describe,
    emit_row,
    param_decoder,
    start_step,
)
from compute.sql.select import Output
from compute.sql.types import UNKNOWN
from polarless.errors import Overloaded

if TYPE_CHECKING:
    from compute.txn.transaction import Transaction

FETCH_ROWS: Final = 1000
# Changes the columns of a query once it is bound.
Shape = Callable[[Builder, Piece], Piece]


class Statement:
    """A query in DuckDB's SQL with its scans, constants and functions."""

    def __init__(
        self, engine: Engine, tree: Any, catalog: Catalog, parameters: Parameters, text: str,
        *, exact: bool, shape: Shape | None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.catalog = catalog
        builder = Builder(catalog, parameters, text, exact=exact)
        piece = builder.piece(tree, None)
        self.query: Query = finished(builder, piece if shape is None else shape(builder, piece))
        self.scans = builder.scans
        self.low = builder.low
        self.exact = exact
        self._parameters = parameters
        self._text = text
        self.constants: Callable[[Any, Any], tuple[Any, ...]] | None = None
        self.sql = ""
        names = [function.name for function in self.low.functions]
        if names:
            weakref.finalize(self, engine.stale.extend, names)

    def settle(self) -> None:
        """All parameters have their types: make the code."""
        sql = self.query.sql
        slots = self._parameters.slots
        for scan in self.scans:
            scan.settle(self._parameters, self._text)
        self._parameters.settle()
        for scan in self.scans:
            scan.compile(slots)
            sql = sql.replace(scan_mark(scan), scan.sql())
        used: dict[int, int] = {}
        self.sql = SLOT.sub(lambda found: f"${used.setdefault(int(found[1]), len(used) + 1)}", sql)
        wanted = [self.low.constants[index] for index in used]
        self.constants = _constants(wanted, slots)


def _constants(
    wanted: list[tuple[Node, Carrier]], slots: list[ParamSlot]
) -> Callable[[Any, Any], Any]:
    out = start_step(slots)
    sources = []
    for index, (node, carrier) in enumerate(wanted):
        source = node.emit(out)
        converter = from_value(carrier)
        if converter is not None:
            out.names[f"give{index}_"] = converter
            source = f"(None if {source} is None else give{index}_({source}))"
        sources.append(source)
    out.line(f"return ({', '.join(sources)}{',' if sources else ''})")
    return compile_function("constants", "session, P", out)


class Analytic:
    """One statement of the planner's: built at once, and again as exact if need be."""

    def __init__(
        self,
        engine: Engine,
        tree: Any,
        catalog: Catalog,
        parameters: Parameters,
        text: str,
        *,
        shape: Shape | None = None,
    ) -> None:
        self.engine = engine
        self.parameters = parameters
        self._source = (tree, catalog, text)
        self._shape = shape
        self.statement = self._make(exact=False)

    def settle(self) -> None:
        """All parameters of the statement around this query are known."""
        if self.statement.constants is None:
            self.statement.settle()

    def _make(self, *, exact: bool) -> Statement:
        tree, catalog, text = self._source
        return Statement(
            self.engine, tree, catalog, self.parameters, text, exact=exact, shape=self._shape
        )

    @property
    def columns(self) -> tuple[Any, ...]:
        """For RowDescription."""
        query = self.statement.query
        return tuple(describe(name, leaf) for name, leaf in zip(query.names, query.leaves))

    def make_exact(self) -> Statement:
        """Numerics as text from now on."""
        if not self.statement.exact:
            self.statement = self._make(exact=True)
            self.statement.settle()
        return self.statement

    async def chunks(
        self,
        session: SessionLike,
        values: Any,
        txn: Transaction,
        encoder: Callable[[Statement], Callable[[list[Any]], Any]],
    ) -> AsyncGenerator[Any, None]:
        """What the encoder makes of each list of rows."""
        statement = self.statement
        async with self.engine.slot():
            sent = False
            while True:
                try:
                    async with aclosing(
                        _run(self.engine, statement, session, values, txn, encoder(statement))
                    ) as found:
                        async for chunk in found:
                            sent = True
                            yield chunk
                    return
                except NeedsExact:
                    if sent or statement.exact:
                        raise Overloaded(
                            "a numeric of this query has too many digits",
                            hint="Round it to fewer digits.",
                        ) from None
                    statement = self.make_exact()


async def _run(
    engine: Engine,
    statement: Statement,
    session: SessionLike,
    values: Any,
    txn: Transaction,
    encode: Callable[[list[Any]], Any],
) -> AsyncGenerator[Any, None]:
    assert statement.constants is not None
    budget = Budget()
    tables: dict[str, dict[str, Any]] = {}
    pending = [scan for scan in statement.scans if scan.virtual is None]
    while pending:
        scan, lookup = _next_scan(pending, tables)
        pending.remove(scan)
        keys = scan.keys_of_array(session, values)
        if keys is None and lookup is not None:
            keys = scan.keys_of(lookup, tables[lookup.source.name])
        if keys is None:
            tables[scan.name] = await scan.read(session, values, txn, budget)
        else:
            tables[scan.name] = await scan.look_up(session, values, txn, budget, keys)
    access = await _access(session)
    # No await from here on: other statements of this thread have their own.
    current.set(session, statement.catalog, access)
    try:
        constants = statement.constants(session, values)
        for scan in statement.scans:
            if scan.virtual is not None and scan.virtual.live:
                tables[scan.name] = scan.made(session, budget)
    finally:
        current.clear()

    def more() -> dict[str, dict[str, Any]]:
        return {
            scan.name: scan.made(session, budget)
            for scan in statement.scans
            if scan.virtual is not None and not scan.virtual.live
        }

    job = Job(
        statement.sql,
        constants,
        tables,
        more,
        statement.low.functions,
        session,
        statement.catalog,
        access,
    )
    async with engine.run(job) as rows:
        del tables
        while True:
            chunk = await _next(rows, encode)
            if chunk is None:
                return
            yield chunk


async def _access(session: Any) -> Access:
    """Roles and grants, for the catalogs. There are none where there is no server, in tests."""
    host = getattr(session, "host", None)
    if host is None:
        return Access()
    found: Access = await retried(host.access.current)
    return found


def _next_scan(pending: list[Scan], tables: Mapping[str, Any]) -> tuple[Scan, Lookup | None]:
    """Narrow scans first, then those whose keys another one has read."""
    for scan in pending:
        if scan.access.is_bounded or scan.key_arrays:
            return scan, None
    for scan in pending:
        for lookup in scan.lookups:
            if lookup.source.name in tables:
                return scan, lookup
    for scan in pending:
        if not scan.lookups or scan.conditions:
            return scan, None
    return pending[0], None


async def _next(rows: Rows, encode: Callable[[list[Any]], Any]) -> Any:
    return await rows.fetch(encode, FETCH_ROWS)


# ------------------------------------------------------------------------------------------- rows


def row_encoder(leaves: list[Leaf], results: tuple[int, ...]) -> Callable[[list[Any]], Any]:
    """From DuckDB's rows to DataRow messages: (how many, bytes)."""
    out = start_step([])
    out.line("found = []")
    out.line("append = found.append")
    out.line("for row in rows:")
    out.indent += 1
    sources = []
    for index, leaf in enumerate(leaves):
        source = f"row[{index}]"
        converter = to_value(leaf.carrier)
        if converter is not None:
            out.names[f"take{index}_"] = converter
            name = out.temp()
            out.line(f"{name} = None if {source} is None else take{index}_({source})")
            source = name
        sources.append(source)
    nodes = []
    for source, leaf in zip(sources, leaves):
        node = Local(source, leaf.type, leaf.typmod)
        node.pad = leaf.pad
        nodes.append(node)
    out.line(f"append({emit_row(out, sources, list(nodes), results)})")
    out.indent -= 1
    out.names["join"] = b"".join
    out.line("return len(found), join(found)")
    return compile_function("encode", "rows", out)


def tuple_reader(leaves: list[Leaf]) -> Callable[[list[Any]], Any]:
    """From DuckDB's rows to tuples of our values: INSERT ... SELECT."""
    out = start_step([])
    parts = []
    for index, leaf in enumerate(leaves):
        converter = to_value(leaf.carrier)
        source = f"row[{index}]"
        if converter is not None:
            out.names[f"take{index}_"] = converter
            source = f"(None if {source} is None else take{index}_({source}))"
        parts.append(source)
    out.line(f"return [({', '.join(parts)}{',' if parts else ''}) for row in rows]")
    return compile_function("tuples", "rows", out)


class AnalyticBound(Bound):
    """An analytic statement with its formats."""

    __slots__ = ("_analytic", "_decode", "_encoders")

    def __init__(
        self, plan: Plan, analytic: Analytic, params: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        super().__init__(plan, results, None)
        self._analytic = analytic
        self._decode = param_decoder(analytic.parameters.slots, params)
        self._encoders: dict[bool, Callable[[list[Any]], Any]] = {}

    def _encoder(self, statement: Statement) -> Callable[[list[Any]], Any]:
        found = self._encoders.get(statement.exact)
        if found is None:
            found = row_encoder(statement.query.leaves, self.result_formats)
            self._encoders[statement.exact] = found
        return found

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        txn = session.txn
        assert txn is not None
        values = self._decode(params)
        count = 0
        async with aclosing(self._analytic.chunks(session, values, txn, self._encoder)) as chunks:
            async for number, data in chunks:
                count += number
                await sink.rows(data)
        return f"SELECT {count}"


class AnalyticSource:
    """A query whose rows go into a table: what `compute.sql.write` takes in place of a `Select`."""

    access = None

    def __init__(self, analytic: Analytic) -> None:
        query = analytic.statement.query
        self._analytic = analytic
        self._readers: dict[bool, Callable[[list[Any]], Any]] = {}
        self.outputs = [
            Output(name, Local("?", UNKNOWN) if index in query.untyped else leaf)
            for index, (name, leaf) in enumerate(zip(query.names, query.leaves))
        ]

    def _reader(self, statement: Statement) -> Callable[[list[Any]], Any]:
        found = self._readers.get(statement.exact)
        if found is None:
            found = self._readers[statement.exact] = tuple_reader(statement.query.leaves)
        return found

    async def entries(
        self, session: SessionLike, values: Any, txn: Transaction
    ) -> AsyncGenerator[list[Any], None]:
        """The rows as tuples of values, in lists."""
        self._analytic.settle()
        async with aclosing(self._analytic.chunks(session, values, txn, self._reader)) as chunks:
            async for found in chunks:
                yield found


def plan_analytic(
    engine: Engine,
    tree: Any,
    catalog: Catalog,
    parameters: Parameters,
    text: str,
    version: int,
) -> Plan:
    """The plan of a query for DuckDB. Raises what is wrong with it."""
    analytic = Analytic(engine, tree, catalog, parameters, text)
    analytic.settle()
    return Plan(
        "query",
        parameters.settle(),
        analytic.columns,
        version,
        verb="SELECT",
        binder=lambda plan, params, results: AnalyticBound(plan, analytic, params, results),
    )


__all__ = ["Analytic", "AnalyticBound", "AnalyticSource", "plan_analytic", "tuple_reader"]
