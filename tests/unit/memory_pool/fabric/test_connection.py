"""Both ends of a fabric connection: order, bounds, what is refused, what happens when it breaks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_pool.fabric import verbs
from memory_pool.fabric.nic import ANSWER_BYTES_HIGH, GREETING_TIMEOUT_S, NicConnection, NicStats
from memory_pool.fabric.queue_pair import BUSY, IN_FLIGHT_MAX, LATE, LOST, QueuePair
from memory_pool.fabric.region import MAY_ATOMIC, MAY_READ, MAY_WRITE, KeyTable, Region
from memory_pool.fabric.verbs import BAD_BOUNDS, BAD_KEY, LENGTH_MAX, OK
from tests.unit.memory_pool.fabric.wire import CLUSTER, ManualClock, attach, deliver

KEY = b"k" * 16
REFUSED = pytest.mark.allow_log("fabric connection .* refused", "fabric connection to .* closed")


class Ends:
    """A connected pair over ``memory``."""

    def __init__(
        self, *, slow_reader: bool = False, clock: ManualClock | None = None, latency_s: float = 0.0
    ) -> None:
        self.memory = bytearray(128 * 1024)
        self.keys = KeyTable()
        access = MAY_READ | MAY_WRITE | MAY_ATOMIC
        self.keys.grant(KEY, Region("r", memoryview(self.memory)), access, ("ro1", 5))
        self.clock = clock or ManualClock()
        self.stats = NicStats()
        self.nic = NicConnection(self.keys, CLUSTER, self.clock, self.stats, "mem1")
        self.pair = QueuePair(
            clock=self.clock, cluster=CLUSTER, name="ro1", incarnation=5, latency_s=latency_s
        )
        self.passive = attach(self.nic, blocked=slow_reader)
        self.active = attach(self.pair)
        self.done: list[tuple[int, Any]] = []
        self.pump()

    def note(self, status: int, result: Any) -> None:
        self.done.append((status, result))

    def pump(self, *, piece: int = 1 << 30) -> None:
        """Until nothing moves any more."""
        while deliver(self.active, self.nic, piece=piece) + deliver(
            self.passive, self.pair, piece=piece
        ):
            pass

    def read(self, offset: int, length: int, rkey: bytes = KEY) -> None:
        self.pair.read(rkey, offset, length, self.note, deadline_s=1.0)


def reads(ends: Ends) -> bool:
    """Whether the passive side still takes requests."""
    return ends.passive.reading


@pytest.mark.parametrize("piece", [1 << 30, 1, 7, 100])
def test_operations_are_executed_and_answered_in_order(piece: int) -> None:
    ends = Ends()
    ends.pair.write(KEY, 8, b"abc", ends.note, deadline_s=1.0)
    ends.read(8, 3)
    ends.pair.fetch_add(KEY, 16, 5, ends.note, deadline_s=1.0)
    ends.pair.compare_and_swap(KEY, 16, 5, 9, ends.note, deadline_s=1.0)
    # The first READ's answer was made before this write is executed, in the same batch.
    ends.pair.write(KEY, 8, b"xyz", ends.note, deadline_s=1.0)
    ends.read(8, 3)
    ends.read(1 << 40, 3)
    ends.read(8, 3, rkey=b"?" * 16)
    ends.pump(piece=piece)
    assert ends.done == [
        (OK, None), (OK, b"abc"), (OK, 0), (OK, 5), (OK, None), (OK, b"xyz"),
        (BAD_BOUNDS, None), (BAD_KEY, None),
    ]  # fmt: skip
    assert ends.stats.ops == 8
    assert ends.stats.refused == 2


class TurnClock(ManualClock):
    """A clock whose loop's turns are taken by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> object:
        self.soon.append(callback)
        return None

    def turn(self, seconds: float) -> None:
        """Time passes, then a turn."""
        self.time += seconds
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def test_completions_are_held_back_for_the_latency_of_a_modelled_network() -> None:
    clock = TurnClock()
    ends = Ends(clock=clock, latency_s=0.003)
    ends.pair.write(KEY, 8, b"abc", ends.note, deadline_s=1.0)
    ends.pump()
    clock.turn(0.002)
    ends.read(8, 3)
    ends.pump()
    assert ends.done == []
    clock.turn(0.0015)
    assert ends.done == [(OK, None)]
    clock.turn(0.0015)
    assert ends.done == [(OK, None), (OK, b"abc")]
    # Nothing polls any more; and what is held when the connection ends has happened.
    assert not clock.soon
    ends.read(8, 3)
    ends.pump()
    ends.pair.close()
    clock.turn(0.0)
    assert ends.done[2:] == [(OK, b"abc")]


def test_answers_that_are_not_read_stop_the_reading() -> None:
    ends = Ends(slow_reader=True)
    count = 400
    for _ in range(count):
        ends.read(0, LENGTH_MAX)
    requests = ends.active.take()
    at = most = 0
    while reads(ends):
        assert at < len(requests), "it never stopped reading"
        ends.nic.data_received(requests[at : at + 3000])
        at += 3000
        most = max(most, ends.passive.get_write_buffer_size())
    assert most <= 2 * ANSWER_BYTES_HIGH + LENGTH_MAX + 24
    # One arrival may be on its way when reading stops; it is kept, not executed.
    ends.nic.data_received(requests[at : at + 3000])
    assert ends.passive.get_write_buffer_size() <= most
    at += 3000
    while len(ends.done) < count:
        ends.pair.data_received(ends.passive.take())
        if reads(ends) and at < len(requests):
            ends.nic.data_received(requests[at : at + 3000])
            at += 3000
    assert ends.done == [(OK, bytes(LENGTH_MAX))] * count


def test_one_large_arrival_is_served_in_bounded_batches() -> None:
    ends = Ends(slow_reader=True)
    for _ in range(100):
        ends.read(0, LENGTH_MAX)
    ends.nic.data_received(ends.active.take())
    assert ends.passive.get_write_buffer_size() <= 2 * ANSWER_BYTES_HIGH
    while ends.passive.sent:
        ends.pair.data_received(ends.passive.take())
    assert len(ends.done) == 100


@REFUSED
@given(st.binary(min_size=1, max_size=400), st.booleans(), st.integers(1, 64))
def test_random_bytes_end_the_connection_or_wait(data: bytes, greeted: bool, piece: int) -> None:
    nic = NicConnection(KeyTable(), CLUSTER, ManualClock(), NicStats(), "mem1")
    transport = attach(nic)
    if greeted:
        nic.data_received(verbs.pack_greeting(CLUSTER, "ro1", 5))
    for at in range(0, len(data), piece):
        nic.data_received(data[at : at + piece])
    assert len(nic._buffer) <= len(data)
    if not transport.closed:
        # Whatever it is, it is less than one whole thing.
        assert len(nic._buffer) < verbs.REQUEST_BYTES + LENGTH_MAX
        assert greeted == (nic._holder is not None)
    assert not transport.sent


@REFUSED
@given(st.data())
def test_flipped_bytes_never_reach_beyond_the_region(data: st.DataObject) -> None:
    ends = Ends()
    ends.read(0, 64)
    ends.pair.write(KEY, 64, b"w" * 40, ends.note, deadline_s=1.0)
    ends.read(0, 128)
    stream = bytearray(ends.active.take())
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    ends.nic.data_received(bytes(stream))
    answers = ends.passive.take()
    assert len(answers) <= 3 * (verbs.ANSWER_BYTES + LENGTH_MAX)


@REFUSED
def test_framing_error_closes_the_connection_with_one_clear_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = Ends()
    with caplog.at_level(logging.WARNING):
        ends.nic.data_received(b"?" * 64)
        ends.nic.data_received(b"?" * 64)
    assert ends.passive.closed
    assert ends.stats.framing_errors == 1
    [record] = caplog.records
    assert "mem1: fabric connection from ro1 (127.0.0.1:4242) refused: not a request" in (
        record.getMessage()
    )


@REFUSED
def test_length_beyond_the_cap_is_refused_before_its_data_comes() -> None:
    ends = Ends()
    header = verbs.REQUEST.pack(b"PLRQ", verbs.WRITE, 0, 0, 1, KEY, 0, LENGTH_MAX + 1, 0, 0, 0)
    ends.nic.data_received(header)
    assert ends.passive.closed
    assert not ends.nic._buffer


@REFUSED
def test_silent_peer_is_dropped() -> None:
    clock = ManualClock()
    nic = NicConnection(KeyTable(), CLUSTER, clock, NicStats(), "mem1")
    transport = attach(nic)
    nic.data_received(b"PLFB")
    clock.advance(GREETING_TIMEOUT_S + 0.1)
    assert transport.closed


def test_peer_that_greeted_is_not_dropped() -> None:
    ends = Ends()
    ends.clock.advance(GREETING_TIMEOUT_S + 1)
    assert not ends.passive.closed


def test_a_peer_that_insists_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            ends.read(0, 8, rkey=b"?" * 16)
        ends.pump()
    assert ends.stats.refused == 100
    assert 0 < len(caplog.records) < 20


def test_what_is_in_flight_ends_when_the_connection_does() -> None:
    ends = Ends()
    ends.pair.write(KEY, 0, b"abc", ends.note, deadline_s=1.0)
    ends.read(0, 8)
    ends.pair.connection_lost(None)
    assert ends.done == [(LOST, None)] * 2
    ends.read(0, 8)
    assert ends.done[2:] == [(LOST, None)]
    assert ends.pair.closed


def test_late_answers_are_dropped() -> None:
    ends = Ends()
    ends.read(0, 8)
    ends.clock.advance(1.1)
    assert ends.done == [(LATE, None)]
    ends.pump()
    assert ends.done == [(LATE, None)]
    ends.read(0, 8)
    ends.pump()
    assert ends.done[1:] == [(OK, bytes(8))]


def test_too_much_in_flight_is_refused_and_not_sent() -> None:
    ends = Ends()
    for _ in range(IN_FLIGHT_MAX):
        ends.read(0, 8)
    sent = len(ends.active.sent)
    ends.read(0, 8)
    assert ends.done == [(BUSY, None)]
    assert len(ends.active.sent) == sent


@REFUSED
@given(st.binary(min_size=24, max_size=200))
def test_answers_of_a_broken_target_end_the_connection(data: bytes) -> None:
    ends = Ends()
    ends.read(0, 8)
    ends.pair.data_received(data)
    ends.pair.connection_lost(None)
    assert [status for status, _ in ends.done] == [LOST]


@REFUSED
def test_answer_to_another_operation_is_refused() -> None:
    ends = Ends()
    ends.read(0, 8)
    ends.pair.data_received(verbs.pack_answer(1, OK, verbs.CAS, 0, 0))
    assert ends.pair.closed
