"""Slabs and cells in POSIX shared memory: the way that wakes nobody.

A compute on the same host maps a memory node's region read-only and copies a page out of it. It
owes nothing to the writer: it takes the sequence word, copies, and looks whether the word is still
the same and even. Page id, generation and the page's own CRC are checked on top, so that a slot
that was freed and given to another page, or a write that was cut off, is seen for what it is: the
reader asks the home again.

Writes do not come this way: only a verb can be stopped by an epoch.
"""

from __future__ import annotations

import os
import struct

from memory_pool.fabric.region import Region
from polarless.errors import CorruptData, Overloaded
from polarless.kernel.page import HEADER_BYTES, PAGE_BYTES, verify
from polarless.kernel.world import SharedMemory, SharedRegion
from polarless.wire.memory import (
    SLOT_BYTES,
    SLOT_GENERATION,
    SLOT_HEADER,
    SLOT_HEADER_BYTES,
    SLOT_LENGTH,
    SLOT_PAGE,
    SLOT_WORDS,
)

_LOW_HALF = 0xFFFFFFFF
# Where a page's header says how long it is.
_PAYLOAD_BYTES = struct.Struct("<24xI")


class SharedSlab:
    """A mapped region of another process (or our own), read through its words."""

    __slots__ = ("_region", "buffer", "name", "words")

    def __init__(self, region: SharedRegion) -> None:
        self._region = region
        self.name = region.name
        self.buffer = region.buffer
        self.words = region.buffer.cast("Q")

    def close(self) -> None:
        """Unmap."""
        self.words.release()
        self._region.close()


def attach(memory: SharedMemory, name: str, byte_count: int) -> SharedSlab | None:
    """Map ``name`` read-only, or None: it lies on another host, or is gone."""
    try:
        region = memory.attach(name)
    except OSError:
        return None
    if len(region.buffer) < byte_count:
        region.close()
        return None
    return SharedSlab(region)


def create(memory: SharedMemory, name: str, byte_count: int) -> tuple[SharedRegion, Region]:
    """Create a zeroed region of our own and register it under its name.

    Raises `Overloaded` where the host refuses.
    """
    try:
        region = memory.create(name, byte_count)
    except OSError as error:
        raise Overloaded(f"shared memory {name}: {error}") from error
    return region, Region(name, region.buffer)


def check_room(byte_count: int) -> None:
    """Raise `Overloaded` where the host has less shared memory than that.

    Regions get their memory page by page when they are written: without any behind it, a page ends
    the process. Asked once for all regions of a process, before the first is made.
    """
    room = free_bytes()
    if room is not None and room < byte_count:
        raise Overloaded(
            f"{byte_count} bytes of shared memory wanted, {room} are free in /dev/shm",
            hint="Give the pool less memory, or the host (container) a larger /dev/shm.",
        )


def free_bytes() -> int | None:
    """What /dev/shm has left; None where there is no such place."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def read_slot(slab: SharedSlab, slot: int, page_id: int, generation: int) -> bytes | None:
    """The verified image of ``page_id`` in ``slot``, or None if it is not, or no longer, there."""
    words = slab.words
    word = slot * SLOT_WORDS
    sequence = words[word]
    if (
        sequence & 1
        or words[word + SLOT_PAGE] != page_id
        or words[word + SLOT_GENERATION] != generation
    ):
        return None
    length = words[word + SLOT_LENGTH] & _LOW_HALF
    if length > PAGE_BYTES:
        return None
    start = slot * SLOT_BYTES + SLOT_HEADER_BYTES
    image = bytes(slab.buffer[start : start + length])
    if words[word] != sequence:
        return None
    return image if _is_page(image, page_id) else None


def check_slot(data: bytes, page_id: int, generation: int) -> bytes | None:
    """The same for a slot that came as the bytes of one READ."""
    if len(data) < SLOT_HEADER_BYTES:
        return None
    sequence, found, _, found_generation, length, _ = SLOT_HEADER.unpack_from(data)
    if sequence & 1 or found != page_id or found_generation != generation:
        return None
    if length > len(data) - SLOT_HEADER_BYTES:
        return None
    image = data[SLOT_HEADER_BYTES : SLOT_HEADER_BYTES + length]
    return image if _is_page(image, page_id) else None


def _is_page(image: bytes, page_id: int) -> bool:
    """Whether these are exactly the bytes of that page, whole."""
    try:
        verify(image, page_id)
    except CorruptData:
        return False
    # A page may be followed by more as far as `verify` is concerned.
    (payload_bytes,) = _PAYLOAD_BYTES.unpack_from(image)
    return len(image) == HEADER_BYTES + int(payload_bytes)
