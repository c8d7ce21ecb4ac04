"""The state record of the page store: up to where the pages in it are folded.

    byte 0        4        6       8                      24           32        40
         +--------+--------+-------+----------------------+------------+---------+-------------+
         | "PLPS" | format | flags | cluster id, 16 bytes | folded LSN | cts     | next page   |
         +--------+--------+-------+----------------------+------------+---------+-------------+
      48 | mark            | reserved       | CRC at 60                                         |
         +-----------------+----------------+---------------------------------------------------+

Every page is stored as of the folded LSN. ``cts`` and ``next page`` are the log's there; so is
everything that a start would otherwise have to read the dropped part of the log for. ``mark`` was
the writer's last announcement: it bounds what may be folded until the next one (it may be below
the folded LSN if memory forced folding past it at a start).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

from polarless.errors import CorruptData

FORMAT: Final = 1
_MAGIC: Final = 0x53504C50  # "PLPS", little-endian
_STATE = struct.Struct("<IHH16sQQQQ4xI")
STATE_BYTES: Final = 64
assert _STATE.size == STATE_BYTES == 64


class Folded(NamedTuple):
    """Where the stored pages stand in the log."""

    lsn: int = 0
    cts: int = 0
    next_page: int = 0
    mark: int = 0


def encode_folded(cluster: bytes, folded: Folded) -> bytes:
    """The state record."""
    data = _STATE.pack(_MAGIC, FORMAT, 0, cluster, *folded, 0)
    return data[:60] + crc32(data[:60]).to_bytes(4, "little")


def decode_folded(data: bytes | None, cluster: bytes | None) -> Folded:
    """The record; all zeros if there is none yet. ``cluster`` None takes any.

    Raises `CorruptData`.
    """
    if data is None:
        return Folded()
    if len(data) != STATE_BYTES:
        raise CorruptData(f"the page store's state record has {len(data)} bytes")
    magic, fmt, _, found, lsn, cts, next_page, mark, crc = _STATE.unpack(data)
    if crc != crc32(data[:60]) or magic != _MAGIC or fmt != FORMAT:
        raise CorruptData("the page store's state record, its folded LSN, is damaged")
    if cluster is not None and found != cluster:
        raise CorruptData(
            f"the page store belongs to cluster {found.hex()}, this is {cluster.hex()}"
        )
    return Folded(lsn, cts, next_page, mark)
