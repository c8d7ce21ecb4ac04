"""The active side of the fabric: one connection, many operations in flight.

Every operation ends with exactly one ``done(status, result)``: a status of `verbs` from the target,
or one of these of our own:

* `LOST`  the connection ended, `LATE`  the deadline passed: it **may have been applied**. A WRITE
  that ended so is never repeated here; out-of-place images make it harmless.
* `BUSY`  nothing was sent: too much is in flight.

``result`` is the data of a READ, the old value of an atomic, else None.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from memory_pool.fabric import verbs
from memory_pool.fabric.verbs import ANSWER_BYTES, CAS, FETCH_ADD, GUARDED, OK, READ, WRITE
from polarless.errors import ConnectionLost, DeadlineExceeded, RemoteProtocolError
from polarless.kernel.world import Clock, Network, Timer

log = logging.getLogger(__name__)

LOST: Final = 253
LATE: Final = 254
BUSY: Final = 255
STATUS_NAMES: Final = {
    **verbs.STATUS_NAMES,
    LOST: "connection lost",
    LATE: "no answer in time",
    BUSY: "too much in flight",
}

IN_FLIGHT_MAX: Final = 4096
UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
_SWEEP_S: Final = 0.05

Done = Callable[[int, Any], None]


class QueuePair(asyncio.Protocol):
    """One connection to a memory node's fabric port. ``closed`` says whether it still works.

    ``latency_s`` is added to each operation: a model of a slower network, for measuring.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        cluster: bytes,
        name: str,
        incarnation: int,
        latency_s: float = 0.0,
    ) -> None:
        self.closed = False
        self.target = "?"
        self._clock = clock
        self._greeting = verbs.pack_greeting(cluster, name, incarnation)
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._next_id = 0
        # request id -> (done, deadline, op); answers come in this order.
        self._in_flight: dict[int, tuple[Done, float, int]] = {}
        self._sweep: Timer | None = None
        self._latency_s = latency_s
        # Completions that are held back: (when it is due, done, status, result).
        self._held: deque[tuple[float, Done, int, Any]] = deque()

    # The operations.

    def read(self, rkey: bytes, offset: int, length: int, done: Done, *, deadline_s: float) -> None:
        """READ ``length`` bytes."""
        self._post(READ, 0, 0, rkey, offset, length, 0, 0, b"", done, deadline_s)

    def write(
        self,
        rkey: bytes,
        offset: int,
        data: bytes,
        done: Done,
        *,
        deadline_s: float,
        guard: tuple[int, int] | None = None,
    ) -> None:
        """WRITE ``data``; ``guard`` is (word number, highest value that may be overwritten)."""
        flags, word, value = (GUARDED, *guard) if guard is not None else (0, 0, 0)
        self._post(WRITE, flags, word, rkey, offset, len(data), value, 0, data, done, deadline_s)

    def compare_and_swap(
        self, rkey: bytes, offset: int, expected: int, new: int, done: Done, *, deadline_s: float
    ) -> None:
        """CAS one word."""
        self._post(CAS, 0, 0, rkey, offset, 0, expected, new, b"", done, deadline_s)

    def fetch_add(
        self, rkey: bytes, offset: int, delta: int, done: Done, *, deadline_s: float
    ) -> None:
        """FETCH_ADD one word."""
        self._post(FETCH_ADD, 0, 0, rkey, offset, 0, delta, 0, b"", done, deadline_s)

    def close(self, reason: str = "closed") -> None:
        """Close, and end what is in flight with `LOST`. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._transport is not None:
            self._transport.abort()
        self._buffer.clear()
        in_flight, self._in_flight = self._in_flight, {}
        for done, _, _ in in_flight.values():
            done(LOST, None)

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        assert self._transport is not None
        if self.closed:
            # Given up while the connection was being made.
            self._transport.abort()
            return
        self._transport.write(self._greeting)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(str(exc or "closed by the peer"))

    def data_received(self, data: bytes) -> None:
        completed: list[tuple[Done, int, Any]] = []
        at = 0
        try:
            buffer = self._buffer
            while buffer and at < len(data):
                # Only as much is copied into the buffer as its first answer wants.
                wanted = self._wanted(buffer) - len(buffer)
                buffer += data[at : at + wanted]
                at += wanted
                if self._parse(buffer, 0, completed):
                    buffer.clear()
            if at < len(data):
                at = self._parse(data, at, completed)
                if at < len(data):
                    buffer += memoryview(data)[at:]
        except RemoteProtocolError as error:
            log.warning("fabric connection to %s closed: %s", self.target, error)
            self._complete(completed)
            self.close(str(error))
            return
        # Last, since a callback may close us or post more.
        self._complete(completed)

    def _complete(self, completed: list[tuple[Done, int, Any]]) -> None:
        if not self._latency_s:
            for done, status, result in completed:
                done(status, result)
        elif completed:
            due = self._clock.now() + self._latency_s
            if not self._held:
                self._clock.call_soon(self._let_go)
            self._held.extend((due, *one) for one in completed)

    def _let_go(self) -> None:
        """Complete what is due. Asked in every turn: a timer is no finer than a millisecond."""
        held = self._held
        while held and (self.closed or held[0][0] <= self._clock.now()):
            _, done, status, result = held.popleft()
            done(status, result)
        if held:
            self._clock.call_soon(self._let_go)

    @staticmethod
    def _wanted(buffer: bytearray) -> int:
        """How long the first answer in ``buffer`` is, or its header if that is cut."""
        if len(buffer) < ANSWER_BYTES:
            return ANSWER_BYTES
        return ANSWER_BYTES + verbs.unpack_answer(buffer, 0).length

    def _parse(
        self, data: bytes | bytearray, at: int, completed: list[tuple[Done, int, Any]]
    ) -> int:
        """Take the whole answers from ``at`` on; where the first incomplete one begins."""
        size = len(data)
        with memoryview(data) as view:
            while size - at >= ANSWER_BYTES:
                request_id, status, op, length, value = verbs.unpack_answer(view, at)
                end = at + ANSWER_BYTES + length
                if end > size:
                    break
                entry = self._in_flight.pop(request_id, None)
                if entry is not None:
                    done, _, sent_op = entry
                    if sent_op != op:
                        raise RemoteProtocolError(f"request {request_id}: answer to another op")
                    if op == READ:
                        result: Any = bytes(view[at + ANSWER_BYTES : end]) if status == OK else None
                    else:
                        result = None if op == WRITE else value
                    completed.append((done, status, result))
                at = end
        return at

    # Inside.

    def _post(
        self,
        op: int,
        flags: int,
        guard_word: int,
        rkey: bytes,
        offset: int,
        length: int,
        a: int,
        b: int,
        data: bytes,
        done: Done,
        deadline_s: float,
    ) -> None:
        assert length <= verbs.LENGTH_MAX, length
        transport = self._transport
        if self.closed or transport is None:
            done(LOST, None)
            return
        if (
            len(self._in_flight) >= IN_FLIGHT_MAX
            or transport.get_write_buffer_size() > UNSENT_BYTES_MAX
        ):
            done(BUSY, None)
            return
        self._next_id = request_id = (self._next_id + 1) & 0xFFFFFFFF
        self._in_flight[request_id] = (done, self._clock.now() + deadline_s, op)
        if self._sweep is None:
            self._sweep = self._clock.call_later(_SWEEP_S, self._expire)
        header = verbs.REQUEST.pack(
            verbs.REQUEST_MAGIC, op, flags, guard_word, request_id, rkey, offset, length, a, b, 0
        )
        transport.write(header + data if data else header)

    def _expire(self) -> None:
        """End the operations whose deadline has passed; look again while any is in flight."""
        now = self._clock.now()
        late = [rid for rid, (_, deadline, _) in self._in_flight.items() if deadline <= now]
        for request_id in late:
            entry = self._in_flight.pop(request_id, None)
            if entry is not None:
                entry[0](LATE, None)
        self._sweep = (
            self._clock.call_later(_SWEEP_S, self._expire)
            if self._in_flight and not self.closed
            else None
        )


async def connect(
    network: Network,
    *,
    clock: Clock,
    cluster: bytes,
    name: str,
    incarnation: int,
    address: str,
    deadline_s: float,
    latency_s: float = 0.0,
) -> QueuePair:
    """Open a connection to a fabric port. Raises `ConnectionLost` or `DeadlineExceeded`."""
    host, _, port = address.rpartition(":")
    pair = QueuePair(
        clock=clock, cluster=cluster, name=name, incarnation=incarnation, latency_s=latency_s
    )
    pair.target = address
    try:
        await asyncio.wait_for(network.connect(lambda: pair, host, int(port)), deadline_s)
    except TimeoutError:
        pair.close()
        raise DeadlineExceeded(f"fabric connect: {address}: no answer in {deadline_s} s") from None
    except OSError as error:
        raise ConnectionLost(f"fabric connect: {address}: {error}") from error
    return pair
