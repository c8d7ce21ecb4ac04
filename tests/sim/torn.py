"""Reads that race with a write: a part of what they find is what was there before.

Neither RDMA nor memory that two processes map promises anything about a read that overlaps a write
of the same bytes. Here some reads of a slot give a part of what this reader found there the last
time: at any byte, in either order. What is told apart from a whole image is the reader's business.
"""

from __future__ import annotations

import random
from typing import Any

from polarless.wire.memory import SLOT_BYTES, SLOT_HEADER_BYTES


class Races:
    """How many of the reads of slots are torn. Chance by seed, apart from that of the rest."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed + 3)
        self.share = 0.0
        self.torn = 0


class RacingBuffer:
    """A region's bytes, as somebody reads them who is not the one that writes them."""

    def __init__(self, view: memoryview, races: Races) -> None:
        self._view = view
        self._races = races
        # Where a read began -> what it found.
        self._found: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._view)

    def __setitem__(self, index: Any, data: Any) -> None:
        self._view[index] = data

    def cast(self, kind: Any) -> memoryview:
        """Words are read whole."""
        return self._view.cast(kind)

    def __getitem__(self, index: slice) -> Any:
        start, stop, _ = index.indices(len(self._view))
        if not SLOT_HEADER_BYTES < stop - start <= SLOT_BYTES:
            return self._view[start:stop]
        now = bytes(self._view[start:stop])
        before = self._found.get(start, b"")
        self._found[start] = now
        if not before or self._races.rng.random() >= self._races.share:
            return memoryview(now)
        cut = self._races.rng.randrange(1, len(now))
        # As long as what is asked for, whatever was there before.
        before = (before + now[len(before) :])[: len(now)]
        torn = self._races.rng.choice((before[:cut] + now[cut:], now[:cut] + before[cut:]))
        if torn == before:
            # All of it is old: that is no race, but a read of before.
            return memoryview(now)
        self._races.torn += torn != now
        return memoryview(torn)
