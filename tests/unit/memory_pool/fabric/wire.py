"""Two ends of a fabric connection without a network: bytes go where a test says, when it says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

CLUSTER = bytes(range(16))


class ManualClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[tuple[float, Callable[[], object], list[bool]]] = []

    def now(self) -> float:
        return self.time

    def wall_us(self) -> int:
        return int(self.time * 1e6)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        cancelled = [False]
        self.timers.append((self.time + delay_s, callback, cancelled))

        class Timer:
            def cancel(self) -> None:
                cancelled[0] = True

        return Timer()

    def call_soon(self, callback: Callable[[], object]) -> object:
        return self.call_later(0.0, callback)

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError("nothing here sleeps")

    def advance(self, seconds: float) -> None:
        """Move time, calling what is due in its order."""
        end = self.time + seconds
        while True:
            due = [timer for timer in self.timers if timer[0] <= end]
            if not due:
                break
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.time = max(self.time, first[0])
            if not first[2][0]:
                first[1]()
        self.time = end


class FakeTransport:
    """Keeps what is written. With ``high`` set, a write beyond it pauses its protocol."""

    def __init__(self, protocol: Any, *, blocked: bool = False) -> None:
        self.protocol = protocol
        self.sent: deque[bytes] = deque()
        self.closed = False
        self.reading = True
        self.blocked = blocked
        self.high = 64 * 1024
        self.paused = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 4242) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.sent)) if self.blocked else 0

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(bytes(data))
        if self.get_write_buffer_size() > self.high and not self.paused:
            self.paused = True
            self.protocol.pause_writing()

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.closed = True

    close = abort

    def take(self) -> bytes:
        """What was written since the last time; the peer has read it."""
        data = b"".join(self.sent)
        self.sent.clear()
        if self.paused:
            self.paused = False
            self.protocol.resume_writing()
        return data


def attach(protocol: Any, *, blocked: bool = False) -> FakeTransport:
    """Give a protocol a transport."""
    transport = FakeTransport(protocol, blocked=blocked)
    protocol.connection_made(transport)
    return transport


def deliver(source: FakeTransport, target: Any, *, piece: int = 1 << 30) -> int:
    """Hand what one end wrote to the other end's protocol, in pieces; how many bytes."""
    data = source.take()
    for at in range(0, len(data), piece):
        target.data_received(data[at : at + piece])
    return len(data)
