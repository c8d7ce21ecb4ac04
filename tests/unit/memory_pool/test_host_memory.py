"""Shared memory of the host, as far as the pool counts on more than that it can be mapped."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator

import pytest

from polarless.kernel.world import SharedRegion
from polarless.net.system import SystemSharedMemory

BYTES = 64 * mmap.PAGESIZE


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    made = SystemSharedMemory().create(f"polarless-test-{secrets.token_hex(8)}", BYTES)
    yield made
    made.close()


def used_bytes(region: SharedRegion) -> int:
    return os.stat(f"/dev/shm/{region.name}").st_blocks * 512


def test_the_used_end_moves_with_what_is_written_and_costs_nothing(region: SharedRegion) -> None:
    assert region.used_end() == 0
    region.buffer[5 * mmap.PAGESIZE] = 1
    assert region.used_end() == 6 * mmap.PAGESIZE
    region.buffer[BYTES - 1] = 1
    assert region.used_end() == BYTES
    assert used_bytes(region) == 2 * mmap.PAGESIZE


def test_what_is_given_back_is_not_used(region: SharedRegion) -> None:
    region.buffer[:] = b"x" * BYTES
    region.give_back(mmap.PAGESIZE, BYTES)
    assert region.used_end() == mmap.PAGESIZE
    assert bytes(region.buffer[-10:]) == bytes(10)
