"""Aggregates in DuckDB, with PostgreSQL's types and exact numerics.

While numerics are DECIMALs their sum is one, and so is everything made of it. A quotient has a
scale of its own for each value, so it is exact text from there on; sums of such text are made by
our own code over the list of a group's values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import functions
from compute.sql.analytics.carriers import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    EXACT,
    VARCHAR,
    Carrier,
    carrier_of,
    decimal,
    list_of,
)
from compute.sql.analytics.leaves import Leaf, evaluate, is_fixed
from compute.sql.analytics.lower import Lowered, convert, key_of, quoted
from compute.sql.builtins import jsons
from compute.sql.casts import NUMBER_RANK, cast
from compute.sql.expressions import Node
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.operators import AlwaysKnown
from compute.sql.types import (
    BOOL,
    FLOAT4,
    FLOAT8,
    INT8,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    STRINGS,
    TEXT,
    UNKNOWN,
    SqlType,
)
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.analytics.binder import AnalyticBinder

_SPREADS: Final = {
    "variance": "var_samp", "var_samp": "var_samp", "var_pop": "var_pop",
    "stddev": "stddev_samp", "stddev_samp": "stddev_samp", "stddev_pop": "stddev_pop",
}  # fmt: skip
_PAIRS: Final = frozenset(
    {"corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept",
     "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy"}
)  # fmt: skip
_ORDERED_SETS: Final = frozenset({"percentile_cont", "percentile_disc", "mode"})
_BITS: Final = frozenset({"bit_and", "bit_or", "bit_xor"})
_OTHERS: Final = frozenset(
    {"count", "sum", "min", "max", "avg", "bool_and", "bool_or", "every", "string_agg", "array_agg"}
)
_NAMES: Final = _OTHERS | _PAIRS | _ORDERED_SETS | _BITS | frozenset(_SPREADS)
_JSON_LISTS: Final = frozenset({"json_agg", "jsonb_agg"})
_JSON_OBJECTS: Final = frozenset({"json_object_agg", "jsonb_object_agg"})
_ORDERED: Final = _JSON_LISTS | _JSON_OBJECTS | {"string_agg", "array_agg"}
# Aggregates of PostgreSQL that are not built.
_LATER: Final = frozenset({"xmlagg", "range_agg"})


def is_aggregate(name: str) -> bool:
    """Whether a function of this name aggregates."""
    return name in _NAMES or name in _ORDERED or name in _LATER


class Call:
    """An aggregate's parts as SQL, before it is known whether a window follows."""

    __slots__ = ("condition", "distinct", "order", "over")

    def __init__(self) -> None:
        self.distinct = ""
        self.order = ""
        self.condition = ""
        self.over = ""

    def sql(self, function: str, *args: str) -> str:
        """The call of a function of DuckDB."""
        inner = self.distinct + ", ".join(args) + self.order
        return f"{function}({inner}){self.condition}{self.over}"


def bind(
    binder: AnalyticBinder,
    name: str,
    node: Any,
    *,
    filter_: Any = None,
    within: Any = None,
    over: str = "",
) -> Node:
    """The leaf of an aggregate. ``over``: it is a window function with this OVER clause."""
    if name in _LATER:
        raise not_supported(f"{name}()")
    if not over:
        _check_place(binder)
    args, call, star = _parts(node)
    if within is not None and name not in _ORDERED_SETS:
        raise CallerMistake(
            f"{name} is not an ordered-set aggregate, so it cannot have WITHIN GROUP",
            sqlstate="42809",
        )
    if call.distinct and (over or not args):
        if over:
            raise CallerMistake(
                "DISTINCT is not implemented for window functions", sqlstate="0A000"
            )
        raise SyntaxMistake('syntax error at or near "*"')
    entered = not over
    if entered:
        binder.in_aggregate = True
    try:
        if name in _JSON_LISTS or name in _JSON_OBJECTS:
            bound = [binder.argument(found) for found in args]
        else:
            bound = [binder.bind(found) for found in args]
        if call.order and name in _ORDERED:
            call.order = f" ORDER BY {binder.order_sql(node_order(node))}"
        elif call.order:
            call.order = ""
        if filter_ is not None:
            condition = binder.low.sql(binder.condition(filter_, "FILTER"))
            call.condition = f" FILTER (WHERE {condition})"
        if within is not None:
            items = within.expressions
            bound += [binder.bind(item.this) for item in items]
            call.order = f" ORDER BY {binder.order_sql(items)}"
    finally:
        if entered:
            binder.in_aggregate = False
    call.over = f" OVER ({over})" if over else ""
    if star and name != "count":
        raise functions.no_function(name, [])
    if not star and not args and within is None:
        raise CallerMistake(
            f"{name}(*) must be used to call a parameterless aggregate function", sqlstate="42809"
        )
    return _make(binder, name, bound, call)


def _check_place(binder: AnalyticBinder) -> None:
    if binder.in_aggregate:
        raise CallerMistake("aggregate function calls cannot be nested", sqlstate="42803")
    if not binder.allow_aggregates:
        raise CallerMistake(
            f"aggregate functions are not allowed in {binder.clause}", sqlstate="42803"
        )


def _parts(node: Any) -> tuple[list[Any], Call, bool]:
    """The arguments' trees, what goes with them, and whether it is ``(*)``."""
    call = Call()
    args = _arguments(node)
    if len(args) == 1 and isinstance(args[0], exp.Distinct):
        call.distinct = "DISTINCT "
        args = list(args[0].expressions)
    elif args and isinstance(args[0], exp.Distinct):
        call.distinct = "DISTINCT "
        args = [*args[0].expressions, *args[1:]]
    args = [found.this if isinstance(found, exp.Order) else found for found in args]
    if args and isinstance(args[0], exp.Distinct):
        call.distinct = "DISTINCT "
        args = [*args[0].expressions, *args[1:]]
    if node_order(node):
        call.order = " "
    star = len(args) == 1 and isinstance(args[0], exp.Star)
    return ([] if star else args), call, star


def _arguments(node: Any) -> list[Any]:
    if isinstance(node, (exp.Anonymous, exp.AnonymousAggFunc)):
        return list(node.expressions)
    found: list[Any] = []
    for name in node.arg_types:
        value = node.args.get(name)
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, exp.Expression)]
    return found


def node_order(node: Any) -> list[Any]:
    """The items of ORDER BY among the arguments."""
    for found in _arguments(node):
        inner = found
        if isinstance(inner, exp.Distinct) and inner.expressions:
            inner = inner.expressions[-1]
        if isinstance(inner, exp.Order):
            return list(inner.expressions)
    return []


# ------------------------------------------------------------------------------------ the functions


def _make(binder: AnalyticBinder, name: str, args: list[Node], call: Call) -> Node:
    low = binder.low
    if name == "count":
        if not args:
            return Leaf(call.sql("count", "*"), BIGINT, INT8)
        if len(args) != 1:
            raise functions.no_function(name, args)
        return Leaf(call.sql("count", low.comparable(_text_if_open(args[0]))), BIGINT, INT8)
    args = [_text_if_open(arg) for arg in args]
    if name == "string_agg":
        return _string_agg(binder, args, call)
    if name == "array_agg":
        return _array_agg(binder, args, call)
    if name in _JSON_LISTS and len(args) == 1:
        return _json_list(binder, args[0], call, binary=name == "jsonb_agg")
    if name in _JSON_OBJECTS and len(args) == 2:
        binary = name == "jsonb_object_agg"
        lists = [
            call.sql("list", binder.low.sql(node))
            for node in (jsons.key(args[0]), jsons.encoded(args[1]))
        ]
        kind = JSONB if binary else JSON
        return Leaf(f"json_pairs({lists[0]}, {lists[1]}, {binary})", carrier_of(kind), kind)
    if name in ("sum", "avg") and len(args) == 1 and args[0].type is INTERVAL:
        function = "interval_sum" if name == "sum" else "interval_average"
        texts = call.sql("list", binder.low.sql(args[0]))
        return Leaf(f"{function}({texts})", carrier_of(INTERVAL), INTERVAL)
    if name in _PAIRS:
        return _pair(binder, name, args, call)
    if name in _ORDERED_SETS:
        return _ordered_set(binder, name, args, call)
    if len(args) != 1:
        raise functions.no_function(name, args)
    arg = args[0]
    if name in _SPREADS:
        return _spread(binder, name, arg, call)
    if name in _BITS:
        if arg.type.family != "int":
            raise functions.no_function(name, args)
        found = low.value(arg)
        return Leaf(call.sql(name, found.sql), found.carrier, arg.type)
    kind = functions.aggregate_type(name, args)
    value = low.value(arg)
    if name in ("bool_and", "bool_or", "every"):
        function = "bool_and" if name == "every" else name
        return Leaf(call.sql(function, value.sql), BOOLEAN, BOOL)
    if name in ("min", "max"):
        return _extreme(name, arg, value, kind, call)
    if name == "sum":
        return _sum(value, kind, call)
    return _average(value, kind, call)


def _text_if_open(node: Node) -> Node:
    return cast(node, TEXT) if node.type is UNKNOWN else node


def _extreme(name: str, arg: Node, value: Lowered, kind: SqlType, call: Call) -> Node:
    pad = arg.pad if arg.type is kind else -1
    if value.carrier.plain:
        return Leaf(call.sql(name, value.sql), value.carrier, kind, pad=pad)
    call.distinct = ""
    function = f"arg_{name}"
    return Leaf(call.sql(function, value.sql, key_of(value)), value.carrier, kind, pad=pad)


def _sum(value: Lowered, kind: SqlType, call: Call) -> Node:
    found = _sum_sql(value, call)
    if kind is INT8:
        return Leaf(f"CAST({found.sql} AS BIGINT)", BIGINT, INT8)
    if kind is FLOAT4:
        return Leaf(f"CAST(CAST({found.sql} AS FLOAT) AS DOUBLE)", DOUBLE, kind)
    return Leaf(found.sql, found.carrier, kind)


def _sum_sql(value: Lowered, call: Call) -> Lowered:
    kind = value.carrier.kind
    if kind == "float":
        return Lowered(call.sql("sum", value.sql), DOUBLE)
    if kind == "int":
        carrier = decimal(38, 0)
        return Lowered(f"CAST({call.sql('sum', value.sql)} AS {carrier.sql})", carrier)
    if kind == "dec":
        carrier = decimal(38, value.carrier.scale)
        return Lowered(f"CAST({call.sql('sum', value.sql)} AS {carrier.sql})", carrier)
    return Lowered(f"number_sum({call.sql('list', _told_apart(value, call))})", EXACT)


def _told_apart(value: Lowered, call: Call) -> str:
    return f"number_plain({value.sql})" if call.distinct else value.sql


def _average(value: Lowered, kind: SqlType, call: Call) -> Node:
    if value.carrier.kind == "float":
        return Leaf(call.sql("avg", value.sql), DOUBLE, FLOAT8)
    total = convert(_sum_sql(value, call), EXACT)
    counted = f"number_plain({value.sql})" if value.carrier.kind == "exact" else value.sql
    count = call.sql("count", counted)
    # A group without values has no average, rather than a division by zero.
    divisor = f"CAST(NULLIF({count}, 0) AS VARCHAR)"
    return Leaf(f"number_divide({total}, {divisor})", EXACT, NUMERIC)


def _spread(binder: AnalyticBinder, name: str, arg: Node, call: Call) -> Node:
    function = _SPREADS[name]
    if arg.type not in NUMBER_RANK:
        raise functions.no_function(name, [arg])
    value = binder.low.value(arg)
    if value.carrier.kind == "float":
        return Leaf(call.sql(function, value.sql), DOUBLE, FLOAT8)
    texts = call.sql("list", convert(value, EXACT))
    return Leaf(f"number_spread({texts}, '{function}')", EXACT, NUMERIC)


def _pair(binder: AnalyticBinder, name: str, args: list[Node], call: Call) -> Node:
    if len(args) != 2 or any(arg.type not in NUMBER_RANK for arg in args):
        raise functions.no_function(name, args)
    values = [binder.low.sql(cast(arg, FLOAT8)) for arg in args]
    if name == "regr_count":
        return Leaf(f"CAST({call.sql(name, *values)} AS BIGINT)", BIGINT, INT8)
    return Leaf(call.sql(name, *values), DOUBLE, FLOAT8)


def _ordered_set(binder: AnalyticBinder, name: str, args: list[Node], call: Call) -> Node:
    low = binder.low
    if name == "mode":
        if len(args) != 1:
            raise functions.no_function(name, args)
        found = low.value(args[0])
        # Of the most frequent values the first in the order.
        return Leaf(
            call.sql("mode", found.sql),
            found.carrier,
            args[0].type,
            pad=args[0].pad,
        )
    if len(args) != 2:
        raise functions.no_function(name, args)
    fraction, value = cast(args[0], FLOAT8), args[1]
    if name == "percentile_cont":
        value = cast(value, FLOAT8)
        function = "quantile_cont"
    else:
        function = "quantile_disc"
    found = low.value(value)
    descending = " DESC " in call.order
    call.order = ""
    at = low.sql(fraction)
    if descending:
        at = f"1 - {at}"
    return Leaf(call.sql(function, found.sql, at), found.carrier, value.type, pad=value.pad)


def _string_agg(binder: AnalyticBinder, args: list[Node], call: Call) -> Node:
    if len(args) != 2 or args[0].type not in STRINGS or args[1].type not in STRINGS:
        raise functions.no_function("string_agg", args)
    value, delimiter = (binder.low.sql(cast(arg, TEXT)) for arg in args)
    if is_fixed(args[1]) and evaluate(args[1]) is not None:
        return Leaf(call.sql("string_agg", value, delimiter), VARCHAR, TEXT)
    separator = f"any_value({delimiter}){call.condition}{call.over}"
    return Leaf(f"texts_join({call.sql('list', value)}, {separator})", VARCHAR, TEXT)


def _json_list(binder: AnalyticBinder, arg: Node, call: Call, *, binary: bool) -> Node:
    kind = JSONB if binary else JSON
    rows = arg.type is JSON and isinstance(arg, AlwaysKnown)
    # Rows, and arrays, stand on lines of their own.
    separator = ", \n " if rows or carrier_of(arg.type).kind == "list" else ", "
    items = call.sql("list", binder.low.sql(jsons.encoded(arg)))
    return Leaf(f"json_join({items}, {quoted(separator)}, {binary})", carrier_of(kind), kind)


def _array_agg(binder: AnalyticBinder, args: list[Node], call: Call) -> Node:
    from compute.sql.analytics.arrays import array_type

    if len(args) != 1:
        raise functions.no_function("array_agg", args)
    kind = array_type(args[0].type)
    element: Carrier = carrier_of(args[0].type, exact=True)
    return Leaf(call.sql("list", binder.low.sql(args[0], element)), list_of(element), kind)
