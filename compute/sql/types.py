"""The types: their names and numbers, and their values to and from text and binary.

    type                      value in Python            in a row's payload
    smallint integer bigint   int                        int
    real, double precision    float                      float
    numeric                   Decimal                    its text
    text varchar char(n)      str; char(n) without its   str
                              trailing blanks
    boolean                   bool                       bool
    timestamp[tz], date       int (`datetimes`)          int
    bytea                     bytes                      bytes
    uuid json time interval   see `scalars`              the same

NULL is None everywhere. A char(n) is padded when it is printed: rows stay short, and comparison by
PostgreSQL's rule, which ignores trailing blanks, is plain equality.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from compute.sql import datetimes, numerics, scalars
from compute.sql.environment import current
from compute.sql.mistakes import bad_binary, bad_text, too_long, unknown_type, value_out_of_range
from polarless.errors import CallerMistake


@dataclass(frozen=True, slots=True, eq=False)
class SqlType:
    """A type. ``size`` as in pg_type: bytes, or -1. ``family`` decides which operators it has."""

    name: str
    oid: int
    size: int
    family: str
    array_oid: int = 0

    def __repr__(self) -> str:
        return f"<{self.name}>"


BOOL: Final = SqlType("boolean", 16, 1, "bool", 1000)
BYTEA: Final = SqlType("bytea", 17, -1, "bytea", 1001)
CHAR: Final = SqlType('"char"', 18, 1, "text", 1002)
NAME: Final = SqlType("name", 19, 64, "text", 1003)
INT8: Final = SqlType("bigint", 20, 8, "int", 1016)
INT2: Final = SqlType("smallint", 21, 2, "int", 1005)
INT4: Final = SqlType("integer", 23, 4, "int", 1007)
TEXT: Final = SqlType("text", 25, -1, "text", 1009)
OID: Final = SqlType("oid", 26, 4, "int", 1028)
FLOAT4: Final = SqlType("real", 700, 4, "float", 1021)
FLOAT8: Final = SqlType("double precision", 701, 8, "float", 1022)
UNKNOWN: Final = SqlType("unknown", 705, -2, "unknown")
BPCHAR: Final = SqlType("character", 1042, -1, "text", 1014)
VARCHAR: Final = SqlType("character varying", 1043, -1, "text", 1015)
DATE: Final = SqlType("date", 1082, 4, "date", 1182)
TIMESTAMP: Final = SqlType("timestamp without time zone", 1114, 8, "time", 1115)
TIMESTAMPTZ: Final = SqlType("timestamp with time zone", 1184, 8, "time", 1185)
NUMERIC: Final = SqlType("numeric", 1700, -1, "numeric", 1231)
REGTYPE: Final = SqlType("regtype", 2206, 4, "text", 2211)
VOID: Final = SqlType("void", 2278, 4, "void")
UUID: Final = SqlType("uuid", 2950, 16, "uuid", 2951)
JSON: Final = SqlType("json", 114, -1, "json", 199)
JSONB: Final = SqlType("jsonb", 3802, -1, "jsonb", 3807)
CLOCK: Final = SqlType("time without time zone", 1083, 8, "clock", 1183)
INTERVAL: Final = SqlType("interval", 1186, 16, "interval", 1187)
TEXT_ARRAY: Final = SqlType("text[]", 1009, -1, "text")
NAME_ARRAY: Final = SqlType("name[]", 1003, -1, "text")

ALL_TYPES: Final = (
    BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID, FLOAT4, FLOAT8, UNKNOWN, BPCHAR, VARCHAR,
    DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, REGTYPE, VOID, UUID, JSON, JSONB, CLOCK, INTERVAL,
)  # fmt: skip
BY_OID: Final[dict[int, SqlType]] = {found.oid: found for found in ALL_TYPES}

# The words of CREATE TABLE and casts; what sqlglot calls a type is in `binder`.
BY_NAME: Final[dict[str, SqlType]] = {
    **{found.name: found for found in ALL_TYPES if found not in (VOID, UNKNOWN, REGTYPE)},
    "bool": BOOL, "int8": INT8, "int2": INT2, "int4": INT4, "int": INT4, "float4": FLOAT4,
    "float8": FLOAT8, "float": FLOAT8, "bpchar": BPCHAR, "char": BPCHAR, "varchar": VARCHAR,
    "timestamp": TIMESTAMP, "timestamptz": TIMESTAMPTZ, "decimal": NUMERIC, "time": CLOCK,
}  # fmt: skip

INT_BOUNDS: Final[dict[SqlType, tuple[int, int]]] = {
    INT2: (-(1 << 15), (1 << 15) - 1),
    INT4: (-(1 << 31), (1 << 31) - 1),
    INT8: (-(1 << 63), (1 << 63) - 1),
    OID: (0, (1 << 32) - 1),
}
# The modifier of interval(p) is p and, above it, that all fields are kept.
INTERVAL_FIELDS: Final = 0x7FFF0000
STRINGS: Final = (TEXT, VARCHAR, BPCHAR, NAME)
TEXT_LENGTH_MAX: Final = 10_485_760


def type_by_oid(oid: int) -> SqlType:
    """The type of a parameter that the client named. Raises 42704."""
    found = BY_OID.get(oid)
    if found is None:
        raise unknown_type(f"with OID {oid}")
    return found


def display(kind: SqlType, typmod: int = -1) -> str:
    """The type as format_type() shows it."""
    if typmod < 0:
        return kind.name
    if getattr(kind, "element", None) is not None:
        return f"{display(kind.element, typmod)}[]"  # type: ignore[attr-defined]
    if kind in (VARCHAR, BPCHAR):
        return f"{kind.name}({typmod - 4})"
    if kind is NUMERIC:
        return f"numeric({(typmod - 4) >> 16},{(typmod - 4) & 0xFFFF})"
    if kind in (TIMESTAMP, TIMESTAMPTZ, CLOCK):
        first, rest = kind.name.split(" ", 1)
        return f"{first}({typmod}) {rest}"
    if kind is INTERVAL:
        return f"interval({typmod & 0xFFFF})"
    return kind.name


# ------------------------------------------------------------------------------------ text to value

_INT = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+[ \t\n\v\f\r]*")


def parse_int(text: str, kind: SqlType) -> int:
    """Raises 22P02, and 22003 beyond the type's bounds."""
    if not text.isascii() or _INT.fullmatch(text) is None:
        raise bad_text(kind.name, text)
    if len(text) > 4000:  # what int() takes at most
        raise value_out_of_range(text[:40] + "...", kind.name)
    value = int(text)
    low, high = INT_BOUNDS[kind]
    if not low <= value <= high:
        raise value_out_of_range(text.strip(), kind.name)
    return value


_BOOLS: Final = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}


def parse_bool(text: str) -> bool:
    """Raises 22P02."""
    found = _BOOLS.get(text.strip().lower())
    if found is None or text.strip().lower() == "of":
        raise bad_text("boolean", text)
    return found


def parse_bytea(text: str) -> bytes:
    """Hex (``\\x...``) or escape format. Raises 22P02."""
    if text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise CallerMistake(
                "invalid hexadecimal data in a value of type bytea", sqlstate="22023"
            ) from None
    data = bytearray()
    position = 0
    raw = text.encode()
    while position < len(raw):
        if raw[position] != 0x5C:
            data.append(raw[position])
            position += 1
        elif raw[position + 1 : position + 2] == b"\\":
            data.append(0x5C)
            position += 2
        else:
            octal = raw[position + 1 : position + 4]
            if len(octal) != 3 or not re.fullmatch(rb"[0-3][0-7][0-7]", octal):
                raise bad_text("bytea", text)
            data.append(int(octal, 8))
            position += 4
    return bytes(data)


def parse_text(text: str) -> str:
    """Any text without NUL."""
    return text


def strip_blanks(text: str) -> str:
    """What char(n) keeps of a text."""
    return text.rstrip(" ")


def cut_name(text: str) -> str:
    """At most 63 bytes."""
    raw = text.encode()
    return text if len(raw) <= 63 else raw[:63].decode(errors="ignore")


PARSERS: Final[dict[SqlType, Callable[[str], Any]]] = {
    BOOL: parse_bool,
    BYTEA: parse_bytea,
    CHAR: lambda text: text[:1],
    NAME: cut_name,
    INT2: lambda text: parse_int(text, INT2),
    INT4: lambda text: parse_int(text, INT4),
    INT8: lambda text: parse_int(text, INT8),
    OID: lambda text: parse_int(text, OID),
    FLOAT4: lambda text: numerics.to_float4(numerics.parse_float(text, "real")),
    FLOAT8: numerics.parse_float,
    NUMERIC: numerics.parse_numeric,
    TEXT: parse_text,
    UNKNOWN: parse_text,
    VARCHAR: parse_text,
    BPCHAR: strip_blanks,
    REGTYPE: parse_text,
    UUID: scalars.parse_uuid,
    JSON: scalars.parse_json,
    JSONB: scalars.parse_jsonb,
    CLOCK: scalars.parse_clock,
    INTERVAL: scalars.parse_interval,
    DATE: datetimes.parse_date,
    TIMESTAMP: datetimes.parse_timestamp,
    TIMESTAMPTZ: lambda text: datetimes.parse_timestamp(
        text, name="timestamp with time zone", zoned=True
    ),
}


# -------------------------------------------------------------------------------- type modifiers


def fit_text(text: str, limit: int, kind: SqlType) -> str:
    """``text`` within ``limit`` characters: surplus blanks are cut off, else 22001."""
    if len(text) > limit:
        if text[limit:].strip(" "):
            raise too_long(f"{kind.name}({limit})")
        text = text[:limit]
    return text


def fit(value: Any, kind: SqlType, typmod: int) -> Any:
    """``value`` as the type with its modifier takes it on assignment. Raises 22001, 22003."""
    if value is None or typmod < 0:
        return value
    element = getattr(kind, "element", None)
    if element is not None:
        return [fit(item, kind if isinstance(item, list) else element, typmod) for item in value]
    if kind is VARCHAR:
        return fit_text(value, typmod - 4, kind)
    if kind is BPCHAR:
        return fit_text(value.rstrip(" "), typmod - 4, kind)
    if kind is NUMERIC:
        return numerics.fit_numeric(value, typmod)
    if kind in (TIMESTAMP, TIMESTAMPTZ, CLOCK):
        return datetimes.round_timestamp(value, typmod)
    if kind is INTERVAL:
        return scalars.rounded_interval(value, typmod & 0xFFFF)
    return value


def pad(text: str, typmod: int) -> str:
    """A char(n) as it is printed."""
    return text if typmod < 0 else text.ljust(typmod - 4)


# ------------------------------------------------------------------------------------ value to text


def _utf8(value: str) -> bytes:
    return value.encode()


def bytea_text(value: bytes) -> bytes:
    """Hex, or with bytea_output = escape the older form."""
    if current.environment.bytea_output == "hex":
        return b"\\x" + value.hex().encode()
    return b"".join(
        b"\\\\" if byte == 0x5C else bytes((byte,)) if 32 <= byte < 127 else b"\\%03o" % byte
        for byte in value
    )


TEXT_OUTPUT: Final[dict[SqlType, Callable[[Any], bytes]]] = {
    BOOL: lambda value: b"t" if value else b"f",
    BYTEA: lambda value: bytea_text(value),
    CHAR: _utf8,
    NAME: _utf8,
    INT2: b"%d".__mod__,
    INT4: b"%d".__mod__,
    INT8: b"%d".__mod__,
    OID: b"%d".__mod__,
    FLOAT4: lambda value: numerics.float4_text(value).encode(),
    FLOAT8: lambda value: numerics.float8_text(value).encode(),
    NUMERIC: lambda value: numerics.numeric_text(value).encode(),
    TEXT: _utf8,
    UNKNOWN: _utf8,
    VARCHAR: _utf8,
    BPCHAR: _utf8,
    REGTYPE: _utf8,
    VOID: lambda _: b"",
    TEXT_ARRAY: _utf8,
    NAME_ARRAY: _utf8,
    UUID: _utf8,
    JSON: _utf8,
    JSONB: _utf8,
    CLOCK: lambda value: scalars.clock_text(value).encode(),
    INTERVAL: lambda value: scalars.interval_text(value).encode(),
    DATE: lambda value: datetimes.date_text(value).encode(),
    TIMESTAMP: lambda value: datetimes.timestamp_text(value).encode(),
    TIMESTAMPTZ: lambda value: datetimes.moment_text(value).encode(),
}


def to_text(value: Any, kind: SqlType, typmod: int = -1) -> str:
    """A value that is not NULL as PostgreSQL prints it."""
    if kind is BPCHAR:
        return pad(value, typmod)
    return TEXT_OUTPUT[kind](value).decode()


# ------------------------------------------------------------------------------------------- binary

_I2, _I4, _U4, _I8 = (struct.Struct(code) for code in ("!h", "!i", "!I", "!q"))
_F4, _F8 = struct.Struct("!f"), struct.Struct("!d")

BINARY_OUTPUT: Final[dict[SqlType, Callable[[Any], bytes]]] = {
    **TEXT_OUTPUT,
    BOOL: lambda value: b"\1" if value else b"\0",
    BYTEA: bytes,
    CHAR: lambda value: value.encode()[:1] or b"\0",
    INT2: _I2.pack,
    INT4: _I4.pack,
    INT8: _I8.pack,
    OID: _U4.pack,
    FLOAT4: _F4.pack,
    FLOAT8: _F8.pack,
    NUMERIC: numerics.numeric_to_binary,
    UUID: scalars.uuid_binary,
    JSONB: scalars.jsonb_binary,
    CLOCK: _I8.pack,
    INTERVAL: scalars.interval_binary,
    DATE: _I4.pack,
    TIMESTAMP: _I8.pack,
    TIMESTAMPTZ: _I8.pack,
}


def _fixed(form: struct.Struct, kind: SqlType) -> Callable[[bytes], Any]:
    unpack = form.unpack

    def decode(data: bytes) -> Any:
        try:
            return unpack(data)[0]
        except struct.error:
            raise bad_binary(kind.name) from None

    return decode


def _text_from_binary(data: bytes) -> str:
    return decode_utf8(data)


def decode_utf8(data: bytes) -> str:
    """A parameter's bytes as text. Raises 22021."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CallerMistake(
            f'invalid byte sequence for encoding "UTF8": 0x{data[error.start : error.end].hex()}',
            sqlstate="22021",
        ) from None
    if "\0" in text:
        raise CallerMistake('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
    return text


def _bool_from_binary(data: bytes) -> bool:
    if len(data) != 1:
        raise bad_binary("boolean")
    return data != b"\0"


BINARY_INPUT: Final[dict[SqlType, Callable[[bytes], Any]]] = {
    BOOL: _bool_from_binary,
    BYTEA: bytes,
    INT2: _fixed(_I2, INT2),
    INT4: _fixed(_I4, INT4),
    INT8: _fixed(_I8, INT8),
    OID: _fixed(_U4, OID),
    FLOAT4: _fixed(_F4, FLOAT4),
    FLOAT8: _fixed(_F8, FLOAT8),
    NUMERIC: numerics.numeric_from_binary,
    UUID: scalars.uuid_from_binary,
    JSON: lambda data: scalars.parse_json(decode_utf8(data)),
    JSONB: scalars.jsonb_from_binary,
    CLOCK: _fixed(_I8, CLOCK),
    INTERVAL: scalars.interval_from_binary,
    DATE: _fixed(_I4, DATE),
    TIMESTAMP: _fixed(_I8, TIMESTAMP),
    TIMESTAMPTZ: _fixed(_I8, TIMESTAMPTZ),
    TEXT: _text_from_binary,
    VARCHAR: _text_from_binary,
    UNKNOWN: _text_from_binary,
    NAME: _text_from_binary,
    CHAR: _text_from_binary,
    REGTYPE: _text_from_binary,
    BPCHAR: lambda data: decode_utf8(data).rstrip(" "),
}


# ---------------------------------------------------------------------------------- stored payloads


def to_stored(value: Any) -> Any:
    """A value as it is put into a row's payload."""
    return str(value) if type(value) is Decimal else value


def from_stored(value: Any, kind: SqlType) -> Any:
    """The inverse of `to_stored`."""
    return Decimal(value) if kind is NUMERIC and value is not None else value
