"""Registered memory: what a key opens, to whom, and the operations on it.

A `Region` is a buffer with 64-bit words. A `KeyTable` maps remote keys, random 128-bit values, to
(region, access, holder). A holder is one incarnation of one node, so the keys of a node that was
fenced or started again are worthless. `KeyTable.execute` is the whole passive side: it checks key,
access and bounds, and applies one operation to the bytes without knowing what they mean.

Bounds are Python integers and cannot overflow; nothing is allocated before they are checked.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from memory_pool.fabric import verbs
from memory_pool.fabric.verbs import BAD_BOUNDS, BAD_KEY, GUARD_REFUSED, NO_ACCESS, OK
from polarless.wire.memory import SLOT_HEADER_BYTES, WORD_BYTES

# Access bits.
MAY_READ: Final = 1
MAY_WRITE: Final = 2
MAY_WRITE_GUARDED: Final = 4
MAY_ATOMIC: Final = 8

_WORD_MASK: Final = 2**64 - 1

Holder = tuple[str, int]  # node name, incarnation


class Region:
    """A named buffer. ``words`` is the same memory as aligned 64-bit words.

    Words are read and written through ``words`` only: one item of a cast memoryview is one 8-byte
    load or store, while `struct.pack_into` goes byte by byte and tears.
    """

    __slots__ = ("buffer", "byte_count", "name", "words")

    def __init__(self, name: str, buffer: memoryview) -> None:
        self.name = name
        self.buffer = buffer
        self.words = buffer[: len(buffer) // WORD_BYTES * WORD_BYTES].cast("Q")
        self.byte_count = len(buffer)

    def release(self) -> None:
        """Give the views back, so that the memory can be unmapped."""
        self.words.release()


class Key(NamedTuple):
    """What a remote key opens."""

    region: Region
    access: int
    holder: Holder


class KeyTable:
    """The remote keys of one node."""

    def __init__(self) -> None:
        self._keys: dict[bytes, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def grant(self, rkey: bytes, region: Region, access: int, holder: Holder) -> None:
        """Let ``holder`` use ``rkey``, which comes from a source of randomness."""
        assert len(rkey) == verbs.RKEY_BYTES
        assert rkey not in self._keys, "a random key repeated: the source is not random"
        self._keys[rkey] = Key(region, access, holder)

    def revoke(self, holder: Holder) -> int:
        """Forget all keys of ``holder``; how many there were."""
        return self._drop([rkey for rkey, key in self._keys.items() if key.holder == holder])

    def revoke_all(self) -> int:
        """Forget every key."""
        return self._drop(list(self._keys))

    def _drop(self, rkeys: list[bytes]) -> int:
        for rkey in rkeys:
            del self._keys[rkey]
        return len(rkeys)

    def execute(
        self, request: verbs.Request, data: memoryview | None, holder: Holder
    ) -> tuple[int, int, memoryview | None]:
        """Apply one operation: (status, old value, the bytes a READ asked for).

        The bytes are a view of the region: the caller copies them before it does anything else.
        """
        op, flags, guard_word, _, rkey, offset, length, a, b = request
        key = self._keys.get(rkey)
        if key is None or key.holder != holder:
            return BAD_KEY, 0, None
        region, access, _ = key
        if op == verbs.READ:
            if not access & MAY_READ:
                return NO_ACCESS, 0, None
            if offset + length > region.byte_count:
                return BAD_BOUNDS, 0, None
            return OK, 0, region.buffer[offset : offset + length]
        if op == verbs.WRITE:
            assert data is not None
            assert len(data) == length
            if not access & (MAY_WRITE_GUARDED if flags & verbs.GUARDED else MAY_WRITE):
                return NO_ACCESS, 0, None
            if offset + length > region.byte_count:
                return BAD_BOUNDS, 0, None
            if flags & verbs.GUARDED:
                return guarded_write(region, offset, data, guard_word, a), 0, None
            region.buffer[offset : offset + length] = data
            return OK, 0, None
        if not access & MAY_ATOMIC:
            return NO_ACCESS, 0, None
        if offset % WORD_BYTES or offset + WORD_BYTES > region.byte_count:
            return BAD_BOUNDS, 0, None
        words, word = region.words, offset // WORD_BYTES
        old = words[word]
        if op == verbs.FETCH_ADD:
            words[word] = (old + a) & _WORD_MASK
        elif old == a:
            words[word] = b
        return OK, old, None


def guarded_write(
    region: Region, offset: int, data: memoryview, guard_word: int, guard: int
) -> int:
    """Replace header and body of a sequenced record, unless its guard word is above ``guard``.

    The order is what a reader that shares the memory relies on: sequence odd, body, the rest of the
    header, sequence even. A node that dies in between leaves an odd sequence: nobody reads that.
    """
    if offset % WORD_BYTES or len(data) < SLOT_HEADER_BYTES:
        return BAD_BOUNDS
    if not 0 < guard_word < SLOT_HEADER_BYTES // WORD_BYTES:
        return BAD_BOUNDS
    words, word = region.words, offset // WORD_BYTES
    if words[word + guard_word] > guard:
        return GUARD_REFUSED
    buffer = region.buffer
    odd = words[word] | 1
    words[word] = odd
    header_end = offset + SLOT_HEADER_BYTES
    buffer[header_end : offset + len(data)] = data[SLOT_HEADER_BYTES:]
    buffer[offset + WORD_BYTES : header_end] = data[WORD_BYTES:SLOT_HEADER_BYTES]
    words[word] = (odd + 1) & _WORD_MASK
    return OK
