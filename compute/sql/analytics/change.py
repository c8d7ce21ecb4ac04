"""UPDATE and DELETE whose rows a query finds: FROM, USING, subqueries, WITH.

    UPDATE t SET x = o.y FROM o WHERE o.id = t.id

becomes a query for the keys and the new values, and for each of its rows the statement

    UPDATE t SET x = $1 WHERE id = $2 AND x IS NOT DISTINCT FROM $3 AND ...

which is our own executor's, with all that it checks. The query is read to its end of the tables
before the first row is written, so a statement never sees what it has done itself. The last part
are the columns that the query has looked at: if another transaction has changed one of them since
the snapshot, no row is found, and the statement ends with 40001 instead of writing what was
computed of values that are no more. A row that several others match is changed once.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql.analytics.engine import Engine
from compute.sql.analytics.leaves import Leaf
from compute.sql.analytics.query import Builder, Piece
from compute.sql.analytics.run import Analytic, Statement, tuple_reader
from compute.sql.analytics.scans import Scan, retried
from compute.sql.binder import Parameters
from compute.sql.casts import ASSIGNMENT, can_cast, cast
from compute.sql.catalog import Catalog, Table
from compute.sql.catalogs.objects import quote
from compute.sql.expressions import Node
from compute.sql.mistakes import not_supported, unknown_column
from compute.sql.plan import LITERAL_FORMAT, Bound, Params, Plan, RowSink, SessionLike
from compute.sql.rowcode import param_decoder
from compute.sql.select import Output, arg, find_table
from compute.sql.syntax import identifier
from compute.sql.types import TEXT_OUTPUT, display
from polarless.errors import CallerMistake, Conflict

if TYPE_CHECKING:
    from compute.sql.planner import Planner

# Columns of these are compared with what the query has seen.
_COMPARED: Final = frozenset({"int", "text", "bool", "time", "date", "bytea", "numeric"})
_ROWS_PER_STEP: Final = 200


def by_query(tree: Any) -> bool:
    """Whether an UPDATE or DELETE names more than its own table."""
    more = arg(tree, "from") or tree.args.get("using") or arg(tree, "with")
    return bool(more) or tree.find(exp.Select, exp.SetOperation, exp.Values) is not None


class Change:
    """An UPDATE or DELETE, understood: its query, and the statement for each row."""

    def __init__(
        self, engine: Engine, tree: Any, catalog: Catalog, parameters: Parameters, text: str
    ) -> None:
        if not isinstance(tree.this, exp.Table):
            raise not_supported("this kind of UPDATE or DELETE")
        self.verb = "UPDATE" if isinstance(tree, exp.Update) else "DELETE"
        self.table: Table = find_table(tree.this, catalog)
        if not self.table.primary_key:
            raise not_supported(
                f"{self.verb} by a query of a table without a primary key",
                hint="Give the table a primary key.",
            )
        alias = tree.this.args.get("alias")
        self.alias = identifier(alias.this) if alias is not None else self.table.name
        self._assigned: list[tuple[str, Any]] = []
        self._defaults: list[str] = []
        if self.verb == "UPDATE":
            self._read_assignments(tree)
        self._compared: list[int] = []
        returning = tree.args.get("returning")
        sources = arg(tree, "from") or tree.args.get("using")
        # Columns of other tables that RETURNING names: the query gives them with each row.
        self._others: list[Any] = []
        self._other_types: list[str] = []
        if returning is not None and sources:
            returning = self._with_others(returning, tree, catalog)
        self.analytic = Analytic(
            engine, self._query(tree), catalog, parameters, text, shape=self._shape
        )
        self.analytic.settle()
        self.statement = self._statement(returning)

    def _read_assignments(self, tree: Any) -> None:
        for item in tree.expressions:
            if not isinstance(item, exp.EQ):
                raise not_supported("this kind of assignment")
            left, right = item.this, item.expression
            pairs = [(left, right)]
            if isinstance(left, exp.Tuple) and isinstance(right, (exp.Subquery, exp.Select)):
                right = _split_row(right, len(left.expressions))
            if isinstance(left, exp.Tuple):
                if not isinstance(right, exp.Tuple):
                    raise not_supported("an assignment of a row other than (a, b) = (x, y)")
                pairs = list(zip(left.expressions, right.expressions))
            for column, value in pairs:
                name = identifier(column.args.get("table") or column.this)
                if name not in self.table.index:
                    raise unknown_column(name, self.table.name)
                if isinstance(value, exp.Column) and value.sql().upper() == "DEFAULT":
                    self._defaults.append(name)
                else:
                    self._assigned.append((name, value))

    def _with_others(self, returning: Any, tree: Any, catalog: Catalog) -> Any:
        """RETURNING with parameters in place of other tables' columns, and their types to come."""
        items: list[Any] = []
        for item in returning.expressions:
            star = item if isinstance(item, exp.Star) else getattr(item, "this", None)
            if not isinstance(star, exp.Star):
                items.append(item)
                continue
            qualifier = identifier(item.args["table"]) if isinstance(item, exp.Column) else None
            if qualifier in (None, self.alias):
                items += [self._column(column.name) for column in self.table.columns]
            for source in self._sources(tree):
                if qualifier in (None, _name_of(source)):
                    name, columns = _columns_of(source, catalog)
                    items += [
                        exp.Column(
                            this=exp.to_identifier(column, quoted=True),
                            table=exp.to_identifier(name, quoted=True),
                        )
                        for column in columns
                    ]

        def replace(node: Any) -> Any:
            if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
                return node
            qualifier = identifier(node.args["table"]) if node.args.get("table") else None
            known = identifier(node.this) in self.table.index
            if qualifier == self.alias or (qualifier is None and known):
                return node
            if node not in self._others:
                self._others.append(node.copy())
            return exp.Placeholder(this=str(self._others.index(node)))

        made = []
        for item in items:
            changed = item.copy().transform(replace)
            if isinstance(item, exp.Column) and changed != item:
                changed = exp.alias_(changed, identifier(item.this), quoted=True)
            made.append(changed)
        found = returning.copy()
        found.set("expressions", made)
        return found

    @staticmethod
    def _sources(tree: Any) -> list[Any]:
        source = arg(tree, "from")
        found = [source.this] if source is not None else list(tree.args.get("using") or ())
        return [
            *found,
            *(join.this for item in found for join in item.args.get("joins") or ()),
        ]

    def _query(self, tree: Any) -> Any:
        """The SELECT for keys and values."""
        own = tree.this.copy()
        joins: list[Any] = []
        source = arg(tree, "from")
        sources = [source.this] if source is not None else list(tree.args.get("using") or ())
        for item in sources:
            found = item.copy()
            more = found.args.get("joins") or []
            if isinstance(found, exp.Table):
                found.set("joins", None)
            joins += [exp.Join(this=found), *(more if isinstance(found, exp.Table) else ())]
        columns = [self._column(self.table.columns[i].name) for i in self.table.primary_key]
        values = [value.copy() for _, value in self._assigned]
        others = [column.copy() for column in self._others]
        select = exp.Select(expressions=[*columns, *values, *others])
        select.set("from_", exp.From(this=own))
        select.set("joins", joins)
        if tree.args.get("where") is not None:
            select.set("where", tree.args["where"].copy())
        if arg(tree, "with") is not None:
            select.set("with_", arg(tree, "with").copy())
        return select

    def _column(self, name: str) -> Any:
        return exp.Column(
            this=exp.to_identifier(name, quoted=True),
            table=exp.to_identifier(self.alias, quoted=True),
        )

    def _shape(self, builder: Builder, piece: Piece) -> Piece:
        """The columns of the query: keys, values as their columns take them, what was looked at."""
        keys = len(self.table.primary_key)
        outputs = piece.outputs[:keys]
        for (name, _), output in zip(self._assigned, piece.outputs[keys:]):
            column = self.table.columns[self.table.index[name]]
            if not can_cast(output.node, column.type, strength=ASSIGNMENT):
                raise CallerMistake(
                    f'column "{name}" is of type {display(column.type)} but expression is of type '
                    f"{display(output.node.type)}",
                    sqlstate="42804",
                    hint="You will need to rewrite or cast the expression.",
                )
            node = cast(output.node, column.type, column.typmod, strength=ASSIGNMENT)
            outputs.append(Output(name, node))
        for output in piece.outputs[keys + len(self._assigned) :]:
            self._other_types.append(display(output.node.type, output.node.typmod))
            outputs.append(output)
        scan, place = self._own_scan(builder, outputs[0].node)
        self._compared = [
            index
            for index in sorted(scan.used - set(self.table.primary_key))
            if self.table.columns[index].type.family in _COMPARED
        ]
        for index in self._compared:
            column = self.table.columns[index]
            leaf = Leaf(f"{place}.c{index}", scan.carrier(index), column.type, column.typmod)
            outputs.append(Output(column.name, leaf))
        return Piece(outputs, piece.render)

    def _own_scan(self, builder: Builder, key: Node) -> tuple[Scan, str]:
        """The scan of the table to be changed, and its name in the query."""
        assert isinstance(key, Leaf)
        found = [s for s in builder.scans if s.table is self.table and s.alias == self.alias]
        # The first of FROM is bound before any subquery; WITH comes before it, under other names.
        place = key.sql.partition(".")[0]
        for scan in found:
            if scan.place == place:
                return scan, place
        raise AssertionError(f"no scan of {self.alias} in {place}")

    def _statement(self, returning: Any) -> str:
        """The text of the statement for one row; its parameters are the query's columns."""
        table = self.table
        name = f"{quote(table.schema)}.{quote(table.name)} AS {quote(self.alias)}"
        keys = [quote(table.columns[i].name) for i in table.primary_key]
        before = len(keys) + len(self._assigned)
        width = before + len(self._others)
        where = [f"{key} = ${i}" for i, key in enumerate(keys, 1)]
        where += [
            f"{quote(table.columns[index].name)} IS NOT DISTINCT FROM ${width + i}"
            for i, index in enumerate(self._compared, 1)
        ]
        tail = f" WHERE {' AND '.join(where)}"
        if returning is not None:
            tail += f" {self._returning_text(returning, before)}"
        if self.verb == "DELETE":
            return f"DELETE FROM {name}{tail}"
        sets = [
            f"{quote(column)} = ${len(keys) + i}" for i, (column, _) in enumerate(self._assigned, 1)
        ]
        sets += [f"{quote(column)} = DEFAULT" for column in self._defaults]
        return f"UPDATE {name} SET {', '.join(sets)}{tail}"

    def _returning_text(self, returning: Any, before: int) -> str:
        def number(node: Any) -> Any:
            if not isinstance(node, exp.Placeholder) or not str(node.this or "").isdigit():
                return node
            place = int(node.this)
            return exp.Cast(
                this=exp.Parameter(this=exp.Literal.number(before + place + 1)),
                to=exp.DataType.build(self._other_types[place], dialect="postgres"),
            )

        return str(returning.transform(number).sql(dialect="postgres").strip())


def _split_row(source: Any, count: int) -> Any:
    """(SELECT x, y ...) as a row of subqueries of one column."""
    while isinstance(source, exp.Subquery):
        source = source.this
    if not isinstance(source, exp.Select) or any(s.is_star for s in source.expressions):
        raise not_supported("an assignment of this kind of row")
    if len(source.expressions) != count:
        raise CallerMistake("number of columns does not match number of values", sqlstate="42601")
    parts = []
    for expression in source.expressions:
        single = source.copy()
        single.set("expressions", [expression.copy()])
        parts.append(exp.Subquery(this=single))
    return exp.Tuple(expressions=parts)


def _name_of(source: Any) -> str:
    alias = source.args.get("alias")
    if alias is not None and alias.this is not None:
        return identifier(alias.this)
    return identifier(source.this) if isinstance(source.this, exp.Identifier) else ""


def _columns_of(source: Any, catalog: Catalog) -> tuple[str, list[str]]:
    """The name of an item of FROM, and its columns. Raises 0A000 where these are not plain."""
    alias = source.args.get("alias")
    name = identifier(alias.this) if alias is not None and alias.this is not None else ""
    columns = [identifier(found) for found in (alias.args.get("columns") or ())] if alias else []
    if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not columns:
        table = find_table(source, catalog)
        return name or table.name, [column.name for column in table.columns]
    if not name or not columns:
        raise not_supported("RETURNING * of a query", hint="Write the names of the columns.")
    return name, columns


class ChangeBound(Bound):
    """A change with its formats."""

    __slots__ = ("_change", "_decode", "_planner", "_readers")

    def __init__(
        self,
        plan: Plan,
        planner: Planner,
        change: Change,
        params: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        super().__init__(plan, results, None)
        self._planner = planner
        self._change = change
        self._decode = param_decoder(change.analytic.parameters.slots, params)
        self._readers: dict[bool, Any] = {}

    def _reader(self, statement: Statement) -> Any:
        found = self._readers.get(statement.exact)
        if found is None:
            found = self._readers[statement.exact] = tuple_reader(statement.query.leaves)
        return found

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        change, txn = self._change, session.txn
        assert txn is not None
        values = self._decode(params)
        printers = [TEXT_OUTPUT[leaf.type] for leaf in change.analytic.statement.query.leaves]
        count, width = 0, len(change.table.primary_key)
        seen: set[Any] = set()
        async with aclosing(change.analytic.chunks(session, values, txn, self._reader)) as chunks:
            async for found in chunks:
                for number, row in enumerate(found, 1):
                    if row[:width] in seen:
                        continue
                    seen.add(row[:width])
                    texts = [
                        None if value is None else printer(value).decode()
                        for value, printer in zip(row, printers)
                    ]
                    count += await self._change_row(session, texts, sink)
                    if number % _ROWS_PER_STEP == 0:
                        await session.engine.clock.sleep(0)
        return f"{change.verb} {count}"

    async def _change_row(
        self, session: SessionLike, texts: list[str | None], sink: RowSink
    ) -> int:
        planner, txn = self._planner, session.txn
        assert txn is not None

        def step() -> tuple[Bound, bytes | None]:
            # Planned again when the catalog has changed; else it is a look-up.
            plan = planner.prepare(session, self._change.statement)
            bound = plan.bind((LITERAL_FORMAT,) * len(texts), self.result_formats)
            mark = txn.savepoint()
            try:
                return bound, bound.run(session, texts) if plan.fast else None
            except BaseException:
                txn.rollback_to(mark)
                raise

        bound, data = await retried(step)
        if data is None:
            kept = _Kept()
            tag = await bound.rows(session, texts, kept)
            rows = kept.data
        else:
            rows, tag = _split(data)
        if tag.endswith(" 0"):
            raise Conflict(
                "could not serialize access due to concurrent update",
                hint="Run the transaction again.",
            )
        if rows:
            await sink.rows(rows)
        return 1


class _Kept:
    """A sink for the row that one statement returns."""

    def __init__(self) -> None:
        self.data = b""

    async def rows(self, data: bytes) -> None:
        self.data += data


def _split(data: bytes) -> tuple[bytes, str]:
    """DataRows, and the tag of the CommandComplete behind them."""
    position = 0
    while data[position : position + 1] == b"D":
        position += 1 + int.from_bytes(data[position + 1 : position + 5], "big")
    return data[:position], data[position + 5 : -1].decode()


def plan_change(
    planner: Planner,
    session: SessionLike,
    tree: Any,
    catalog: Catalog,
    parameters: Parameters,
    text: str,
) -> Plan:
    """The plan of an UPDATE or DELETE by a query. Raises what is wrong with it."""
    change = Change(planner.duckdb, tree, catalog, parameters, text)
    inner = planner.prepare(session, change.statement)
    return Plan(
        "write",
        parameters.settle(),
        inner.columns,
        inner.catalog_version,
        writes=True,
        verb=change.verb,
        binder=lambda plan, params, results: ChangeBound(plan, planner, change, params, results),
    )


__all__ = ["Change", "by_query", "plan_change"]
