"""From the tree of a query to DuckDB's SQL: SELECT, set operations, VALUES, WITH.

A query is first a `Piece`: its output columns as nodes, and how to write it down once it is known
what types these should have: a UNION may still change them. Names never reach DuckDB: relations are
``r1, r2, ...``, columns ``c0, c1, ...``, results ``o0, o1, ...``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from compute.sql import operators
from compute.sql.analytics import regtypes, windows
from compute.sql.analytics.aggregates import is_aggregate
from compute.sql.analytics.binder import AnalyticBinder, Grouping, order_part
from compute.sql.analytics.carriers import Carrier, carrier_of, common
from compute.sql.analytics.leaves import Leaf, is_constant
from compute.sql.analytics.lower import Lowered, Lowering, key_of
from compute.sql.analytics.scans import Scan
from compute.sql.analytics.scopes import Cte, Level
from compute.sql.binder import Parameters, function_name
from compute.sql.casts import cast
from compute.sql.catalog import Catalog, Table
from compute.sql.catalogs import registry
from compute.sql.catalogs.relations import Virtual
from compute.sql.expressions import Node, Strict, call
from compute.sql.mistakes import SyntaxMistake, not_supported, unknown_column
from compute.sql.select import NotAShape, Output, arg, output_name
from compute.sql.syntax import identifier
from compute.sql.types import INT4, INT8, NUMERIC, TEXT, UNKNOWN, display
from polarless.errors import CallerMistake

Render = Callable[[Sequence[Node]], str]


@dataclass(slots=True)
class Piece:
    """A query whose columns may still be given other types."""

    outputs: list[Output]
    render: Render
    # Columns of VALUES that only literals of no type make up.
    untyped: frozenset[int] = frozenset()


@dataclass(slots=True)
class Query:
    """A query written down. ``leaves`` are its columns, as ``o0, o1, ...``."""

    sql: str
    names: list[str]
    leaves: list[Leaf]
    # Columns that are text only because nothing said what they are: INSERT may know better.
    untyped: frozenset[int] = frozenset()


class Builder:
    """Builds the queries of one statement."""

    def __init__(self, catalog: Catalog, parameters: Parameters, text: str, *, exact: bool) -> None:
        self.catalog = catalog
        self.parameters = parameters
        self.text = text
        self.low = Lowering(exact=exact)
        self.scans: list[Scan] = []
        self._serial = 0

    def name(self, prefix: str) -> str:
        """A fresh name."""
        self._serial += 1
        return f"{prefix}{self._serial}"

    def find_table(self, name: str, schema: str | None) -> tuple[Table | None, Virtual | None]:
        """The table that FROM names, or a relation of the catalogs."""
        virtual = registry.find(name, schema)
        if virtual is not None:
            return virtual.table, virtual
        return self.catalog.find(name, schema), None

    # Entry points.

    def subquery(self, tree: Any, outer: Level | None) -> Query:
        """A query inside of another one."""
        return finished(self, self.piece(tree, outer))

    def piece(self, tree: Any, outer: Level | None) -> Piece:
        """Any query."""
        while isinstance(tree, (exp.Subquery, exp.Paren)) and not _has_tail(tree):
            tree = tree.this
        with_tree = arg(tree, "with")
        head = ""
        if with_tree is not None:
            outer = Level(parent=outer)
            head = self._with(with_tree, outer)
        if isinstance(tree, (exp.Subquery, exp.Paren)):
            inner = self.piece(tree.this, outer)
            found = tail(self, tree, inner, outer)
        elif isinstance(tree, exp.Select):
            found = Select(self, tree, outer).piece()
        elif isinstance(tree, exp.SetOperation):
            found = tail(self, tree, self._set_operation(tree, outer), outer)
        elif isinstance(tree, exp.Values):
            found = tail(self, tree, self.values(tree, outer), outer)
        elif isinstance(tree, exp.Table):
            select = exp.Select(expressions=[exp.Star()]).from_(tree.copy())
            found = Select(self, select, outer).piece()
        else:
            raise not_supported(f"{type(tree).__name__.upper()} as a query")
        if not head:
            return found
        render = found.render
        return Piece(found.outputs, lambda nodes: head + render(nodes))

    # WITH.

    def _with(self, tree: Any, level: Level) -> str:
        recursive = bool(tree.args.get("recursive"))
        if tree.args.get("search") is not None:
            raise not_supported(
                "SEARCH or CYCLE of WITH RECURSIVE",
                hint="Carry an array of the keys that were visited, and test it with ANY.",
            )
        parts: list[str] = []
        for item in tree.expressions:
            name = identifier(item.args["alias"].this)
            if name in level.ctes:
                raise CallerMistake(
                    f'WITH query name "{name}" specified more than once', sqlstate="42712"
                )
            columns = [identifier(c) for c in item.args["alias"].args.get("columns") or ()]
            body = item.this
            while isinstance(body, exp.Subquery) and not _has_tail(body):
                body = body.this
            if not isinstance(body, (exp.Select, exp.SetOperation, exp.Values, exp.Table)):
                raise not_supported("a data-modifying statement in WITH")
            sql_name = self.name("q")
            if recursive and isinstance(body, exp.Union) and _mentions(body.expression, name):
                sql = self._recursive(body, name, sql_name, columns, level)
            else:
                query = self.subquery(body, level)
                level.ctes[name] = cte_of(query, sql_name, columns, name)
                sql = query.sql
            parts.append(f"{sql_name} AS ({sql})")
        return f"WITH {'RECURSIVE ' if recursive else ''}{', '.join(parts)} "

    def _recursive(
        self, tree: Any, name: str, sql_name: str, columns: list[str], level: Level
    ) -> str:
        base_piece = self.piece(tree.this, level)
        base_piece.outputs = [
            Output(o.name, cast(o.node, TEXT) if o.node.type is UNKNOWN else o.node)
            for o in base_piece.outputs
        ]
        # The type of a numeric's carrier may not change from round to round.
        carriers = [carrier_of(o.node.type, exact=True) for o in base_piece.outputs]
        base = finished(self, base_piece, carriers)
        level.ctes[name] = cte_of(base, sql_name, columns, name)
        step = self.piece(tree.expression, level)
        if len(step.outputs) != len(base.leaves):
            raise SyntaxMistake("each UNION query must have the same number of columns")
        nodes = []
        for index, (output, leaf) in enumerate(zip(step.outputs, base.leaves)):
            node = output.node
            if node.type is not UNKNOWN and node.type is not leaf.type:
                kind = operators.common_type([leaf, node], "UNION")
                if kind is not leaf.type:
                    raise CallerMistake(
                        f'recursive query "{name}" column {index + 1} has type '
                        f"{display(leaf.type)} in non-recursive term but type {display(kind)} "
                        "overall",
                        sqlstate="42804",
                        hint="Cast the output of the non-recursive term to the correct type.",
                    )
            nodes.append(cast(node, leaf.type))
        step.outputs = [Output(o.name, node) for o, node in zip(step.outputs, nodes)]
        second = finished(self, step, carriers)
        word = "UNION" if tree.args.get("distinct") else "UNION ALL"
        return f"{base.sql} {word} {second.sql}"

    # Set operations.

    def _set_operation(self, tree: Any, outer: Level | None) -> Piece:
        # Left-deep chains are long in generated SQL; walk them without recursion.
        chain = []
        while isinstance(tree, exp.SetOperation):
            chain.append(tree)
            left = tree.this
            if isinstance(left, exp.SetOperation) and (_has_tail(left) or arg(left, "with")):
                break
            tree = left
        piece = self.piece(chain[-1].this, outer)
        for node in reversed(chain):
            piece = self._combined(node, piece, self.piece(node.expression, outer))
        return piece

    def _combined(self, tree: Any, left: Piece, right: Piece) -> Piece:
        word = type(tree).__name__.upper()
        if len(left.outputs) != len(right.outputs):
            raise SyntaxMistake(f"each {word} query must have the same number of columns")
        distinct = bool(tree.args.get("distinct"))
        sides: tuple[list[Node], list[Node]] = ([], [])
        for a, b in zip(left.outputs, right.outputs):
            kind = operators.common_type([a.node, b.node], word)
            same = a.node.typmod if a.node.typmod == b.node.typmod else -1
            for side, node in zip(sides, (a.node, b.node)):
                side.append(cast(node, kind, same if same >= 0 else -1))
        carriers = [
            common([self.low.value(a).carrier, self.low.value(b).carrier]) for a, b in zip(*sides)
        ]
        # Equal numerics may show other digits. Told apart by their keys they keep them; where
        # DuckDB counts equal rows itself they are put down in one form.
        exact = any(carrier.kind == "exact" for carrier in carriers)
        arms = []
        for piece, nodes in ((left, sides[0]), (right, sides[1])):
            shaped = [
                self._shape(node, carrier, plain=not distinct and word != "UNION")
                for node, carrier in zip(nodes, carriers)
            ]
            arms.append(f"({piece.render(shaped)})")
        if exact and distinct:
            sql = by_keys(word, arms, carriers)
        else:
            sql = f"{arms[0]} {word}{'' if distinct else ' ALL'} {arms[1]}"
        outputs = [
            Output(
                o.name,
                Leaf(f"o{i}", carrier, node.type, _same_typmod(node, other)),
            )
            for i, (o, carrier, node, other) in enumerate(
                zip(left.outputs, carriers, sides[0], sides[1])
            )
        ]
        return wrapped(self, sql, outputs)

    def _shape(self, node: Node, carrier: Carrier, *, plain: bool) -> Node:
        sql = self.low.sql(node, carrier)
        if plain and carrier.kind == "exact":
            sql = f"number_plain({sql})"
        return Leaf(sql, carrier, node.type, node.typmod)

    def values(self, tree: Any, outer: Level | None) -> Piece:
        """VALUES as a query."""
        level = Level(parent=outer)
        binder = AnalyticBinder(self, level, self.parameters, self.text, "VALUES")
        rows: list[list[Node]] = []
        for item in tree.expressions:
            items = item.expressions if isinstance(item, exp.Tuple) else [item]
            rows.append([binder.bind(found) for found in items])
            if len(rows[-1]) != len(rows[0]):
                raise SyntaxMistake("VALUES lists must all be the same length")
        kinds = [
            operators.common_type([row[i] for row in rows], "VALUES") for i in range(len(rows[0]))
        ]
        cells = [[cast(node, kind) for node, kind in zip(row, kinds)] for row in rows]
        carriers = [
            common([self.low.value(row[i]).carrier for row in cells]) for i in range(len(kinds))
        ]
        written = ", ".join(
            f"({', '.join(self.low.sql(node, c) for node, c in zip(row, carriers))})"
            for row in cells
        )
        names = ", ".join(f"o{i}" for i in range(len(kinds)))
        sql = f"SELECT {names} FROM (VALUES {written}) AS v({names})"
        outputs = [
            Output(f"column{i + 1}", Leaf(f"o{i}", carrier, kind, _typmod_of(cells, i)))
            for i, (kind, carrier) in enumerate(zip(kinds, carriers))
        ]
        found = wrapped(self, sql, outputs)
        found.untyped = frozenset(
            i for i in range(len(kinds)) if all(row[i].type is UNKNOWN for row in rows)
        )
        return found


def told_apart(sql: str, carriers: Sequence[Carrier]) -> str:
    """The rows of ``o0, o1, ...``, equal ones once, by their keys."""
    keys = [key_of(Lowered(f"d.o{i}", carrier)) for i, carrier in enumerate(carriers)]
    columns = [f"any_value(d.o{i}) AS o{i}" for i in range(len(carriers))]
    return f"SELECT {', '.join(columns)} FROM ({sql}) AS d GROUP BY {', '.join(keys)}"


def by_keys(word: str, arms: list[str], carriers: Sequence[Carrier]) -> str:
    """A set operation without ALL that compares keys and keeps the values."""
    if word == "UNION":
        return told_apart(f"{arms[0]} UNION ALL {arms[1]}", carriers)
    pairs = [
        f"{key_of(Lowered(f'l.o{i}', carrier))} IS NOT DISTINCT FROM "
        f"{key_of(Lowered(f'r.o{i}', carrier))}"
        for i, carrier in enumerate(carriers)
    ]
    kind = "ANTI" if word == "EXCEPT" else "SEMI"
    joined = f"SELECT l.* FROM {arms[0]} AS l {kind} JOIN {arms[1]} AS r ON {' AND '.join(pairs)}"
    return told_apart(joined, carriers)


def _typmod_of(rows: list[list[Node]], index: int) -> int:
    found = {row[index].typmod for row in rows}
    return found.pop() if len(found) == 1 else -1


def _same_typmod(a: Node, b: Node) -> int:
    return a.typmod if a.typmod == b.typmod else -1


def _has_tail(tree: Any) -> bool:
    return any(arg(tree, name) for name in ("order", "limit", "offset", "with", "joins"))


def _mentions(tree: Any, name: str) -> bool:
    return any(
        isinstance(found.this, exp.Identifier)
        and not found.args.get("db")
        and identifier(found.this) == name
        for found in tree.find_all(exp.Table)
    )


def cte_of(query: Query, sql_name: str, columns: list[str], name: str) -> Cte:
    """What WITH makes known. Raises 42P10 for too many names."""
    if len(columns) > len(query.names):
        raise CallerMistake(
            f'WITH query "{name}" has {len(query.names)} columns available but {len(columns)} '
            "columns specified",
            sqlstate="42P10",
        )
    names = [*columns, *query.names[len(columns) :]]
    return Cte(sql_name, tuple(names), tuple(query.leaves))


def wrapped(builder: Builder, sql: str, outputs: list[Output]) -> Piece:
    """A piece over SQL whose columns are ``o0, o1, ...`` already."""

    def render(nodes: Sequence[Node]) -> str:
        if all(node is output.node for node, output in zip(nodes, outputs)):
            return sql
        parts = [f"{builder.low.sql(node)} AS o{i}" for i, node in enumerate(nodes)]
        return f"SELECT {', '.join(parts)} FROM ({sql}) AS w"

    return Piece(outputs, render)


def finished(builder: Builder, piece: Piece, carriers: Sequence[Carrier] | None = None) -> Query:
    """Write a piece down with the types that it has."""
    nodes = [cast(o.node, TEXT) if o.node.type is UNKNOWN else o.node for o in piece.outputs]
    if carriers is not None:
        nodes = [
            node
            if builder.low.value(node).carrier == carrier
            else Leaf(builder.low.sql(node, carrier), carrier, node.type, node.typmod)
            for node, carrier in zip(nodes, carriers)
        ]
    sql = piece.render(nodes)
    leaves = [
        Leaf(f"o{i}", builder.low.value(node).carrier, node.type, node.typmod, pad=node.pad)
        for i, node in enumerate(nodes)
    ]
    opened = (
        frozenset(i for i, o in enumerate(piece.outputs) if o.node.type is UNKNOWN) | piece.untyped
    )
    return Query(sql, [o.name for o in piece.outputs], leaves, opened)


# ------------------------------------------------------------------------- ORDER BY, LIMIT around


def tail(builder: Builder, tree: Any, piece: Piece, outer: Level | None) -> Piece:
    """ORDER BY, LIMIT and OFFSET behind a set operation, VALUES or parentheses."""
    order, limit, offset = (arg(tree, name) for name in ("order", "limit", "offset"))
    if not (order or limit or offset):
        return piece
    query = finished(builder, piece)
    outputs = [Output(name, leaf) for name, leaf in zip(query.names, query.leaves)]
    keys = []
    for item in order.expressions if order is not None else ():
        ordered = item if isinstance(item, exp.Ordered) else exp.Ordered(this=item)
        index = _output_index(ordered.this, query.names)
        if index is None and isinstance(ordered.this, exp.Column):
            raise unknown_column(identifier(ordered.this.this))
        if index is None:
            raise CallerMistake(
                "invalid UNION/INTERSECT/EXCEPT ORDER BY clause",
                sqlstate="0A000",
                detail="Only result column names can be used, not expressions or functions.",
                hint="Add the expression/function to every SELECT, or move the UNION into a "
                "FROM clause.",
            )
        key = builder.low.comparable(query.leaves[index])
        keys.append(order_part(key, ordered, builder.text))
    sql = f"SELECT * FROM ({query.sql}) AS w"
    tied = ties(builder, tree)
    if tied is not None:
        sql = ordered_with_ties(sql, keys, tied)
    else:
        if keys:
            sql += f" ORDER BY {', '.join(keys)}"
        sql += limits(builder, tree)
    return wrapped(builder, sql, outputs)


def _output_index(target: Any, names: list[str]) -> int | None:
    if isinstance(target, exp.Parameter):
        raise NotAShape("ORDER BY a parameter")
    if isinstance(target, exp.Literal) and not target.is_string:
        number = int(target.this) if str(target.this).isdigit() else 0
        if not 1 <= number <= len(names):
            raise CallerMistake(
                f"ORDER BY position {target.this} is not in select list", sqlstate="42P10"
            )
        return number - 1
    if isinstance(target, exp.Column) and not target.args.get("table"):
        name = identifier(target.this)
        if names.count(name) > 1:
            raise CallerMistake(f'ORDER BY "{name}" is ambiguous', sqlstate="42702")
        return names.index(name) if name in names else None
    return None


def _limit_value(value: int) -> int:
    if value < 0:
        raise CallerMistake("LIMIT must not be negative", sqlstate="2201W")
    return value


def _offset_value(value: int) -> int:
    if value < 0:
        raise CallerMistake("OFFSET must not be negative", sqlstate="2201X")
    return value


def limits(builder: Builder, tree: Any) -> str:
    """LIMIT and OFFSET as SQL."""
    limit, offset = arg(tree, "limit"), arg(tree, "offset")
    binder = AnalyticBinder(builder, Level(), builder.parameters, builder.text, "LIMIT")
    sql = ""
    if limit is not None:
        count = limit.expression
        if isinstance(limit, exp.Fetch):
            options = limit.args.get("limit_options")
            if options is not None and options.args.get("percent"):
                raise not_supported("FETCH ... PERCENT")
            count = limit.args.get("count") or exp.Literal.number(1)
        if not isinstance(count, (exp.All, exp.Null)):
            sql += f" LIMIT {_count(binder, count, 'LIMIT', _limit_value)}"
    if offset is not None:
        sql += f" OFFSET {_count(binder, offset.expression, 'OFFSET', _offset_value)}"
    return sql


def ties(builder: Builder, tree: Any) -> tuple[str, str] | None:
    """Count and offset of FETCH FIRST ... WITH TIES; None if it is not that."""
    limit, offset = arg(tree, "limit"), arg(tree, "offset")
    options = limit.args.get("limit_options") if isinstance(limit, exp.Fetch) else None
    if options is None or not options.args.get("with_ties"):
        return None
    if arg(tree, "order") is None:
        raise SyntaxMistake("WITH TIES cannot be specified without ORDER BY clause")
    binder = AnalyticBinder(builder, Level(), builder.parameters, builder.text, "LIMIT")
    count = limit.args.get("count") or exp.Literal.number(1)
    skipped = "0"
    if offset is not None:
        skipped = _count(binder, offset.expression, "OFFSET", _offset_value)
    return _count(binder, count, "LIMIT", _limit_value), skipped


def ordered_with_ties(sql: str, order: list[str], found: tuple[str, str]) -> str:
    """The query's rows from the offset on, as many as were wanted and those equal to the last."""
    count, skipped = found
    keys = f"ORDER BY {', '.join(order)}" if order else ""
    sql += (
        f" QUALIFY row_number() OVER ({keys}) > {skipped}"
        f" AND rank() OVER ({keys}) <= {skipped} + {count}"
    )
    return f"{sql} {keys}"


def _count(binder: AnalyticBinder, tree: Any, what: str, check: Callable[[int], int]) -> str:
    node = binder.bind(tree)
    if not is_constant(node):
        if isinstance(node, Leaf):
            return f"({node.sql})"
        raise not_supported(f"an expression of columns in {what}")
    if node.type in (INT4, UNKNOWN):
        node = cast(node, INT8)
    elif node.type is NUMERIC:
        node = cast(node, INT8, strength=1)
    if node.type.family != "int":
        raise CallerMistake(
            f"argument of {what} must be type bigint, not type {display(node.type)}",
            sqlstate="42804",
        )
    return binder.low.sql(Strict((node,), call(check), INT8))


# ------------------------------------------------------------------------------------------ SELECT


@dataclass(slots=True)
class Key:
    """One key of ORDER BY: an output's index, or an expression."""

    ordered: Any
    index: int | None = None
    node: Node | None = None


_REFUSED: Final = {
    "into": "SELECT INTO", "locks": "SELECT FOR UPDATE or SHARE of more than one table",
    "sample": "TABLESAMPLE", "pivots": "PIVOT", "connect": "CONNECT BY", "match": "MATCH",
}  # fmt: skip


@dataclass(slots=True)
class Select:
    """One SELECT on its way to a `Piece`."""

    builder: Builder
    tree: Any
    outer: Level | None
    level: Level = field(init=False)
    groups: list[str] = field(default_factory=list)

    def piece(self) -> Piece:
        """Bind all clauses, in the order in which SQL gives them meaning."""
        from compute.sql.analytics.sources import from_clause, narrow

        tree, builder = self.tree, self.builder
        for name, what in _REFUSED.items():
            if arg(tree, name):
                raise not_supported(what)
        self.level = Level(parent=self.outer)
        source = from_clause(builder, tree, self.level)
        binder = self._binder("WHERE")
        where = tree.args.get("where")
        condition = ""
        if where is not None:
            condition = builder.low.sql(binder.condition(where.this, "WHERE"))
            narrow(self.level, where.this, binder)
        grouping = self._group(binder)
        binder = self._binder("this context")
        binder.grouping = grouping
        binder.allow_aggregates = True
        binder.allow_windows = True
        binder.windows = windows.named(tree)
        outputs = self._outputs(binder)
        having = tree.args.get("having")
        having_sql = ""
        if having is not None:
            binder.allow_windows = False
            having_sql = builder.low.sql(binder.condition(having.this, "HAVING"))
            binder.allow_windows = True
        distinct, on = self._distinct(binder, outputs)
        keys = self._keys(binder, outputs, distinct=distinct)
        if on:
            self._check_distinct_on(on, keys, outputs)
        tied = ties(builder, tree)
        if tied is not None and on:
            raise not_supported("FETCH ... WITH TIES with DISTINCT ON")
        cut = "" if tied is not None else limits(builder, tree)

        def render(nodes: Sequence[Node]) -> str:
            low = builder.low
            lowered = [low.value(node) for node in nodes]
            parts = []
            for index, found in enumerate(lowered):
                parts.append(f"{found.sql} AS o{index}")
            if not parts:
                parts.append("1 AS nothing")
            exact = any(found.carrier.kind == "exact" for found in lowered)
            words = "DISTINCT " if distinct and not exact else ""
            if on:
                words = f"DISTINCT ON ({', '.join(on)}) "
            sql = f"SELECT {words}{', '.join(parts)}"
            if source:
                sql += f" FROM {source}"
            if condition:
                sql += f" WHERE {condition}"
            if self.groups:
                sql += f" GROUP BY {', '.join(self.groups)}"
            if having_sql:
                sql += f" HAVING {having_sql}"
            plain = distinct and not on
            if plain and exact:
                sql = told_apart(sql, [found.carrier for found in lowered])
            if plain and keys:
                sql = f"SELECT * FROM ({sql}) AS d"
            order = []
            for key in keys:
                if key.index is None:
                    assert key.node is not None
                    part = low.comparable(key.node)
                elif plain:
                    part = key_of(Lowered(f"o{key.index}", lowered[key.index].carrier))
                else:
                    part = key_of(lowered[key.index])
                    if is_constant(nodes[key.index]):
                        continue
                order.append(order_part(part, key.ordered, builder.text))
            if tied is not None:
                return ordered_with_ties(sql, order, tied)
            if order:
                sql += f" ORDER BY {', '.join(order)}"
            return sql + cut

        return Piece(outputs, render)

    def _binder(self, clause: str) -> AnalyticBinder:
        builder = self.builder
        return AnalyticBinder(builder, self.level, builder.parameters, builder.text, clause)

    # The list.

    def _outputs(self, binder: AnalyticBinder) -> list[Output]:
        outputs: list[Output] = []
        for item in self.tree.expressions:
            inner = item.this if isinstance(item, exp.Alias) else item
            if isinstance(inner, exp.Star):
                outputs += self._star(binder, None)
                continue
            if isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star):
                outputs += self._star(binder, identifier(inner.args["table"]))
                continue
            node = binder.bind(inner)
            if isinstance(item, exp.Alias):
                name = identifier(item.args["alias"])
            else:
                name = output_name_of(inner, self.builder.text)
            outputs.append(Output(name, node))
        return outputs

    def _star(self, binder: AnalyticBinder, qualifier: str | None) -> list[Output]:
        from compute.sql.analytics.scopes import missing, stars_of

        stars = self.level.star
        level = self.level
        if qualifier is not None:
            found: Level | None = level
            relation = None
            while found is not None and relation is None:
                relation = next((r for r in found.relations if r.alias == qualifier), None)
                level = found
                found = found.parent
            if relation is None:
                raise missing(self.level, "*", qualifier)
            stars = stars_of(relation)
        elif not self.level.relations:
            raise SyntaxMistake("SELECT * with no tables specified is not valid")
        return [Output(star.name, binder.reference(level, star)) for star in stars]

    # GROUP BY.

    def _group(self, binder: AnalyticBinder) -> Grouping | None:
        tree = self.tree
        clause = tree.args.get("group")
        if clause is None:
            if tree.args.get("having") is None and not self._aggregates():
                return None
            return Grouping()
        binder.clause = "GROUP BY"
        grouping = Grouping()
        for name in ("grouping_sets", "cube", "rollup"):
            for item in clause.args.get(name) or ():
                self.groups.append(self._group_item(binder, item, grouping))
        for item in clause.expressions:
            self.groups.append(self._group_item(binder, item, grouping))
        if not self.groups:
            self.groups.append("()")
        return grouping

    def _group_item(self, binder: AnalyticBinder, item: Any, grouping: Grouping) -> str:
        words = {exp.Rollup: "ROLLUP", exp.Cube: "CUBE", exp.GroupingSets: "GROUPING SETS"}
        word = words.get(type(item))
        if word is not None:
            parts = [self._group_item(binder, part, grouping) for part in item.expressions]
            return f"{word} ({', '.join(parts)})"
        if isinstance(item, exp.Tuple):
            parts = [self._group_item(binder, part, grouping) for part in item.expressions]
            return f"({', '.join(parts)})"
        target = item
        if isinstance(item, exp.Parameter):
            raise NotAShape("GROUP BY a parameter")
        if isinstance(item, exp.Literal) and not item.is_string:
            target = self._position(item)
        elif isinstance(item, exp.Column) and not item.args.get("table"):
            target = self._alias(item) or item
        node = binder.bind(target)
        if node.type is UNKNOWN:
            node = cast(node, TEXT)
        found = self.builder.low.value(node)
        sql = key_of(found)
        if is_constant(node):
            # A number would be a position; what is the same for all rows groups nothing.
            sql = "(SELECT NULL)"
        shown = found.sql if found.carrier.plain else f"any_value({found.sql})"
        leaf = Leaf(shown, found.carrier, node.type, node.typmod, pad=node.pad)
        if not is_constant(node):
            grouping.by_sql[found.sql] = leaf
            key = binder.group_key(target)
            if key != ".":
                grouping.by_key[key] = leaf
        return sql

    def _position(self, item: Any) -> Any:
        number = int(item.this) if str(item.this).isdigit() else 0
        items = self.tree.expressions
        if not 1 <= number <= len(items):
            raise CallerMistake(
                f"GROUP BY position {item.this} is not in select list", sqlstate="42P10"
            )
        target = items[number - 1]
        target = target.this if isinstance(target, exp.Alias) else target
        if isinstance(target, exp.Star):
            raise not_supported("GROUP BY position of a *")
        return target

    def _alias(self, item: Any) -> Any:
        """The expression behind an output name, unless a relation has a column of that name."""
        name = identifier(item.this)
        if any(star.name == name for star in self.level.star):
            return None
        for output in self.tree.expressions:
            if isinstance(output, exp.Alias) and identifier(output.args["alias"]) == name:
                return output.this
        return None

    def _aggregates(self) -> bool:
        """Whether an aggregate of this level stands in the list or ORDER BY."""
        order = self.tree.args.get("order")
        stack = [*self.tree.expressions, *(order.expressions if order is not None else ())]
        while stack:
            node = stack.pop()
            if isinstance(node, exp.Window):
                # The function itself works on the window; its arguments are of this level.
                inner = node.this
                stack += _children(inner.this if isinstance(inner, exp.Filter) else inner)
                stack += [c for c in _children(node) if c is not inner]
                continue
            if isinstance(node, exp.Func) and is_aggregate(function_name(node, self.builder.text)):
                return True
            if isinstance(node, (exp.Select, exp.SetOperation)):
                continue
            stack += _children(node)
        return False

    # DISTINCT and ORDER BY.

    def _distinct(self, binder: AnalyticBinder, outputs: list[Output]) -> tuple[bool, list[str]]:
        clause = self.tree.args.get("distinct")
        if clause is None:
            return False, []
        on = clause.args.get("on")
        if on is None:
            return True, []
        items = on.expressions if isinstance(on, exp.Tuple) else [on]
        names = [output.name for output in outputs]
        keys = []
        for item in items:
            while isinstance(item, exp.Paren):
                item = item.this
            index = _output_index(item, names)
            node = outputs[index].node if index is not None else binder.bind(item)
            keys.append(self.builder.low.comparable(node))
        return True, keys

    def _check_distinct_on(self, on: list[str], keys: list[Key], outputs: list[Output]) -> None:
        low = self.builder.low
        rest = set(on)
        for key in keys:
            if not rest:
                return
            node = key.node if key.index is None else outputs[key.index].node
            assert node is not None
            sql = low.comparable(node)
            if sql not in on:
                raise CallerMistake(
                    "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
                    sqlstate="42P10",
                )
            rest.discard(sql)

    def _keys(self, binder: AnalyticBinder, outputs: list[Output], *, distinct: bool) -> list[Key]:
        clause = self.tree.args.get("order")
        if clause is None:
            return []
        names = [output.name for output in outputs]
        keys = []
        for item in clause.expressions:
            ordered = item if isinstance(item, exp.Ordered) else exp.Ordered(this=item)
            index = _output_index_loose(ordered.this, outputs, names)
            if index is not None:
                keys.append(Key(ordered, index))
                continue
            node = binder.bind(ordered.this)
            if distinct and self.tree.args["distinct"].args.get("on") is None:
                sql = self.builder.low.value(node).sql
                same = [
                    i for i, o in enumerate(outputs) if self.builder.low.value(o.node).sql == sql
                ]
                if not same:
                    raise CallerMistake(
                        "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                        sqlstate="42P10",
                    )
                keys.append(Key(ordered, same[0]))
                continue
            if is_constant(node):
                continue
            keys.append(Key(ordered, None, node))
        return keys


def _output_index_loose(target: Any, outputs: list[Output], names: list[str]) -> int | None:
    """As `_output_index`; two outputs of one name are fine if they are the same."""
    if isinstance(target, exp.Column) and not target.args.get("table"):
        name = identifier(target.this)
        found = [i for i, known in enumerate(names) if known == name]
        if len(found) > 1:
            first = outputs[found[0]].node
            same = all(
                outputs[i].node is first
                or (
                    isinstance(outputs[i].node, Leaf)
                    and isinstance(first, Leaf)
                    and outputs[i].node.sql == first.sql  # type: ignore[attr-defined]
                )
                for i in found
            )
            if not same:
                raise CallerMistake(f'ORDER BY "{name}" is ambiguous', sqlstate="42702")
        return found[0] if found else None
    return _output_index(target, names)


def _children(node: Any) -> list[Any]:
    found: list[Any] = []
    for value in node.args.values():
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, exp.Expression)]
    return found


def output_name_of(node: Any, text: str) -> str:
    """What PostgreSQL calls a column without an alias, for what only stands in such queries."""
    while isinstance(node, (exp.Paren, exp.Filter, exp.WithinGroup, exp.Window)):
        node = node.this
    if isinstance(node, exp.Subquery):
        inner = node.this
        while isinstance(inner, exp.Subquery):
            inner = inner.this
        while isinstance(inner, exp.SetOperation):
            inner = inner.this
        if isinstance(inner, exp.Values):
            return "column1"
        if isinstance(inner, exp.Select) and inner.expressions:
            first = inner.expressions[0]
            if isinstance(first, exp.Alias):
                return identifier(first.args["alias"])
            return output_name_of(first, text)
        return "?column?"
    if isinstance(node, exp.Exists):
        return "exists"
    if isinstance(node, exp.Array):
        return "array"
    if isinstance(node, exp.Bracket):
        return output_name_of(node.this, text)
    if isinstance(node, exp.Cast):
        inner = node.this
        while isinstance(inner, exp.Paren):
            inner = inner.this
        weak = isinstance(inner, (exp.Cast, exp.Boolean, exp.Case))
        name = "?column?" if weak else output_name_of(inner, text)
        return regtypes.output_name(node.args["to"]) if name == "?column?" else name
    if isinstance(node, exp.Collate):
        return output_name_of(node.this, text)
    if isinstance(node, exp.Dot) and isinstance(node.this, exp.Identifier):
        return output_name_of(node.expression, text)
    if isinstance(node, (exp.Operator, exp.RegexpLike, exp.RegexpILike)):
        return "?column?"
    if isinstance(node, exp.In):
        return "?column?"
    if isinstance(node, exp.Grouping):
        return "grouping"
    return output_name(node, text)


__all__ = ["Builder", "Piece", "Query", "finished", "limits", "tail", "wrapped"]
