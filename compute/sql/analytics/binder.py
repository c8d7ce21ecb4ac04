"""Binds expressions over any number of relations, with aggregates, windows and subqueries.

What an expression without these means is `compute.sql.binder`'s business; this one adds what can
stand in it only here. All of that becomes a `Leaf`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import functions, operators, symbols
from compute.sql.analytics import aggregates, arrays, regtypes, windows
from compute.sql.analytics.carriers import BOOLEAN, DOUBLE, carrier_of, common, element_of
from compute.sql.analytics.leaves import Leaf
from compute.sql.analytics.lower import Lowering, key_of
from compute.sql.analytics.scopes import Level, Relation, Star, find_column, missing
from compute.sql.analytics.setreturning import SETS
from compute.sql.binder import _BARE_FUNCTIONS, Binder, Parameters, Scope, _arguments, function_name
from compute.sql.builtins import jsons
from compute.sql.casts import EXPLICIT, cast
from compute.sql.catalogs import functions as catalog_functions
from compute.sql.expressions import Const, Node
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.syntax import identifier
from compute.sql.types import BOOL, FLOAT8, JSONB, TEXT, UNKNOWN, UUID
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.analytics.query import Builder


class Grouping:
    """What GROUP BY made of the rows: expressions by their key, and columns by their SQL."""

    def __init__(self) -> None:
        self.by_key: dict[str, Leaf] = {}
        self.by_sql: dict[str, Leaf] = {}

    def determines(self, relation: Relation | None, low: Lowering) -> bool:
        """Whether all of the relation's primary key is grouped: its other columns are known too."""
        if relation is None or not relation.key:
            return False
        return all(low.value(relation.leaf(i)).sql in self.by_sql for i in relation.key)


class AnalyticBinder(Binder):
    """See the module's docstring."""

    def __init__(
        self, builder: Builder, level: Level, parameters: Parameters, text: str, clause: str
    ) -> None:
        super().__init__(Scope(), parameters, text, clause=clause)
        self.builder = builder
        self.level = level
        self.grouping: Grouping | None = None
        self.allow_aggregates = False
        self.allow_windows = False
        self.windows: dict[str, Any] = {}

    @property
    def low(self) -> Lowering:
        """The statement's lowering."""
        return self.builder.low

    @property
    def in_aggregate(self) -> bool:
        """Whether an aggregate's argument is being bound."""
        return self._in_aggregate

    @in_aggregate.setter
    def in_aggregate(self, value: bool) -> None:
        self._in_aggregate = value

    def bind(self, node: Any) -> Node:
        """One expression."""
        grouping = self.grouping
        if grouping is not None and not self._in_aggregate and grouping.by_key:
            found = grouping.by_key.get(self.group_key(node))
            if found is not None:
                return found
        method = _OWN.get(type(node))
        return method(self, node) if method is not None else super().bind(node)

    def group_key(self, node: Any) -> str:
        """Equal for expressions that GROUP BY takes as the same."""
        while isinstance(node, (exp.Paren, exp.Alias)):
            node = node.this
        if isinstance(node, exp.Column):
            return "."
        return str(node.sql(dialect="postgres", identify=False)).lower()

    # Names.

    def _own_column(self, node: Any) -> Node:
        if isinstance(node.this, exp.Star):
            raise SyntaxMistake("* is not allowed here")
        name = identifier(node.this)
        qualifier = identifier(node.args["table"]) if node.args.get("table") else None
        found = find_column(self.level, name, qualifier)
        if found is None:
            if qualifier is None and name in _BARE_FUNCTIONS:
                return functions.make(name, [])
            relation = self._relation_named(name) if qualifier is None else None
            if relation is not None and relation.scalar:
                return relation.leaf(0)
            if relation is not None:
                raise not_supported("a whole row as a value")
            raise missing(self.level, name, qualifier)
        level, star = found
        return self.reference(level, star)

    def _relation_named(self, name: str) -> Relation | None:
        level: Level | None = self.level
        while level is not None:
            for relation in level.relations:
                if relation.alias == name:
                    return relation
            level = level.parent
        return None

    def argument(self, node: Any) -> Node:
        """An argument of a function of JSON, which may be a whole row."""
        if isinstance(node, exp.Column) and not node.args.get("table"):
            name = identifier(node.this)
            relation = self._relation_named(name)
            known = find_column(self.level, name, None)
            if relation is not None and known is None and not relation.scalar:
                leaves = [relation.leaf(index) for index in range(len(relation.names))]
                return jsons.row(list(relation.names), leaves)
        return self.bind(node)

    def reference(self, level: Level, star: Star) -> Node:
        """The node of a column, if grouping allows it to stand here."""
        node = star.node()
        if self.grouping is None or self._in_aggregate or level is not self.level:
            return node
        grouped = self.grouping.by_sql.get(self.low.value(node).sql)
        if grouped is not None:
            return grouped
        found = self.low.value(node)
        if self.grouping.determines(star.relation, self.low):
            return Leaf(
                f"any_value({found.sql})", found.carrier, node.type, node.typmod, pad=node.pad
            )
        alias = f"{star.relation.alias}." if star.relation is not None else ""
        raise CallerMistake(
            f'column "{alias}{star.name}" must appear in the GROUP BY clause or be used in an '
            "aggregate function",
            sqlstate="42803",
        )

    # Subqueries.

    def _subquery(self, node: Any) -> Node:
        inner = node
        while isinstance(inner, exp.Subquery) and not inner.args.get("joins"):
            inner = inner.this
        query = self.builder.subquery(inner, self.level)
        if len(query.leaves) != 1:
            raise SyntaxMistake("subquery must return only one column")
        leaf = query.leaves[0]
        return Leaf(f"({query.sql})", leaf.carrier, leaf.type, leaf.typmod, pad=leaf.pad)

    def _exists(self, node: Any) -> Node:
        query = self.builder.subquery(_unwrapped(node.this), self.level)
        return Leaf(f"EXISTS ({query.sql})", BOOLEAN, BOOL)

    def _in_query(self, node: Any) -> Node:
        tree = node.args.get("query")
        items = node.expressions
        if tree is None and len(items) == 1 and isinstance(items[0], exp.Values):
            tree = items[0]
        if tree is None:
            if node.args.get("unnest") or node.args.get("field"):
                raise not_supported("this form of IN")
            return self._in(node)
        found = self._quantified("=", node.this, _unwrapped(tree), "ANY")
        return operators.negation(found) if node.args.get("negate") else found

    def _quantified(self, symbol: str, value: Any, tree: Any, word: str) -> Node:
        """``value symbol ANY | ALL (query)``; a row of values for ``=`` alone."""
        values = (
            [self.bind(found) for found in value.expressions]
            if isinstance(value, exp.Tuple)
            else [self.bind(value)]
        )
        query = self.builder.subquery(tree, self.level)
        if len(query.leaves) != len(values):
            few = len(query.leaves) < len(values)
            raise SyntaxMistake(f"subquery has too {'few' if few else 'many'} columns")
        lefts, rights = [], []
        for left, right in zip(values, query.leaves):
            placed = Leaf(f"s.{right.sql}", right.carrier, right.type, right.typmod)
            a, b = operators.comparable(symbol, left, placed)
            left_value, right_value = self.low.value(a), self.low.value(b)
            if left_value.carrier.kind != right_value.carrier.kind:
                shared = common([left_value.carrier, right_value.carrier])
                left_value = type(left_value)(self.low.sql(a, shared), shared)
                right_value = type(right_value)(self.low.sql(b, shared), shared)
            lefts.append(key_of(left_value))
            rights.append(key_of(right_value))
        inner = f"SELECT {', '.join(rights)} FROM ({query.sql}) AS s"
        if len(lefts) == 1:
            return Leaf(f"({lefts[0]} {symbol} {word} ({inner}))", BOOLEAN, BOOL)
        if symbol != "=" or word != "ANY":
            raise not_supported("a row compared with a subquery other than by IN")
        return Leaf(f"(({', '.join(lefts)}) IN ({inner}))", BOOLEAN, BOOL)

    def _own_comparison(self, node: Any) -> Node:
        right = node.expression
        if isinstance(right, exp.Anonymous) and right.name.lower() in ("all", "some", "any"):
            inner = exp.Paren(this=right.expressions[0])
            right = exp.All(this=inner) if right.name.lower() == "all" else exp.Any(this=inner)
        if isinstance(right, (exp.Any, exp.All)):
            symbol = _SYMBOLS[type(node)]
            inner = _unwrapped(right.this)
            word = "ANY" if isinstance(right, exp.Any) else "ALL"
            if isinstance(inner, (exp.Select, exp.SetOperation, exp.Values)):
                return self._quantified(symbol, node.this, inner, word)
            value, array = self.bind(node.this), self.bind(inner)
            return arrays.quantified(symbol, value, array, all_=word == "ALL")
        if isinstance(node.this, exp.Tuple) or isinstance(right, exp.Tuple):
            return self._comparison(node)
        symbol = _SYMBOLS[type(node)]
        left_node, right_node = self.bind(node.this), self.bind(right)
        sides = regtypes.comparable(left_node, right_node)
        if element_of(sides[0].type) is not None or element_of(sides[1].type) is not None:
            return arrays.compare(symbol, *sides)
        return operators.compare(symbol, *sides)

    def _own_cast(self, node: Any) -> Node:
        kind, typmod = regtypes.type_of(node.args["to"])
        tree = node.this
        if isinstance(tree, exp.Array) and not tree.expressions and kind.family == "array":
            return Const([], kind)
        inner = self.bind(tree)
        found = regtypes.cast_reg(inner, kind) or arrays.cast_array(inner, kind)
        if found is not None:
            return found
        return cast(inner, kind, typmod, strength=EXPLICIT)

    def _dpipe_own(self, node: Any) -> Node:
        left, right = self.bind(node.this), self.bind(node.expression)
        return arrays.concat(left, right) or symbols.by_symbol("||", left, right)

    def _array(self, node: Any) -> Node:
        return arrays.bind_array(self, node)

    def _bracket(self, node: Any) -> Node:
        return arrays.bind_bracket(self, node)

    def _contains(self, node: Any) -> Node:
        left, right = self.bind(node.this), self.bind(node.expression)
        if JSONB in (left.type, right.type):
            return symbols.by_symbol(
                "<@" if isinstance(node, exp.ArrayContainedBy) else "@>", left, right
            )
        if isinstance(node, exp.ArrayContainedBy):
            left, right = right, left
        return arrays.contains(left, right, overlaps=isinstance(node, exp.ArrayOverlaps))

    def _series(self, node: Any) -> Node:
        """A function in the list that gives several rows."""
        from compute.sql.analytics.sources import series_name, set_returning

        values, leaves = set_returning(self, series_name(node, self.text), node)
        if len(values) != 1:
            raise not_supported("unnest() of several arrays in the list")
        return Leaf(f"unnest({values[0]})", leaves[0].carrier, leaves[0].type)

    def _collated(self, node: Any) -> Node:
        name = node.expression.name.lower()
        if name not in ("c", "posix", "default", "ucs_basic"):
            raise CallerMistake(
                f'collation "{name}" for encoding "UTF8" does not exist', sqlstate="42704"
            )
        return self.bind(node.this)

    # Aggregates and windows.

    def _function(self, node: Any) -> Node:
        name = function_name(node, self.text)
        if aggregates.is_aggregate(name):
            return aggregates.bind(self, name, node)
        if windows.is_window_function(name):
            raise CallerMistake(f"window function {name} requires an OVER clause", sqlstate="42809")
        if isinstance(node, exp.Trim):
            return super()._function(node)
        if name in ("generate_series", "unnest", "generate_subscripts") or name in SETS:
            return self._series(node)
        if name in ("row_to_json", "to_json", "to_jsonb"):
            args = [self.argument(tree) for tree in _arguments(node)]
        else:
            args = self.arguments(name, _arguments(node))
        if name == "random" and not args:
            # One for each row: our own code would be called once for all.
            return Leaf("random()", DOUBLE, FLOAT8)
        if name == "gen_random_uuid" and not args:
            return Leaf("CAST(uuid() AS VARCHAR)", carrier_of(UUID), UUID)
        found = arrays.function(name, args) or catalog_functions.make(name, args)
        return found if found is not None else functions.make(name, args)

    def _filtered(self, node: Any) -> Node:
        inner = node.this
        if isinstance(inner, exp.WithinGroup):
            name = function_name(inner.this, self.text)
            return aggregates.bind(
                self, name, inner.this, filter_=node.expression.this, within=inner.expression
            )
        name = function_name(inner, self.text)
        if not aggregates.is_aggregate(name):
            raise CallerMistake(
                f"FILTER specified, but {name} is not an aggregate function", sqlstate="42809"
            )
        return aggregates.bind(self, name, inner, filter_=node.expression.this)

    def _within(self, node: Any) -> Node:
        name = function_name(node.this, self.text)
        return aggregates.bind(self, name, node.this, within=node.expression)

    def _window(self, node: Any) -> Node:
        return windows.bind(self, node)

    def _grouping(self, node: Any) -> Node:
        from compute.sql.analytics.carriers import INTEGER
        from compute.sql.types import INT4

        if self.grouping is None:
            raise CallerMistake(
                "arguments to GROUPING must be grouping expressions of the associated query level",
                sqlstate="42803",
            )
        args = ", ".join(self.low.sql(self.bind(arg)) for arg in node.expressions)
        return Leaf(f"CAST(GROUPING({args}) AS INTEGER)", INTEGER, INT4)

    # Helpers for those.

    def order_sql(self, items: list[Any]) -> str:
        """ORDER BY inside of an aggregate or window."""
        parts = []
        for item in items:
            ordered = item if isinstance(item, exp.Ordered) else exp.Ordered(this=item)
            node = self.bind(ordered.this)
            parts.append(order_part(self.low.comparable(_known(node)), ordered, self.text))
        return ", ".join(parts)

    def leaf(self, sql: str, kind: Any, typmod: int = -1) -> Leaf:
        """A leaf with the usual carrier of its type."""
        carrier = carrier_of(kind, typmod, exact=True)
        return Leaf(sql, carrier, kind, typmod)


def _known(node: Node) -> Node:
    return cast(node, TEXT) if node.type is UNKNOWN else node


def order_part(sql: str, ordered: Any, text: str) -> str:
    """One key of ORDER BY with its direction and the place of NULL."""
    descending = bool(ordered.args.get("desc"))
    nulls_first = ordered.args.get("nulls_first")
    if nulls_first is None or "nulls" not in text.lower():
        # sqlglot fills this in by its own idea of the dialect unless the text says it.
        nulls_first = descending
    direction = "DESC" if descending else "ASC"
    return f"{sql} {direction} NULLS {'FIRST' if nulls_first else 'LAST'}"


def _unwrapped(node: Any) -> Any:
    while isinstance(node, (exp.Subquery, exp.Paren)) and not node.args.get("joins"):
        node = node.this
    return node


_SYMBOLS: Final[dict[type, str]] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_OWN: Final[dict[type, Callable[[AnalyticBinder, Any], Node]]] = {
    **dict.fromkeys(_SYMBOLS, AnalyticBinder._own_comparison),
    exp.Column: AnalyticBinder._own_column,
    exp.Subquery: AnalyticBinder._subquery,
    exp.Select: AnalyticBinder._subquery,
    exp.Exists: AnalyticBinder._exists,
    exp.In: AnalyticBinder._in_query,
    exp.Filter: AnalyticBinder._filtered,
    exp.WithinGroup: AnalyticBinder._within,
    exp.Window: AnalyticBinder._window,
    exp.Grouping: AnalyticBinder._grouping,
    exp.Cast: AnalyticBinder._own_cast,
    exp.DPipe: AnalyticBinder._dpipe_own,
    exp.Array: AnalyticBinder._array,
    exp.Bracket: AnalyticBinder._bracket,
    exp.ArrayContainsAll: AnalyticBinder._contains,
    exp.ArrayContainedBy: AnalyticBinder._contains,
    exp.ArrayOverlaps: AnalyticBinder._contains,
    exp.Unnest: AnalyticBinder._series,
    exp.Explode: AnalyticBinder._series,
    exp.Collate: AnalyticBinder._collated,
}
