"""The proxy's connection to one compute node: frames of many sessions, one write for each turn.

A link is opened again, with growing pauses, until it is dropped. What its sessions had there is
over when it is lost; they are told and go on elsewhere, or here again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from polarless.errors import DeadlineExceeded, RemoteProtocolError, Retry
from polarless.wire import relay as wire

if TYPE_CHECKING:
    from polarless.kernel.world import World

log = logging.getLogger(__name__)

RECONNECT_FIRST_S: Final = 0.01
RECONNECT_MAX_S: Final = 0.5
# A node that is there answers its first packet at once; one that is stopped does not.
HELLO_TIMEOUT_S: Final = 2.0


class Backend(Protocol):
    """One session's part on a node."""

    def on_data(self, cycle: int, flag: int, payload: bytes) -> None:
        """Bytes for the client."""

    def on_frame(self, cycle: int, kind: int, payload: bytes) -> None:
        """Anything else."""

    def on_lost(self) -> None:
        """The node is gone, or has lost the session."""

    def pause(self) -> None:
        """The link takes no more for now."""

    def proceed(self) -> None:
        """It does again."""


class Owner(Protocol):
    """Who wants to know of a link's state."""

    world: World
    name: str
    cluster: bytes

    def link_changed(self, link: Link) -> None:
        """It was greeted, heard of a new role, or was lost."""


class Link:
    """See the module."""

    _numbers = itertools.count(1)

    def __init__(self, owner: Owner, node: str, address: str) -> None:
        self.node = node
        self.address = address
        self.connected = False
        self.writable = False
        self.epoch = 0
        self.lsn = 0
        self.since = 0.0
        # Cycles sent and not answered: the load of this node as far as this proxy makes it.
        self.outstanding = 0
        self.backends: dict[int, Backend] = {}
        self._owner = owner
        self._connection: _Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = wire.FrameBuffer()
        self._out: list[bytes] = []
        self._flush_due = False
        self._verdicts: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._greeted: asyncio.Event = asyncio.Event()
        self._ended = asyncio.Event()
        self._hurried = asyncio.Event()
        self._dropped = False

    # Its life.

    async def run(self) -> None:
        """Keep the connection up until `drop`."""
        pause_s = RECONNECT_FIRST_S
        host, _, port = self.address.rpartition(":")
        while not self._dropped:
            self._greeted.clear()
            self._ended.clear()
            try:
                await self._owner.world.network.connect(lambda: _Connection(self), host, int(port))
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    await self._greeted.wait()
                pause_s = RECONNECT_FIRST_S
                await self._ended.wait()
            except (OSError, TimeoutError) as error:
                log.debug("node %s at %s: %s", self.node, self.address, error)
                self.abort()
            if not self._dropped:
                await self._pause(pause_s * self._owner.world.random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, RECONNECT_MAX_S)

    async def _pause(self, pause_s: float) -> None:
        self._hurried.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._hurried.wait()
        except TimeoutError:
            return

    def hurry(self) -> None:
        """The node is said to be there: try now if there is no connection."""
        self._hurried.set()

    def drop(self) -> None:
        """Close, for good."""
        self._dropped = True
        self.abort()
        self._ended.set()
        self._greeted.set()
        self._hurried.set()

    def abort(self) -> None:
        """Close now; whoever has a session there goes on elsewhere."""
        transport = self._transport
        self.lost()
        if transport is not None:
            transport.abort()

    # Sessions.

    def attach(self, backend: Backend) -> int:
        """A number for one session's part here. Raises `Retry` if the node is gone.

        Whoever has one is told when the node is lost; a part of a lost node would never hear of it.
        """
        if not self.connected:
            raise Retry(f"node {self.node} is gone")
        number = next(self._numbers)
        self.backends[number] = backend
        return number

    def detach(self, number: int) -> None:
        """The session is not here any more."""
        if self.backends.pop(number, None) is not None and self.connected:
            self.send(wire.CLOSE, number, 0)

    async def verdict(self, xid: int, from_lsn: int, *, deadline_s: float) -> dict[str, Any]:
        """What became of a transaction. Raises `Retry` if the link is lost meanwhile."""
        if not self.connected:
            raise Retry(f"node {self.node} is gone")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._verdicts[number] = answer
        request = {"id": number, "xid": xid, "from_lsn": from_lsn}
        self.send(wire.VERDICT, 0, 0, wire.pack(request))
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"verdict: node {self.node} did not answer in time") from None
        finally:
            self._verdicts.pop(number, None)

    # Out.

    def send(self, kind: int, session: int, cycle: int, payload: bytes = b"") -> None:
        """Send a frame with the next write."""
        out = self._out
        out.append(wire.HEADER.pack(len(payload), session, cycle, kind, 0))
        out.append(payload)
        if not self._flush_due:
            self._flush_due = True
            self._owner.world.clock.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(out))

    # What the connection brings.

    def made(self, connection: _Connection, transport: asyncio.Transport) -> None:
        """A connection is there; it has to be greeted."""
        self._connection = connection
        self._transport = transport
        self._buffer = wire.FrameBuffer()
        self._out.clear()
        transport.write(wire.hello_packet(self._owner.cluster, self._owner.name))
        if self._dropped:
            self.abort()

    def serves(self, connection: _Connection) -> bool:
        """Whether this is the connection at hand, not one that was given up."""
        return self._connection is connection

    def received(self, data: bytes) -> None:
        """Frames."""
        backends = self.backends
        try:
            for number, cycle, kind, flag, payload in self._buffer.take(data):
                backend = backends.get(number)
                if kind == wire.DATA:
                    if backend is not None:
                        backend.on_data(cycle, flag, payload)
                elif kind == wire.HELLO:
                    self._hello(wire.fields(payload, writable=bool, epoch=int, lsn=int))
                elif kind == wire.VERDICT:
                    fields = wire.fields(payload, id=int, state=str, lsn=int, note=bytes)
                    waiter = self._verdicts.get(fields["id"])
                    if waiter is not None and not waiter.done():
                        waiter.set_result(fields)
                elif backend is not None:
                    backend.on_frame(cycle, kind, payload)
        except RemoteProtocolError as error:
            log.warning("node %s: %s", self.node, error)
            self.abort()

    def _hello(self, fields: dict[str, Any]) -> None:
        before = (self.connected, self.writable, self.epoch)
        self.writable, self.epoch = fields["writable"], fields["epoch"]
        self.lsn = max(self.lsn, fields["lsn"])
        if not self.connected:
            self.connected = True
            self.since = self._owner.world.clock.now()
            self._greeted.set()
        if before != (True, self.writable, self.epoch):
            self._owner.link_changed(self)

    def congested(self, is_full: bool) -> None:
        """The node reads too slowly, or reads again."""
        for backend in list(self.backends.values()):
            if is_full:
                backend.pause()
            else:
                backend.proceed()

    def lost(self) -> None:
        """The connection is over."""
        self._connection = self._transport = None
        self._ended.set()
        was, self.connected = self.connected, False
        self.writable = False
        self.outstanding = 0
        for waiter in self._verdicts.values():
            if not waiter.done():
                waiter.set_exception(Retry(f"node {self.node} is gone"))
        backends, self.backends = self.backends, {}
        for backend in backends.values():
            backend.on_lost()
        if was:
            self._owner.link_changed(self)


class _Connection(asyncio.Protocol):
    """One connection of a link. What comes late, from one that was given up, is not heard."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.made(self, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        if self._link.serves(self):
            self._link.received(data)

    def pause_writing(self) -> None:
        if self._link.serves(self):
            self._link.congested(True)

    def resume_writing(self) -> None:
        if self._link.serves(self):
            self._link.congested(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._link.serves(self):
            self._link.lost()
