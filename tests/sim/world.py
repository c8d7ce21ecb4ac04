"""The simulated outside: clock, disks, shared memory, chance by seed; `network` beside it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

from polarless.kernel.world import World
from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork
from tests.sim.torn import Races, RacingBuffer


class SimRandom:
    """Chance by seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def token(self, byte_count: int) -> bytes:
        return self.rng.randbytes(byte_count)

    def uniform(self, low: float, high: float) -> float:
        return self.rng.uniform(low, high)


class SimClock:
    """Virtual time, and a wall clock that may jump."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jump_us = 0

    def now(self) -> float:
        return self._loop.now

    def wall_us(self) -> int:
        return 1_700_000_000_000_000 + int(self._loop.now * 1e6) + self.jump_us

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        return self._loop.call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], object]) -> object:
        return self._loop.call_soon(callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class SimRegion:
    """Shared memory: one bytearray for all who map it."""

    def __init__(self, name: str, data: bytearray, races: Races, *, owner: bool) -> None:
        self.name = name
        view = memoryview(data) if owner else memoryview(data).toreadonly()
        # Also the owner's: what a READ gives is for others. Cells are words, and not torn.
        is_racing = bool(races.share) and not name.endswith("cells")
        self.buffer: Any = RacingBuffer(view, races) if is_racing else view

    def give_back(self, start: int, end: int) -> None:
        self.buffer[start:end] = bytes(end - start)

    def used_end(self) -> int:
        return len(self.buffer)

    def close(self) -> None:
        """Others may go on reading it."""


class SimMemory:
    """POSIX shared memory of one host."""

    def __init__(self, seed: int) -> None:
        self.regions: dict[str, bytearray] = {}
        self.races = Races(seed)

    def create(self, name: str, byte_count: int) -> SimRegion:
        if name in self.regions:
            raise FileExistsError(name)
        self.regions[name] = bytearray(byte_count)
        return SimRegion(name, self.regions[name], self.races, owner=True)

    def attach(self, name: str) -> SimRegion:
        if name not in self.regions:
            raise FileNotFoundError(name)
        return SimRegion(name, self.regions[name], self.races, owner=False)


class SimDisk:
    """Small files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self.files[path] = data


def sim_world(loop: VirtualLoop, seed: int) -> tuple[World, SimNetwork, SimMemory]:
    """A world for all processes of one cluster."""
    chance = SimRandom(seed)
    network, memory = SimNetwork(loop, chance.rng), SimMemory(seed)
    world = World(
        network=cast("Any", network),
        clock=SimClock(loop),
        random=chance,
        disk=SimDisk(),
        memory=cast("Any", memory),
    )
    return world, network, memory
