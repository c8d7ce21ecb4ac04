"""SELECT ... FOR UPDATE of a query that DuckDB runs: joins, subqueries in FROM, WITH.

The query gives the keys of the rows that it is made of behind its own columns. All of these are
locked; then it runs again, at a new snapshot where the isolation level has one, and what it gives
now is the answer if all of its rows are locked. If others have come, they are locked too, and so
on, a few times.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql.analytics.aggregates import is_aggregate
from compute.sql.analytics.run import Analytic, Statement, row_encoder, tuple_reader
from compute.sql.analytics.scans import retried
from compute.sql.binder import Parameters, function_name
from compute.sql.catalog import ENCODERS, Catalog, Table, key_expression
from compute.sql.lock_run import try_lock
from compute.sql.mistakes import not_supported
from compute.sql.plan import Bound, Params, Plan, RowSink, SessionLike
from compute.sql.rowcode import param_decoder
from compute.sql.select import arg, find_table
from compute.sql.syntax import identifier
from polarless.errors import CallerMistake, Conflict, Overloaded

if TYPE_CHECKING:
    from compute.sql.planner import Planner

ROUNDS_MAX: Final = 5
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_ROWS_PER_TURN: Final = 200


class Locked:
    """A table whose rows are locked: its keys' place among the query's columns."""

    def __init__(self, table: Table, first: int, mode: str) -> None:
        self.table = table
        self.mode = mode
        self.first = first
        self.last = first + len(table.primary_key)
        names = [f"v[{table.primary_key.index(i)}]" if i in table.primary_key else ""
                 for i in range(len(table.columns))]  # fmt: skip
        self.key: Callable[[Any], Any] = eval(
            f"lambda v: {key_expression(table, names)}", dict(ENCODERS)
        )


class LockingQuery:
    """The query with keys, understood."""

    def __init__(
        self, planner: Planner, tree: Any, catalog: Catalog, parameters: Parameters, text: str
    ) -> None:
        _refuse_groups(tree, text)
        bare = tree.copy()
        locks = bare.args["locks"]
        bare.set("locks", None)
        plain = Analytic(planner.duckdb, bare, catalog, parameters, text)
        self.columns = plain.columns
        self.width = len(self.columns)
        self.tables: list[Locked] = []
        keyed = bare.copy()
        place = self.width
        for table, alias, mode in self._targets(tree, locks, catalog):
            for index in table.primary_key:
                column = exp.Column(
                    this=exp.to_identifier(table.columns[index].name, quoted=True),
                    table=exp.to_identifier(alias, quoted=True),
                )
                keyed.append("expressions", exp.alias_(column, f"polarless_key_{place}"))
                place += 1
            self.tables.append(Locked(table, place - len(table.primary_key), mode))
        skips = any(found.mode == "skip" for found in self.tables)
        # With SKIP LOCKED the next free rows are taken, so LIMIT counts when they are locked.
        self.limit: int | None = None
        limit = keyed.args.get("limit")
        if skips and limit is not None and not keyed.args.get("offset"):
            count = limit.expression
            if isinstance(count, exp.Literal) and not count.is_string:
                self.limit = int(count.name)
                keyed.set("limit", None)
        self.analytic = Analytic(planner.duckdb, keyed, catalog, parameters, text)
        self.analytic.settle()

    def _targets(
        self, tree: Any, locks: list[Any], catalog: Catalog
    ) -> list[tuple[Table, str, str]]:
        """Tables to lock with their aliases and how to wait."""
        source = arg(tree, "from")
        sides = [(source.this, False)] if source is not None else []
        joins = [
            *(tree.args.get("joins") or ()),
            *((source.this.args.get("joins") or ()) if source is not None else ()),
        ]
        for join in joins:
            side = str(join.args.get("side") or "").upper()
            if side in ("RIGHT", "FULL"):
                sides = [(found, True) for found, _ in sides]
            sides.append((join.this, side in ("LEFT", "FULL")))
        ctes = {cte.alias.lower() for cte in (arg(tree, "with") or exp.With()).expressions}
        known: dict[str, tuple[Table, bool]] = {}
        for found, nullable in sides:
            if not isinstance(found, exp.Table) or not isinstance(found.this, exp.Identifier):
                continue
            if not found.args.get("db") and identifier(found.this) in ctes:
                continue
            if catalog.view(identifier(found.this), None) is not None:
                continue
            alias = found.args.get("alias")
            table = find_table(found, catalog)
            label = table.name
            if alias is not None and alias.this is not None:
                label = identifier(alias.this)
            known[label] = (table, nullable)
        modes: dict[str, str] = {}
        for lock in locks:
            what = "FOR UPDATE" if lock.args.get("update") else "FOR SHARE"
            wait = lock.args.get("wait")
            mode = "wait" if wait is None else "nowait" if wait else "skip"
            names = [identifier(target.this) for target in lock.expressions or ()]
            for name in names or known:
                if name not in known:
                    raise CallerMistake(
                        f'relation "{name}" in {what} clause not found in FROM clause',
                        sqlstate="42P01",
                    )
                if known[name][1]:
                    raise CallerMistake(
                        f"{what} cannot be applied to the nullable side of an outer join",
                        sqlstate="0A000",
                    )
                modes[name] = mode
        if not modes:
            raise not_supported("FOR UPDATE of a query without a table")
        found_tables = []
        for name, mode in modes.items():
            table = known[name][0]
            if not table.primary_key:
                raise not_supported(
                    "FOR UPDATE of a query over a table without a primary key",
                    hint="Give the table a primary key.",
                )
            found_tables.append((table, name, mode))
        return found_tables


def _refuse_groups(tree: Any, text: str) -> None:
    """What makes one row of several has no row to lock."""
    found = [
        what
        for name, what in (("distinct", "DISTINCT"), ("group", "GROUP BY"), ("having", "HAVING"))
        if tree.args.get(name)
    ]
    calls = [node for item in tree.expressions for node in item.find_all(exp.Func)]
    over = any(item.find(exp.Window) is not None for item in tree.expressions)
    if over:
        what = "window functions"
    elif found:
        what = f"{found[0]} clause"
    elif any(is_aggregate(function_name(node, text)) for node in calls):
        what = "aggregate functions"
    else:
        return
    raise CallerMistake(f"FOR UPDATE is not allowed with {what}", sqlstate="0A000")


class LockQueryBound(Bound):
    """A locking query with its formats."""

    __slots__ = ("_decode", "_encoders", "_query")

    def __init__(
        self, plan: Plan, query: LockingQuery, params: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        super().__init__(plan, results, None)
        self._query = query
        self._decode = param_decoder(query.analytic.parameters.slots, params)
        self._encoders: dict[bool, Any] = {}

    def _encoder(self, statement: Statement) -> Any:
        found = self._encoders.get(statement.exact)
        if found is None:
            leaves, width = statement.query.leaves, self._query.width
            formats = self.result_formats
            if len(formats) > 1:
                formats = formats[:width]
            encode = row_encoder(leaves[:width], formats)
            read = tuple_reader(leaves[width:])

            def both(rows: list[Any]) -> list[tuple[bytes, Any]]:
                keys = read([row[width:] for row in rows])
                return [(encode([row])[1], key) for row, key in zip(rows, keys)]

            found = self._encoders[statement.exact] = both
        return found

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        query, txn = self._query, session.txn
        assert txn is not None
        values = self._decode(params)
        locked: set[Any] = set()
        for _ in range(ROUNDS_MAX):
            rows = await self._read(session, values)
            missing = [
                keys for _, keys in rows if any(key not in locked for key in self._keys(keys))
            ]
            if not missing:
                kept = rows if query.limit is None else rows[: query.limit]
                if kept:
                    await sink.rows(b"".join(data for data, _ in kept))
                return f"SELECT {len(kept)}"
            skips = await self._lock(session, rows, locked)
            if skips:
                # Only what could be locked is given, as it is now.
                kept = [row for row in rows if all(k in locked for k in self._keys(row[1]))]
                kept = kept if query.limit is None else kept[: query.limit]
                if kept:
                    await sink.rows(b"".join(data for data, _ in kept))
                return f"SELECT {len(kept)}"
            await retried(txn.start_statement)
        raise Conflict(
            "could not serialize access due to concurrent update", hint="Run the transaction again."
        )

    def _keys(self, values: Any) -> list[tuple[int, Any]]:
        width = self._query.width
        found = []
        for target in self._query.tables:
            part = values[target.first - width : target.last - width]
            if None not in part:
                found.append((target.table.tree.tree_id, target.key(part)))
        return found

    async def _read(self, session: SessionLike, values: Any) -> list[tuple[bytes, Any]]:
        txn = session.txn
        assert txn is not None
        found: list[tuple[bytes, Any]] = []
        size = 0
        async with aclosing(
            self._query.analytic.chunks(session, values, txn, self._encoder)
        ) as chunks:
            async for part in chunks:
                found += part
                size += sum(len(data) for data, _ in part)
                if size > ANSWER_BYTES_MAX:
                    raise Overloaded(
                        f"a locking query gives more than {ANSWER_BYTES_MAX} bytes",
                        hint="Lock fewer rows at once.",
                    )
        return found

    async def _lock(
        self, session: SessionLike, rows: list[tuple[bytes, Any]], locked: set[Any]
    ) -> bool:
        """Lock the rows' keys. Whether some were passed over."""
        query, txn = self._query, session.txn
        assert txn is not None
        skipped, taken = False, 0
        for number, (_, values) in enumerate(rows, 1):
            if query.limit is not None and taken >= query.limit:
                return True
            whole = True
            for target, (tree_id, key) in zip(query.tables, self._keys(values)):
                if (tree_id, key) in locked:
                    continue
                tree = target.table.tree
                if target.mode != "wait" and not try_lock(
                    txn, tree, key, target.mode, target.table.name
                ):
                    whole, skipped = False, True
                    continue

                def step(tree: Any = tree, key: Any = key) -> Any:
                    return txn.lock_and_get(tree, key)

                await retried(step)
                locked.add((tree_id, key))
            taken += whole
            if number % _ROWS_PER_TURN == 0:
                await session.engine.clock.sleep(0)
        return skipped


def plan_lock_query(
    planner: Planner,
    session: SessionLike,
    tree: Any,
    catalog: Catalog,
    parameters: Parameters,
    text: str,
) -> Plan:
    """The plan of such a query. Raises what is wrong with it."""
    query = LockingQuery(planner, tree, catalog, parameters, text)
    return Plan(
        "query",
        parameters.settle(),
        query.columns,
        planner.engine.catalog_version,
        writes=True,
        verb="SELECT FOR UPDATE",
        binder=lambda plan, params, results: LockQueryBound(plan, query, params, results),
    )
