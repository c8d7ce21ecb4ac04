"""Conversions between types, by PostgreSQL's three strengths.

* implicit: the context decides for a literal or parameter; integer to bigint, any number to a wider
* assignment: what INSERT and UPDATE also allow: bigint to integer (checked), anything to text
* explicit: what CAST also allows: text to anything, integer to boolean
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from compute.sql import datetimes, numerics, scalars
from compute.sql.environment import current
from compute.sql.expressions import (
    Const,
    Emitter,
    Local,
    Node,
    Param,
    Retyped,
    Strict,
    call,
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
    JSON,
    JSONB,
    NAME,
    NUMERIC,
    OID,
    PARSERS,
    REGTYPE,
    STRINGS,
    TEXT,
    TEXT_OUTPUT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VARCHAR,
    SqlType,
    cut_name,
    display,
    fit,
    pad,
)
from compute.sql.zones import UTC_ZONE
from polarless.errors import CallerMistake

IMPLICIT: Final = 0
ASSIGNMENT: Final = 1
EXPLICIT: Final = 2

# The wider of two number types is the later one.
NUMBER_RANK: Final = {INT2: 0, INT4: 1, INT8: 2, NUMERIC: 3, FLOAT4: 4, FLOAT8: 5}
_TIME_RANK: Final = {DATE: 0, TIMESTAMP: 1, TIMESTAMPTZ: 2}


def cast(node: Node, target: SqlType, typmod: int = -1, *, strength: int = IMPLICIT) -> Node:
    """``node`` as a ``target``. Raises 42846 if there is no such conversion at this strength."""
    if node.type is UNKNOWN:
        return _resolve(node, target, typmod, strength)
    if node.type is target:
        return _fitted(node, target, typmod, strength)
    converted = _convert(node, target, strength)
    if converted is None:
        raise CallerMistake(
            f"cannot cast type {display(node.type)} to {display(target)}", sqlstate="42846"
        )
    return _fitted(converted, target, typmod, strength)


def can_cast(node: Node, target: SqlType, *, strength: int = IMPLICIT) -> bool:
    """Whether `cast` would not raise for the types alone."""
    if node.type is UNKNOWN or node.type is target:
        return True
    return _convert(node, target, strength) is not None


def _resolve(node: Node, target: SqlType, typmod: int, strength: int) -> Node:
    """A literal or parameter whose type was open becomes a ``target``."""
    if isinstance(node, Const):
        value = node.value if node.value is None else PARSERS[target](node.value)
        return _fitted(Const(value, target), target, typmod, strength)
    if isinstance(node, Param):
        slot = node.slot
        if slot.type is UNKNOWN:
            slot.type = target
        found = Param(slot)
        if slot.type is not target:
            return cast(found, target, typmod, strength=strength)
        return _fitted(found, target, typmod, strength)
    # CASE or COALESCE of nothing but unknown literals: text.
    return cast(Retyped(node, TEXT), target, typmod, strength=EXPLICIT)


def _fitted(node: Node, target: SqlType, typmod: int, strength: int) -> Node:
    """Apply a type modifier: varchar(n), numeric(p, s), ... An explicit cast of text cuts."""
    if typmod < 0 or (node.typmod == typmod and node.type is target):
        return node
    if strength == EXPLICIT and target in (VARCHAR, BPCHAR):
        limit = typmod - 4
        if isinstance(node, Const):
            text = None if node.value is None else node.value[:limit]
            return Const(
                text if text is None or target is VARCHAR else text.rstrip(" "), target, typmod
            )
        strip = ".rstrip(' ')" if target is BPCHAR else ""
        return Strict((node,), template(f"{{0}}[:{limit}]{strip}"), target, typmod)
    if isinstance(node, Const):
        return Const(fit(node.value, target, typmod), target, typmod)
    if target in (VARCHAR, BPCHAR):
        # Too long is rare: one comparison decides whether to look closer.
        limit = typmod - 4
        source = f"{{0}} if len({{0}}) <= {limit} else fit_({{0}}, {target.oid}, {typmod})"
        if target is BPCHAR and not _is_stripped(node):
            source = f"fit_({{0}}, {target.oid}, {typmod})"
        return Strict((node,), template(source, fit_=_fit_by_oid), target, typmod)
    return Strict(
        (node,), template(f"fit_({{0}}, {target.oid}, {typmod})", fit_=_fit_by_oid), target, typmod
    )


def _is_stripped(node: Node) -> bool:
    """Whether a char(n) value has lost its trailing blanks already; all of that type have."""
    return node.type is BPCHAR


def _fit_by_oid(value: object, oid: int, typmod: int) -> object:
    from compute.sql.types import BY_OID

    return fit(value, BY_OID[oid], typmod)


def _convert(node: Node, target: SqlType, strength: int) -> Node | None:
    """The conversion without type modifiers, or None."""
    source = node.type
    if source in NUMBER_RANK and target in NUMBER_RANK:
        wider = NUMBER_RANK[target] > NUMBER_RANK[source]
        if not wider and strength == IMPLICIT:
            return None
        return _number(node, target)
    if source in STRINGS and target in STRINGS:
        return _string(node, target)
    if source in _TIME_RANK and target in _TIME_RANK:
        wider = _TIME_RANK[target] > _TIME_RANK[source]
        if not wider and strength == IMPLICIT:
            return None
        return _time(node, target)
    if target in STRINGS and strength >= ASSIGNMENT:
        return _to_string(node, target)
    if source in (INT2, INT4, INT8, OID) and target in (INT2, INT4, INT8, OID):
        narrower = (source, target) in ((INT8, OID), (OID, INT4), (OID, INT2))
        return _checked_int(node, target) if narrower else Retyped(node, target)
    if source.family == target.family == "array":
        return _array(node, target, strength)
    if source.family == "reg" and target is OID:
        return Retyped(node, target)
    if source is CLOCK and target is INTERVAL:
        return Strict((node,), call(scalars.clock_interval), target)
    if strength >= ASSIGNMENT and target is CLOCK and source in (TIMESTAMP, TIMESTAMPTZ):
        inner = node if source is TIMESTAMP else _time(node, TIMESTAMP)
        return Strict((inner,), call(scalars.clock_of), target)
    if strength >= ASSIGNMENT and target is CLOCK and source is INTERVAL:
        return Strict((node,), call(scalars.interval_clock), target)
    if strength >= ASSIGNMENT and (source, target) == (JSON, JSONB):
        return Strict((node,), call(scalars.parse_jsonb), target)
    if strength >= ASSIGNMENT and (source, target) == (JSONB, JSON):
        return Retyped(node, target)
    if source is REGTYPE and target in STRINGS:
        return Retyped(node, target)
    if strength < EXPLICIT:
        return None
    if source is JSONB and (target is BOOL or target in NUMBER_RANK):
        if target is BOOL:
            return Strict((node,), call(scalars.jsonb_boolean), target)
        return _number(Strict((node,), call(scalars.jsonb_number), NUMERIC), target)
    if source in STRINGS:
        parser = PARSERS[target]
        name = f"parse{target.oid}_"
        return Strict((node,), template(f"{name}({{0}})", **{name: parser}), target)
    if source is INT4 and target is CHAR:
        return Strict((node,), template("chr({0} & 255) if {0} & 255 else ''"), target)
    if source is INT4 and target is BOOL:
        return Strict((node,), template("{0} != 0"), target)
    if source is BOOL and target is INT4:
        return Strict((node,), template("1 if {0} else 0"), target)
    return None


def _array(node: Node, target: SqlType, strength: int) -> Node | None:
    """From an array to one of another type, if the elements can be converted at this strength."""
    from compute.sql.rowcode import base_names, compile_function

    source, wanted = node.type.element, target.element  # type: ignore[attr-defined]
    inner = Local("x", source)
    made = inner if source is wanted else _convert(inner, wanted, strength)
    if made is None:
        return None
    if isinstance(made, (Local, Retyped)):
        return Strict((node,), call(list), target)
    out = Emitter(base_names())
    out.line(f"return {made.emit(out)}")
    convert = compile_function("convert", "x", out)

    def each(items: list[Any]) -> list[Any]:
        return [each(item) if isinstance(item, list) else convert(item) for item in items]

    return Strict((node,), call(each), target)


def _number(node: Node, target: SqlType) -> Node:
    source = node.type
    if source is target:
        return node
    if isinstance(node, Const) and source.family == "int" and target.family == "int":
        low, high = INT_BOUNDS[target]
        if node.value is not None and not low <= node.value <= high:
            raise out_of_range(target.name)
        return Const(node.value, target)
    if source.family == "int" and target.family == "int":
        if NUMBER_RANK[target] > NUMBER_RANK[source]:
            return Retyped(node, target)
        return _checked_int(node, target)
    if target is NUMERIC:
        if source.family == "int":
            if isinstance(node, Const):
                return Const(None if node.value is None else Decimal(node.value), target)
            return Strict((node,), template("Decimal_({0})", Decimal_=Decimal), target)
        return Strict((node,), call(numerics.float_to_numeric), target)
    if target is FLOAT8:
        if source is FLOAT4:
            return Retyped(node, target)
        if isinstance(node, Const):
            return Const(None if node.value is None else numerics.to_float(node.value), target)
        return Strict((node,), call(numerics.to_float), target)
    if target is FLOAT4:
        if source.family == "float":
            return Strict((node,), call(numerics.to_float4), target)
        wide = Strict((node,), call(numerics.to_float), FLOAT8)
        return Strict((wide,), call(numerics.to_float4), target)
    low, high = INT_BOUNDS[target]
    to_int = f"to_int_({{0}}, {low}, {high}, {target.name!r})"
    return Strict((node,), template(to_int, to_int_=numerics.float_to_int), target)


def _checked_int(node: Node, target: SqlType) -> Node:
    low, high = INT_BOUNDS[target]

    def body(out: Emitter, result: str, args: list[str]) -> None:
        out.names["out_of_range"] = out_of_range
        out.line(f"{result} = {args[0]}")
        out.line(f"if not {low} <= {result} <= {high}: raise out_of_range({target.name!r})")

    return Strict((node,), meaning(body, ("int", "checked", target)), target)


def _string(node: Node, target: SqlType) -> Node:
    if target is NAME and node.type is not NAME:
        return Strict((node,), call(cut_name), target)
    if target is BPCHAR:
        if isinstance(node, Const):
            return Const(node.value and node.value.rstrip(" "), target)
        return Strict((node,), template("{0}.rstrip(' ')"), target)
    if isinstance(node, Const):
        return Const(node.value, target)
    return Retyped(node, target)


def _time(node: Node, target: SqlType) -> Node:
    zoned = TIMESTAMPTZ in (node.type, target)
    if node.type is DATE:
        from_date = datetimes.date_to_moment if zoned else datetimes.date_to_timestamp
        return Strict((node,), call(from_date), target)
    if target is DATE:
        to_date = datetimes.moment_to_date if zoned else datetimes.timestamp_to_date
        return Strict((node,), call(to_date), target)
    if current.environment.zone is UTC_ZONE:
        # The number stays.
        return Retyped(node, target)
    function = datetimes.moment if target is TIMESTAMPTZ else datetimes.local
    return Strict((node,), call(function), target)


def _to_string(node: Node, target: SqlType) -> Node | None:
    source = node.type
    if source is BYTEA:
        function = TEXT_OUTPUT[BYTEA]
    elif source is BOOL:
        text: Node = Strict((node,), template("'true' if {0} else 'false'"), TEXT)
        return text if target is TEXT else _string(text, target)
    elif source in TEXT_OUTPUT:
        function = TEXT_OUTPUT[source]
    else:
        return None
    name = f"print{source.oid}_"
    text = Strict((node,), template(f"{name}({{0}}).decode()", **{name: function}), TEXT)
    return text if target is TEXT else _string(text, target)


def padded(node: Node) -> Node:
    """A char(n) with its blanks, for what counts them (LIKE); anything else as it is."""
    if node.type is not BPCHAR or node.typmod < 0:
        return node
    return Strict((node,), template(f"pad_({{0}}, {node.typmod})", pad_=pad), TEXT)
