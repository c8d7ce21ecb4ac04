"""The simulated network: connections that are slow, held up, cut, or lost at any byte.

Bytes of one direction of a connection arrive in order; those of different connections in any. Each
pair of processes has a delay of its own, by seed: so the way from home to one reader may take a
hundred times as long as that to the other. What a process has sent when it is killed arrives, or
arrives late, or arrives in part.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast
from zlib import crc32

from tests.sim.loop import PROCESS, Callback, Process, VirtualLoop

CLIENT = "client"
# How late what a killed process has sent may arrive. The next writer begins after some 4 ms.
LATE_S = (0.006, 0.03)
# A connection attempt into a cut.
CONNECT_TIMEOUT_S = 1.0


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, net: SimNetwork, label: str) -> None:
        super().__init__({"peername": ("127.0.0.1", 0)})
        self.net = net
        self.process = PROCESS.get()
        self.name = self.process.name if self.process is not None else CLIENT
        self._note = f" {self.name} {label} ".encode()
        self.context = contextvars.copy_context()
        self.peer: SimTransport | None = None
        self.protocol: Any = None
        self.closing = False
        self.wire = _Direction(self)
        self._lost = False
        self._reading = True
        self._kept: list[bytes] = []
        if self.process is not None:
            self.process.on_kill.append(self.killed)

    # What protocols use.

    def write(self, data: Any) -> None:
        if self.closing or self.peer is None or not data:
            return
        self.net.sent += 1
        self.wire.send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.wire.send(None)
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

    def arrive(self, data: bytes) -> None:
        """Bytes for this end."""
        if self._lost or self.closing:
            return
        if not self._reading:
            self._kept.append(data)
            return
        note = b"%.9f%b" % (self.net.loop.now, self._note)
        self.net.digest = crc32(data, crc32(note, self.net.digest))
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
        self.wire.send(reset)
        self._soon(reset)

    def tear(self) -> None:
        """The connection is lost at some byte, in both directions."""
        self.wire.cut_short(self.net.rng)
        if self.peer is not None:
            self.peer.wire.cut_short(self.net.rng)
        self.break_off()

    def killed(self) -> None:
        """The process is gone; what becomes of what it has sent?"""
        if self.closing:
            return
        chance = self.net.rng.random()
        if chance < 0.3:
            self.wire.cut_short(self.net.rng)
        elif chance < 0.6:
            self.wire.put_off(self.net.rng.uniform(0, self.net.rng.choice(LATE_S)))
        self.break_off()


class _Direction:
    """What is under way from one end to the other."""

    def __init__(self, sender: SimTransport) -> None:
        self._sender = sender
        self._queue: deque[tuple[float, bytes | Exception | None]] = deque()
        self._last = 0.0
        self._timer: Any = None

    def send(self, what: bytes | Exception | None) -> None:
        """Bytes, an orderly end (None), or a reset."""
        sender = self._sender
        if sender.peer is None:
            return
        net = sender.net
        self._last = max(self._last, net.loop.now + net.delay(sender.name, sender.peer.name)) + 1e-9
        self._queue.append((self._last, what))
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        peer = self._sender.peer
        assert peer is not None
        due = max(self._queue[0][0], self._sender.net.loop.now)
        # The network's own callback: it runs whether the receiving process does or not.
        self._timer = self._sender.net.loop.call_at(due, self._due, context=contextvars.Context())

    def _due(self) -> None:
        self._timer = None
        sender, now = self._sender, self._sender.net.loop.now
        peer = sender.peer
        assert peer is not None
        if sender.net.is_held(sender.name, peer.name):
            sender.net.waiting.append(self)
            return
        while self._queue and self._queue[0][0] <= now:
            _, what = self._queue.popleft()
            deliver: Any = peer.arrive if isinstance(what, bytes) else peer.lose
            # As the loop would call it next, without a turn of the loop for each message.
            Callback(sender.net.loop, deliver, (what,), peer.context, 0.0).run()
        if self._queue:
            self._arm()

    def go_on(self) -> None:
        """The cut is mended."""
        if self._queue and self._timer is None:
            self._arm()

    def cut_short(self, rng: random.Random) -> None:
        """Lose what is under way from some byte on."""
        keep = rng.randrange(len(self._queue) + 1)
        lost = list(self._queue)[keep:]
        while len(self._queue) > keep:
            self._queue.pop()
        due, data = lost[0] if lost else (0.0, None)
        if isinstance(data, bytes):
            self._queue.append((due, data[: rng.randrange(len(data))]))

    def put_off(self, seconds: float) -> None:
        """What is under way takes longer."""
        self._queue = deque((due + seconds, what) for due, what in self._queue)
        self._last += seconds
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._queue:
                self._arm()


@dataclass
class _Listener:
    net: SimNetwork
    port: int

    def close(self) -> None:
        self.net.listeners.pop(self.port, None)


@dataclass
class SimNetwork:
    """All connections of the cluster. ``digest``: over every delivery, its time and its place."""

    loop: VirtualLoop
    rng: random.Random
    listeners: dict[int, tuple[Callable[[], Any], contextvars.Context, Process | None]] = field(
        default_factory=dict
    )
    # (from, to): nothing gets through for now.
    held: set[tuple[str, str]] = field(default_factory=set)
    waiting: list[_Direction] = field(default_factory=list)
    connections: list[SimTransport] = field(default_factory=list)
    next_port: int = 40_000
    sent: int = 0
    digest: int = 0
    # Added to every delay, and how likely it is that a pair of processes is far apart.
    slow_s: float = 0.0
    far: float = 0.0
    _extra: dict[tuple[str, str], float] = field(default_factory=dict)

    def delay(self, one: str, other: str) -> float:
        """Seconds for what is sent now."""
        extra = self._extra.get((one, other))
        if extra is None:
            is_far = self.rng.random() < self.far and CLIENT not in (one, other)
            extra = self._extra[one, other] = self.rng.uniform(0.0005, 0.004) if is_far else 0.0
        return 30e-6 + self.rng.expovariate(1 / (60e-6 + self.slow_s + extra))

    def is_held(self, one: str, other: str) -> bool:
        """Whether there is a cut between them, in this direction."""
        return (one, other) in self.held

    def cut(self, one: str, other: str, *, both: bool) -> None:
        """Nothing gets from one to the other until `mend`."""
        self.held.add((one, other))
        if both:
            self.held.add((other, one))

    def mend(self) -> None:
        """Whatever was sent meanwhile arrives now."""
        self.held.clear()
        waiting, self.waiting = self.waiting, []
        for direction in waiting:
            direction.go_on()

    def between_processes(self) -> list[SimTransport]:
        """Ends of living connections that no client has."""
        self.connections = [one for one in self.connections if not one.closing]
        return [
            one for one in self.connections
            if one.peer is not None and CLIENT not in (one.name, one.peer.name)
        ]  # fmt: skip

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
        make, context, owner = found
        mine = PROCESS.get()
        names = (mine.name if mine else CLIENT, owner.name if owner else CLIENT)
        if self.is_held(*names) or self.is_held(*reversed(names)):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise TimeoutError(f"no answer from {port}")
        here = SimTransport(self, f"to {port}")
        there = context.copy().run(SimTransport, self, f"at {port}")
        here.peer, there.peer = there, here
        self.connections.append(here)

        def accepted() -> None:
            there.protocol = make()
            there.protocol.connection_made(there)

        # Before anything that the connecting side sends can arrive.
        self.loop.call_soon(accepted, context=there.context)
        here.protocol = factory()
        here.protocol.connection_made(here)
        await asyncio.sleep(0)
        return here, cast("asyncio.BaseProtocol", here.protocol)
