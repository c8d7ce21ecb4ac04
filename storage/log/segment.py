"""The bytes of a segment, and what the log makes of bytes that it finds.

    byte 0        4        6       8                      24          32                60
         +--------+--------+-------+----------------------+-----------+----------------+-------+
         | "PLSG" | format | flags | cluster id, 16 bytes | start LSN | reserved, zero | CRC   |
         +--------+--------+-------+----------------------+-----------+----------------+-------+
      64 | groups, one behind the other (polarless/kernel/redo.py)                             |

The group at LSN n stands at byte ``64 + n - start LSN``. A segment ends where the next one starts,
between two groups. A new segment is only begun when the one before is durable to its last byte.

The state record, beside the segments, is what must outlive all of them:

    byte 0        4        6       8                      24      32            40         60
         +--------+--------+-------+----------------------+-------+-------------+----------+-----+
         | "PLST" | format | flags | cluster id, 16 bytes | epoch | durable LSN | reserved | CRC |
         +--------+--------+-------+----------------------+-------+-------------+----------+-----+

``epoch`` is the fence: lower ones are refused for ever. ``durable LSN`` is a lower bound of what
was durable when the record was written, so that a log which ends below it has lost something.

The torn-tail rule. The first byte that is not a whole, valid group of its place is

* the end of the log, if it is the end of the newest segment;
* a torn tail, if it is in the newest segment, not below anything that is known to have been
  durable, and no valid group of its place stands anywhere behind it. It is cut and reported;
* damage otherwise. The log does not open, and says where.

A torn tail was never acknowledged: its sync did not return. Nothing tells a torn last group from a
durable last group in which the disk later flipped a bit, except the durable LSN of the state record
(written at each fence and at a clean stop) and the folded LSN of the pages.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from polarless.errors import CorruptData
from polarless.kernel import redo

SEGMENT_FORMAT: Final = 1
STATE_FORMAT: Final = 1
_SEGMENT_MAGIC: Final = 0x47534C50  # "PLSG", little-endian
_STATE_MAGIC: Final = 0x54534C50  # "PLST"

_HEADER = struct.Struct("<IHH16sQ28xI")
_STATE = struct.Struct("<IHH16sQQ20xI")
HEADER_BYTES: Final = 64
STATE_BYTES: Final = 64
assert _HEADER.size == HEADER_BYTES == 64
assert _STATE.size == STATE_BYTES == 64
_CRC_OFFSET: Final = 60


def encode_header(cluster: bytes, start_lsn: int) -> bytes:
    """The first 64 bytes of the segment that starts at ``start_lsn``."""
    return _seal(_HEADER.pack(_SEGMENT_MAGIC, SEGMENT_FORMAT, 0, cluster, start_lsn, 0))


def check_header(data: bytes, cluster: bytes, start_lsn: int) -> None:
    """Raises `CorruptData` unless ``data`` begins with the header of that segment."""
    if len(data) < HEADER_BYTES:
        raise CorruptData(
            f"log position {start_lsn}: its segment has only {len(data)} bytes, not even a header"
        )
    magic, fmt, _, found_cluster, found_start, crc = _HEADER.unpack_from(data)
    if crc != crc32(data[:_CRC_OFFSET]) or magic != _SEGMENT_MAGIC:
        raise CorruptData(f"log position {start_lsn}: the header of its segment is damaged")
    if fmt != SEGMENT_FORMAT:
        raise CorruptData(f"log position {start_lsn}: segment format {fmt} is not known here")
    if found_cluster != cluster:
        raise CorruptData(
            f"log position {start_lsn}: the segment belongs to cluster {found_cluster.hex()}, "
            f"this is {cluster.hex()}"
        )
    if found_start != start_lsn:
        raise CorruptData(
            f"log position {start_lsn}: found the segment of position {found_start} in its place"
        )


def encode_state(cluster: bytes, *, epoch: int, durable_lsn: int) -> bytes:
    """The state record."""
    return _seal(_STATE.pack(_STATE_MAGIC, STATE_FORMAT, 0, cluster, epoch, durable_lsn, 0))


def decode_state(data: bytes, cluster: bytes) -> tuple[int, int]:
    """(epoch, durable LSN). Raises `CorruptData`: without its fence a log must not open."""
    if len(data) != STATE_BYTES:
        raise CorruptData(f"the log's state record has {len(data)} bytes, not {STATE_BYTES}")
    magic, fmt, _, found_cluster, epoch, durable_lsn, crc = _STATE.unpack(data)
    if crc != crc32(data[:_CRC_OFFSET]) or magic != _STATE_MAGIC or fmt != STATE_FORMAT:
        raise CorruptData("the log's state record, which holds the fencing epoch, is damaged")
    if found_cluster != cluster:
        raise CorruptData(
            f"the log belongs to cluster {found_cluster.hex()}, this is {cluster.hex()}"
        )
    return epoch, durable_lsn


def cluster_of(data: bytes) -> bytes | None:
    """The cluster id in a state record, unchecked; for tools that are not told one."""
    return data[8:24] if len(data) == STATE_BYTES else None


def _seal(data: bytes) -> bytes:
    return data[:_CRC_OFFSET] + crc32(data[:_CRC_OFFSET]).to_bytes(4, "little")


class Walk:
    """Goes through groups and keeps what the log needs to know of all of them.

    ``end`` is the LSN behind the last valid group; ``cts`` the highest seen, ``next_page`` and
    ``epoch`` those of the last group. Feed it bytes in order.
    """

    __slots__ = ("cts", "end", "epoch", "groups", "next_page")

    def __init__(self, start_lsn: int) -> None:
        self.end = start_lsn
        self.cts = 0
        self.next_page = 0
        self.epoch = 0
        self.groups = 0

    def feed(self, data: memoryview) -> int:
        """Take the whole valid groups at the start of ``data``, whose first byte stands at ``end``.

        Returns the bytes that the first group not taken needs: 0 if ``data`` was used up, -1 if
        what stands there can never be a group of its place.
        Raises `CorruptData` for a valid group that cannot follow: its epoch goes back.
        """
        offset, size = 0, len(data)
        unpack, end = redo.HEADER.unpack_from, self.end
        wanted = 0
        while offset < size:
            if size - offset < redo.HEADER_BYTES:
                # A group is its header at least, and begins like one.
                known = bytes(data[offset : offset + 4])
                wanted = redo.HEADER_BYTES if redo.MAGIC_BYTES.startswith(known) else -1
                break
            magic, fmt, _, body_bytes, _, epoch, start, cts, _, _, next_page = unpack(data, offset)
            total = redo.HEADER_BYTES + body_bytes
            if (
                magic != redo.MAGIC
                or fmt != redo.GROUP_FORMAT
                or start != end
                or body_bytes > redo.BODY_BYTES_MAX
            ):
                wanted = -1
                break
            if total > size - offset:
                wanted = total
                break
            if not redo.verify_group(data, offset, total):
                wanted = -1
                break
            if epoch < self.epoch:
                raise CorruptData(
                    f"log position {end}: a group of epoch {epoch} after one of epoch {self.epoch}"
                )
            self.epoch = epoch
            if cts > self.cts:
                self.cts = cts
            self.next_page = next_page
            self.groups += 1
            offset += total
            end += total
        self.end = end
        return wanted


def find_group(data: bytes | memoryview, start_lsn: int) -> int | None:
    """The LSN of the first valid group of its place in ``data``, anywhere; None if there is none.

    ``data`` stands at ``start_lsn``. Its first byte is left out: that is where reading stopped.
    """
    whole = bytes(data)
    offset = whole.find(redo.MAGIC_BYTES, 1)
    while offset >= 0:
        found = redo.read_header(whole, offset)
        if found is not None:
            header, total = found
            if header.start_lsn == start_lsn + offset and redo.verify_group(whole, offset, total):
                return header.start_lsn
        offset = whole.find(redo.MAGIC_BYTES, offset + 1)
    return None
