from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_pool.fabric import verbs
from memory_pool.fabric.region import (
    MAY_ATOMIC,
    MAY_READ,
    MAY_WRITE,
    MAY_WRITE_GUARDED,
    KeyTable,
    Region,
)
from memory_pool.fabric.verbs import (
    BAD_BOUNDS,
    BAD_KEY,
    CAS,
    FETCH_ADD,
    GUARD_REFUSED,
    GUARDED,
    NO_ACCESS,
    OK,
    READ,
    WRITE,
    Request,
)

KEY = b"k" * 16
ME = ("ro1", 5)
EVERYTHING = MAY_READ | MAY_WRITE | MAY_WRITE_GUARDED | MAY_ATOMIC


def table(byte_count: int = 256, access: int = EVERYTHING) -> tuple[KeyTable, bytearray]:
    memory = bytearray(byte_count)
    keys = KeyTable()
    keys.grant(KEY, Region("r", memoryview(memory)), access, ME)
    return keys, memory


def ask(
    keys: KeyTable,
    op: int,
    offset: int,
    length: int = 0,
    *,
    data: bytes | None = None,
    a: int = 0,
    b: int = 0,
    guard_word: int | None = None,
    holder: tuple[str, int] = ME,
    rkey: bytes = KEY,
) -> tuple[int, int, bytes | None]:
    flags = GUARDED if guard_word is not None else 0
    length = len(data) if data is not None else length
    request = Request(op, flags, guard_word or 0, 1, rkey, offset, length, a, b)
    view = memoryview(data) if data is not None else None
    status, value, found = keys.execute(request, view, holder)
    return status, value, None if found is None else bytes(found)


def test_read_and_write() -> None:
    keys, memory = table()
    assert ask(keys, WRITE, 3, data=b"hello")[0] == OK
    assert memory[3:8] == b"hello"
    assert ask(keys, READ, 3, 5) == (OK, 0, b"hello")
    assert ask(keys, READ, 256, 0) == (OK, 0, b"")


def test_atomics() -> None:
    keys, _ = table()
    assert ask(keys, FETCH_ADD, 8, a=5) == (OK, 0, None)
    assert ask(keys, FETCH_ADD, 8, a=2**64 - 1) == (OK, 5, None)
    assert ask(keys, CAS, 8, a=9, b=1) == (OK, 4, None)
    assert ask(keys, CAS, 8, a=4, b=2**64 - 1) == (OK, 4, None)
    assert ask(keys, FETCH_ADD, 8, a=1) == (OK, 2**64 - 1, None)
    assert ask(keys, CAS, 8, a=0, b=7) == (OK, 0, None)


@given(
    op=st.sampled_from([READ, WRITE, CAS, FETCH_ADD]),
    offset=st.integers(0, 2**64 - 1),
    length=st.integers(0, 4096),
    guarded=st.booleans(),
    word=st.integers(0, 2**16 - 1),
    value=st.integers(0, 2**64 - 1),
)
def test_nothing_outside_the_region_is_touched(
    op: int, offset: int, length: int, guarded: bool, word: int, value: int
) -> None:
    arena = bytearray(b"\xaa" * 1024)
    keys = KeyTable()
    keys.grant(KEY, Region("r", memoryview(arena)[256:768]), EVERYTHING, ME)
    status, _, found = ask(
        keys, op, offset, length, data=b"x" * length if op == WRITE else None, a=value,
        guard_word=word if guarded and op == WRITE else None,
    )  # fmt: skip
    assert arena[:256] == arena[768:] == b"\xaa" * 256
    assert status in verbs.STATUS_NAMES
    if status == OK and op in (READ, WRITE):
        assert offset + length <= 512
    if found is not None:
        assert len(found) == length


@pytest.mark.parametrize("offset", [4, 256, 249, 2**63])
def test_atomic_that_is_not_on_a_word_is_refused(offset: int) -> None:
    keys, _ = table()
    assert ask(keys, FETCH_ADD, offset, a=1)[0] == BAD_BOUNDS


@pytest.mark.parametrize(
    ("access", "op"),
    [
        (MAY_READ | MAY_WRITE, CAS),
        (MAY_READ | MAY_ATOMIC, WRITE),
        (MAY_WRITE_GUARDED, WRITE),
        (MAY_WRITE, READ),
    ],
)
def test_operation_that_the_key_does_not_allow_is_refused(access: int, op: int) -> None:
    keys, memory = table(access=access)
    assert ask(keys, op, 0, 8, data=b"x" * 8 if op == WRITE else None, a=0, b=1)[0] == NO_ACCESS
    assert not any(memory)


def test_unguarded_write_is_refused_where_only_guarded_ones_are_allowed() -> None:
    keys, _ = table(access=MAY_WRITE_GUARDED)
    slot = b"\0" * 24 + (9).to_bytes(8, "little") + b"\0" * 40
    assert ask(keys, WRITE, 0, data=slot)[0] == NO_ACCESS
    assert ask(keys, WRITE, 0, data=slot, guard_word=3, a=9)[0] == OK


def test_key_of_another_peer_or_incarnation_is_refused() -> None:
    keys, _ = table()
    assert ask(keys, READ, 0, 8, holder=("ro2", 5))[0] == BAD_KEY
    assert ask(keys, READ, 0, 8, holder=("ro1", 6))[0] == BAD_KEY
    assert ask(keys, READ, 0, 8, rkey=b"?" * 16)[0] == BAD_KEY


def test_revoked_key_is_refused() -> None:
    keys, _ = table()
    assert keys.revoke(("ro2", 5)) == 0
    assert keys.revoke(ME) == 1
    assert ask(keys, READ, 0, 8)[0] == BAD_KEY
    keys, _ = table()
    assert keys.revoke_all() == 1
    assert len(keys) == 0


def slot_data(generation: int, body: bytes) -> bytes:
    words = (0xDEAD, 7, 10, generation, len(body), 0, 0, 0)
    return b"".join(word.to_bytes(8, "little") for word in words) + body


def test_guarded_write_goes_through_an_odd_sequence() -> None:
    keys, memory = table()
    assert ask(keys, WRITE, 0, data=slot_data(5, b"body"), guard_word=3, a=5)[0] == OK
    words = memoryview(memory).cast("Q")
    assert words[0] == 2
    assert words[3] == 5
    assert memory[64:68] == b"body"
    # What a writer left in the middle of is overwritten, and even again.
    words[0] = 7
    assert ask(keys, WRITE, 0, data=slot_data(6, b"next"), guard_word=3, a=6)[0] == OK
    assert words[0] == 8


def test_write_of_an_older_generation_is_refused() -> None:
    keys, memory = table()
    assert ask(keys, WRITE, 0, data=slot_data(6, b"new!"), guard_word=3, a=6)[0] == OK
    before = bytes(memory)
    assert ask(keys, WRITE, 0, data=slot_data(5, b"old!"), guard_word=3, a=5)[0] == GUARD_REFUSED
    assert bytes(memory) == before


@pytest.mark.parametrize(
    ("offset", "length", "word"), [(4, 68, 3), (0, 63, 3), (0, 68, 0), (0, 68, 8), (0, 68, 60000)]
)
def test_guarded_write_that_is_no_record_is_refused(offset: int, length: int, word: int) -> None:
    keys, memory = table()
    status = ask(keys, WRITE, offset, data=b"x" * length, guard_word=word, a=2**64 - 1)[0]
    assert status == BAD_BOUNDS
    assert not any(memory)
