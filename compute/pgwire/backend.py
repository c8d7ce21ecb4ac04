"""What the server says, as bytes: constants where nothing varies, functions elsewhere.

Each message is ``type, u32 length, body`` as in `compute.pgwire.framing`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from polarless.errors import PolarlessError

_HEADER = struct.Struct("!cI")
_COLUMN = struct.Struct("!IhIhih")


class ColumnLike(Protocol):
    """What a RowDescription says of a column; `compute.sql.plan.Column` is one."""

    @property
    def name(self) -> str: ...
    @property
    def oid(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def typmod(self) -> int: ...


def message(kind: bytes, body: bytes = b"") -> bytes:
    """One message."""
    return _HEADER.pack(kind, len(body) + 4) + body


AUTHENTICATION_OK: Final = message(b"R", b"\0\0\0\0")
ENCRYPTION_REFUSED: Final = b"N"
ENCRYPTION_ACCEPTED: Final = b"S"
PARSE_COMPLETE: Final = message(b"1")
BIND_COMPLETE: Final = message(b"2")
CLOSE_COMPLETE: Final = message(b"3")
NO_DATA: Final = message(b"n")
EMPTY_QUERY: Final = message(b"I")
PORTAL_SUSPENDED: Final = message(b"s")
READY_IDLE: Final = message(b"Z", b"I")
READY_IN_TRANSACTION: Final = message(b"Z", b"T")
READY_FAILED: Final = message(b"Z", b"E")

COPY_DONE: Final = message(b"c")

DATA_ROW: Final = ord("D")


def authentication(code: int, data: bytes) -> bytes:
    """A step of SASL: 10 names the mechanisms, 11 goes on, 12 is the last word."""
    return message(b"R", code.to_bytes(4, "big") + data)


def command_complete(tag: str) -> bytes:
    """``tag`` as PostgreSQL words it: ``SELECT 3``, ``INSERT 0 1``, ``BEGIN``."""
    return message(b"C", tag.encode() + b"\0")


def parameter_status(name: str, value: str) -> bytes:
    """A setting that drivers want to know."""
    return message(b"S", name.encode() + b"\0" + value.encode() + b"\0")


def backend_key_data(pid: int, key: bytes) -> bytes:
    """What a CancelRequest has to name."""
    return message(b"K", pid.to_bytes(4, "big") + key)


def negotiate_protocol_version(protocol: int, unknown: Sequence[str]) -> bytes:
    """The version that is spoken instead, and the protocol options that are not known."""
    names = b"".join(name.encode() + b"\0" for name in unknown)
    return message(b"v", struct.pack("!II", protocol, len(unknown)) + names)


def parameter_description(oids: Sequence[int]) -> bytes:
    """The types of a statement's parameters."""
    return message(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def row_description(columns: Sequence[ColumnLike], formats: Sequence[int]) -> bytes:
    """Columns of a result. ``formats`` as in Bind: none (all text), one for all, or one each."""
    if not columns:
        return NO_DATA
    parts = [len(columns).to_bytes(2, "big")]
    for index, column in enumerate(columns):
        code = 0 if not formats else formats[0] if len(formats) == 1 else formats[index]
        parts.append(column.name.encode() + b"\0")
        parts.append(_COLUMN.pack(0, 0, column.oid, column.size, column.typmod, code))
    return message(b"T", b"".join(parts))


def copy_in_response(column_count: int, *, binary: bool = False) -> bytes:
    """Begin a COPY FROM STDIN."""
    return message(b"G", _copy_formats(column_count, binary=binary))


def copy_out_response(column_count: int, *, binary: bool = False) -> bytes:
    """Begin a COPY TO STDOUT."""
    return message(b"H", _copy_formats(column_count, binary=binary))


def _copy_formats(column_count: int, *, binary: bool) -> bytes:
    code = int(binary)
    return struct.pack("!bH", code, column_count) + code.to_bytes(2, "big") * column_count


def error_response(error: PolarlessError, *, severity: str = "ERROR") -> bytes:
    """An error, or with ``severity`` FATAL the last word of a connection."""
    return message(
        b"E",
        _fields(
            severity,
            error.sqlstate,
            error.message,
            error.detail,
            error.hint,
            (
                (b"P", str(error.position) if error.position else None),
                (b"W", error.context),
                (b"s", error.schema_name),
                (b"t", error.table_name),
                (b"c", error.column_name),
                (b"n", error.constraint_name),
            ),
        ),
    )


def notice_response(severity: str, sqlstate: str, text: str) -> bytes:
    """A WARNING or NOTICE beside the result."""
    return message(b"N", _fields(severity, sqlstate, text, None, None))


def row_values(row: bytes) -> list[bytes | None]:
    """The values of the DataRow that ``row`` begins with."""
    values: list[bytes | None] = []
    position = 7
    for _ in range(int.from_bytes(row[5:7], "big")):
        size = int.from_bytes(row[position : position + 4], "big")
        position += 4
        if size == 0xFFFFFFFF:
            values.append(None)
        else:
            values.append(row[position : position + size])
            position += size
    return values


def data_row(values: Sequence[bytes | None]) -> bytes:
    """A DataRow of values that are bytes already."""
    parts = [len(values).to_bytes(2, "big")]
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts += (len(value).to_bytes(4, "big"), value)
    return message(b"D", b"".join(parts))


def each_row(rows: bytes) -> list[bytes]:
    """Whole DataRows, one by one."""
    result: list[bytes] = []
    position, end = 0, len(rows)
    while position < end:
        after = position + 1 + int.from_bytes(rows[position + 1 : position + 5], "big")
        result.append(rows[position:after])
        position = after
    return result


def split_rows(rows: bytes, row_count_max: int) -> tuple[int, int]:
    """How many whole DataRows ``rows`` begins with, at most ``row_count_max``, and where they
    end. What follows the last DataRow (a CommandComplete) is not counted.
    """
    position, end, count = 0, len(rows), 0
    while count < row_count_max and position < end and rows[position] == DATA_ROW:
        position += 1 + int.from_bytes(rows[position + 1 : position + 5], "big")
        count += 1
    return count, position


def _fields(
    severity: str,
    sqlstate: str,
    text: str,
    detail: str | None,
    hint: str | None,
    more: tuple[tuple[bytes, str | None], ...] = (),
) -> bytes:
    fields: Iterable[tuple[bytes, str | None]] = (
        (b"S", severity), (b"V", severity), (b"C", sqlstate),
        (b"M", text), (b"D", detail), (b"H", hint), *more,
    )  # fmt: skip
    return (
        b"".join(
            code + value.replace("\0", "").encode("utf-8", "replace") + b"\0"
            for code, value in fields
            if value
        )
        + b"\0"
    )
