"""Statements with parts that change or lock rows: they run first, and their rows take their place.

    WITH gone AS (DELETE ... RETURNING ...) SELECT ... FROM gone
    UPDATE jobs ... WHERE id = (SELECT id FROM jobs ... LIMIT 1 FOR UPDATE SKIP LOCKED)

Each part is a statement of its own, in the order in which they are written; what it gives stands as
VALUES in the parts behind it and in the statement around them. In PostgreSQL none of the parts sees
what another one has changed. Here it would, so a statement that reads a table that it changes in
WITH is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql.analytics.scans import retried
from compute.sql.dialect import DIALECT
from compute.sql.mistakes import not_supported
from compute.sql.plan import Bound, Column, Params, Plan, RowSink, SessionLike
from compute.sql.select import arg
from compute.sql.types import BY_OID, TEXT, UNKNOWN, display
from polarless.errors import Overloaded

if TYPE_CHECKING:
    from compute.sql.planner import Planner

_CHANGES: Final = (exp.Insert, exp.Update, exp.Delete)
ROWS_BYTES_MAX: Final = 16 * 1024 * 1024
_MARK: Final = "polarless_part"


@dataclass(slots=True)
class Part:
    """One part: its statement, where parts before it are marked, and its columns."""

    text: str
    columns: tuple[Column, ...] = ()


def wanted(tree: Any) -> bool:
    """Whether a statement has such parts."""
    with_ = arg(tree, "with")
    if with_ is not None and any(isinstance(cte.this, _CHANGES) for cte in with_.expressions):
        return True
    return any(
        lock.parent is not tree and not isinstance(lock.parent, exp.SetOperation)
        for lock in tree.find_all(exp.Lock)
    )


class Prelude:
    """A statement, taken apart."""

    def __init__(self, tree: Any) -> None:
        self.parts: list[Part] = []
        _check_reads(tree)
        self.tree = tree.copy()
        self._take_ctes()
        for lock in list(self.tree.find_all(exp.Lock)):
            select = lock.find_ancestor(exp.Select)
            if select is not None and select is not self.tree:
                self._take(select, select)
        self.final = self.tree.sql(dialect=DIALECT)

    def _take_ctes(self) -> None:
        with_ = arg(self.tree, "with")
        before: list[Any] = []
        for cte in list(with_.expressions) if with_ is not None else ():
            inner = cte.this
            locks = isinstance(inner, exp.Select) and inner.args.get("locks")
            if isinstance(inner, _CHANGES) or locks:
                whole = inner.copy()
                if before:
                    whole.set("with_", exp.With(expressions=[found.copy() for found in before]))
                self._take(inner, whole)
            before.append(cte)

    def _take(self, node: Any, whole: Any) -> None:
        """``node`` becomes a mark in the statement around it; ``whole`` is what runs."""
        if node.find_ancestor(exp.Select, exp.Update, exp.Delete, exp.Insert) is None:
            raise not_supported("this place for FOR UPDATE")
        self.parts.append(Part(whole.sql(dialect=DIALECT)))
        mark = exp.select("*").from_(exp.to_table(f"{_MARK}_{len(self.parts) - 1}"))
        node.replace(mark)


def _check_reads(tree: Any) -> None:
    changed: dict[str, Any] = {}
    with_ = arg(tree, "with")
    for cte in with_.expressions if with_ is not None else ():
        if isinstance(cte.this, _CHANGES):
            target = _target(cte.this)
            if target is not None:
                changed[target.name.lower()] = target
    own = {id(found) for found in changed.values()}
    if isinstance(tree, exp.Insert) and tree.args.get("conflict") is None:
        own.add(id(_target(tree)))
    for table in tree.find_all(exp.Table):
        if table.name.lower() in changed and id(table) not in own:
            raise not_supported(
                "reading a table in the statement that changes it in WITH",
                hint="Use two statements, in a transaction.",
            )


def _target(tree: Any) -> Any:
    found = tree.this
    if isinstance(found, exp.Schema):
        found = found.this
    return found if isinstance(found, exp.Table) else None


def _filled(text: str, rows: list[str]) -> str:
    """A statement with the rows of the parts before it."""
    for index, found in enumerate(rows):
        for mark in (f"SELECT * FROM {_MARK}_{index}", f"select * from {_MARK}_{index}"):
            text = text.replace(mark, found)
    return text


def _rows_text(columns: tuple[Column, ...], rows: list[list[str | None]]) -> str:
    """A query that gives these rows."""
    if not columns:
        return "SELECT 1 WHERE FALSE"
    types = [_type(column) for column in columns]
    names = ", ".join(_quoted(column.name) for column in columns)
    if not rows:
        nulls = ", ".join(
            f"CAST(NULL AS {kind}) AS {_quoted(column.name)}"
            for kind, column in zip(types, columns)
        )
        return f"SELECT {nulls} WHERE FALSE"
    lines = (
        "("
        + ", ".join(
            f"CAST({'NULL' if value is None else _literal(value)} AS {kind})"
            for value, kind in zip(row, types)
        )
        + ")"
        for row in rows
    )
    return f"SELECT * FROM (VALUES {', '.join(lines)}) AS polarless_rows({names})"


def _type(column: Column) -> str:
    kind = BY_OID.get(column.oid, TEXT)
    return display(TEXT if kind is UNKNOWN else kind, column.typmod)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


class _Kept:
    """The rows of a part, as texts."""

    def __init__(self) -> None:
        self.found: list[list[str | None]] = []
        self._byte_count = 0

    async def rows(self, data: bytes) -> None:
        """Take DataRows. Raises 53200 beyond the bound."""
        self._byte_count += len(data)
        if self._byte_count > ROWS_BYTES_MAX:
            raise Overloaded(
                f"a part of this statement gives more than {ROWS_BYTES_MAX} bytes",
                hint="Let it change fewer rows.",
            )
        self.take(data)

    def take(self, data: bytes) -> bytes:
        """The DataRows at the beginning; returns what is behind them."""
        position = 0
        while data[position : position + 1] == b"D":
            end = position + 1 + int.from_bytes(data[position + 1 : position + 5], "big")
            row: list[str | None] = []
            place = position + 7
            while place < end:
                size = int.from_bytes(data[place : place + 4], "big", signed=True)
                place += 4
                row.append(None if size < 0 else data[place : place + size].decode())
                place += max(size, 0)
            self.found.append(row)
            position = end
        return data[position:]


class PreludeBound(Bound):
    """A statement with its parts, and formats."""

    __slots__ = ("_formats", "_oids", "_planner", "_prelude")

    def __init__(
        self,
        plan: Plan,
        planner: Planner,
        prelude: Prelude,
        oids: tuple[int, ...],
        params: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        super().__init__(plan, results, None)
        self._planner = planner
        self._prelude = prelude
        self._oids = oids
        self._formats = params

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        known: list[str] = []
        for part in self._prelude.parts:
            kept = _Kept()
            await self._run(session, _filled(part.text, known), params, (), kept)
            known.append(_rows_text(part.columns, kept.found))
        text = _filled(self._prelude.final, known)
        return await self._run(session, text, params, self.result_formats, sink)

    async def _run(
        self, session: SessionLike, text: str, params: Params, results: tuple[int, ...], sink: Any
    ) -> str:
        txn = session.txn
        assert txn is not None

        def step() -> tuple[Bound, Any, bytes | None]:
            plan = self._planner.prepare(session, text, self._oids)
            count = len(plan.parameter_oids)
            formats = self._formats
            bound = plan.bind(formats if len(formats) < 2 else formats[:count], results)
            values = params[:count]
            mark = txn.savepoint()
            try:
                return bound, values, bound.run(session, values) if plan.fast else None
            except BaseException:
                txn.rollback_to(mark)
                raise

        bound, values, data = await retried(step)
        if data is None:
            tag: str = await bound.rows(session, values, sink)
            return tag
        rows, own_tag = _split(data)
        if rows:
            await sink.rows(rows)
        return own_tag


def _split(data: bytes) -> tuple[bytes, str]:
    """DataRows, and the tag of the CommandComplete behind them."""
    position = 0
    while data[position : position + 1] == b"D":
        position += 1 + int.from_bytes(data[position + 1 : position + 5], "big")
    return data[:position], data[position + 5 : -1].decode()


def plan_prelude(planner: Planner, session: SessionLike, tree: Any, oids: tuple[int, ...]) -> Plan:
    """The plan of a statement with parts. Raises what is wrong with one of them."""
    prelude = Prelude(tree)
    known: list[str] = []
    types: dict[int, int] = {}

    def prepared(text: str) -> Plan:
        plan = planner.prepare(session, text, oids)
        for index, oid in enumerate(plan.parameter_oids):
            if f"${index + 1}" in text:
                types.setdefault(index, oid)
        return plan

    for part in prelude.parts:
        part.columns = prepared(_filled(part.text, known)).columns
        known.append(_rows_text(part.columns, []))
    final = prepared(_filled(prelude.final, known))
    count = max([len(oids), *(index + 1 for index in types)], default=0)
    settled = tuple(types.get(i, oids[i] if i < len(oids) else TEXT.oid) for i in range(count))
    return Plan(
        "write" if isinstance(tree, _CHANGES) else "query",
        settled,
        final.columns,
        planner.engine.catalog_version,
        writes=True,
        verb=final.verb,
        binder=lambda plan, params, results: PreludeBound(
            plan, planner, prelude, settled, params, results
        ),
    )
