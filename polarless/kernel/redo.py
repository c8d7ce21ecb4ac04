"""Redo: records change one page each; a group is one commit and the unit of atomicity.

    byte 0        4        6       8            12         16
         +--------+--------+-------+------------+----------+-----------------+
         | "PLRG" | format | note  | body bytes | CRC-32   | epoch u64       |
         +--------+--------+-------+------------+----------+-----------------+
      24 | start LSN u64   | cts u64            | transaction id u64         |
         +-----------------+--------------------+----------------------------+
      48 | horizon u64     | next page id u64   |
         +-----------------+--------------------+
      64 | body: msgpack list of records, note  |

A record is a tuple ``(op, page id, ...)``; `polarless.kernel.apply` says what each op does. An LSN
is a byte position in the log: a group starts at its start LSN and ends at ``start + 64 + body
bytes``, and that end is the LSN of every page it changes. ``cts`` is 0 in a group that commits
nothing (pages of a bulk load that nothing reaches yet, pruning). ``next page id`` is the writer's
allocator after the group, so that a promoted node can go on from the log alone.

The *note* is the last so many bytes of the body (u16, mostly 0): what a proxied client was to be
answered. If the writer dies before the answer arrives, whoever asks for the verdict gets it too.

The CRC covers header and body. Start LSN and epoch are in the sum: a group that was copied to
another position of the log, or kept from an older incarnation, does not verify there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgpack

from polarless.errors import CorruptData

GROUP_FORMAT: Final = 1
MAGIC: Final = 0x47524C50  # "PLRG", little-endian
MAGIC_BYTES: Final = b"PLRG"
HEADER = struct.Struct("<IHHIIQQQQQQ")
HEADER_BYTES: Final = 64
assert HEADER.size == HEADER_BYTES == 64
_CRC_OFFSET: Final = 12
# A row has at most 16 MiB and a write set is bounded too; anything longer is not a group.
BODY_BYTES_MAX: Final = 96 * 1024 * 1024
NOTE_BYTES_MAX: Final = 0xFFFF
# Transaction ids with this bit were given by a proxy, which may ask for their verdict.
PROXIED: Final = 1 << 63

# Ops; arguments after (op, page id).
FORMAT: Final = 1  # kind, tree id, low, high, keys, versions | children | blob
PUT: Final = 2  # key, payload                   (cts and horizon come from the group)
CUT: Final = 3  # key                            drop all from key on; key becomes the high fence
INSERT_CHILD: Final = 4  # key, child page id    child is right of key
REMOVE_CHILD: Final = 5  # key                   drop key and the child right of it
PRUNE: Final = 6  # snapshots                    keep only versions that one of them can see
EXTEND: Final = 7  # high, keys, versions | children, separator   append a right neighbour's content
FREE: Final = 8  #                               the page exists no more
OP_NAMES: Final = {
    FORMAT: "format", PUT: "put", CUT: "cut", INSERT_CHILD: "insert_child",
    REMOVE_CHILD: "remove_child", PRUNE: "prune", EXTEND: "extend", FREE: "free",
}  # fmt: skip

Record = tuple[Any, ...]

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Group(NamedTuple):
    """A decoded group; ``end_lsn`` is the LSN that its pages get."""

    epoch: int
    start_lsn: int
    end_lsn: int
    cts: int
    transaction_id: int
    horizon: int
    next_page: int
    records: tuple[Record, ...]
    note: bytes = b""


def encode_group(
    records: list[Record],
    *,
    epoch: int,
    start_lsn: int,
    cts: int,
    transaction_id: int,
    horizon: int,
    next_page: int,
    note: bytes = b"",
) -> bytes:
    """The group's bytes; its end LSN is ``start_lsn + len(result)``."""
    body = _pack(records) + note if note else _pack(records)
    body_bytes = len(body)
    if body_bytes > BODY_BYTES_MAX:
        raise ValueError(f"group of {body_bytes} bytes exceeds {BODY_BYTES_MAX}")
    # A group of nothing but zeros in its CRC field is what the CRC is computed over.
    header = HEADER.pack(
        MAGIC, GROUP_FORMAT, len(note), body_bytes, 0,
        epoch, start_lsn, cts, transaction_id, horizon, next_page,
    )  # fmt: skip
    crc = crc32(body, crc32(header))
    return b"".join((header[:_CRC_OFFSET], crc.to_bytes(4, "little"), header[16:], body))


class GroupHeader(NamedTuple):
    """A group's header without its records: what the log needs to know of it."""

    epoch: int
    start_lsn: int
    end_lsn: int
    cts: int
    transaction_id: int
    horizon: int
    next_page: int
    note_bytes: int = 0


def read_header(data: bytes | memoryview, offset: int = 0) -> tuple[GroupHeader, int] | None:
    """Header and total bytes of the group at ``offset``; None if these bytes are not a header.

    Only the form is checked here (magic, format, length); `verify_group` checks the CRC.
    """
    if len(data) - offset < HEADER_BYTES:
        return None
    magic, fmt, note, body_bytes, _, epoch, start, cts, txn, horizon, next_page = (
        HEADER.unpack_from(data, offset)
    )
    if magic != MAGIC or fmt != GROUP_FORMAT or not note <= body_bytes <= BODY_BYTES_MAX:
        return None
    total = HEADER_BYTES + body_bytes
    return GroupHeader(epoch, start, start + total, cts, txn, horizon, next_page, note), total


def verify_group(data: bytes | memoryview, offset: int, total: int) -> bool:
    """Whether the ``total`` bytes at ``offset`` carry the CRC that their header promises."""
    if len(data) - offset < total:
        return False
    view = memoryview(data)[offset : offset + total]
    crc = int.from_bytes(view[_CRC_OFFSET : _CRC_OFFSET + 4], "little")
    return crc == crc32(view[16:], crc32(b"\0\0\0\0", crc32(view[:_CRC_OFFSET])))


def decode_groups(data: bytes | memoryview, start_lsn: int) -> Iterator[Group]:
    """All groups in ``data``, whose first byte stands at ``start_lsn``.

    Raises `CorruptData` with the position at the first byte that is not a whole, valid group.
    """
    offset = 0
    while offset < len(data):
        found = read_header(data, offset)
        position = start_lsn + offset
        if found is None:
            raise CorruptData(f"log position {position}: no group header here")
        header, total = found
        if header.start_lsn != position:
            raise CorruptData(
                f"log position {position}: found a group that starts at {header.start_lsn}"
            )
        if not verify_group(data, offset, total):
            raise CorruptData(f"log position {position}: group CRC does not match")
        note_at = offset + total - header.note_bytes
        records = msgpack.unpackb(memoryview(data)[offset + HEADER_BYTES : note_at], use_list=False)
        yield Group(*header[:7], records, bytes(data[note_at : offset + total]))
        offset += total
