"""What a node may touch of the outside: network, clock, randomness, files, shared memory.

A `World` is built for real in a ``__main__`` (`polarless.net.system`), or by a test or the
simulator. No other code reads a clock, draws a random number, opens a file or a socket. A node that
gets everything through this record can run a thousand times in one process, in virtual time, by
seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio

    ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """The call does not happen."""


class Clock(Protocol):
    """Monotonic time for deadlines, wall time for people."""

    def now(self) -> float:
        """Seconds, monotonic, from an arbitrary start."""

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC. Never used to order events."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in ``delay_s`` seconds."""

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Call ``callback`` in the next turn of the loop."""

    async def sleep(self, delay_s: float) -> None:
        """Return after ``delay_s`` seconds."""


class Random(Protocol):
    """Randomness: ids, jitter, keys of memory regions."""

    def token(self, byte_count: int) -> bytes:
        """Unpredictable bytes."""

    def uniform(self, low: float, high: float) -> float:
        """A float between the two."""


class Listener(Protocol):
    """A listening socket; ``port`` is the real one if 0 was asked for."""

    port: int

    def close(self) -> None:
        """Accept no more connections; those that exist stay."""


class Network(Protocol):
    """Streams between processes, in the shape of asyncio transports and protocols."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, inherited_fd: int | None = None
    ) -> Listener:
        """Accept connections; ``inherited_fd`` is a listening socket that the parent opened."""

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection. Raises OSError."""


class Disk(Protocol):
    """Small files: topology, tokens. Log and pages have Protocols of their own in `storage`."""

    def read(self, path: str) -> bytes | None:
        """The whole file, or None if there is none."""

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Replace the file by ``data`` in one step that survives a crash."""


class SharedRegion(Protocol):
    """Memory that several processes on one host map; only its creator may write ``buffer``."""

    name: str
    buffer: memoryview

    def give_back(self, start: int, end: int) -> None:
        """The creator needs these bytes no more: they read as zeros, and whole pages of them go
        back to the host."""

    def used_end(self) -> int:
        """From here on all bytes are zeros that nobody wrote; looking at them costs memory."""

    def close(self) -> None:
        """Unmap; the creator also removes the name."""


class SharedMemory(Protocol):
    """POSIX shared memory."""

    def create(self, name: str, byte_count: int) -> SharedRegion:
        """Create a zeroed region. Raises FileExistsError."""

    def attach(self, name: str) -> SharedRegion:
        """Map an existing region read-only. Raises FileNotFoundError (another host, or gone)."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything a node is handed. ``extra`` is for what only a test hands in."""

    network: Network
    clock: Clock
    random: Random
    disk: Disk
    memory: SharedMemory
    extra: Any = None
