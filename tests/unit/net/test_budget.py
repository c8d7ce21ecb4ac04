"""What all connections to one port may hold, on connections without sockets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from polarless.net import rpc
from polarless.net.budget import Budget

CLUSTER = b"c" * 16
KIB = 1024

pytestmark = pytest.mark.allow_log("connection refused")


class Transport:
    """Keeps what was written until `read`; full above ``high``, as a socket nobody reads."""

    def __init__(self, high: int = 64 * KIB) -> None:
        self.written = bytearray()
        self._reading = True
        self.end = ""
        self._high = high
        self._full = False
        self.peer: rpc.Peer

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.written += data
        if not self._full and len(self.written) > self._high:
            self._full = True
            self.peer.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_paused(self) -> bool:
        return not self._reading

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"
        self.written.clear()

    def read(self) -> list[Any]:
        """Everything written so far; the buffer is empty afterwards."""
        data, messages = bytes(self.written), []
        self.written.clear()
        while data:
            (length,) = struct.unpack_from("<I", data)
            messages.append(msgpack.unpackb(data[4 : 4 + length], use_list=False))
            data = data[4 + length :]
        if self._full:
            self._full = False
            self.peer.resume_writing()
        return messages


class Clock:
    """Runs what is due when told to."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[list[Any]] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        timer = [self.time + delay_s, callback]
        self.timers.append(timer)

        class Handle:
            def cancel(self) -> None:
                timer[1] = lambda: None

        return Handle()

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.call_later(0, callback)

    def run(self, seconds: float = 0) -> None:
        """Let time pass."""
        until = self.time + seconds
        while due := [timer for timer in self.timers if timer[0] <= until]:
            first = min(due, key=lambda timer: float(timer[0]))
            self.timers.remove(first)
            self.time = max(self.time, first[0])
            first[1]()
        self.time = until


class Port(rpc.Service):
    """Keeps calls of ``keep``, answers others with as many bytes as they ask for."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.clock = Clock()
        self.kept: list[rpc.Call] = []
        self.noted: list[Any] = []
        self.lost: list[str] = []

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        if call.method == "keep":
            self.kept.append(call)
        else:
            call.answer(bytes(call.args[0]))

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        self.noted.append(args)

    def on_lost(self, peer: rpc.Peer, error: Exception) -> None:
        self.lost.append(str(error))

    def connect(self, *, hello: bool = True) -> tuple[rpc.Peer, Transport]:
        """A new connection."""
        clock: Any = self.clock
        transport: Any = Transport()
        peer = rpc.Peer(self, clock=clock, cluster=CLUSTER, accepting=True, budget=self.budget)
        transport.peer = peer
        peer.connection_made(transport)
        if hello:
            peer.data_received(frame(rpc.HELLO, CLUSTER, {"version": 1}))
            assert [message[0] for message in transport.read()] == [rpc.WELCOME]
        return peer, transport


def frame(*message: Any) -> bytes:
    body: bytes = msgpack.packb(message)
    return struct.pack("<I", len(body)) + body


def call(byte_count: int, *, call_id: int = 1) -> bytes:
    """A call that is kept."""
    return frame(rpc.CALL, call_id, "keep", (bytes(byte_count),))


def test_what_is_given_back_is_what_was_taken() -> None:
    port = Port(Budget())
    peer, transport = port.connect()
    for size in (10, 5 * KIB, 300 * KIB):
        data = call(size)
        for cut in (3, 4, 5000, len(data) - 1):
            peer.data_received(data[:cut])
            peer.data_received(data[cut:])
            assert port.budget.held_bytes == len(data) - 4
            port.kept.pop().answer(None)
            assert port.budget.held_bytes == 0
            transport.read()
    peer.data_received(call(1000) + frame(rpc.NOTIFY, "news", (bytes(90 * KIB),)))
    assert len(port.noted) == 1
    peer.connection_lost(None)
    assert port.budget.held_bytes == port.budget.connections == 0
    # The handler may still answer; that gives nothing back a second time.
    port.kept.pop().answer(None)
    assert port.budget.held_bytes == 0


def test_a_frame_waits_unread_until_it_has_room() -> None:
    port = Port(Budget(1000 * KIB))
    first, _ = port.connect()
    first.data_received(call(700 * KIB))
    second, transport = port.connect()
    data = call(500 * KIB)
    second.data_received(data[: 64 * KIB])
    assert transport.is_paused()
    # What is small goes on, on every other connection.
    third, _ = port.connect()
    third.data_received(call(100))
    assert len(port.kept) == 2
    # Nobody overtakes: room for a little is not given away while somebody waits for much.
    third.data_received(call(200 * KIB)[:-1])
    assert len(port.kept) == 2
    port.kept.pop(0).answer(None)
    port.clock.run()
    assert not transport.is_paused()
    second.data_received(data[64 * KIB :])
    third.data_received(b"\0")
    assert [len(kept.args[0]) for kept in port.kept] == [100, 500 * KIB, 200 * KIB]
    port.clock.run(60)
    assert not port.lost


def test_a_frame_that_waits_in_vain_is_refused_with_the_bound() -> None:
    port = Port(Budget(1000 * KIB))
    first, _ = port.connect()
    first.data_received(call(700 * KIB))
    second, transport = port.connect()
    second.data_received(call(500 * KIB)[: 64 * KIB])
    port.clock.run(60)
    assert transport.end
    assert "at most 1024000 are allowed" in port.lost[0]
    (refusal,) = transport.read()
    assert refusal[:2] == (rpc.FAILURE, 0) and "at most 1024000" in str(refusal[2])
    assert first.closed is None


def test_a_frame_that_does_not_go_on_lets_go_of_its_room() -> None:
    port = Port(Budget(1000 * KIB))
    slow, _ = port.connect()
    slow.data_received(call(700 * KIB)[: 64 * KIB])
    assert port.budget.held_bytes > 700 * KIB
    port.clock.run(rpc.FRAME_TIMEOUT_S)
    assert "not complete" in port.lost[0]
    assert port.budget.held_bytes == 0


def test_one_connection_may_not_hold_everything() -> None:
    port = Port(Budget(1000 * KIB, each_bytes_max=300 * KIB))
    greedy, transport = port.connect()
    greedy.data_received(call(200 * KIB))
    greedy.data_received(call(200 * KIB, call_id=2))
    assert "at most 307200 are allowed for each" in port.lost[0]
    assert transport.end and port.budget.held_bytes == 0


def test_many_small_calls_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polarless.net.budget.SMALL_RESERVE_BYTES", 10 * KIB)
    port = Port(Budget(100 * KIB, each_bytes_max=1000 * KIB))
    peer, _ = port.connect()
    for _ in range(200):
        peer.data_received(call(1000))
        assert port.budget.held_bytes <= 110 * KIB
    assert "at most 102400 are allowed" in port.lost[0]


def test_who_does_not_read_is_served_no_further() -> None:
    port = Port(Budget())
    peer, transport = port.connect()
    asked = 300
    peer.data_received(
        b"".join(frame(rpc.CALL, number, "get", (16 * KIB,)) for number in range(asked))
    )
    # One read brought 300 calls; the answers of a few are in memory, not 5 MB.
    assert len(transport.written) < 100 * KIB
    assert port.budget.held_bytes == len(transport.written)
    assert transport.is_paused()
    answered = []
    while messages := transport.read():
        answered += [message[1] for message in messages]
    assert answered == list(range(asked))
    assert not transport.is_paused() and port.budget.held_bytes == 0


def test_late_answers_to_who_does_not_read_are_bounded() -> None:
    port = Port(Budget(1000 * KIB, each_bytes_max=300 * KIB))
    peer, transport = port.connect()
    for number in range(100):
        peer.data_received(call(1, call_id=number))
    for kept in port.kept:
        kept.answer(bytes(16 * KIB))
    assert "at most 307200 are allowed for each" in port.lost[0]
    # Its buffer goes with it.
    assert transport.end == "aborted" and port.budget.held_bytes == 0


def test_half_open_connections_keep_nobody_out() -> None:
    port = Port(Budget(silent_max=8))
    silent = [port.connect(hello=False) for _ in range(20)]
    for peer, _ in silent:
        peer.data_received(struct.pack("<I", 4000) + bytes(3000))
    assert [peer.closed is None for peer, _ in silent] == [False] * 12 + [True] * 8
    (refusal,) = silent[0][1].read()
    assert "more than 8 connections have not said hello" in str(refusal)
    port.connect()
    port.clock.run(rpc.HELLO_TIMEOUT_S)
    assert port.budget.connections == 1


def test_more_connections_than_the_bound_are_refused() -> None:
    port = Port(Budget(connections_max=3))
    served = [port.connect() for _ in range(3)]
    peer, transport = port.connect(hello=False)
    assert peer.closed is not None and "there are 3 connections" in str(transport.read())
    served[0][0].connection_lost(None)
    port.connect()


@pytest.mark.parametrize(
    "first",
    [
        struct.pack("<I", 5000) + bytes(100),
        struct.pack("<I", 0xFFFFFFFF),
        frame(rpc.CALL, 1, "keep", ()),
        frame(rpc.ANSWER, 1, None),
        frame(rpc.HELLO, b"another" * 2, {}),
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        struct.pack("<I", 1) + b"\x05",
    ],
)
def test_nothing_but_hello_comes_first(first: bytes) -> None:
    port = Port(Budget())
    peer, transport = port.connect(hello=False)
    peer.data_received(first)
    assert transport.end
    assert transport.read()[0][:2] == (rpc.FAILURE, 0)
    assert not port.kept and not port.lost and port.budget.connections == 0
