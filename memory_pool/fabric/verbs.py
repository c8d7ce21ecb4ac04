"""The four operations of the fabric as bytes, in both directions.

A connection starts with the active side's greeting::

    byte 0        4         8             24               32              34
         +--------+---------+-------------+----------------+---------------+--------------+
         | "PLFB" | version | cluster id  | incarnation    | name bytes    | name, UTF-8, |
         | 4      | u32     | 16          | u64            | u16           | at most 64   |
         +--------+---------+-------------+----------------+---------------+--------------+

and then carries requests, which are executed and answered in their order::

    byte 0        4    5       6            8         12         28          36
         +--------+----+-------+------------+---------+----------+-----------+------------+
         | "PLRQ" | op | flags | guard word | request | rkey     | offset    | length     |
         | 4      | u8 | u8    | u16        | id u32  | 16       | u64       | u32        |
         +--------+----+-------+------------+---------+----------+-----------+------------+
      40 | operand a u64    | operand b u64   | reserved, zero, 8 bytes                   |
         +------------------+-----------------+-------------------------------------------+
      64 | data of a WRITE: ``length`` bytes                                              |

    byte 0        4            8        9    10         12          16
         +--------+------------+--------+----+----------+-----------+---------------------+
         | "PLAN" | request id | status | op | zero u16 | bytes u32 | old value u64       |
         +--------+------------+--------+----+----------+-----------+---------------------+
      24 | data of a READ                                                                 |

* READ        ``length`` bytes at ``offset``.
* WRITE       ``length`` bytes. With `GUARDED`: word 0 of the target is a sequence, made odd before
  and even after; nothing is written if the target's word number ``guard word`` is greater than
  operand a. The sequence in the data is ignored.
* CAS         the word at ``offset`` becomes operand b if it is operand a; answers the old value.
* FETCH_ADD   the word at ``offset`` grows by operand a, modulo 2^64; answers the old value.

An answer says that the operation *has been applied at the target*, or why it was not. What cannot
be a request (magic, op, a length above `LENGTH_MAX`) is a framing error: the connection is closed.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from polarless.errors import RemoteProtocolError

GREETING = struct.Struct("<4sI16sQH")
REQUEST = struct.Struct("<4sBBHI16sQIQQQ")
ANSWER = struct.Struct("<4sIBBHIQ")
GREETING_BYTES: Final = 34
REQUEST_BYTES: Final = 64
ANSWER_BYTES: Final = 24
assert GREETING.size == GREETING_BYTES
assert REQUEST.size == REQUEST_BYTES
assert ANSWER.size == ANSWER_BYTES

GREETING_MAGIC: Final = b"PLFB"
REQUEST_MAGIC: Final = b"PLRQ"
ANSWER_MAGIC: Final = b"PLAN"
FABRIC_VERSION: Final = 1
NAME_BYTES_MAX: Final = 64
RKEY_BYTES: Final = 16

READ: Final = 1
WRITE: Final = 2
CAS: Final = 3
FETCH_ADD: Final = 4
OP_NAMES: Final = {READ: "READ", WRITE: "WRITE", CAS: "CAS", FETCH_ADD: "FETCH_ADD"}

GUARDED: Final = 1  # the only flag

# One operation moves at most this much: a slot has 16448 bytes.
LENGTH_MAX: Final = 64 * 1024

OK: Final = 0
BAD_KEY: Final = 1  # unknown, revoked, or another peer's
BAD_BOUNDS: Final = 2  # outside the region, or not on a word
NO_ACCESS: Final = 3  # the key does not allow this operation
GUARD_REFUSED: Final = 4  # the target is newer
STATUS_NAMES: Final = {
    OK: "ok",
    BAD_KEY: "bad key",
    BAD_BOUNDS: "out of bounds",
    NO_ACCESS: "no access",
    GUARD_REFUSED: "refused by the guard",
}


class Request(NamedTuple):
    """A request header; a WRITE's data follows it."""

    op: int
    flags: int
    guard_word: int
    request_id: int
    rkey: bytes
    offset: int
    length: int
    a: int
    b: int


class Answer(NamedTuple):
    """An answer's header; ``length`` bytes of data follow it."""

    request_id: int
    status: int
    op: int
    length: int
    value: int


def pack_greeting(cluster: bytes, name: str, incarnation: int) -> bytes:
    """The first bytes of a connection."""
    encoded = name.encode()
    assert len(encoded) <= NAME_BYTES_MAX, name
    header = GREETING.pack(GREETING_MAGIC, FABRIC_VERSION, cluster, incarnation, len(encoded))
    return header + encoded


def unpack_greeting(data: bytes | bytearray, cluster: bytes) -> tuple[str, int, int] | None:
    """(name, incarnation, bytes used), or None while it is incomplete.

    Raises `RemoteProtocolError` as soon as the bytes cannot be a greeting of this cluster.
    """
    if len(data) < GREETING_BYTES:
        if not GREETING_MAGIC.startswith(bytes(data[:4])):
            raise RemoteProtocolError(f"not a fabric greeting: {bytes(data[:4])!r}")
        return None
    magic, version, found, incarnation, name_bytes = GREETING.unpack_from(data)
    if magic != GREETING_MAGIC:
        raise RemoteProtocolError(f"not a fabric greeting: {magic!r}")
    if version != FABRIC_VERSION:
        raise RemoteProtocolError(f"fabric version {version}, this node has {FABRIC_VERSION}")
    if found != cluster:
        raise RemoteProtocolError("this connection belongs to another cluster")
    if name_bytes > NAME_BYTES_MAX:
        raise RemoteProtocolError(f"a name of {name_bytes} bytes, at most {NAME_BYTES_MAX}")
    end = GREETING_BYTES + name_bytes
    if len(data) < end:
        return None
    try:
        name = bytes(data[GREETING_BYTES:end]).decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("the name in the fabric greeting is not UTF-8") from None
    return name, incarnation, end


def pack_request(request: Request) -> bytes:
    """The header's bytes."""
    op, flags, guard_word, request_id, rkey, offset, length, a, b = request
    return REQUEST.pack(
        REQUEST_MAGIC, op, flags, guard_word, request_id, rkey, offset, length, a, b, 0
    )


def unpack_request(data: bytes | memoryview, at: int) -> Request:
    """The header at ``at``, where `REQUEST_BYTES` are present. Raises `RemoteProtocolError`."""
    magic, op, flags, guard_word, request_id, rkey, offset, length, a, b, zero = (
        REQUEST.unpack_from(data, at)
    )
    if magic != REQUEST_MAGIC:
        raise RemoteProtocolError(f"not a request: {magic!r}")
    if op not in OP_NAMES or flags & ~GUARDED or zero or (flags and op != WRITE):
        raise RemoteProtocolError(f"malformed request: op {op}, flags {flags:#x}")
    if length > LENGTH_MAX:
        raise RemoteProtocolError(f"{OP_NAMES[op]} of {length} bytes, at most {LENGTH_MAX}")
    return Request(op, flags, guard_word, request_id, rkey, offset, length, a, b)


def pack_answer(request_id: int, status: int, op: int, length: int, value: int) -> bytes:
    """The header's bytes."""
    return ANSWER.pack(ANSWER_MAGIC, request_id, status, op, 0, length, value)


def unpack_answer(data: bytes | bytearray | memoryview, at: int) -> Answer:
    """The header at ``at``, where `ANSWER_BYTES` are present. Raises `RemoteProtocolError`."""
    magic, request_id, status, op, zero, length, value = ANSWER.unpack_from(data, at)
    if magic != ANSWER_MAGIC or status not in STATUS_NAMES or op not in OP_NAMES or zero:
        raise RemoteProtocolError(f"not an answer: {magic!r}, status {status}, op {op}")
    if length > LENGTH_MAX or (length and (op != READ or status != OK)):
        raise RemoteProtocolError(f"answer to {OP_NAMES[op]} announces {length} bytes")
    return Answer(request_id, status, op, length, value)
