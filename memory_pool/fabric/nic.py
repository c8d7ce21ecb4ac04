"""The passive side of the fabric: executes requests on registered memory and answers in order.

It stands for a network card: no page logic, no callbacks into the node. All requests of one
arrival are answered with one write.

Bounds, per connection: one request's data, one arrival, and `ANSWER_BYTES_HIGH` of unsent answers
plus one arrival's batch of at most as much. While the peer does not read, nothing more is executed
and nothing more is read. A framing error closes the connection with one log line.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from memory_pool.fabric import verbs
from memory_pool.fabric.region import Holder, KeyTable
from memory_pool.fabric.verbs import ANSWER_MAGIC, REQUEST_BYTES, WRITE
from polarless.errors import RemoteProtocolError
from polarless.kernel.stats import Stats
from polarless.kernel.world import Clock, Listener, Network

log = logging.getLogger(__name__)

ANSWER_BYTES_HIGH: Final = 1024 * 1024
# A peer that connects and says nothing is dropped after this.
GREETING_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 512
REFUSALS_LOGGED_MAX: Final = 8

_pack_answer = verbs.ANSWER.pack


class NicStats(Stats):
    """``refused`` counts answers with a status other than OK."""

    __slots__ = ("bytes_read", "bytes_written", "connections", "framing_errors", "ops", "refused")

    bytes_read: int
    bytes_written: int
    connections: int
    framing_errors: int
    ops: int
    refused: int


class NicConnection(asyncio.Protocol):
    """One peer's connection."""

    def __init__(
        self, keys: KeyTable, cluster: bytes, clock: Clock, stats: NicStats, node: str
    ) -> None:
        self._keys = keys
        self._cluster = cluster
        self._clock = clock
        self._stats = stats
        self._node = node
        self._transport: asyncio.Transport | None = None
        self._holder: Holder | None = None
        self._buffer = bytearray()
        self._paused = False
        self._closed = False
        self._name = "?"
        self._refusals = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self._name = f"{peer[0]}:{peer[1]}" if peer else "peer"
        self._stats.connections += 1
        if self._stats.connections > CONNECTIONS_MAX:
            self._refuse(RemoteProtocolError(f"more than {CONNECTIONS_MAX} connections"))
            return
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=ANSWER_BYTES_HIGH)
        self._clock.call_later(GREETING_TIMEOUT_S, self._drop_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._stats.connections -= 1
        self._buffer.clear()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        buffer = self._buffer
        if buffer or self._paused or self._holder is None:
            buffer += data
            if not self._paused:
                self._drain()
            return
        used = self._serve(data)
        if used < len(data) and not self._closed:
            buffer += memoryview(data)[used:]
            if used and not self._paused:
                self._drain()

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._closed or self._transport is None:
            return
        self._drain()
        if not self._paused and not self._closed:
            self._transport.resume_reading()

    def _drain(self) -> None:
        """Serve what the buffer holds."""
        buffer = self._buffer
        if self._holder is None:
            try:
                greeting = verbs.unpack_greeting(buffer, self._cluster)
            except RemoteProtocolError as error:
                self._refuse(error)
                return
            if greeting is None:
                return
            name, incarnation, used = greeting
            self._holder = (name, incarnation)
            self._name = f"{name} ({self._name})"
            del buffer[:used]
        # Until no whole request is left, or the peer has to read first.
        while buffer and not self._paused and not self._closed:
            view = bytes(buffer)
            used = self._serve(view)
            if used == 0:
                return
            del buffer[:used]

    def _serve(self, data: bytes) -> int:
        """Execute the whole requests in ``data`` up to the bound of answers; bytes used."""
        holder, keys, stats = self._holder, self._keys, self._stats
        assert holder is not None
        answers: list[bytes] = []
        answer_bytes = at = 0
        size = len(data)
        view = memoryview(data)
        try:
            while size - at >= REQUEST_BYTES and answer_bytes < ANSWER_BYTES_HIGH:
                request = verbs.unpack_request(data, at)
                end = at + REQUEST_BYTES
                payload = None
                op = request.op
                if op == WRITE:
                    end += request.length
                    if end > size:
                        break
                    payload = view[at + REQUEST_BYTES : end]
                    stats.bytes_written += request.length
                status, value, found = keys.execute(request, payload, holder)
                at = end
                stats.ops += 1
                if found is not None:
                    # Copied now: a WRITE later in this batch must not change what was read.
                    length = len(found)
                    header = _pack_answer(ANSWER_MAGIC, request.request_id, 0, op, 0, length, 0)
                    answers.append(b"".join((header, found)))
                    stats.bytes_read += length
                    answer_bytes += length + 24
                else:
                    answers.append(
                        _pack_answer(ANSWER_MAGIC, request.request_id, status, op, 0, 0, value)
                    )
                    answer_bytes += 24
                    if status:
                        self._count_refusal(op, status)
        except RemoteProtocolError as error:
            self._refuse(error)
            return size
        if answers and self._transport is not None:
            # Not joined once more: the transport hands the pieces to the kernel as they are.
            self._transport.writelines(answers)
        return at

    def _count_refusal(self, op: int, status: int) -> None:
        """Say so the first few times: a peer that insists must not fill the log."""
        self._stats.refused += 1
        self._refusals += 1
        if self._refusals <= REFUSALS_LOGGED_MAX:
            log.info(
                "%s: %s from %s: %s", self._node, verbs.OP_NAMES[op], self._name,
                verbs.STATUS_NAMES[status],
            )  # fmt: skip

    def _refuse(self, error: RemoteProtocolError) -> None:
        """Close for good: after a framing error nothing that follows can be trusted."""
        if self._closed:
            return
        self._closed = True
        self._stats.framing_errors += 1
        log.warning("%s: fabric connection from %s refused: %s", self._node, self._name, error)
        self._buffer.clear()
        if self._transport is not None:
            self._transport.abort()

    def _drop_silent(self) -> None:
        if self._holder is None and not self._closed:
            self._refuse(RemoteProtocolError(f"no greeting within {GREETING_TIMEOUT_S} s"))


async def serve(
    network: Network,
    keys: KeyTable,
    *,
    clock: Clock,
    cluster: bytes,
    node: str,
    host: str,
    port: int,
    stats: NicStats,
) -> Listener:
    """Accept fabric connections on ``host:port``."""
    return await network.listen(
        lambda: NicConnection(keys, cluster, clock, stats, node), host, port
    )
