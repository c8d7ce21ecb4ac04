"""A page: 64 bytes of header and a msgpack payload, together at most 16 KiB.

    byte 0        4        6      7       8            16           24          28         32
         +--------+--------+------+-------+------------+------------+-----------+----------+
         | "PLPG" | format | kind | flags | page id    | LSN        | payload   | CRC-32   |
         | 4      | u16    | u8   | u8    | u64        | u64        | bytes u32 | u32      |
         +--------+--------+------+-------+------------+------------+-----------+----------+
      32 | tree id u64     | reserved, zero, 24 bytes                                      |
         +-----------------+---------------------------------------------------------------+
      64 | payload: msgpack                                                                |

The CRC covers header (with the CRC field as zero) and payload. The id is in the sum, so a page that
was put in another page's place is caught; the caller says which page it expects.

Payloads, by kind:

* LEAF      ``(low, high, keys, versions)``; a version is ``(cts, payload, older)`` nested, newest
  first. ``payload`` is bytes (an encoded row), None (a deletion) or ``(bytes, first page, count)``
  (a value that lies on overflow pages with consecutive ids).
* BRANCH    ``(low, high, keys, children)``; ``children`` has one more entry than ``keys``; child i
  holds the keys k with ``keys[i-1] <= k < keys[i]``.
* OVERFLOW  bytes, a piece of a large value.

``low`` is the first key that may be on the page, ``high`` the first that may not; None is open.
A decoded page is a `Frame`. Decoding and encoding are inverse: ``encode(decode(b)) == b``, which is
what makes the bytes of the writer's page and of the page folded by storage comparable.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from zlib import crc32

import msgpack

from polarless.errors import CorruptData

PAGE_BYTES: Final = 16384
PAGE_FORMAT: Final = 1
MAGIC: Final = 0x47504C50  # "PLPG", little-endian

HEADER = struct.Struct("<IHBBQQIIQ24x")
HEADER_BYTES: Final = 64
assert HEADER.size == HEADER_BYTES == 64
_CRC_OFFSET: Final = 28
PAYLOAD_BYTES_MAX: Final = PAGE_BYTES - HEADER_BYTES

LEAF: Final = 1
BRANCH: Final = 2
OVERFLOW: Final = 3
KIND_NAMES: Final = {LEAF: "leaf", BRANCH: "branch", OVERFLOW: "overflow"}

# A key is a native int (one integer key column) or order-preserving bytes; one tree has one type.
Key = Any
# (cts, payload, older): see the module's docstring.
Version = tuple[int, Any, Any]

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_unpack = msgpack.unpackb


class Frame:
    """A decoded page. ``used_bytes`` is an upper bound of the encoded payload, kept by `apply`.

    ``keys`` is sorted. In a leaf ``rows`` maps each key to its version; in a branch ``children``
    are page ids. ``blob`` is an overflow page's piece. ``visited`` and ``dirty`` belong to the
    cache that holds the frame: whether it was used lately, and whether the pool's copy is older.
    ``chained`` bounds how much longer the longest version chain has become since the page was
    decoded or pruned: chains are nested, and msgpack nests no deeper than 511.
    """

    __slots__ = (
        "blob", "chained", "children", "dirty", "high", "keys", "kind", "low", "lsn", "page_id",
        "rows", "tree_id", "used_bytes", "visited", "weight",
    )  # fmt: skip

    def __init__(
        self,
        page_id: int,
        kind: int,
        tree_id: int,
        *,
        lsn: int = 0,
        low: Key = None,
        high: Key = None,
        keys: list[Key] | None = None,
        rows: dict[Key, Version] | None = None,
        children: list[int] | None = None,
        blob: bytes = b"",
        used_bytes: int = 0,
    ) -> None:
        self.page_id = page_id
        self.kind = kind
        self.tree_id = tree_id
        self.lsn = lsn
        self.low = low
        self.high = high
        self.keys: list[Key] = [] if keys is None else keys
        self.rows: dict[Key, Version] = {} if rows is None else rows
        self.children: list[int] = [] if children is None else children
        self.blob = blob
        self.used_bytes = used_bytes
        self.chained = 0
        self.visited = False
        self.dirty = False
        self.weight = 0

    def __repr__(self) -> str:
        return (
            f"<{KIND_NAMES.get(self.kind, self.kind)} page {self.page_id} of tree {self.tree_id} "
            f"lsn {self.lsn} keys {len(self.keys)} [{self.low!r}, {self.high!r})>"
        )


# Bytes that a payload takes beyond its entries: the outer array, two list headers, both fences.
BASE_BYTES: Final = 16


def key_bytes(key: Key) -> int:
    """Upper bound of the encoded size of ``key``."""
    return 9 if type(key) is not bytes else len(key) + 5


def version_bytes(version: Version | None) -> int:
    """Upper bound of the encoded size of a version chain."""
    total = 1
    while version is not None:
        _, payload, version = version
        if payload is None:
            total += 12
        elif type(payload) is bytes:
            total += 15 + len(payload)
        else:
            total += 40
    return total


def version_bytes_min(version: Version | None) -> int:
    """Lower bound of what a version chain takes: what may be subtracted when it is cut off."""
    total = 0
    while version is not None:
        _, payload, version = version
        total += 3 if type(payload) is not bytes else 4 + len(payload)
    return total


def measure(frame: Frame) -> int:
    """Upper bound of the payload's encoded size, computed from scratch."""
    if frame.kind == OVERFLOW:
        return len(frame.blob) + 5
    total = BASE_BYTES + key_bytes(frame.low) + key_bytes(frame.high)
    for key in frame.keys:
        total += key_bytes(key)
    if frame.kind == LEAF:
        for version in frame.rows.values():
            total += version_bytes(version)
    else:
        total += 9 * len(frame.children)
    return total


def encode(frame: Frame) -> bytes:
    """The page's bytes, sealed with its CRC.

    Raises `CorruptData` if the payload does not fit: the writer splits before that happens.
    """
    keys = frame.keys
    if frame.kind == LEAF:
        rows = frame.rows
        payload = _pack((frame.low, frame.high, keys, [rows[key] for key in keys]))
    elif frame.kind == BRANCH:
        payload = _pack((frame.low, frame.high, keys, frame.children))
    else:
        payload = frame.blob
    payload_bytes = len(payload)
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise CorruptData(
            f"page {frame.page_id}: payload of {payload_bytes} bytes exceeds {PAYLOAD_BYTES_MAX}"
        )
    header = HEADER.pack(
        MAGIC, PAGE_FORMAT, frame.kind, 0, frame.page_id, frame.lsn, payload_bytes, 0, frame.tree_id
    )
    crc = crc32(payload, crc32(header))
    return b"".join((header[:_CRC_OFFSET], crc.to_bytes(4, "little"), header[32:], payload))


def verify(image: bytes | memoryview, page_id: int) -> int:
    """Check magic, format, identity, length and CRC of an encoded page; return its LSN.

    ``image`` may be longer than the page (a slot is read whole). Raises `CorruptData`.
    """
    if len(image) < HEADER_BYTES:
        raise CorruptData(f"page {page_id}: only {len(image)} bytes, a header has {HEADER_BYTES}")
    magic, fmt, _, _, found_id, lsn, payload_bytes, crc, _ = HEADER.unpack_from(image)
    if magic != MAGIC or fmt != PAGE_FORMAT:
        raise CorruptData(f"page {page_id}: bad magic {magic:#x} or format {fmt}")
    if found_id != page_id:
        raise CorruptData(f"page {page_id}: found page {found_id} in its place")
    end = HEADER_BYTES + payload_bytes
    if payload_bytes > PAYLOAD_BYTES_MAX or end > len(image):
        raise CorruptData(f"page {page_id}: payload length {payload_bytes} does not fit")
    view = memoryview(image)
    actual = crc32(view[32:end], crc32(b"\0\0\0\0", crc32(view[:_CRC_OFFSET])))
    if actual != crc:
        raise CorruptData(
            f"page {page_id}: CRC is {actual:#010x}, its header says {crc:#010x} (LSN {lsn})",
            hint="A single flipped bit or a torn write; the copy in another tier is used instead.",
        )
    return int(lsn)


def decode(image: bytes | memoryview, page_id: int) -> Frame:
    """Verify an encoded page and decode it. Raises `CorruptData`, never returns a partial frame."""
    verify(image, page_id)
    return decode_verified(image, page_id)


def decode_verified(image: bytes | memoryview, page_id: int) -> Frame:
    """Decode an encoded page that `verify` has passed: the CRC is a fifth of the whole."""
    _, _, kind, _, _, lsn, payload_bytes, _, tree_id = HEADER.unpack_from(image)
    frame = Frame(page_id, kind, tree_id, lsn=lsn)
    payload = memoryview(image)[HEADER_BYTES : HEADER_BYTES + payload_bytes]
    if kind == OVERFLOW:
        frame.blob = bytes(payload)
    elif kind == LEAF:
        low, high, keys, versions = _unpack(payload, use_list=False, strict_map_key=False)
        frame.low, frame.high = low, high
        frame.keys = list(keys)
        frame.rows = dict(zip(keys, versions, strict=True))
    elif kind == BRANCH:
        low, high, keys, children = _unpack(payload, use_list=False)
        frame.low, frame.high = low, high
        frame.keys = list(keys)
        frame.children = list(children)
    else:
        raise CorruptData(f"page {page_id}: unknown kind {kind}")
    # The payload's own length is the tightest bound there is; list headers may still grow a little.
    frame.used_bytes = payload_bytes + BASE_BYTES
    return frame
