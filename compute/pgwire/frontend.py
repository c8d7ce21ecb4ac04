"""The bodies of a client's messages, parsed. Strings stay bytes where they are only names.

Each function takes one body and returns plain values, or raises `RemoteProtocolError`: a missing
terminator, a count that runs over the end, bytes left over. Nothing is allocated by a count that
the body could not hold. A text that is not UTF-8 is the caller's mistake, SQLSTATE 22021, and
leaves the session usable.

::

    Parse     name\\0 text\\0 u16 n, n x u32 type oid
    Bind      portal\\0 statement\\0 u16 n, n x u16 format, u16 n, n x (i32 length, bytes),
              u16 n, n x u16 format
    Describe  'S' or 'P', name\\0          Close the same
    Execute   portal\\0 u32 row limit (0: none)
    Query     text\\0
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from polarless.errors import CallerMistake, RemoteProtocolError

QUERY: Final = ord("Q")
PARSE: Final = ord("P")
BIND: Final = ord("B")
DESCRIBE: Final = ord("D")
EXECUTE: Final = ord("E")
CLOSE: Final = ord("C")
FLUSH: Final = ord("H")
SYNC: Final = ord("S")
TERMINATE: Final = ord("X")
COPY_DATA: Final = ord("d")
COPY_DONE: Final = ord("c")
COPY_FAIL: Final = ord("f")
FUNCTION_CALL: Final = ord("F")

STATEMENT: Final = ord("S")
PORTAL: Final = ord("P")


class Parse(NamedTuple):
    """Prepare ``text`` under ``name``; an oid of 0 leaves the type to the server."""

    name: bytes
    text: str
    parameter_oids: tuple[int, ...]


class Bind(NamedTuple):
    """Give ``statement`` its values. Formats as sent: none, one for all, or one each."""

    portal: bytes
    statement: bytes
    parameter_formats: tuple[int, ...]
    parameters: list[bytes | None]
    result_formats: tuple[int, ...]


def parse_query(body: bytes) -> str:
    """The text of a Query."""
    if body.find(b"\0") != len(body) - 1:
        raise RemoteProtocolError("Query is not one terminated string")
    return decode_text(body[:-1])


def parse_parse(body: bytes) -> Parse:
    """A Parse message."""
    name, position = _string(body, 0)
    text, position = _string(body, position)
    oids, position = _u32s(body, position)
    _at_end(body, position)
    return Parse(name, decode_text(text), oids)


def parse_body(name: bytes, text: str, oids: tuple[int, ...]) -> bytes:
    """The Parse message that would have prepared this: the inverse of `parse_parse`."""
    head = name + b"\0" + text.encode() + b"\0"
    return head + struct.pack(f"!H{len(oids)}I", len(oids), *oids)


def parse_bind(body: bytes) -> Bind:
    """A Bind message."""
    portal, position = _string(body, 0)
    statement, position = _string(body, position)
    parameter_formats, position = _formats(body, position)
    parameters, position = parse_parameters(body, position)
    result_formats, position = _formats(body, position)
    _at_end(body, position)
    return Bind(portal, statement, parameter_formats, parameters, result_formats)


def parse_parameters(body: bytes, position: int) -> tuple[list[bytes | None], int]:
    """The values of a Bind that begin at ``position``, and the position after them."""
    end = len(body)
    count = int.from_bytes(body[position : position + 2], "big")
    position += 2
    if position + 4 * count > end:
        raise RemoteProtocolError("Bind is cut short")
    parameters: list[bytes | None] = []
    for _ in range(count):
        length = int.from_bytes(body[position : position + 4], "big")
        position += 4
        if length == 0xFFFFFFFF:
            parameters.append(None)
            continue
        value_end = position + length
        if value_end > end:
            raise RemoteProtocolError("Bind is cut short")
        parameters.append(body[position:value_end])
        position = value_end
    if position > end:
        raise RemoteProtocolError("Bind is cut short")
    return parameters, position


def parse_target(body: bytes) -> tuple[int, bytes]:
    """Describe and Close: (STATEMENT or PORTAL, name)."""
    if not body or body[0] not in (STATEMENT, PORTAL):
        raise RemoteProtocolError("Describe or Close names neither a statement nor a portal")
    name, position = _string(body, 1)
    _at_end(body, position)
    return body[0], name


def parse_execute(body: bytes) -> tuple[bytes, int]:
    """Execute: (portal, row limit); 0 means all rows."""
    name, position = _string(body, 0)
    if position + 4 != len(body):
        raise RemoteProtocolError("Execute has a wrong length")
    return name, int.from_bytes(body[position:], "big")


def parse_copy_fail(body: bytes) -> str:
    """The reason a client gives for ending its COPY."""
    return body.rstrip(b"\0").decode("utf-8", "replace")


def decode_text(raw: bytes) -> str:
    """UTF-8 to text. Raises `CallerMistake` 22021."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CallerMistake(
            f'invalid byte sequence for encoding "UTF8" at byte {error.start}', sqlstate="22021"
        ) from None


def _string(body: bytes, position: int) -> tuple[bytes, int]:
    end = body.find(b"\0", position)
    if end < 0:
        raise RemoteProtocolError("a string of a message is not terminated")
    return body[position:end], end + 1


def _formats(body: bytes, position: int) -> tuple[tuple[int, ...], int]:
    count = int.from_bytes(body[position : position + 2], "big")
    end = position + 2 + 2 * count
    if position + 2 > len(body) or end > len(body):
        raise RemoteProtocolError("a list of formats is cut short")
    formats = struct.unpack_from(f"!{count}H", body, position + 2)
    if any(code > 1 for code in formats):
        raise RemoteProtocolError(f"unsupported format code: {max(formats)}")
    return formats, end


def _u32s(body: bytes, position: int) -> tuple[tuple[int, ...], int]:
    count = int.from_bytes(body[position : position + 2], "big")
    end = position + 2 + 4 * count
    if position + 2 > len(body) or end > len(body):
        raise RemoteProtocolError("a list of types is cut short")
    return struct.unpack_from(f"!{count}I", body, position + 2), end


def _at_end(body: bytes, position: int) -> None:
    if position != len(body):
        raise RemoteProtocolError(f"{len(body) - position} bytes too many in a message")
