"""Window functions: OVER with its partition, order and frame, in DuckDB's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import functions, operators
from compute.sql.analytics import aggregates
from compute.sql.analytics.carriers import BIGINT, DOUBLE, INTEGER, common
from compute.sql.analytics.leaves import Leaf
from compute.sql.binder import function_name
from compute.sql.casts import cast
from compute.sql.expressions import Const, Node, Strict, call
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.syntax import identifier
from compute.sql.types import FLOAT8, INT4, INT8, TEXT, UNKNOWN
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.analytics.binder import AnalyticBinder

_RANKS: Final = frozenset({"row_number", "rank", "dense_rank"})
_SHARES: Final = frozenset({"percent_rank", "cume_dist"})
_OFFSETS: Final = frozenset({"lag", "lead"})
_PLACES: Final = frozenset({"first_value", "last_value", "nth_value"})
_NAMES: Final = _RANKS | _SHARES | _OFFSETS | _PLACES | {"ntile"}


def is_window_function(name: str) -> bool:
    """Whether a function of this name needs OVER."""
    return name in _NAMES


def bind(binder: AnalyticBinder, node: Any) -> Node:
    """The leaf of ``f(...) OVER (...)``."""
    if binder.in_aggregate:
        raise CallerMistake(
            "aggregate function calls cannot contain window function calls", sqlstate="42803"
        )
    if not binder.allow_windows:
        raise CallerMistake(
            f"window functions are not allowed in {binder.clause}", sqlstate="42P20"
        )
    inner, filter_ = node.this, None
    if isinstance(inner, (exp.IgnoreNulls, exp.RespectNulls)):
        raise not_supported("IGNORE NULLS or RESPECT NULLS")
    if isinstance(inner, exp.Filter):
        inner, filter_ = inner.this, inner.expression.this
    binder.allow_windows = False
    clause, binder.clause = binder.clause, "window definitions"
    try:
        over = over_sql(binder, node)
        name = function_name(inner, binder.text)
        if aggregates.is_aggregate(name):
            return aggregates.bind(binder, name, inner, filter_=filter_, over=over or " ")
        if name not in _NAMES:
            raise CallerMistake(
                f"OVER specified, but {name} is not a window function nor an aggregate function",
                sqlstate="42809",
            )
        if filter_ is not None:
            raise CallerMistake(
                "FILTER is not implemented for non-aggregate window functions", sqlstate="0A000"
            )
        return _make(binder, name, [binder.bind(arg) for arg in _arguments(inner)], over)
    finally:
        binder.allow_windows = True
        binder.clause = clause


def _arguments(node: Any) -> list[Any]:
    return [found for found in aggregates._arguments(node) if not isinstance(found, exp.Order)]


def _make(binder: AnalyticBinder, name: str, args: list[Node], over: str) -> Node:
    low = binder.low
    if name in _RANKS and not args:
        return Leaf(f"{name}() OVER ({over})", BIGINT, INT8)
    if name in _SHARES and not args:
        return Leaf(f"{name}() OVER ({over})", DOUBLE, FLOAT8)
    if name == "ntile" and len(args) == 1:
        count = low.sql(_positive(cast(args[0], INT4), "ntile", "22014"))
        return Leaf(f"CAST(ntile({count}) OVER ({over}) AS INTEGER)", INTEGER, INT4)
    if not args or len(args) > 3 or name in _RANKS | _SHARES:
        raise functions.no_function(name, args)
    args = [
        cast(arg, TEXT) if arg.type is UNKNOWN and i == 0 else arg for i, arg in enumerate(args)
    ]
    value = low.value(args[0])
    if name in _PLACES:
        rest = [low.sql(_positive(cast(arg, INT4), "nth_value", "22016")) for arg in args[1:]]
        if len(rest) != (name == "nth_value"):
            raise functions.no_function(name, args)
        sql = f"{name}({', '.join([value.sql, *rest])}) OVER ({over})"
        return Leaf(sql, value.carrier, args[0].type, pad=args[0].pad)
    offset = cast(args[1], INT4) if len(args) > 1 else Const(1, INT4)
    carrier, kind = value.carrier, args[0].type
    parts = [value.sql, low.sql(offset)]
    if len(args) > 2:
        kind = operators.common_type([args[0], args[2]], name)
        first, default = cast(args[0], kind), cast(args[2], kind)
        carrier = common([low.value(first).carrier, low.value(default).carrier])
        parts = [low.sql(first, carrier), parts[1], low.sql(default, carrier)]
    return Leaf(f"{name}({', '.join(parts)}) OVER ({over})", carrier, kind, pad=args[0].pad)


def _positive(node: Node, name: str, sqlstate: str) -> Node:
    """The argument of ntile and nth_value. Raises when it is computed and is not positive."""

    def positive(value: int) -> int:
        if value <= 0:
            raise CallerMistake(f"argument of {name} must be greater than zero", sqlstate=sqlstate)
        return value

    return Strict((node,), call(positive), INT4)


# -------------------------------------------------------------------------------------------- OVER


def over_sql(binder: AnalyticBinder, node: Any) -> str:
    """What stands between the parentheses of OVER."""
    base: Any = None
    name = node.args.get("alias")
    if name is not None:
        base = binder.windows.get(identifier(name))
        if base is None:
            raise CallerMistake(f'window "{identifier(name)}" does not exist', sqlstate="42704")
    partition = list(node.args.get("partition_by") or ())
    order = node.args.get("order")
    spec = node.args.get("spec")
    if base is not None:
        partition = partition or list(base.args.get("partition_by") or ())
        order = order or base.args.get("order")
        spec = spec or base.args.get("spec")
    parts = []
    if partition:
        keys = ", ".join(binder.low.comparable(binder.bind(item)) for item in partition)
        parts.append(f"PARTITION BY {keys}")
    if order is not None:
        parts.append(f"ORDER BY {binder.order_sql(order.expressions)}")
    if spec is not None:
        parts.append(_frame(binder, spec, has_order=order is not None))
    return " ".join(parts)


def _frame(binder: AnalyticBinder, spec: Any, *, has_order: bool) -> str:
    kind = str(spec.args.get("kind") or "RANGE").upper()
    if kind == "GROUPS" and not has_order:
        raise CallerMistake("GROUPS mode requires an ORDER BY clause", sqlstate="42P20")
    start = _end(binder, spec.args.get("start"), spec.args.get("start_side"))
    end = _end(binder, spec.args.get("end"), spec.args.get("end_side")) or "CURRENT ROW"
    if start == "UNBOUNDED FOLLOWING":
        raise CallerMistake("frame start cannot be UNBOUNDED FOLLOWING", sqlstate="42P20")
    if end == "UNBOUNDED PRECEDING":
        raise CallerMistake("frame end cannot be UNBOUNDED PRECEDING", sqlstate="42P20")
    if _ORDER[start.split()[-1]] > _ORDER[end.split()[-1]]:
        raise CallerMistake(
            f"frame starting from {_WORDS[start.split()[-1]]} row cannot have "
            f"{_WORDS[end.split()[-1]]} rows",
            sqlstate="42P20",
        )
    exclude = spec.args.get("exclude")
    word = f" EXCLUDE {exclude.name.upper()}" if exclude is not None else ""
    return f"{kind} BETWEEN {start} AND {end}{word}"


_ORDER: Final = {"PRECEDING": 0, "ROW": 1, "FOLLOWING": 2}
_WORDS: Final = {"PRECEDING": "preceding", "ROW": "current", "FOLLOWING": "following"}


def _end(binder: AnalyticBinder, value: Any, side: Any) -> str:
    if value is None:
        return ""
    direction = f" {str(side).upper()}" if side else ""
    if isinstance(value, str):
        return value.upper() + direction
    if isinstance(value, exp.Var):
        return value.name.upper() + direction
    node = binder.bind(value)
    if node.type.family != "int":
        raise not_supported("a window frame with this offset", hint="Use a whole number.")
    if isinstance(node, Const) and node.value is not None and node.value < 0:
        raise CallerMistake("frame starting offset must not be negative", sqlstate="22013")
    return binder.low.sql(node) + direction


def named(tree: Any) -> dict[str, Any]:
    """The definitions of a WINDOW clause."""
    found: dict[str, Any] = {}
    for item in tree.args.get("windows") or ():
        name = identifier(item.this)
        if name in found:
            raise SyntaxMistake(f'window "{name}" is already defined')
        found[name] = item
    return found
