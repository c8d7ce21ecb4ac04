"""Calls between processes: one ordered, pipelined connection, either side may call.

A frame is ``u32 length`` (little-endian) and a msgpack list::

    [HELLO,   cluster id, fields]            first frame of the connecting side
    [WELCOME, fields]                        first frame of the accepting side
    [CALL,    call id, method, args]
    [ANSWER,  call id, result]
    [FAILURE, call id, error fields]         see PolarlessError.to_wire
    [NOTIFY,  method, args]

What it guarantees:

* Order: frames arrive in the order they were sent, calls and notifications alike.
* Every call ends: with its answer, its error, `DeadlineExceeded` that names it, or
  `ConnectionLost`. An answer that comes after its deadline is dropped.
* Bounds: before HELLO a frame may have 4 KiB, after it ``frame_bytes_max``; the length is checked
  before anything is allocated. What all connections to one port may hold together, in frames that
  arrive, calls that are served and answers that nobody reads, is in `polarless.net.budget`. An
  accepting side whose answers are not read stops reading, and serves nothing that it has read.
* A framing error closes the connection. It is never reused. The accepting side says why, in a
  FAILURE with call id 0.

Handlers are plain functions: ``on_call(peer, call)`` answers at once with ``call.answer(...)`` or
keeps ``call`` and answers later. No task is created anywhere here.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgpack

from polarless.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    Overloaded,
    PolarlessError,
    RemoteProtocolError,
    from_wire,
)
from polarless.kernel.world import Clock, Listener, Network
from polarless.net.budget import ROOM_WAIT_S, SMALL_BYTES, Account, Budget

log = logging.getLogger(__name__)

HELLO: Final = 0
WELCOME: Final = 1
CALL: Final = 2
ANSWER: Final = 3
FAILURE: Final = 4
NOTIFY: Final = 5

HELLO_BYTES_MAX: Final = SMALL_BYTES
FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
# What may wait in one connection's write buffer: one group of the largest size and some more.
WRITE_BUFFER_BYTES_MAX: Final = 160 * 1024 * 1024
PROTOCOL_VERSION: Final = 1
# A peer that connects and says nothing is dropped after this.
HELLO_TIMEOUT_S: Final = 5.0
# A frame that holds room and does not come to its end: as long as the longest deadline of a call.
FRAME_TIMEOUT_S: Final = 30.0
_SWEEP_S: Final = 0.05

_LENGTH = struct.Struct("<I")
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack

Done = Callable[[Any, PolarlessError | None], None]


class Call:
    """A call that waits for its answer, on the side that serves it."""

    __slots__ = ("_bytes", "_id", "args", "method", "peer")

    def __init__(
        self, peer: Peer, call_id: int, method: str, args: tuple[Any, ...], byte_count: int
    ) -> None:
        self.peer = peer
        self._id = call_id
        self._bytes = byte_count
        self.method = method
        self.args = args

    def answer(self, result: Any = None) -> None:
        """Send the result. Nothing happens if the caller is gone."""
        self._end()
        self.peer._send((ANSWER, self._id, result))

    def fail(self, error: PolarlessError) -> None:
        """Send the error; the caller gets the same class, SQLSTATE and hint."""
        self._end()
        self.peer._send((FAILURE, self._id, error.to_wire()))

    def _end(self) -> None:
        account, byte_count = self.peer._account, self._bytes
        if account is not None:
            self._bytes = 0
            account.end(byte_count)


class Handler(Protocol):
    """What a node does with a connection. `Service` is an implementation with empty methods."""

    def on_hello(self, peer: Peer, fields: dict[str, Any]) -> dict[str, Any]:
        """Accept a connection: return the WELCOME fields, or raise to refuse it."""

    def on_call(self, peer: Peer, call: Call) -> None:
        """Serve a call, now or later. An exception raised here becomes the answer."""

    def on_notify(self, peer: Peer, method: str, args: tuple[Any, ...]) -> None:
        """Take a message that has no answer."""

    def on_lost(self, peer: Peer, error: PolarlessError) -> None:
        """The connection ended; its calls have been failed already."""


class Service:
    """A `Handler` that accepts everybody and refuses every call: inherit and override."""

    def on_hello(self, peer: Peer, fields: dict[str, Any]) -> dict[str, Any]:
        """Accept with no fields."""
        return {}

    def on_call(self, peer: Peer, call: Call) -> None:
        """Refuse."""
        raise RemoteProtocolError(f"method {call.method!r} is not served here")

    def on_notify(self, peer: Peer, method: str, args: tuple[Any, ...]) -> None:
        """Refuse: closes the connection."""
        raise RemoteProtocolError(f"notification {method!r} is not expected here")

    def on_lost(self, peer: Peer, error: PolarlessError) -> None:
        """Do nothing."""


class Peer(asyncio.Protocol):
    """One end of a connection. ``fields`` are what the other side said in HELLO or WELCOME.

    ``context`` is for the handler: what it knows of this peer.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        clock: Clock,
        cluster: bytes,
        accepting: bool,
        hello: dict[str, Any] | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        budget: Budget | None = None,
    ) -> None:
        self.handler = handler
        self.fields: dict[str, Any] = {}
        self.context: Any = None
        self.name = "?"
        self.closed: PolarlessError | None = None
        self._clock = clock
        self._cluster = cluster
        self._accepting = accepting
        self._budget = budget
        self._account: Account | None = None
        self._frame_timer: Any = None
        self._hello = hello or {}
        self._limit = HELLO_BYTES_MAX
        self._frame_bytes_max = frame_bytes_max
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._ready = False
        self._welcomed: asyncio.Future[dict[str, Any]] | None = None
        self._next_id = 0
        # call id -> (done, deadline, what for)
        self._waiting: dict[int, tuple[Done, float, str]] = {}
        self._sweep: Any = None
        self._writable: list[asyncio.Future[None]] | None = None

    # Calling.

    def call_nowait(
        self, method: str, args: tuple[Any, ...], done: Done, *, deadline_s: float
    ) -> None:
        """Send a call; ``done(result, error)`` is called exactly once, possibly at once."""
        if self.closed is not None:
            done(None, self.closed)
            return
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
            done(None, Overloaded(f"{self.name}: too much is waiting to be sent ({method})"))
            return
        self._next_id += 1
        call_id = self._next_id
        self._waiting[call_id] = (done, self._clock.now() + deadline_s, method)
        if self._sweep is None:
            self._sweep = self._clock.call_later(_SWEEP_S, self._expire)
        self._send((CALL, call_id, method, args))

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        """Send a call and wait for its result. Raises what the other side raised."""
        if self._writable is not None and self.closed is None:
            gate = asyncio.get_running_loop().create_future()
            self._writable.append(gate)
            try:
                await asyncio.wait_for(gate, deadline_s)
            except TimeoutError:
                raise DeadlineExceeded(f"{method}: {self.name} does not read") from None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: PolarlessError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.call_nowait(method, args, done, deadline_s=deadline_s)
        return await future

    def notify(self, method: str, *args: Any) -> None:
        """Send a message that has no answer."""
        self._send((NOTIFY, method, args))

    def close(self, error: PolarlessError | None = None) -> None:
        """Close the connection and fail what waits on it. Idempotent."""
        if self.closed is not None:
            return
        self.closed = error or ConnectionLost(f"{self.name}: connection closed")
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._end_frame_timer()
        if self._account is not None:
            self._account.close()
        if self._transport is not None:
            if self._accepting and self._writable is not None:
                # Who does not read would keep all that waits for it in memory.
                self._transport.abort()
            else:
                self._transport.close()
        self._buffer = bytearray()
        waiting, self._waiting = self._waiting, {}
        for done, _, _ in waiting.values():
            done(None, self.closed)
        if self._writable is not None:
            for gate in self._writable:
                if not gate.done():
                    gate.set_result(None)
            self._writable = None
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(self.closed)
        if self._ready:
            self.handler.on_lost(self, self.closed)

    async def welcomed(self, deadline_s: float) -> dict[str, Any]:
        """Wait until the accepting side has answered HELLO; its fields."""
        if self._ready:
            return self.fields
        if self.closed is not None:
            raise self.closed
        self._welcomed = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._welcomed, deadline_s)
        except TimeoutError:
            error = DeadlineExceeded(f"hello: {self.name} did not answer in {deadline_s} s")
            self.close(error)
            raise error from None

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.name = f"{peer[0]}:{peer[1]}" if peer else "peer"
        if self._accepting:
            if self._budget is not None:
                try:
                    self._account = self._budget.open(self._refuse, self._room_granted)
                except Overloaded as error:
                    self._refuse(error)
                    return
            self._clock.call_later(HELLO_TIMEOUT_S, self._drop_silent)
        else:
            self._hello.setdefault("version", PROTOCOL_VERSION)
            self._send((HELLO, self._cluster, self._hello))

    def data_received(self, data: bytes | bytearray) -> None:
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._wanted():
                return
            data, self._buffer = buffer, bytearray()
        offset = 0
        size = len(data)
        account = self._account
        view = memoryview(data)
        try:
            while size - offset >= 4:
                (length,) = _LENGTH.unpack_from(data, offset)
                if length > self._limit:
                    raise RemoteProtocolError(
                        f"frame of {length} bytes, at most {self._limit} are allowed here"
                    )
                end = offset + 4 + length
                if account is not None and (
                    self._writable is not None
                    or (length > SMALL_BYTES and not self._has_room(account, length, end > size))
                ):
                    break
                if end > size:
                    break
                self._frame(msgpack.unpackb(view[offset + 4 : end], use_list=False), length)
                if self.closed is not None:
                    return
                offset = end
        except PolarlessError as error:
            self._refuse(error)
            return
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            self._refuse(RemoteProtocolError(f"malformed frame: {type(error).__name__}: {error}"))
            return
        except Exception as error:
            log.exception("%s: a frame could not be handled", self.name)
            self._refuse(RemoteProtocolError(f"frame: internal error: {error!r}"))
            return
        if offset < size:
            self._buffer += view[offset:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(ConnectionLost(f"{self.name}: connection lost ({exc or 'closed by the peer'})"))

    def pause_writing(self) -> None:
        self._writable = []
        if self._account is not None:
            self._count_unread(self._account)
        # Only the accepting side stops reading: if both did, two full buffers would wait for ever.
        if self._accepting and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        gates, self._writable = self._writable or [], None
        for gate in gates:
            if not gate.done():
                gate.set_result(None)
        if self._accepting and self._transport is not None and self.closed is None:
            if self._account is not None:
                self._account.set_unread(0)
            self._go_on()

    # Inside.

    def _has_room(self, account: Account, length: int, is_part: bool) -> bool:
        """Whether a large frame may be taken in; if not, nothing is read until it may.

        One that is here already is counted as what it becomes, if that has room.
        """
        if account.arriving or (not is_part and account.fits(length)):
            return True
        waited = account.waits
        if account.reserve(length):
            self._start_frame_timer(FRAME_TIMEOUT_S, self._frame_late)
            return True
        if not waited:
            assert self._transport is not None
            self._transport.pause_reading()
            self._start_frame_timer(ROOM_WAIT_S, self._room_late)
        return False

    def _room_granted(self) -> None:
        self._start_frame_timer(FRAME_TIMEOUT_S, self._frame_late)
        self._clock.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take up what was read and not handled, then read on."""
        if self.closed is not None or self._is_held_up():
            return
        self.data_received(b"")
        if self.closed is None and not self._is_held_up() and self._transport is not None:
            self._transport.resume_reading()

    def _is_held_up(self) -> bool:
        return self._writable is not None or (self._account is not None and self._account.waits)

    def _start_frame_timer(self, delay_s: float, late: Callable[[], None]) -> None:
        self._end_frame_timer()
        self._frame_timer = self._clock.call_later(delay_s, late)

    def _end_frame_timer(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None

    def _frame_late(self) -> None:
        self._refuse(RemoteProtocolError(f"a frame was not complete after {FRAME_TIMEOUT_S} s"))

    def _room_late(self) -> None:
        assert self._account is not None
        self._refuse(self._account.too_long())

    def _count_unread(self, account: Account) -> None:
        assert self._transport is not None
        try:
            account.set_unread(self._transport.get_write_buffer_size())
        except Overloaded as error:
            self._refuse(error)

    def _wanted(self) -> int:
        """How many bytes the first frame in the buffer needs."""
        if len(self._buffer) < 4:
            return 4
        (length,) = _LENGTH.unpack_from(self._buffer)
        # An oversized length is for data_received to refuse, now.
        return 4 if length > self._limit else 4 + int(length)

    def _send(self, message: tuple[Any, ...]) -> None:
        if self.closed is not None or self._transport is None:
            return
        body = _pack(message)
        if len(body) > self._frame_bytes_max:
            raise LocalProtocolError(f"frame of {len(body)} bytes is too long to send")
        self._transport.write(_LENGTH.pack(len(body)) + body)
        if self._writable is not None and self._account is not None:
            self._count_unread(self._account)

    def _frame(self, message: tuple[Any, ...], length: int) -> None:
        kind = message[0]
        account = self._account
        if account is not None and account.arriving:
            account.arrived()
            self._end_frame_timer()
        if kind == ANSWER and self._ready:
            entry = self._waiting.pop(message[1], None)
            if entry is not None:
                entry[0](message[2], None)
        elif not self._ready:
            self._greet(message)
        elif kind == CALL:
            _, call_id, method, args = message
            if account is not None:
                account.begin(length)
            call = Call(self, call_id, method, args, length)
            try:
                self.handler.on_call(self, call)
            except PolarlessError as error:
                call.fail(error)
            except Exception as error:
                log.exception("%s: call %s failed", self.name, method)
                call.fail(PolarlessError(f"{method}: internal error: {error!r}"))
        elif kind == FAILURE:
            if message[1] == 0:
                raise ConnectionLost(f"{self.name} ended it: {from_wire(message[2])}")
            entry = self._waiting.pop(message[1], None)
            if entry is not None:
                entry[0](None, from_wire(message[2]))
        elif kind == NOTIFY:
            self.handler.on_notify(self, message[1], message[2])
        else:
            raise RemoteProtocolError(f"unexpected frame kind {kind!r}")

    def _greet(self, message: tuple[Any, ...]) -> None:
        """The first frame of either side."""
        if self._accepting:
            kind, cluster, fields = message
            if kind != HELLO or not isinstance(fields, dict):
                raise RemoteProtocolError("the first frame is not a hello")
            if cluster != self._cluster:
                raise RemoteProtocolError(
                    "this connection belongs to another cluster",
                    hint="Check the address and the data directory; each cluster has its own id.",
                )
            if fields.get("version") != PROTOCOL_VERSION:
                raise RemoteProtocolError(
                    f"the peer speaks version {fields.get('version')}, this node {PROTOCOL_VERSION}"
                )
            self.fields = fields
            self.name = str(fields.get("node", self.name))
            self._send((WELCOME, self.handler.on_hello(self, fields)))
            self._limit = self._frame_bytes_max
            self._ready = True
            if self._account is not None:
                self._account.said_hello()
            return
        if message[0] == FAILURE:
            raise from_wire(message[2])
        kind, fields = message
        if kind != WELCOME:
            raise RemoteProtocolError("the first frame is not a welcome")
        self.fields = fields
        self._limit = self._frame_bytes_max
        self._ready = True
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_result(fields)

    def _refuse(self, error: PolarlessError) -> None:
        """Close after an error of the peer's making, telling it why if it can listen."""
        if self.closed is None:
            log.log(
                logging.WARNING if self._ready else logging.INFO,
                "%s: connection refused: %s", self.name, error,
            )  # fmt: skip
            if self._accepting and self._writable is None:
                self._send((FAILURE, 0, error.to_wire()))
        self.close(error)

    def _drop_silent(self) -> None:
        if not self._ready and self.closed is None:
            self._refuse(RemoteProtocolError(f"no hello within {HELLO_TIMEOUT_S} s"))

    def _expire(self) -> None:
        """Fail the calls whose deadline has passed; look again while any wait."""
        now = self._clock.now()
        late = [call_id for call_id, entry in self._waiting.items() if entry[1] <= now]
        for call_id in late:
            entry = self._waiting.pop(call_id, None)
            if entry is not None:
                entry[0](None, DeadlineExceeded(f"{entry[2]}: {self.name} did not answer in time"))
        self._sweep = (
            self._clock.call_later(_SWEEP_S, self._expire)
            if self._waiting and self.closed is None
            else None
        )


async def serve(
    network: Network, handler: Handler, *, clock: Clock, cluster: bytes, host: str, port: int
) -> Listener:
    """Accept connections for ``handler``, all of them within one `Budget`."""
    budget = Budget()
    return await network.listen(
        lambda: Peer(handler, clock=clock, cluster=cluster, accepting=True, budget=budget),
        host,
        port,
    )


async def connect(
    network: Network,
    handler: Handler,
    *,
    clock: Clock,
    cluster: bytes,
    address: str,
    hello: dict[str, Any],
    deadline_s: float = 2.0,
) -> Peer:
    """Open a connection to ``host:port`` and wait for its WELCOME.

    Raises `ConnectionLost`, `DeadlineExceeded` or what the other side answered.
    """
    host, _, port = address.rpartition(":")
    try:
        _, protocol = await asyncio.wait_for(
            network.connect(
                lambda: Peer(handler, clock=clock, cluster=cluster, accepting=False, hello=hello),
                host,
                int(port),
            ),
            deadline_s,
        )
    except TimeoutError:
        raise DeadlineExceeded(f"connect: {address} did not answer in {deadline_s} s") from None
    except OSError as error:
        raise ConnectionLost(f"connect: {address}: {error}") from error
    assert isinstance(protocol, Peer)
    protocol.name = address
    await protocol.welcomed(deadline_s)
    return protocol
