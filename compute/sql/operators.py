"""Operators: which types they take, and the Python they become.

Literals and parameters of unknown type take the other side's type, as in PostgreSQL; two numbers
meet at the wider one. What has no operator raises 42883, worded as PostgreSQL does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from compute.sql import numerics, scalars
from compute.sql.casts import NUMBER_RANK, cast, padded
from compute.sql.expressions import (
    Body,
    Const,
    Emitter,
    InList,
    Junction,
    Node,
    Retyped,
    Strict,
    Test,
    call,
    is_fixed,
    meaning,
    template,
)
from compute.sql.mistakes import out_of_range
from compute.sql.types import (
    BOOL,
    BPCHAR,
    BYTEA,
    CHAR,
    CLOCK,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INT_BOUNDS,
    INTERVAL,
    NAME,
    NUMERIC,
    OID,
    STRINGS,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VARCHAR,
    SqlType,
    display,
)
from polarless.errors import CallerMistake

_ARITHMETIC: Final = {"+": "{0} + {1}", "-": "{0} - {1}", "*": "{0} * {1}"}
_NUMERIC: Final[dict[str, Callable[..., Any]]] = {
    "+": numerics.add_numeric,
    "-": numerics.subtract_numeric,
    "*": numerics.multiply_numeric,
    "/": numerics.divide_numeric,
    "%": numerics.modulo_numeric,
}


def no_operator(symbol: str, left: Node, right: Node) -> CallerMistake:
    """No operator takes these types."""
    return CallerMistake(
        f"operator does not exist: {display(left.type)} {symbol} {display(right.type)}",
        sqlstate="42883",
        hint="No operator matches the given name and argument types. "
        "You might need to add explicit type casts.",
    )


def _resolve_pair(left: Node, right: Node) -> tuple[Node, Node]:
    """Give an unknown side the type of the other; numbers meet at the wider type."""
    if left.type is UNKNOWN and right.type is not UNKNOWN:
        return cast(left, right.type), right
    if right.type is UNKNOWN and left.type is not UNKNOWN:
        return left, cast(right, left.type)
    return left, right


def _wider(left: Node, right: Node) -> SqlType | None:
    if left.type not in NUMBER_RANK or right.type not in NUMBER_RANK:
        return None
    wide = max(left.type, right.type, key=NUMBER_RANK.__getitem__)
    # real meets everything but itself and smaller ints at double precision
    if wide is FLOAT4 and (left.type is not FLOAT4 or right.type is not FLOAT4):
        return FLOAT8
    return wide


# ------------------------------------------------------------------------------------- arithmetic


def arithmetic(symbol: str, left: Node, right: Node) -> Node:
    """``+ - * / %`` on numbers, and ``date + integer``."""
    if left.type is UNKNOWN and right.type is UNKNOWN:
        raise CallerMistake(
            f"operator is not unique: unknown {symbol} unknown",
            sqlstate="42725",
            hint="Could not choose a best candidate operator. "
            "You might need to add explicit type casts.",
        )
    for side, other in ((left, right), (right, left)):
        if side.type is UNKNOWN and not _has_arithmetic(symbol, other.type):
            raise no_operator(symbol, left, right)
    if symbol == "+":
        # What is added to a time is an interval.
        if left.type in (TIMESTAMP, TIMESTAMPTZ) and right.type is UNKNOWN:
            right = cast(right, INTERVAL)
        elif right.type in (TIMESTAMP, TIMESTAMPTZ) and left.type is UNKNOWN:
            left = cast(left, INTERVAL)
    left, right = _resolve_pair(left, right)
    wide = _wider(left, right)
    if wide is None and {left.type, right.type} == {TIMESTAMP, TIMESTAMPTZ}:
        left, right = cast(left, TIMESTAMPTZ), cast(right, TIMESTAMPTZ)
    if wide is None:
        found = _date_arithmetic(symbol, left, right)
        if found is None:
            raise no_operator(symbol, left, right)
        return found
    left, right = cast(left, wide), cast(right, wide)
    if wide is NUMERIC:
        return Strict((left, right), call(_NUMERIC[symbol]), NUMERIC)
    if wide.family == "float":
        return Strict((left, right), _float_body(symbol, wide), wide)
    return Strict((left, right), _int_body(symbol, wide), wide)


def _has_arithmetic(symbol: str, kind: SqlType) -> bool:
    """Whether a literal beside this type may be taken for one of it."""
    if kind.family in ("bool", "bytea") or kind is NAME:
        return False
    return symbol not in ("*", "/", "%") or kind.family not in ("date", "time", "text")


def _int_body(symbol: str, kind: SqlType) -> Body:
    low, high = INT_BOUNDS[kind]

    def body(out: Emitter, result: str, args: list[str]) -> None:
        if symbol in _ARITHMETIC:
            out.line(f"{result} = {_ARITHMETIC[symbol].format(*args)}")
        else:
            function = numerics.divide_int if symbol == "/" else numerics.modulo_int
            call(function)(out, result, args)
        if symbol != "%":
            out.names["out_of_range"] = out_of_range
            out.line(f"if not {low} <= {result} <= {high}: raise out_of_range({kind.name!r})")

    return meaning(body, ("int", symbol, kind))


def _float_body(symbol: str, kind: SqlType) -> Body:
    def body(out: Emitter, result: str, args: list[str]) -> None:
        if symbol == "/":
            call(numerics.divide_float)(out, result, args)
        else:
            out.names["checked_float"] = numerics.checked_float
            value = _ARITHMETIC[symbol].format(*args)
            out.line(f"{result} = checked_float({value}, {args[0]}, {args[1]})")
        if kind is FLOAT4:
            call(numerics.to_float4)(out, result, [result])

    if symbol == "%":
        raise CallerMistake(f"operator does not exist: {kind.name} % {kind.name}", sqlstate="42883")
    return meaning(body, ("float", symbol, kind))


def _date_arithmetic(symbol: str, left: Node, right: Node) -> Node | None:
    if left.type is DATE and right.type in (INT2, INT4) and symbol in "+-":
        return Strict((left, right), template(_ARITHMETIC[symbol]), DATE)
    if left.type in (INT2, INT4) and right.type is DATE and symbol == "+":
        return Strict((left, right), template("{0} + {1}"), DATE)
    if left.type is DATE and right.type is DATE and symbol == "-":
        return Strict((left, right), template("{0} - {1}"), INT4)
    if left.type in (INTERVAL, CLOCK) and right.type is not INTERVAL and symbol in "+*":
        left, right = right, left
    if left.type in NUMBER_RANK and symbol == "*" and right.type is INTERVAL:
        left, right = right, left
    if left.type is INTERVAL and right.type in NUMBER_RANK and symbol in "*/":
        function = scalars.scaled if symbol == "*" else scalars.divided
        return Strict((left, right), call(function), INTERVAL)
    found = _TIMES.get((left.type, symbol, right.type))
    return None if found is None else Strict((left, right), call(found[0]), found[1])


_TIMES: Final[dict[Any, tuple[Callable[..., Any], SqlType]]] = {
    (TIMESTAMP, "+", INTERVAL): (scalars.timestamp_plus, TIMESTAMP),
    (TIMESTAMP, "-", INTERVAL): (scalars.timestamp_minus, TIMESTAMP),
    (TIMESTAMPTZ, "+", INTERVAL): (scalars.moment_plus, TIMESTAMPTZ),
    (TIMESTAMPTZ, "-", INTERVAL): (scalars.moment_minus, TIMESTAMPTZ),
    (DATE, "+", CLOCK): (scalars.date_at, TIMESTAMP),
    (DATE, "+", INTERVAL): (scalars.date_plus, TIMESTAMP),
    (DATE, "-", INTERVAL): (scalars.date_minus, TIMESTAMP),
    (CLOCK, "+", INTERVAL): (scalars.clock_plus, CLOCK),
    (CLOCK, "-", INTERVAL): (scalars.clock_minus, CLOCK),
    (CLOCK, "-", CLOCK): (scalars.clock_between, INTERVAL),
    (INTERVAL, "+", INTERVAL): (scalars.add, INTERVAL),
    (INTERVAL, "-", INTERVAL): (scalars.subtract, INTERVAL),
    (TIMESTAMP, "-", TIMESTAMP): (scalars.between, INTERVAL),
    (TIMESTAMPTZ, "-", TIMESTAMPTZ): (scalars.between, INTERVAL),
}


def negate(node: Node) -> Node:
    """Unary minus."""
    if isinstance(node, Const) and node.type in (INT4, INT8, NUMERIC, FLOAT8):
        value = node.value
        if value is None:
            return node
        negative = numerics.negated(value)
        # The one integer whose negative is none.
        return Const(negative, INT8 if node.type is INT4 and negative == 1 << 31 else node.type)
    if node.type is UNKNOWN:
        node = cast(node, FLOAT8)
    if node.type is INTERVAL:
        return Strict((node,), call(scalars.negative), INTERVAL)
    if node.type not in NUMBER_RANK:
        raise CallerMistake(
            f"operator does not exist: - {display(node.type)}",
            sqlstate="42883",
            hint="No operator matches the given name and argument type. "
            "You might need to add an explicit type cast.",
        )
    if node.type.family == "int":
        return arithmetic("-", Const(0, node.type), node)
    if node.type is NUMERIC:
        return Strict((node,), call(numerics.negated), NUMERIC)
    return Strict((node,), template("-{0}"), node.type)


# ------------------------------------------------------------------------------------- comparison

COMPARISONS: Final = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ORDERED: Final = frozenset(
    {"int", "text", "bool", "time", "date", "bytea", "uuid", "clock", "interval", "jsonb", "enum"}
)


def comparable(symbol: str, left: Node, right: Node) -> tuple[Node, Node]:
    """Both sides as one type that has an order. Raises 42883."""
    if left.type is UNKNOWN and right.type is UNKNOWN:
        return cast(left, TEXT), cast(right, TEXT)
    left, right = _resolve_pair(left, right)
    if left.type is right.type:
        return left, right
    left, right = _reg_as_oid(left, right), _reg_as_oid(right, left)
    if left.type is right.type:
        return left, right
    if CHAR in (left.type, right.type) and {left.type, right.type} <= {CHAR, *STRINGS}:
        return _as_text(left), _as_text(right)
    wide = _wider(left, right)
    if wide is not None:
        return cast(left, wide), cast(right, wide)
    for family in (STRINGS, (DATE, TIMESTAMP, TIMESTAMPTZ), (INT2, INT4, INT8, OID)):
        if left.type in family and right.type in family:
            if family is STRINGS:
                same = left.type is right.type
                return (left, right) if same else (cast(left, TEXT), cast(right, TEXT))
            if OID in (left.type, right.type):
                return cast(left, INT8), cast(right, INT8)
            later = TIMESTAMPTZ if TIMESTAMPTZ in (left.type, right.type) else TIMESTAMP
            return cast(left, later), cast(right, later)
    raise no_operator(symbol, left, right)


def _reg_as_oid(node: Node, other: Node) -> Node:
    """A regclass beside an oid or number, or beside another such type, is an oid."""
    if node.type.family != "reg" or other.type.family not in ("int", "reg"):
        return node
    return Retyped(node, OID)


def _as_text(node: Node) -> Node:
    return Retyped(node, TEXT) if node.type is CHAR else cast(node, TEXT)


def compare(symbol: str, left: Node, right: Node) -> Node:
    """``= <> < <= > >=``."""
    left, right = comparable(symbol, left, right)
    family = left.type.family
    if family == "interval":
        # Its length comes first in it; 1 month and 30 days are equal.
        body = template(f"{{0}}[:16] {COMPARISONS[symbol]} {{1}}[:16]")
    elif family in _ORDERED or (family == "array" and symbol in ("=", "<>")):
        body = template(f"{{0}} {COMPARISONS[symbol]} {{1}}")
    elif family in ("float", "numeric"):
        # NaN equals itself and is greater than every other number.
        body = call(_NAN_AWARE[symbol])
    else:
        raise no_operator(symbol, left, right)
    return Comparison(symbol, left, right, body)


class Comparison(Strict):
    """A comparison that `access` can look into."""

    __slots__ = ("symbol",)

    def __init__(self, symbol: str, left: Node, right: Node, body: Body) -> None:
        super().__init__((left, right), body, BOOL)
        self.symbol = symbol


def nan_equal(a: Any, b: Any) -> bool:
    """a = b with NaN = NaN."""
    return bool(a == b) or (a != a and b != b)


def nan_less(a: Any, b: Any) -> bool:
    """a < b with NaN above all."""
    if a != a:
        return False
    return True if b != b else bool(a < b)


def _nan_different(a: Any, b: Any) -> bool:
    return not nan_equal(a, b)


def _nan_greater(a: Any, b: Any) -> bool:
    return nan_less(b, a)


def _nan_at_most(a: Any, b: Any) -> bool:
    return not nan_less(b, a)


def _nan_at_least(a: Any, b: Any) -> bool:
    return not nan_less(a, b)


_NAN_AWARE: Final[dict[str, Callable[..., Any]]] = {
    "=": nan_equal,
    "<>": _nan_different,
    "<": nan_less,
    "<=": _nan_at_most,
    ">": _nan_greater,
    ">=": _nan_at_least,
}


def nullif(left: Node, right: Node) -> tuple[Node, Node]:
    """What NULLIF compares; the first one is its result, in the type of the comparison."""
    first, second = comparable("=", left, right)
    kinds = {left.type, right.type}
    times = kinds <= {DATE, TIMESTAMP, TIMESTAMPTZ}
    if left.type.family == "float" or kinds <= {INT2, INT4, INT8} or times:
        # PostgreSQL has an operator for these two types as they are.
        return left, right if right.type is not UNKNOWN else second
    if OID in kinds and kinds <= {INT2, INT4, INT8, OID}:
        return cast(left, OID), cast(right, OID)
    strings = kinds
    if BPCHAR in strings and strings <= {BPCHAR, VARCHAR}:
        return cast(left, BPCHAR), cast(right, BPCHAR)
    if first.type is VARCHAR:
        return cast(first, TEXT), cast(second, TEXT)
    return first, second


def is_distinct(left: Node, right: Node, *, negate: bool) -> Node:
    """IS [NOT] DISTINCT FROM: NULL is a value like others."""
    left, right = comparable("=", left, right)

    def body(out: Emitter, result: str, args: list[str]) -> None:
        out.names["nan_equal"] = nan_equal
        a, b = args
        equal = f"({a} is None and {b} is None) or "
        equal += f"({a} is not None and {b} is not None and nan_equal({a}, {b}))"
        out.line(f"{result} = {equal}" if negate else f"{result} = not ({equal})")

    return AlwaysKnown((left, right), body, BOOL)


class AlwaysKnown(Strict):
    """An operation that sees NULLs itself and never is one."""

    __slots__ = ()

    def emit(self, out: Emitter) -> str:
        sources = [arg.emit(out) for arg in self.args]
        for index, arg in enumerate(self.args):
            if isinstance(arg, Const):
                # Python warns of ``1 is None``.
                name = out.temp()
                out.line(f"{name} = {sources[index]}")
                sources[index] = name
        result = out.temp()
        self.body(out, result, sources)
        return result


def in_list(value: Node, items: list[Node]) -> Node:
    """``value IN (items)``."""
    resolved = [comparable("=", value, item) for item in items]
    kinds = {left.type for left, _ in resolved}
    simple = all(is_fixed(item) for _, item in resolved)
    if simple and len(kinds) == 1 and next(iter(kinds)).family in _ORDERED:
        return InList(resolved[0][0], [item for _, item in resolved])
    return any_of([compare("=", value, item) for item in items])


def any_of(parts: list[Node]) -> Node:
    """OR of all."""
    return parts[0] if len(parts) == 1 else Junction(parts, stop=True)


def all_of(parts: list[Node]) -> Node:
    """AND of all."""
    return parts[0] if len(parts) == 1 else Junction(parts, stop=False)


def negation(node: Node) -> Node:
    """NOT."""
    return Strict((as_bool(node, "NOT"),), template("not {0}"), BOOL)


def as_bool(node: Node, what: str) -> Node:
    """The argument of AND, WHERE, ... Raises 42804."""
    if node.type is UNKNOWN:
        return cast(node, BOOL)
    if node.type is not BOOL:
        raise CallerMistake(
            f"argument of {what} must be type boolean, not type {display(node.type)}",
            sqlstate="42804",
        )
    return node


def truth(node: Node, wanted: bool | None, *, negate: bool) -> Node:
    """IS [NOT] TRUE | FALSE | UNKNOWN."""
    relation = "is not" if negate else "is"
    return Test(as_bool(node, "IS TRUE"), f"{{0}} {relation} {wanted}")


def null_test(node: Node, *, negate: bool) -> Node:
    """IS [NOT] NULL."""
    if node.type is UNKNOWN:
        node = cast(node, TEXT)
    return Test(node, "{0} is not None" if negate else "{0} is None")


# ------------------------------------------------------------------------------------------- text


def concat(left: Node, right: Node) -> Node:
    """``||``: text of anything, or bytea."""
    if BYTEA in (left.type, right.type):
        left, right = _resolve_pair(left, right)
        if left.type is not BYTEA or right.type is not BYTEA:
            raise no_operator("||", left, right)
        return Strict((left, right), template("{0} + {1}"), BYTEA)
    if not any(node.type in STRINGS or node.type is UNKNOWN for node in (left, right)):
        raise no_operator("||", left, right)
    texts = tuple(cast(node, TEXT, strength=1) for node in (left, right))
    return Strict(texts, template("{0} + {1}"), TEXT)


def like(value: Node, pattern: Node, *, escape: str | None, ignore_case: bool) -> Node:
    """LIKE and ILIKE; ``escape`` None means the backslash."""
    value = padded(value if value.type is not UNKNOWN else cast(value, TEXT))
    if value.type not in STRINGS or (pattern.type not in STRINGS and pattern.type is not UNKNOWN):
        raise no_operator("~~*" if ignore_case else "~~", value, pattern)
    pattern = padded(cast(pattern, TEXT))
    escape = "\\" if escape is None else escape
    if isinstance(pattern, Const) and pattern.value is not None:
        matcher = like_matcher(pattern.value, escape, ignore_case)

        def body(out: Emitter, result: str, args: list[str]) -> None:
            name = out.constant(matcher, "like")
            out.line(f"{result} = {name}({args[0]}) is not None")

        meaning(body, ("like", pattern.value, escape, ignore_case))
        return Strict((value,), body, BOOL)
    source = f"like_({{1}}, {escape!r}, {ignore_case})({{0}}) is not None"
    return Strict((value, pattern), template(source, like_=like_matcher), BOOL)


@lru_cache(maxsize=256)
def like_matcher(pattern: str, escape: str, ignore_case: bool) -> Callable[[str], Any]:
    """The fullmatch of a LIKE pattern's regular expression. Raises 22025."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if escape and char == escape:
            position += 1
            if position == len(pattern):
                raise CallerMistake(
                    "LIKE pattern must not end with escape character", sqlstate="22025"
                )
            parts.append(re.escape(pattern[position]))
        elif char == "%":
            # Many % in a row mean one; without this the regular expression explodes.
            if not parts or parts[-1] != ".*":
                parts.append(".*")
        else:
            parts.append("." if char == "_" else re.escape(char))
        position += 1
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    return re.compile(_possessive("".join(parts)), flags).fullmatch


def _possessive(source: str) -> str:
    """Each ``.*piece`` matches the piece's first place and never tries again, as LIKE may.

    The leftmost match of each piece is always good enough, except for the last one, which is held
    by the end. So matching is linear, whatever the pattern.
    """
    pieces = source.split(".*")
    if len(pieces) < 3:
        return source
    middle = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1])
    return f"{pieces[0]}{middle}.*{pieces[-1]}"


def regex_match(value: Node, pattern: Node, *, ignore_case: bool, negate: bool) -> Node:
    """``~`` and its kin: refused, since Python's syntax differs from PostgreSQL's."""
    raise CallerMistake(
        "regular expression operators are not supported",
        sqlstate="0A000",
        hint="Use LIKE where it suffices.",
    )


def greatest(args: list[Node], *, least: bool) -> Node:
    """GREATEST and LEAST: NULLs are ignored."""
    kind = common_type(args, "GREATEST")
    nodes = tuple(cast(arg, kind) for arg in args)
    function = _least if least else _greatest

    def body(out: Emitter, result: str, sources: list[str]) -> None:
        call(function)(out, result, sources)

    node = AlwaysKnown(nodes, body, kind, common_typmod(args, kind))
    node.nullable = all(found.nullable for found in nodes)
    return node


def _greatest(*values: Any) -> Any:
    best = None
    for value in values:
        if value is not None and (best is None or nan_less(best, value)):
            best = value
    return best


def _least(*values: Any) -> Any:
    best = None
    for value in values:
        if value is not None and (best is None or nan_less(value, best)):
            best = value
    return best


def common_type(nodes: list[Node], what: str) -> SqlType:
    """The type that CASE, COALESCE, VALUES, ... give their results. Raises 42804."""
    known = [node.type for node in nodes if node.type is not UNKNOWN]
    if not known:
        return TEXT
    best = known[0]
    for kind in known[1:]:
        if kind is best:
            continue
        if kind in NUMBER_RANK and best in NUMBER_RANK:
            best = max(kind, best, key=NUMBER_RANK.__getitem__)
        elif kind in STRINGS and best in STRINGS:
            # The first one stays, but for a name, which the others become and which becomes none.
            best = kind if kind is NAME and best is not TEXT else best
        elif {kind.family, best.family} <= {"int", "reg"}:
            best = OID
        elif kind.family in ("time", "date") and best.family in ("time", "date"):
            order = (DATE, TIMESTAMP, TIMESTAMPTZ)
            best = max(kind, best, key=order.index)
        else:
            raise CallerMistake(
                f"{what} types {display(best)} and {display(kind)} cannot be matched",
                sqlstate="42804",
            )
    return best


def common_typmod(nodes: list[Node], kind: SqlType) -> int:
    """The type modifier of a result that is one of the nodes: theirs, if they have the same."""
    found = {node.typmod if node.type is kind else -1 for node in nodes}
    return found.pop() if len(found) == 1 else -1


def sort_value(value: Any) -> Any:
    """What numbers sort by: NaN last."""
    if value is None:
        return None
    return (value != value, 0 if value != value else value)
