"""Functions by name: pure ones with their signatures, those of the session, and aggregates.

A signature is tried in order: first one whose types are exactly those given, then one that they
can be converted to implicitly. No match raises 42883 with the types that were given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compute.sql import datetimes, numerics, scalars, sequences, waiting
from compute.sql.builtins import formats, jsons, numbers, regexes, texts, times
from compute.sql.builtins.signatures import Signature, Table, matching
from compute.sql.builtins.signatures import make as make_call
from compute.sql.casts import cast
from compute.sql.environment import current
from compute.sql.expressions import (
    Body,
    Const,
    Emitter,
    Node,
    NowUs,
    Retyped,
    SessionCall,
    Strict,
    call,
    template,
)
from compute.sql.mistakes import out_of_range
from compute.sql.operators import AlwaysKnown
from compute.sql.types import (
    BOOL,
    BPCHAR,
    BYTEA,
    CLOCK,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INT_BOUNDS,
    NAME,
    NAME_ARRAY,
    NUMERIC,
    OID,
    REGTYPE,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    VARCHAR,
    VOID,
    SqlType,
    display,
    to_text,
)
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.plan import SessionLike

TEXT_BYTES_MAX: Final = 64 * 1024 * 1024
VERSION_TEXT: Final = "PostgreSQL {version} (polarless), a disaggregated database in Python"


def no_function(name: str, args: list[Node]) -> CallerMistake:
    """No function takes these types."""
    types = ", ".join(display(arg.type) for arg in args)
    return CallerMistake(
        f"function {name}({types}) does not exist",
        sqlstate="42883",
        hint="No function matches the given name and argument types. "
        "You might need to add explicit type casts.",
    )


# ---------------------------------------------------------------------------------- implementations


def _substring(text: str, start: int, length: int | None = None) -> str:
    if length is None:
        return text[max(start - 1, 0) :]
    if length < 0:
        raise CallerMistake("negative substring length not allowed", sqlstate="22011")
    return text[max(start - 1, 0) : max(start - 1 + length, 0)]


def _left(text: str, count: int) -> str:
    return text[:count]


def _right(text: str, count: int) -> str:
    return text[-count:] if count > 0 else text[-count:] if count < 0 else ""


def _repeat(text: str, count: int) -> str:
    if len(text) * count > TEXT_BYTES_MAX:
        raise CallerMistake("requested length too large", sqlstate="54000")
    return text * max(count, 0)


def _lpad(text: str, length: int, fill: str = " ") -> str:
    if length > TEXT_BYTES_MAX:
        raise CallerMistake("requested length too large", sqlstate="54000")
    missing = length - len(text)
    if missing <= 0:
        return text[: max(length, 0)]
    return (fill * (missing // len(fill) + 1))[:missing] + text if fill else text


def _rpad(text: str, length: int, fill: str = " ") -> str:
    if length > TEXT_BYTES_MAX:
        raise CallerMistake("requested length too large", sqlstate="54000")
    missing = length - len(text)
    if missing <= 0:
        return text[: max(length, 0)]
    return text + (fill * (missing // len(fill) + 1))[:missing] if fill else text


def _btrim(text: str, chars: str = " ") -> str:
    return text.strip(chars) if chars else text


def _ltrim(text: str, chars: str = " ") -> str:
    return text.lstrip(chars) if chars else text


def _rtrim(text: str, chars: str = " ") -> str:
    return text.rstrip(chars) if chars else text


def _replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _strpos(text: str, piece: str) -> int:
    return text.find(piece) + 1


def _octet_length(text: str) -> int:
    return len(text.encode())


def _chr(code: int) -> str:
    if not code:
        raise CallerMistake("null character not permitted", sqlstate="54000")
    if not 0 < code <= 0x10FFFF or 0xD800 <= code < 0xE000:
        raise CallerMistake(f"requested character not valid for encoding: {code}", sqlstate="22021")
    return chr(code)


def _ascii(text: str) -> int:
    return ord(text[0]) if text else 0


def _round_numeric(value: Decimal, scale: int = 0) -> Decimal:
    if scale < 0:
        whole = numerics.rounded(value.scaleb(scale, numerics.EXACT), 0)
        return numerics.checked(whole.scaleb(-scale, numerics.EXACT))
    return numerics.rounded(value, min(scale, numerics.SCALE_MAX))


def _trunc_numeric(value: Decimal, scale: int = 0) -> Decimal:
    if not value.is_finite():
        return value
    quantum = Decimal((0, (1,), -min(scale, numerics.SCALE_MAX)))
    return numerics.checked(value.quantize(quantum, rounding="ROUND_DOWN", context=numerics.EXACT))


def _ceil_numeric(value: Decimal) -> Decimal:
    return numerics.checked(value.to_integral_value(ROUND_CEILING))


def _floor_numeric(value: Decimal) -> Decimal:
    return numerics.checked(value.to_integral_value(ROUND_FLOOR))


def _round_float(value: float) -> float:
    return float(round(value)) if math.isfinite(value) else value


def _ceil_float(value: float) -> float:
    return float(math.ceil(value)) if math.isfinite(value) else value


def _floor_float(value: float) -> float:
    return float(math.floor(value)) if math.isfinite(value) else value


def _sqrt(value: float) -> float:
    if value < 0:
        raise CallerMistake("cannot take square root of a negative number", sqlstate="2201F")
    return math.sqrt(value)


def _power(base: float, exponent: float) -> float:
    try:
        result = math.pow(base, exponent)
    except OverflowError:
        raise CallerMistake("value out of range: overflow", sqlstate="22003") from None
    except ValueError:
        raise CallerMistake(
            "zero raised to a negative power is undefined"
            if base == 0
            else "a negative number raised to a non-integer power yields a complex result",
            sqlstate="2201F",
        ) from None
    return result


def _ln(value: float) -> float:
    if value <= 0:
        raise CallerMistake("cannot take logarithm of a nonpositive number", sqlstate="2201E")
    return math.log(value)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        raise CallerMistake("value out of range: overflow", sqlstate="22003") from None


def _sign(value: Any) -> Any:
    return type(value)((value > 0) - (value < 0))


def _abs_int(kind: SqlType) -> Body:
    high = INT_BOUNDS[kind][1]

    def body(out: Emitter, result: str, args: list[str]) -> None:
        out.names["out_of_range"] = out_of_range
        out.line(f"{result} = abs({args[0]})")
        out.line(f"if {result} > {high}: raise out_of_range({kind.name!r})")

    return body


_LENGTH = template("len({0})")

_OWN: Final[Table] = {
    "abs": (
        *(Signature((kind,), kind, _abs_int(kind)) for kind in (INT4, INT8, INT2)),
        *(Signature((kind,), kind, template("abs({0})")) for kind in (FLOAT8, FLOAT4)),
        Signature((NUMERIC,), NUMERIC, template("{0}.copy_abs()")),
    ),
    "length": (
        Signature((TEXT,), INT4, _LENGTH),
        Signature((BPCHAR,), INT4, _LENGTH),
        Signature((BYTEA,), INT4, _LENGTH),
    ),
    "char_length": (Signature((TEXT,), INT4, _LENGTH), Signature((BPCHAR,), INT4, _LENGTH)),
    "character_length": (Signature((TEXT,), INT4, _LENGTH), Signature((BPCHAR,), INT4, _LENGTH)),
    "octet_length": (
        Signature((TEXT,), INT4, call(_octet_length)),
        Signature((BYTEA,), INT4, _LENGTH),
    ),
    "reverse": (Signature((TEXT,), TEXT, template("{0}[::-1]")),),
    "substring": (
        Signature((TEXT, INT4), TEXT, call(_substring)),
        Signature((TEXT, INT4, INT4), TEXT, call(_substring)),
    ),
    "left": (Signature((TEXT, INT4), TEXT, call(_left)),),
    "right": (Signature((TEXT, INT4), TEXT, call(_right)),),
    "repeat": (Signature((TEXT, INT4), TEXT, call(_repeat)),),
    "lpad": (
        Signature((TEXT, INT4), TEXT, call(_lpad)),
        Signature((TEXT, INT4, TEXT), TEXT, call(_lpad)),
    ),
    "rpad": (
        Signature((TEXT, INT4), TEXT, call(_rpad)),
        Signature((TEXT, INT4, TEXT), TEXT, call(_rpad)),
    ),
    "btrim": (
        Signature((TEXT,), TEXT, call(_btrim)),
        Signature((TEXT, TEXT), TEXT, call(_btrim)),
    ),
    "ltrim": (
        Signature((TEXT,), TEXT, call(_ltrim)),
        Signature((TEXT, TEXT), TEXT, call(_ltrim)),
    ),
    "rtrim": (
        Signature((TEXT,), TEXT, call(_rtrim)),
        Signature((TEXT, TEXT), TEXT, call(_rtrim)),
    ),
    "replace": (Signature((TEXT, TEXT, TEXT), TEXT, call(_replace)),),
    "strpos": (Signature((TEXT, TEXT), INT4, call(_strpos)),),
    "starts_with": (Signature((TEXT, TEXT), BOOL, template("{0}.startswith({1})")),),
    "chr": (Signature((INT4,), TEXT, call(_chr)),),
    "ascii": (Signature((TEXT,), INT4, call(_ascii)),),
    "round": (
        Signature((FLOAT8,), FLOAT8, call(_round_float)),
        Signature((NUMERIC,), NUMERIC, call(_round_numeric)),
        Signature((NUMERIC, INT4), NUMERIC, call(_round_numeric)),
    ),
    "trunc": (
        Signature((NUMERIC,), NUMERIC, call(_trunc_numeric)),
        Signature((NUMERIC, INT4), NUMERIC, call(_trunc_numeric)),
    ),
    "ceil": (
        Signature((FLOAT8,), FLOAT8, call(_ceil_float)),
        Signature((NUMERIC,), NUMERIC, call(_ceil_numeric)),
    ),
    "floor": (
        Signature((FLOAT8,), FLOAT8, call(_floor_float)),
        Signature((NUMERIC,), NUMERIC, call(_floor_numeric)),
    ),
    "sqrt": (Signature((FLOAT8,), FLOAT8, call(_sqrt)),),
    "power": (Signature((FLOAT8, FLOAT8), FLOAT8, call(_power)),),
    "exp": (Signature((FLOAT8,), FLOAT8, call(_exp)),),
    "ln": (Signature((FLOAT8,), FLOAT8, call(_ln)),),
    "sign": (
        Signature((FLOAT8,), FLOAT8, call(_sign)),
        Signature((NUMERIC,), NUMERIC, call(_sign)),
    ),
    "mod": (
        *(Signature((k, k), k, call(numerics.modulo_int)) for k in (INT4, INT8, INT2)),
        Signature((NUMERIC, NUMERIC), NUMERIC, call(numerics.modulo_numeric)),
    ),
}


def _merged(*tables: Table) -> Table:
    found: Table = {}
    for table in tables:
        for name, signatures in table.items():
            found[name] = (*found.get(name, ()), *signatures)
    return found


PURE: Final[Table] = _merged(
    _OWN, texts.TABLE, texts.BYTES, numbers.TABLE, times.TABLE, formats.TABLE, regexes.TABLE,
    jsons.TABLE,
)  # fmt: skip
_ALIASES: Final = {"substr": "substring", "ceiling": "ceil", "pow": "power", "position": "strpos"}


# ------------------------------------------------------------------------------ of the session


def _version(session: SessionLike) -> str:
    return VERSION_TEXT.format(version=session.settings.show("server_version"))


def _database(session: SessionLike) -> str:
    return session.database


def _user(session: SessionLike) -> str:
    return session.user


def _schema(session: SessionLike) -> str | None:
    return next(iter(current.environment.search_path), None)


def _schemas(session: SessionLike, implicit: bool) -> str:
    names = (*(("pg_catalog",) if implicit else ()), *current.environment.search_path)
    return f"{{{','.join(names)}}}"


def _in_recovery(session: SessionLike) -> bool:
    return not session.engine.writable


def _setting(session: SessionLike, name: str) -> str:
    return session.settings.show(name)


def _setting_or_null(session: SessionLike, name: str, missing_ok: bool) -> str | None:
    try:
        return session.settings.show(name)
    except CallerMistake:
        if missing_ok:
            return None
        raise


def _set_config(session: SessionLike, name: str, value: str, local: bool) -> str:
    session.settings.set(name, value, local=local)
    return session.settings.show(name)


def _pid(session: SessionLike) -> int:
    return session.pid


def _transaction_id(session: SessionLike) -> int:
    # Numbers are given at commit here; what this promises is only that it does not change.
    return session.now_us


def _clock(session: SessionLike) -> int:
    # The only time that goes on within a transaction: one that has read it cannot be run again.
    return session.engine.clock.wall_us() - datetimes.UNIX_EPOCH_US


def _statement(session: SessionLike) -> int:
    # Statements are short, and a second clock would differ between a node and its replay.
    return session.now_us - datetimes.UNIX_EPOCH_US


def _random(session: SessionLike) -> float:
    return int.from_bytes(session.random(7), "big") / (1 << 56)


def _random_uuid(session: SessionLike) -> str:
    data = bytearray(session.random(16))
    data[6], data[8] = data[6] & 0x0F | 0x40, data[8] & 0x3F | 0x80
    return scalars.uuid_from_binary(bytes(data))


def _nothing(session: SessionLike, *args: Any) -> str:
    return ""


def _true(session: SessionLike, *args: Any) -> bool:
    return True


def _encoding_name(session: SessionLike, number: int) -> str:
    return "UTF8" if number == 6 else ""


def _null(session: SessionLike, *args: Any) -> None:
    return None


class SessionSignature(NamedTuple):
    """As `Signature`; ``function`` takes the session first."""

    args: tuple[SqlType, ...]
    result: SqlType
    function: Callable[..., Any]
    nullable: bool = False


_LOCK_ARGS: Final[tuple[tuple[SqlType, ...], ...]] = ((INT8,), (INT4, INT4))
OF_SESSION: Final[dict[str, tuple[SessionSignature, ...]]] = {
    "version": (SessionSignature((), TEXT, _version),),
    "current_database": (SessionSignature((), NAME, _database),),
    "current_catalog": (SessionSignature((), NAME, _database),),
    "current_user": (SessionSignature((), NAME, _user),),
    "session_user": (SessionSignature((), NAME, _user),),
    "user": (SessionSignature((), NAME, _user),),
    "current_role": (SessionSignature((), NAME, _user),),
    "current_schema": (SessionSignature((), NAME, _schema, nullable=True),),
    "current_schemas": (SessionSignature((BOOL,), NAME_ARRAY, _schemas),),
    "pg_is_in_recovery": (SessionSignature((), BOOL, _in_recovery),),
    "current_setting": (
        SessionSignature((TEXT,), TEXT, _setting),
        SessionSignature((TEXT, BOOL), TEXT, _setting_or_null, nullable=True),
    ),
    "set_config": (SessionSignature((TEXT, TEXT, BOOL), TEXT, _set_config),),
    "pg_backend_pid": (SessionSignature((), INT4, _pid),),
    "txid_current": (SessionSignature((), INT8, _transaction_id),),
    "clock_timestamp": (SessionSignature((), TIMESTAMPTZ, _clock),),
    "statement_timestamp": (SessionSignature((), TIMESTAMPTZ, _statement),),
    "nextval": (SessionSignature((TEXT,), INT8, sequences.nextval),),
    "currval": (SessionSignature((TEXT,), INT8, sequences.currval),),
    "lastval": (SessionSignature((), INT8, sequences.lastval),),
    "setval": (
        SessionSignature((TEXT, INT8), INT8, sequences.setval),
        SessionSignature((TEXT, INT8, BOOL), INT8, sequences.setval),
    ),
    "random": (SessionSignature((), FLOAT8, _random),),
    "setseed": (SessionSignature((FLOAT8,), VOID, _nothing),),
    "gen_random_uuid": (SessionSignature((), UUID, _random_uuid),),
    "pg_sleep": (SessionSignature((FLOAT8,), VOID, waiting.sleep),),
    **{
        name: tuple(SessionSignature(args, kind, function) for args in _LOCK_ARGS)
        for name, kind, function in (
            ("pg_advisory_lock", VOID, waiting.lock),
            ("pg_try_advisory_lock", BOOL, waiting.try_lock),
            ("pg_advisory_xact_lock", VOID, waiting.xact_lock),
            ("pg_try_advisory_xact_lock", BOOL, waiting.try_xact_lock),
            ("pg_advisory_unlock", BOOL, waiting.unlock),
            ("pg_advisory_lock_shared", VOID, waiting.no_shared),
            ("pg_try_advisory_lock_shared", BOOL, waiting.no_shared),
            ("pg_advisory_xact_lock_shared", VOID, waiting.no_shared),
            ("pg_try_advisory_xact_lock_shared", BOOL, waiting.no_shared),
            ("pg_advisory_unlock_shared", BOOL, waiting.no_shared),
        )
    },
    "pg_advisory_unlock_all": (SessionSignature((), VOID, waiting.unlock_all),),
    "pg_encoding_to_char": (SessionSignature((INT4,), NAME, _encoding_name),),
    "obj_description": (SessionSignature((OID, NAME), TEXT, _null, nullable=True),),
}


# ------------------------------------------------------------------------------------- resolution


def make(name: str, args: list[Node]) -> Node:
    """A call of a function that is no aggregate. Raises 42883."""
    special = _SPECIAL.get(name)
    if special is not None:
        found = special(args)
        if found is not None:
            return found
    signatures = PURE.get(_ALIASES.get(name, name))
    if signatures is not None:
        matched = matching(signatures, args)
        if matched is not None:
            return make_call(*matched)
    of_session = OF_SESSION.get(name)
    if of_session is not None:
        matched = matching(of_session, args)
        if matched is not None:
            own, converted = matched
            return SessionCall(own.function, converted, own.result, nullable=own.nullable)
    raise no_function(name, args)


def _now(args: list[Node]) -> Node | None:
    return None if args else NowUs(TIMESTAMPTZ, nullable=False)


def _current_timestamp(args: list[Node]) -> Node | None:
    digits = _precision(args)
    return None if digits is None else cast(NowUs(TIMESTAMPTZ, nullable=False), TIMESTAMPTZ, digits)


def _local_timestamp(args: list[Node]) -> Node | None:
    digits = _precision(args)
    if digits is None:
        return None
    return cast(NowUs(TIMESTAMPTZ, nullable=False), TIMESTAMP, digits, strength=2)


def _local_time(args: list[Node]) -> Node | None:
    return None if args else cast(NowUs(TIMESTAMPTZ, nullable=False), CLOCK, strength=2)


def _precision(args: list[Node]) -> int | None:
    """The digits of current_timestamp(3); None if that is no such call."""
    if not args:
        return -1
    return args[0].value if len(args) == 1 and isinstance(args[0], Const) else None


def _current_date(args: list[Node]) -> Node | None:
    return None if args else cast(NowUs(TIMESTAMPTZ, nullable=False), DATE, strength=2)


def _pg_typeof(args: list[Node]) -> Node | None:
    return Const(display(args[0].type), REGTYPE) if len(args) == 1 else None


def _age(args: list[Node]) -> Node | None:
    """age(t): from the transaction's day."""
    if len(args) != 1:
        return None
    today = cast(_current_date([]) or args[0], TIMESTAMP)
    kind = TIMESTAMPTZ if args[0].type is TIMESTAMPTZ else TIMESTAMP
    return make("age", [cast(today, kind), cast(args[0], kind)])


def _quoted(name: str) -> Callable[[list[Node]], Node | None]:
    """quote_literal() and quote_nullable() take anything that has a text."""

    def special(args: list[Node]) -> Node | None:
        if len(args) != 1 or args[0].type in (TEXT, UNKNOWN):
            return None
        return make(name, [cast(args[0], TEXT, strength=1)])

    return special


def _texts(function: Callable[..., Any], name: str) -> Callable[[list[Node]], Node | None]:
    """A function of a text and any number of values of any type, which it sees as texts."""

    def special(args: list[Node]) -> Node | None:
        if not args or args[0].type.family not in ("text", "unknown"):
            return None
        nodes = (cast(args[0], TEXT), *map(as_printed, args[1:]))
        node = AlwaysKnown(nodes, call(function), TEXT)
        node.nullable = True
        return node

    return special


def as_printed(node: Node) -> Node:
    """A value's text as the wire carries it; of a boolean that is one letter."""
    if node.type is BOOL:
        return Strict((node,), template("'t' if {0} else 'f'"), TEXT)
    return cast(node, TEXT, strength=1)


def _count_nulls(wanted: bool) -> Callable[[list[Node]], Node | None]:
    def count(*values: Any) -> int:
        return sum((value is None) is wanted for value in values)

    def special(args: list[Node]) -> Node | None:
        nodes = tuple(cast(arg, TEXT) if arg.type is UNKNOWN else arg for arg in args)
        node = AlwaysKnown(nodes, call(count), INT4)
        node.nullable = False
        return node if args else None

    return special


_SPECIAL: Final[dict[str, Callable[[list[Node]], Node | None]]] = {
    "now": _now,
    "transaction_timestamp": _now,
    "current_timestamp": _current_timestamp,
    "localtimestamp": _local_timestamp,
    "localtime": _local_time,
    "current_date": _current_date,
    "pg_typeof": _pg_typeof,
    "age": _age,
    "quote_literal": _quoted("quote_literal"),
    "quote_nullable": _quoted("quote_nullable"),
    "concat": lambda args: _concat(args) if args else None,
    "concat_ws": _texts(texts.concat_ws, "concat_ws"),
    "format": _texts(texts.format_text, "format"),
    "num_nulls": _count_nulls(True),
    "num_nonnulls": _count_nulls(False),
    **jsons.SPECIAL,
}


def _concat(args: list[Node]) -> Node:
    texts = tuple(map(as_printed, args))

    def body(out: Emitter, result: str, sources: list[str]) -> None:
        out.names["concat_"] = _concat_values
        out.line(f"{result} = concat_({', '.join(sources)})")

    node = AlwaysKnown(texts, body, TEXT)
    node.nullable = False
    return node


def _concat_values(*values: str | None) -> str:
    return "".join(value for value in values if value is not None)


# ------------------------------------------------------------------------------------- aggregates

AGGREGATES: Final = frozenset(
    {"count", "sum", "min", "max", "avg", "bool_and", "bool_or", "every", "string_agg"}
)
_SUMS: Final = {
    INT2: INT8, INT4: INT8, INT8: NUMERIC, NUMERIC: NUMERIC, FLOAT4: FLOAT4, FLOAT8: FLOAT8,
}  # fmt: skip


def aggregate_type(name: str, args: list[Node]) -> SqlType:
    """The result type of an aggregate. Raises 42883."""
    if name == "count" and len(args) <= 1:
        return INT8
    if len(args) != 1:
        raise no_function(name, args)
    kind = args[0].type
    if name == "sum" and kind in _SUMS:
        return _SUMS[kind]
    if name == "avg" and kind in _SUMS:
        return FLOAT8 if kind.family == "float" else NUMERIC
    if name in ("min", "max") and kind.family not in ("bool", "bytea", "unknown"):
        return TEXT if kind in (VARCHAR, NAME) else kind
    if name in ("bool_and", "bool_or", "every") and kind is BOOL:
        return BOOL
    raise no_function(name, args)


def show(value: Any, kind: SqlType) -> str:
    """A value in an error message."""
    return "null" if value is None else to_text(value, kind)


__all__ = ["AGGREGATES", "Retyped", "aggregate_type", "make", "no_function", "show"]
