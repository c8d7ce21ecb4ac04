"""What compute nodes, memory nodes and the home agree on: slots, cells, and the home's messages.

A slot holds one page image::

    byte 0          8          16         24             32                40
         +----------+----------+----------+--------------+-----------------+----------+
         | sequence | page id  | LSN      | generation   | image bytes u32 | reserved |
         | u64      | u64      | u64      | u64          | page CRC u32    | 24 bytes |
         +----------+----------+----------+--------------+-----------------+----------+
      64 | image, at most 16384 bytes                                                 |

``sequence`` is odd while the slot is being written. A generation names one use of one slot and
never repeats: ``home epoch << 40 | counter``.

The home's cells are one small region of 64-bit words::

    word 0           1            2      3         4..7       8 ...
         +-----------+------------+------+---------+----------+---------------------------------+
         | published | home epoch | mark | knows   | reserved | admission words, one a member   |
         | cts       |            |      | 0 or 1  |          | value: incarnation, 0: expelled |
         +-----------+------------+------+---------+----------+---------------------------------+

A reader takes a snapshot by reading ``knows``, ``published`` and its admission word, in this order.
A home that has just started does not know what is published until its first advance is complete: 0.
The word of an expelled reader is cleared before anything is published that it may have missed.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from polarless.kernel.page import PAGE_BYTES

WORD_BYTES: Final = 8

# ---------------------------------------------------------------------------------------- slots

SLOT_HEADER = struct.Struct("<QQQQII24x")
SLOT_HEADER_BYTES: Final = 64
SLOT_BYTES: Final = SLOT_HEADER_BYTES + PAGE_BYTES
SLOT_WORDS: Final = SLOT_BYTES // WORD_BYTES
assert SLOT_HEADER.size == SLOT_HEADER_BYTES == 64
assert SLOT_BYTES == 16448
assert SLOT_BYTES % WORD_BYTES == 0

SLOT_SEQUENCE: Final = 0
SLOT_PAGE: Final = 1
SLOT_LSN: Final = 2
SLOT_GENERATION: Final = 3
SLOT_LENGTH: Final = 4

GENERATION_BITS: Final = 40

# A page image carries its own CRC at this place of its header (polarless.kernel.page).
_PAGE_CRC = struct.Struct("<28xI")


def slot_contents(page_id: int, lsn: int, generation: int, image: bytes) -> bytes:
    """What a WRITE puts into a slot; the sequence word is the target's business."""
    assert len(image) <= PAGE_BYTES, f"page {page_id}: image of {len(image)} bytes"
    (crc,) = _PAGE_CRC.unpack_from(image)
    return SLOT_HEADER.pack(0, page_id, lsn, generation, len(image), crc) + image


class Place(NamedTuple):
    """Where an image lies, and the image's LSN. Under one generation it never changes."""

    node: str
    slab: int
    slot: int
    generation: int
    lsn: int


# ---------------------------------------------------------------------------------------- cells

CELL_PUBLISHED: Final = 0
CELL_HOME_EPOCH: Final = 1
CELL_MARK: Final = 2
CELL_KNOWS: Final = 3
CELL_ADMISSION: Final = 8
CELLS_BYTES: Final = 4096
# How many compute nodes can be joined at a time.
MEMBERS_MAX: Final = CELLS_BYTES // WORD_BYTES - CELL_ADMISSION


# ------------------------------------------------------------------------------------- messages


class Slab(NamedTuple):
    """One slab as a compute node may use it; ``rkey`` is that node's own key."""

    slab: int
    shm: str
    rkey: bytes
    slots: int


class PoolNode(NamedTuple):
    """A memory node: its fabric address and slabs by id."""

    fabric: str
    slabs: dict[int, Slab]


def encode_nodes(nodes: dict[str, PoolNode]) -> dict[str, Any]:
    """Plain values for the wire."""
    return {
        name: {"fabric": node.fabric, "slabs": [tuple(slab) for slab in node.slabs.values()]}
        for name, node in nodes.items()
    }


def decode_nodes(plain: dict[str, Any]) -> dict[str, PoolNode]:
    """The inverse of `encode_nodes`. Raises ValueError, TypeError or KeyError."""
    return {
        str(name): PoolNode(str(node["fabric"]), {int(row[0]): Slab(*row) for row in node["slabs"]})
        for name, node in plain.items()
    }


# The first field of the answer to `register`.
HIT: Final = "hit"
ABSENT: Final = "absent"

# Pages in one `confirm`: four questions to storage, and a few milliseconds of the home's time.
CONFIRM_PAGES: Final = 1024
_CONFIRM = struct.Struct("<QQ")


def encode_claims(claims: list[tuple[int, int]]) -> bytes:
    """(page id, LSN) pairs of a `confirm`."""
    return b"".join([_CONFIRM.pack(page_id, lsn) for page_id, lsn in claims])


def decode_claims(data: bytes) -> list[tuple[int, int]]:
    """The inverse of `encode_claims`. Raises struct.error for a length that does not fit."""
    return list(_CONFIRM.iter_unpack(data))
