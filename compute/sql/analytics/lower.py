"""From typed nodes to DuckDB's SQL.

What DuckDB computes as PostgreSQL does is said in its SQL. Whatever has no rule here becomes a
call of generated Python (`leaves.make_function`), so every expression that our own executor knows
can be used, with the same result.

What no row changes is not computed there at all: it becomes a parameter of the query, computed by
our own code before it runs.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from compute.sql import datetimes, functions, numerics
from compute.sql.analytics.carriers import (
    BIGINT,
    BLOB,
    BOOLEAN,
    DOUBLE,
    EXACT,
    INTEGER,
    VARCHAR,
    Carrier,
    carrier_of,
    common,
    decimal,
)
from compute.sql.analytics.leaves import (
    Function,
    Leaf,
    evaluate,
    is_constant,
    is_fixed,
    make_function,
)
from compute.sql.casts import cast
from compute.sql.expressions import (
    MEANINGS,
    Case,
    Coalesce,
    Const,
    InList,
    Junction,
    Node,
    Param,
    Retyped,
    Strict,
    Test,
    walk,
)
from compute.sql.operators import Comparison
from compute.sql.types import DATE, INT4, NUMERIC, TEXT, UNKNOWN

_serial = itertools.count(1)


class Lowered(NamedTuple):
    """An expression of DuckDB's SQL, and what carries its values."""

    sql: str
    carrier: Carrier


class Lowering:
    """Of one statement: its constants and functions. ``exact``: no DECIMAL, only exact text."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact
        self.constants: list[tuple[Node, Carrier]] = []
        self.functions: list[Function] = []
        self._made: dict[int, Lowered] = {}
        # Keeps the nodes alive whose ids are keys above.
        self._nodes: list[Node] = []

    def value(self, node: Node) -> Lowered:
        """The SQL of a node."""
        found = self._made.get(id(node))
        if found is None:
            found = self._made[id(node)] = self._value(node)
            self._nodes.append(node)
        return found

    def sql(self, node: Node, carrier: Carrier | None = None) -> str:
        """The SQL alone, converted to a carrier if one is given."""
        found = self.value(node)
        return found.sql if carrier is None else convert(found, carrier)

    def comparable(self, node: Node) -> str:
        """SQL of what stands for the value where values are compared, sorted or told apart."""
        return key_of(self.value(node))

    def _value(self, node: Node) -> Lowered:
        if node.type is UNKNOWN:
            return self.value(cast(node, TEXT))
        if isinstance(node, Leaf):
            return Lowered(node.sql, node.carrier)
        if is_constant(node):
            return self._constant(node)
        rule = RULES.get(type(node))
        if rule is not None:
            found = rule(self, node)
            if found is not None:
                return found
        return self._function(node)

    def _constant(self, node: Node) -> Lowered:
        if is_fixed(node):
            return literal(evaluate(node), node, exact=self.exact)
        carrier = carrier_of(node.type, exact=True)
        self.constants.append((node, carrier))
        return Lowered(f"CAST({slot_mark(len(self.constants) - 1)} AS {carrier.sql})", carrier)

    def _function(self, node: Node) -> Lowered:
        carrier = carrier_of(node.type, exact=True)
        slots = {found.slot.index: found for found in walk(node) if isinstance(found, Param)}
        given = {index: self._constant(found) for index, found in slots.items()}
        name = f"own{next(_serial)}"
        kinds = {index: found.carrier for index, found in given.items()}
        function, leaves = make_function(name, node, carrier, kinds)
        self.functions.append(function)
        arguments = [leaf.sql for leaf in leaves] + [found.sql for found in given.values()]
        return Lowered(f"{name}({', '.join(arguments)})", carrier)


# -------------------------------------------------------------------------------------- carriers


def literal(value: Any, node: Node, *, exact: bool = False) -> Lowered:
    """A value in the text of the query."""
    carrier = carrier_of(node.type, exact=True)
    if value is None:
        return Lowered(f"CAST(NULL AS {carrier.sql})", carrier)
    if carrier.kind == "exact" and not exact and value.is_finite():
        digits = len(value.as_tuple().digits)
        scale = numerics.scale_of(value)
        found = decimal(max(digits, scale + 1), scale)
        if found.kind == "dec":
            return Lowered(f"CAST('{numerics.numeric_text(value)}' AS {found.sql})", found)
    return Lowered(f"CAST({_written(value, carrier)} AS {carrier.sql})", carrier)


def _written(value: Any, carrier: Carrier) -> str:
    from compute.sql.analytics.carriers import from_value

    converter = from_value(carrier)
    if converter is not None:
        value = converter(value)
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return f"'{value!r}'"
        return "'nan'" if math.isnan(value) else "'infinity'" if value > 0 else "'-infinity'"
    if isinstance(value, (bytes, bytearray)):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'"
    if isinstance(value, list):
        parts = ["NULL" if item is None else _written_item(item) for item in value]
        return f"[{', '.join(parts)}]"
    assert isinstance(value, str), value
    return quoted(value)


def _written_item(item: Any) -> str:
    if isinstance(item, list):
        return f"[{', '.join('NULL' if i is None else _written_item(i) for i in item)}]"
    if isinstance(item, (bytes, bytearray)):
        return "'" + "".join(f"\\x{byte:02X}" for byte in item) + "'::BLOB"
    if isinstance(item, bool):
        return str(item).upper()
    return quoted(item) if isinstance(item, str) else repr(item)


def quoted(text: str) -> str:
    """A string literal of DuckDB."""
    found = "'" + text.replace("'", "''") + "'"
    if not _MARKS.isdisjoint(found):
        # What marks places in the query may not stand in its texts.
        for mark in sorted(_MARKS):
            found = found.replace(mark, f"' || chr({ord(mark)}) || '")
        return f"({found})"
    return found


_MARKS: Final = frozenset("\x01\x02\x03\x04")


def slot_mark(index: int) -> str:
    """Stands for a constant until it is known which of them the query really uses."""
    return f"\x03{index}\x04"


SLOT: Final = re.compile("\x03([0-9]+)\x04")


def convert(found: Lowered, carrier: Carrier) -> str:
    """The same value under another carrier."""
    if found.carrier == carrier or found.carrier.sql == carrier.sql:
        return found.sql
    if found.carrier.kind == "float" and carrier.kind in ("exact", "dec"):
        raise AssertionError("a float is no numeric")
    return f"CAST({found.sql} AS {carrier.sql})"


def key_of(found: Lowered) -> str:
    """SQL of a value that DuckDB compares and sorts as PostgreSQL would this one."""
    if found.carrier.plain:
        return found.sql
    if found.carrier.kind == "exact":
        return f"number_key({found.sql})"
    if found.carrier.kind == "list":
        return (
            f"list_transform({found.sql}, lambda x: {key_of(Lowered('x', found.carrier.element))})"
        )
    assert found.carrier.type is not None
    return f"printed_key({found.sql}, {found.carrier.type.oid})"


# ----------------------------------------------------------------------------------------- rules


def _retyped(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, Retyped)
    inner = low.value(node.inner)
    wanted = carrier_of(node.type, exact=low.exact)
    if node.type is NUMERIC or inner.carrier == wanted:
        return inner
    if {inner.carrier.kind, wanted.kind} <= {"int"} or inner.carrier.sql == wanted.sql:
        return Lowered(convert(inner, wanted), wanted)
    return None


def _comparison(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, Comparison)
    left, right = (low.value(arg) for arg in node.args)
    if left.carrier.kind != right.carrier.kind and "exact" in (
        left.carrier.kind,
        right.carrier.kind,
    ):
        left, right = (Lowered(convert(side, EXACT), EXACT) for side in (left, right))
    return Lowered(f"({key_of(left)} {node.symbol} {key_of(right)})", BOOLEAN)


def _junction(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, Junction)
    word = " OR " if node.stop else " AND "
    return Lowered(f"({word.join(low.sql(part) for part in node.parts)})", BOOLEAN)


_TESTS: Final = {
    "{0} is None": "IS NULL",
    "{0} is not None": "IS NOT NULL",
    "{0} is True": "IS TRUE",
    "{0} is not True": "IS NOT TRUE",
    "{0} is False": "IS FALSE",
    "{0} is not False": "IS NOT FALSE",
}


def _test(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, Test)
    words = _TESTS.get(node.source)
    return None if words is None else Lowered(f"({low.sql(node.inner)} {words})", BOOLEAN)


def _case(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, Case)
    results = [value for _, value in node.arms]
    if node.default is not None:
        results.append(node.default)
    lowered = [low.value(value) for value in results if not _is_null(value)]
    carrier = common([found.carrier for found in lowered]) if lowered else low.value(results[0])[1]

    def result(value: Node) -> str:
        return "NULL" if _is_null(value) else low.sql(value, carrier)

    arms = "".join(f" WHEN {low.sql(test)} THEN {result(value)}" for test, value in node.arms)
    default = "" if node.default is None else f" ELSE {result(node.default)}"
    return Lowered(f"CAST(CASE{arms}{default} END AS {carrier.sql})", carrier)


def _is_null(node: Node) -> bool:
    return isinstance(node, Const) and node.value is None


def _coalesce(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, Coalesce)
    carrier = common(
        [low.value(arg).carrier for arg in node.args if not _is_null(arg)] or [VARCHAR]
    )
    args = ["NULL" if _is_null(arg) else low.sql(arg, carrier) for arg in node.args]
    return Lowered(f"CAST(COALESCE({', '.join(args)}) AS {carrier.sql})", carrier)


def _in_list(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, InList)
    value = low.value(node.inner)
    if not value.carrier.plain:
        return None
    items = ", ".join(low.sql(item) for item in node.items)
    return Lowered(f"({value.sql} IN ({items}))", BOOLEAN)


def _strict(low: Lowering, node: Node) -> Lowered | None:
    assert isinstance(node, Strict)
    meaning = MEANINGS.get(node.body)
    if isinstance(meaning, tuple):
        rule = _TUPLES.get(meaning[0])
        return None if rule is None else rule(low, node, meaning)
    if meaning is None:
        return None
    if isinstance(meaning, str):
        return _template(low, node, meaning)
    by_function = _CALLS.get(meaning)
    return None if by_function is None else by_function(low, node)


# By the node's class; None from a rule: there is no SQL for this one.
RULES: Final[dict[type, Callable[[Lowering, Node], Lowered | None]]] = {
    Retyped: _retyped,
    Comparison: _comparison,
    Junction: _junction,
    Test: _test,
    Case: _case,
    Coalesce: _coalesce,
    InList: _in_list,
    Strict: _strict,
}


# ------------------------------------------------------------------------------ Strict: templates


def _template(low: Lowering, node: Strict, source: str) -> Lowered | None:
    args = [low.value(arg) for arg in node.args]
    kinds = [arg.carrier.kind for arg in args]
    if source == "not {0}":
        return Lowered(f"(NOT {args[0].sql})", BOOLEAN)
    if source == "Decimal_({0})" and kinds == ["int"]:
        digits = {"SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}[args[0].carrier.sql]
        wanted = EXACT if low.exact else decimal(digits, 0)
        return Lowered(f"CAST({args[0].sql} AS {wanted.sql})", wanted)
    if source == "{0} + {1}":
        if kinds == ["text", "text"]:
            return Lowered(f"({args[0].sql} || {args[1].sql})", VARCHAR)
        if kinds == ["blob", "blob"]:
            return Lowered(f"({args[0].sql} || {args[1].sql})", BLOB)
    if source in ("{0} + {1}", "{0} - {1}") and kinds == ["int", "int"]:
        symbol = source[4]
        if node.type in (DATE, INT4):
            return Lowered(f"CAST({args[0].sql} {symbol} {args[1].sql} AS INTEGER)", INTEGER)
    if source == "len({0})" and kinds == ["text"]:
        return Lowered(f"CAST(length({args[0].sql}) AS INTEGER)", INTEGER)
    if source in ("{0}.lower()", "{0}.upper()"):
        return Lowered(f"{source[4:9]}({args[0].sql})", VARCHAR)
    if source == "{0}.rstrip(' ')":
        return Lowered(f"rtrim({args[0].sql}, ' ')", VARCHAR)
    if source == "{0} != 0" and kinds == ["int"]:
        return Lowered(f"({args[0].sql} <> 0)", BOOLEAN)
    if source == "1 if {0} else 0":
        return Lowered(f"CAST({args[0].sql} AS INTEGER)", INTEGER)
    if source == "'true' if {0} else 'false'":
        return Lowered(f"CAST({args[0].sql} AS VARCHAR)", VARCHAR)
    if source in ("-{0}", "abs({0})") and kinds == ["float"]:
        sign = "-" if source[0] == "-" else "abs"
        return Lowered(f"{sign}({args[0].sql})", DOUBLE)
    if source == "{0}.copy_abs()" and kinds == ["dec"]:
        return Lowered(f"abs({args[0].sql})", args[0].carrier)
    return None


# ------------------------------------------------------------------------------- Strict: numbers


def _int(low: Lowering, node: Strict, meaning: tuple[Any, ...]) -> Lowered | None:
    symbol = meaning[1]
    carrier = carrier_of(node.type)
    args = [low.sql(arg) for arg in node.args]
    if symbol == "checked":
        return Lowered(f"CAST({args[0]} AS {carrier.sql})", carrier)
    sides = [f"CAST({arg} AS {carrier.sql})" for arg in args]
    if symbol in ("/", "%"):
        operator = "//" if symbol == "/" else "%"
        plain = f"({sides[0]} {operator} {sides[1]})"
        divisor = node.args[1]
        if is_fixed(divisor) and evaluate(divisor) not in (None, 0, -1):
            return Lowered(plain, carrier)
        return None
    return Lowered(f"({sides[0]} {symbol} {sides[1]})", carrier)


def _float(low: Lowering, node: Strict, meaning: tuple[Any, ...]) -> Lowered | None:
    if meaning[1] not in ("+", "-") or meaning[2].size != 8:
        return None
    left, right = (low.sql(arg) for arg in node.args)
    return Lowered(f"({left} {meaning[1]} {right})", DOUBLE)


def _like(low: Lowering, node: Strict, meaning: tuple[Any, ...]) -> Lowered | None:
    _, pattern, escape, ignore_case = meaning
    value = low.value(node.args[0])
    if ignore_case or value.carrier.kind != "text" or pattern.endswith(escape or "\0"):
        return None
    if escape and escape not in pattern:
        return Lowered(f"({value.sql} LIKE {quoted(pattern)})", BOOLEAN)
    if not escape:
        return None
    return Lowered(f"({value.sql} LIKE {quoted(pattern)} ESCAPE {quoted(escape)})", BOOLEAN)


_TUPLES: Final[dict[str, Callable[[Lowering, Strict, tuple[Any, ...]], Lowered | None]]] = {
    "int": _int,
    "float": _float,
    "like": _like,
}


def _decimals(low: Lowering, node: Strict) -> list[Lowered] | None:
    """The arguments, if all are DECIMALs."""
    args = [low.value(arg) for arg in node.args]
    return args if all(arg.carrier.kind == "dec" for arg in args) else None


def _sum_of(symbol: str) -> Callable[[Lowering, Strict], Lowered | None]:
    def rule(low: Lowering, node: Strict) -> Lowered | None:
        args = _decimals(low, node)
        if args is None:
            return None
        a, b = (arg.carrier for arg in args)
        scale = max(a.scale, b.scale)
        whole = max(a.precision - a.scale, b.precision - b.scale) + 1
        carrier = decimal(min(whole + scale, 38), scale)
        return Lowered(f"CAST({args[0].sql} {symbol} {args[1].sql} AS {carrier.sql})", carrier)

    return rule


def _product(low: Lowering, node: Strict) -> Lowered | None:
    args = _decimals(low, node)
    if args is None:
        return None
    a, b = (arg.carrier for arg in args)
    if a.scale + b.scale > 30:
        return None
    sides = [arg.sql for arg in args]
    if a.precision + b.precision > 38:
        # Declared digits are mostly empty. The wider side is taken for as narrow as DuckDB needs
        # it; a value that does not fit makes the query start again with exact text.
        wide = 0 if a.precision >= b.precision else 1
        other = (b, a)[wide]
        room = 38 - other.precision
        if room < (a, b)[wide].scale + 6:
            return None
        sides[wide] = f"CAST({sides[wide]} AS DECIMAL({room},{(a, b)[wide].scale}))"
    carrier = decimal(min(a.precision + b.precision, 38), a.scale + b.scale)
    return Lowered(f"CAST({sides[0]} * {sides[1]} AS {carrier.sql})", carrier)


def _negated(low: Lowering, node: Strict) -> Lowered | None:
    args = _decimals(low, node)
    return None if args is None else Lowered(f"(-{args[0].sql})", args[0].carrier)


def _to_float(low: Lowering, node: Strict) -> Lowered | None:
    found = low.value(node.args[0])
    if found.carrier.kind == "int":
        return Lowered(f"CAST({found.sql} AS DOUBLE)", DOUBLE)
    if found.carrier.kind in ("dec", "exact"):
        # By way of the text: DuckDB divides two doubles, which may be off by one in the last bit.
        return Lowered(f"CAST(CAST({found.sql} AS VARCHAR) AS DOUBLE)", DOUBLE)
    return None


def _round(low: Lowering, node: Strict) -> Lowered | None:
    args = low.value(node.args[0])
    if args.carrier.kind != "dec":
        return None
    scale = 0
    if len(node.args) == 2:
        count = node.args[1]
        if not isinstance(count, Const) or count.value is None or not 0 <= count.value <= 15:
            return None
        scale = count.value
    whole = args.carrier.precision - args.carrier.scale + 1
    carrier = decimal(whole + scale, scale)
    if carrier.kind != "dec":
        return None
    inner = args.sql if scale >= args.carrier.scale else f"round({args.sql}, {scale})"
    return Lowered(f"CAST({inner} AS {carrier.sql})", carrier)


def _substring(low: Lowering, node: Strict) -> Lowered | None:
    value = low.value(node.args[0])
    places = node.args[1:]
    if value.carrier.kind != "text":
        return None
    for lowest, place in zip((1, 0), places):
        if not isinstance(place, Const) or place.value is None or place.value < lowest:
            return None
    numbers = ", ".join(str(place.value) for place in places if isinstance(place, Const))
    return Lowered(f"substring({value.sql}, {numbers})", VARCHAR)


def _to_timestamp(low: Lowering, node: Strict) -> Lowered | None:
    value = low.sql(node.args[0])
    ends = (
        f"WHEN {value} = {datetimes.DATE_INFINITY} THEN {datetimes.INFINITY} "
        f"WHEN {value} = {datetimes.DATE_MINUS_INFINITY} THEN -9223372036854775808"
    )
    return Lowered(
        f"CAST(CASE {ends} ELSE CAST({value} AS BIGINT) * {datetimes.DAY_US} END AS BIGINT)", BIGINT
    )


_CALLS: Final[dict[Any, Callable[[Lowering, Strict], Lowered | None]]] = {
    numerics.add_numeric: _sum_of("+"),
    numerics.subtract_numeric: _sum_of("-"),
    numerics.multiply_numeric: _product,
    numerics.negated: _negated,
    numerics.to_float: _to_float,
    functions._round_numeric: _round,
    functions._substring: _substring,
    datetimes.date_to_timestamp: _to_timestamp,
}
__all__ = ["Lowered", "Lowering", "convert", "key_of", "literal", "quoted"]
