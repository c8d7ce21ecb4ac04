"""Reading a slot out of shared memory while it is being written: never a mixture, never garbage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_pool.fabric import shared
from memory_pool.fabric.region import Region, guarded_write
from memory_pool.fabric.shared import SharedSlab, check_slot, read_slot
from memory_pool.fabric.verbs import OK
from polarless.errors import Overloaded
from polarless.kernel.page import LEAF, Frame, encode
from polarless.wire.memory import (
    SLOT_BYTES,
    SLOT_GENERATION,
    SLOT_HEADER_BYTES,
    slot_contents,
)


def image(page_id: int, lsn: int, rows: int = 40) -> bytes:
    versions = dict.fromkeys(range(rows), (lsn, b"%d" % lsn * 10, None))
    return encode(Frame(page_id, LEAF, 1, lsn=lsn, keys=list(versions), rows=versions))


class Mapped:
    """Shared memory of one process, for two."""

    def __init__(self, buffer: memoryview) -> None:
        self.name = "test"
        self.buffer = buffer

    def give_back(self, start: int, end: int) -> None:
        raise AssertionError("nobody here gives memory back")

    def used_end(self) -> int:
        return len(self.buffer)

    def close(self) -> None:
        pass


def slab(slots: int = 2) -> tuple[Region, SharedSlab]:
    memory = memoryview(bytearray(slots * SLOT_BYTES))
    return Region("r", memory), SharedSlab(Mapped(memory.toreadonly()))


def put(region: Region, slot: int, page_id: int, lsn: int, generation: int) -> bytes:
    made = image(page_id, lsn)
    contents = memoryview(slot_contents(page_id, lsn, generation, made))
    status = guarded_write(region, slot * SLOT_BYTES, contents, SLOT_GENERATION, generation)
    assert status == OK
    return made


def test_what_was_written_is_read() -> None:
    region, mapped = slab()
    made = put(region, 1, 7, 100, 5)
    assert read_slot(mapped, 1, 7, 5) == made
    start = SLOT_BYTES
    assert check_slot(bytes(region.buffer[start : start + SLOT_BYTES]), 7, 5) == made


def test_what_is_not_there_is_refused() -> None:
    region, mapped = slab()
    put(region, 1, 7, 100, 5)
    whole = bytes(region.buffer[SLOT_BYTES:])
    assert read_slot(mapped, 0, 7, 5) is None
    for page_id, generation in ((8, 5), (7, 4), (7, 6), (0, 0)):
        assert read_slot(mapped, 1, page_id, generation) is None
        assert check_slot(whole, page_id, generation) is None
    assert check_slot(whole[:10], 7, 5) is None
    assert check_slot(whole[:70], 7, 5) is None


@given(st.integers(0, SLOT_HEADER_BYTES + 900), st.integers(1, 255))
def test_flipped_byte_is_refused_or_outside_the_image(at: int, flip: int) -> None:
    region, mapped = slab(1)
    made = put(region, 0, 7, 100, 5)
    region.buffer[at] ^= flip
    for found in (read_slot(mapped, 0, 7, 5), check_slot(bytes(region.buffer), 7, 5)):
        # The sequence, the LSN and the reserved words of the slot's header say nothing that the
        # page does not say itself.
        assert found in (None, made)
        if SLOT_HEADER_BYTES <= at < SLOT_HEADER_BYTES + len(made):
            assert found is None


class Interrupted:
    """A slab whose every access first lets the writer do a step."""

    def __init__(self, mapped: SharedSlab, steps: Iterator[None], before: int) -> None:
        self.accesses = 0
        self._steps = steps
        self._before = before
        self.words = self._Watched(self, mapped.words)
        self.buffer = self._Watched(self, mapped.buffer)

    def touch(self) -> None:
        self.accesses += 1
        if self.accesses >= self._before:
            next(self._steps, None)

    class _Watched:
        def __init__(self, owner: Any, view: memoryview) -> None:
            self._owner = owner
            self._view = view

        def __getitem__(self, index: Any) -> Any:
            self._owner.touch()
            return self._view[index]


def writing(region: Region, contents: bytes, *, pieces: int = 3) -> Iterator[None]:
    """`guarded_write` in slow motion, in its order: a step is what a reader may get between."""
    words = region.words
    odd = words[0] | 1
    words[0] = odd
    yield
    size = len(contents) - SLOT_HEADER_BYTES
    for piece in range(pieces):
        low = SLOT_HEADER_BYTES + size * piece // pieces
        high = SLOT_HEADER_BYTES + size * (piece + 1) // pieces
        region.buffer[low:high] = contents[low:high]
        yield
    for word in range(1, SLOT_HEADER_BYTES // 8):
        words[word] = int.from_bytes(contents[word * 8 : word * 8 + 8], "little")
        yield
    words[0] = odd + 1


@pytest.mark.parametrize("before", range(1, 9))
@pytest.mark.parametrize("skipped", range(12))
@pytest.mark.parametrize(
    "write", [(8, 200, 6), (7, 200, 6)], ids=["another page", "the same page, newer"]
)
def test_torn_read_is_refused(before: int, skipped: int, write: tuple[int, int, int]) -> None:
    region, mapped = slab(1)
    made = put(region, 0, 7, 100, 5)
    page_id, lsn, generation = write
    steps = writing(region, slot_contents(page_id, lsn, generation, image(page_id, lsn)))
    for _ in range(skipped):
        next(steps)
    found = read_slot(Interrupted(mapped, steps, before), 0, 7, 5)  # type: ignore[arg-type]
    assert found in (None, made)
    if skipped:
        assert found is None


@pytest.mark.parametrize("died_after", range(11))
def test_slot_whose_writer_died_is_refused(died_after: int) -> None:
    region, mapped = slab(1)
    put(region, 0, 7, 100, 5)
    steps = writing(region, slot_contents(8, 200, 6, image(8, 200)))
    for _ in range(died_after + 1):
        next(steps)
    assert region.words[0] % 2 == 1
    for page_id, generation in ((7, 5), (8, 6)):
        assert read_slot(mapped, 0, page_id, generation) is None
        assert check_slot(bytes(region.buffer), page_id, generation) is None
    # The next writer makes it good again.
    newest = put(region, 0, 9, 300, 7)
    assert read_slot(mapped, 0, 9, 7) == newest


class Memory:
    """Shared memory that has what a test gives it."""

    def __init__(self, found: Callable[[], Any]) -> None:
        self._found = found

    def attach(self, name: str) -> Any:
        return self._found()

    def create(self, name: str, byte_count: int) -> Any:
        return Mapped(memoryview(bytearray(byte_count)))


def test_memory_of_another_host_is_not_attached() -> None:
    def missing() -> Any:
        raise FileNotFoundError

    assert shared.attach(Memory(missing), "name", 10) is None
    short = Memory(lambda: Mapped(memoryview(bytearray(8))))
    assert shared.attach(short, "name", 16) is None
    assert shared.attach(short, "name", 8) is not None


def test_more_memory_than_the_host_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(lambda: None)
    monkeypatch.setattr(shared, "free_bytes", lambda: 100)
    with pytest.raises(Overloaded, match="101 bytes of shared memory wanted, 100 are free"):
        shared.check_room(101)
    shared.check_room(100)
    monkeypatch.setattr(shared, "free_bytes", lambda: None)
    shared.check_room(1 << 60)
    _, region = shared.create(memory, "name", 96)
    assert region.byte_count == 96
