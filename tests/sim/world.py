"""The simulated outside: a network with delays, disks, shared memory, chance by seed."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from polarless.kernel.world import World
from tests.sim.loop import PROCESS, Process, VirtualLoop


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


class SimTransport(asyncio.Transport):
    """One end of a connection. Bytes arrive in order, after a delay; a kill loses what is under
    way, or delivers it first."""

    def __init__(self, net: SimNetwork, label: str) -> None:
        super().__init__({"peername": ("127.0.0.1", 0)})
        self.net = net
        self.label = label
        self.process = PROCESS.get()
        self.context = contextvars.copy_context()
        self.peer: SimTransport | None = None
        self.protocol: Any = None
        self.closing = False
        self._lost = False
        self._reading = True
        self._kept: list[bytes] = []
        self._arrives = 0.0
        if self.process is not None:
            self.process.on_kill.append(self.break_off)

    # What protocols use.

    def write(self, data: Any) -> None:
        if self.closing or self.peer is None or not data:
            return
        data = bytes(data)
        self.net.sent += 1
        self._send(lambda peer: peer.arrive(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._send(lambda peer: peer.lose(None))
            self._soon(None)

    def abort(self) -> None:
        self.break_off()

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered here."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        kept, self._kept = self._kept, []
        for data in kept:
            self.net.loop.call_soon(self.arrive, data, context=self.context)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    # What the network does.

    def _send(self, what: Callable[[SimTransport], None]) -> None:
        """Let something happen at the peer, behind everything sent before."""
        peer = self.peer
        if peer is None:
            return
        due = max(self._arrives, self.net.loop.now + self.net.delay(self, peer))
        # Two at one moment would be ordered by the heap.
        self._arrives = due + 1e-9
        self.net.loop.call_at(self._arrives, what, peer, context=peer.context)

    def arrive(self, data: bytes) -> None:
        """Bytes for this end."""
        if self._lost or self.closing:
            return
        if not self._reading:
            self._kept.append(data)
        else:
            self.protocol.data_received(data)

    def lose(self, error: Exception | None) -> None:
        """The other end is gone."""
        if not self._lost:
            self.closing = self._lost = True
            self.protocol.connection_lost(error)

    def _soon(self, error: Exception | None) -> None:
        self.net.loop.call_soon(self.lose, error, context=self.context)

    def break_off(self) -> None:
        """Break the connection: both ends hear of it."""
        if self.closing:
            return
        self.closing = True
        reset = ConnectionResetError("reset")
        self._send(lambda peer: peer.lose(reset))
        self._soon(reset)


@dataclass
class _Listener:
    net: SimNetwork
    port: int

    def close(self) -> None:
        self.net.listeners.pop(self.port, None)


@dataclass
class SimNetwork:
    """All connections of the cluster."""

    loop: VirtualLoop
    rng: random.Random
    listeners: dict[int, tuple[Callable[[], Any], contextvars.Context, Process | None]] = field(
        default_factory=dict
    )
    # Pairs of process names that cannot reach each other.
    cut: set[frozenset[str]] = field(default_factory=set)
    next_port: int = 40_000
    sent: int = 0
    slow_s: float = 0.0

    def delay(self, one: SimTransport, other: SimTransport) -> float:
        """Seconds for what is sent now; a cut link delivers when it is mended."""
        names = [t.process.name if t.process else "client" for t in (one, other)]
        if frozenset(names) in self.cut:
            return 1.0
        return 30e-6 + self.rng.expovariate(1 / (60e-6 + self.slow_s))

    async def listen(
        self, factory: Callable[[], Any], host: str, port: int, *, inherited_fd: int | None = None
    ) -> _Listener:
        if not port:
            self.next_port += 1
            port = self.next_port
        process = PROCESS.get()
        self.listeners[port] = (factory, contextvars.copy_context(), process)
        if process is not None:
            process.on_kill.append(lambda: self._drop(port, process))
        return _Listener(self, port)

    def _drop(self, port: int, process: Process) -> None:
        if port in self.listeners and self.listeners[port][2] is process:
            del self.listeners[port]

    async def connect(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        await asyncio.sleep(50e-6)
        found = self.listeners.get(port)
        if found is None:
            raise ConnectionRefusedError(f"nobody listens on {port}")
        make, context, _ = found
        here = SimTransport(self, f"to {port}")
        there = context.copy().run(SimTransport, self, f"at {port}")
        here.peer, there.peer = there, here

        def accepted() -> None:
            there.protocol = make()
            there.protocol.connection_made(there)

        # Before anything that the connecting side sends can arrive.
        self.loop.call_soon(accepted, context=there.context)
        here.protocol = factory()
        here.protocol.connection_made(here)
        await asyncio.sleep(0)
        return here, cast("asyncio.BaseProtocol", here.protocol)


class SimRegion:
    """Shared memory: one bytearray for all who map it."""

    def __init__(self, name: str, data: bytearray, *, owner: bool) -> None:
        self.name = name
        self.buffer = memoryview(data) if owner else memoryview(data).toreadonly()

    def give_back(self, start: int, end: int) -> None:
        self.buffer[start:end] = bytes(end - start)

    def used_end(self) -> int:
        return len(self.buffer)

    def close(self) -> None:
        """Others may go on reading it."""


class SimMemory:
    """POSIX shared memory of one host."""

    def __init__(self) -> None:
        self.regions: dict[str, bytearray] = {}

    def create(self, name: str, byte_count: int) -> SimRegion:
        if name in self.regions:
            raise FileExistsError(name)
        self.regions[name] = bytearray(byte_count)
        return SimRegion(name, self.regions[name], owner=True)

    def attach(self, name: str) -> SimRegion:
        if name not in self.regions:
            raise FileNotFoundError(name)
        return SimRegion(name, self.regions[name], owner=False)


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
    network, memory = SimNetwork(loop, chance.rng), SimMemory()
    world = World(
        network=cast("Any", network),
        clock=SimClock(loop),
        random=chance,
        disk=SimDisk(),
        memory=cast("Any", memory),
    )
    return world, network, memory
