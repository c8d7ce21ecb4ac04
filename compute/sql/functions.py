"""Functions by name: pure ones with their signatures, those of the session, and aggregates.

A signature is tried in order: first one whose types are exactly those given, then one that they
can be converted to implicitly. No match raises 42883 with the types that were given.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compute.sql import datetimes, numerics, sequences, waiting
from compute.sql.casts import can_cast, cast
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


class Signature(NamedTuple):
    """Argument types, result type, and what computes it from values that are not NULL."""

    args: tuple[SqlType, ...]
    result: SqlType
    body: Body


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


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _octet_length(text: str) -> int:
    return len(text.encode())


def _chr(code: int) -> str:
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
    quantum = Decimal((0, (1,), -max(scale, 0)))
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

PURE: Final[dict[str, tuple[Signature, ...]]] = {
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
    "lower": (Signature((TEXT,), TEXT, template("{0}.lower()")),),
    "upper": (Signature((TEXT,), TEXT, template("{0}.upper()")),),
    "initcap": (Signature((TEXT,), TEXT, template("{0}.title()")),),
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
    "md5": (Signature((TEXT,), TEXT, call(_md5)),),
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
    "date": (
        Signature((TIMESTAMP,), DATE, call(datetimes.timestamp_to_date)),
        Signature((TIMESTAMPTZ,), DATE, call(datetimes.timestamp_to_date)),
    ),
}
_ALIASES: Final = {"substr": "substring", "ceiling": "ceil", "pow": "power", "position": "strpos"}


# ------------------------------------------------------------------------------ of the session


def _version(session: SessionLike) -> str:
    return VERSION_TEXT.format(version=session.settings.show("server_version"))


def _database(session: SessionLike) -> str:
    return session.database


def _user(session: SessionLike) -> str:
    return session.user


def _schema(session: SessionLike) -> str:
    return "public"


def _schemas(session: SessionLike, implicit: bool) -> str:
    return "{pg_catalog,public}" if implicit else "{public}"


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
    # Statements are short, and a second clock would differ between a node and its replay.
    return session.now_us - datetimes.UNIX_EPOCH_US


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
    "current_schema": (SessionSignature((), NAME, _schema),),
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
    "statement_timestamp": (SessionSignature((), TIMESTAMPTZ, _clock),),
    "nextval": (SessionSignature((TEXT,), INT8, sequences.nextval),),
    "currval": (SessionSignature((TEXT,), INT8, sequences.currval),),
    "lastval": (SessionSignature((), INT8, sequences.lastval),),
    "setval": (
        SessionSignature((TEXT, INT8), INT8, sequences.setval),
        SessionSignature((TEXT, INT8, BOOL), INT8, sequences.setval),
    ),
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


def _matching(signatures: tuple[Any, ...], args: list[Node]) -> tuple[Any, tuple[Node, ...]] | None:
    """The signature to call and the converted arguments."""
    of_length = [found for found in signatures if len(found.args) == len(args)]
    for found in of_length:
        if all(arg.type is kind for arg, kind in zip(args, found.args)):
            return found, tuple(args)
    for found in of_length:
        if all(can_cast(arg, kind) for arg, kind in zip(args, found.args)):
            return found, tuple(cast(arg, kind) for arg, kind in zip(args, found.args))
    return None


def make(name: str, args: list[Node]) -> Node:
    """A call of a function that is no aggregate. Raises 42883."""
    if name in ("now", "transaction_timestamp", "current_timestamp") and not args:
        return NowUs(TIMESTAMPTZ, nullable=False)
    if name == "localtimestamp" and not args:
        return NowUs(TIMESTAMP, nullable=False)
    if name == "current_date" and not args:
        return cast(NowUs(TIMESTAMPTZ, nullable=False), DATE, strength=2)
    if name == "concat":
        return _concat(args)
    if name == "pg_typeof" and len(args) == 1:
        kind = args[0].type
        return Const(display(kind), REGTYPE)
    signatures = PURE.get(_ALIASES.get(name, name))
    if signatures is not None:
        found = _matching(signatures, args)
        if found is not None:
            signature, converted = found
            return Strict(converted, signature.body, signature.result)
    of_session = OF_SESSION.get(name)
    if of_session is not None:
        found = _matching(of_session, args)
        if found is not None:
            own, converted = found
            return SessionCall(own.function, converted, own.result, nullable=own.nullable)
    raise no_function(name, args)


def _concat(args: list[Node]) -> Node:
    texts = tuple(
        Strict((arg,), template("'t' if {0} else 'f'"), TEXT)
        if arg.type is BOOL
        else cast(arg, TEXT, strength=1)
        for arg in args
    )

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
    if name == "string_agg" or len(args) != 1:
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
