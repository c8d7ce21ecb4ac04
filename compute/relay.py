"""The connection of a proxy: frames in, sessions fed; what they answer goes out as one write.

All clients of a proxy share this connection, so that one read and one write of the socket serve
whatever many of them have sent. `SqlServer` hands a connection over when its first packet says that
it is a proxy of this cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from compute.session.relay import Relayed
from polarless.errors import ConnectionLost, PolarlessError, RemoteProtocolError
from polarless.wire import relay as wire

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.txn.engine import Engine
    from polarless.kernel.world import Clock

log = logging.getLogger(__name__)

# Snapshots of transactions that a proxy is going to bring are kept for so long.
ADOPTED_S: Final = 10.0
# The log's position is told at least so often: verdicts are asked from there.
MARK_S: Final = 0.5


class Server(Protocol):
    """The SQL server, as far as a relay needs it."""

    engine: Engine
    clock: Clock
    name: str

    def greet(self, transport: Relayed, packet: bytes) -> None:
        """A client that has just come; ``packet`` is its startup packet."""

    def resume(self, transport: Relayed, parameters: dict[str, str]) -> Session:
        """A session that was somewhere else before. Raises `Overloaded`."""

    def cancel(self, pid: int, key: bytes) -> None:
        """Interrupt the session with this pid, if the key is its own."""

    def relay_lost(self, relay: RelayLink) -> None:
        """The proxy is gone."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task of the node."""


class RelayLink(asyncio.Protocol):
    """One proxy. Sessions by their number on this connection."""

    def __init__(
        self, server: Server, transport: asyncio.Transport, name: str, rest: bytes
    ) -> None:
        self.name = name
        self.sessions: dict[int, Relayed] = {}
        self._server = server
        self._transport = transport
        self._buffer = wire.FrameBuffer()
        self._out: list[bytes] = []
        self._flush_due = False
        self._receiving = False
        self._adopted: list[int] = []
        self._told_at = 0.0
        self.say_hello()
        self.flush()
        if rest:
            self.data_received(rest)

    def say_hello(self) -> None:
        """Tell the proxy who serves here, and where the log stands."""
        engine = self._server.engine
        self._told_at = self._server.clock.now()
        hello = {
            "node": self._server.name,
            "epoch": engine.epoch,
            "writable": engine.writable,
            "lsn": engine.log.durable if engine.log is not None else 0,
        }
        self._out.append(wire.frame(wire.HELLO, payload=wire.pack(hello)))

    # In.

    def data_received(self, data: bytes) -> None:
        self._receiving = True
        sessions = self.sessions
        try:
            for number, cycle, kind, _, payload in self._buffer.take(data):
                if kind == wire.DATA:
                    session = sessions.get(number)
                    if session is not None:
                        session.take(cycle, payload)
                else:
                    self._control(number, cycle, kind, payload)
        except PolarlessError as error:
            log.warning("proxy %s: %s", self.name, error)
            self.abort()
        finally:
            self._receiving = False
        if self._out:
            self.flush()

    def _control(self, number: int, cycle: int, kind: int, payload: bytes) -> None:
        if kind == wire.OPEN:
            self._open(number, wire.fields(payload, pid=int, key=bytes, base=int))
            return
        if kind == wire.CANCEL:
            fields = wire.fields(payload, pid=int, key=bytes)
            self._server.cancel(fields["pid"], fields["key"])
            return
        if kind == wire.VERDICT:
            asked = wire.fields(payload, id=int, xid=int, from_lsn=int)
            self._server.spawn(self._verdict(asked))
            return
        if kind == wire.REPLAY and number == 0:
            self._adopt(wire.positions(wire.fields(payload, snapshots=list)["snapshots"]))
            return
        session = self.sessions.get(number)
        if session is None:
            return
        if kind == wire.REPLAY:
            fields = wire.fields(payload, snapshots=list, start_us=int)
            session.replay_next = wire.positions(fields["snapshots"])
            session.start_us = fields["start_us"]
        elif kind == wire.DOOM:
            session.doom_next = payload.decode("utf-8", "replace")
        elif kind == wire.SETTINGS:
            if session.session is not None:
                session.session.settings.restore(wire.texts(wire.unpack(payload)))
                session.settings_version = session.session.settings.version
        elif kind == wire.SEEN:
            if session.session is not None:
                seen = wire.fields(payload, seen=int)["seen"]
                session.session.settings.own_reuse.hear(seen)
                session.told_seen = seen
        elif kind == wire.PAUSE:
            session.protocol.pause_writing()
        elif kind == wire.CONTINUE:
            session.protocol.resume_writing()
        elif kind == wire.CLOSE:
            session.gone(ConnectionLost("the client closed the connection"))
        else:
            raise RemoteProtocolError(f"a frame of kind {kind}")

    def _open(self, number: int, fields: dict[str, Any]) -> None:
        startup, parameters, settings = fields.get("startup"), {}, {}
        if type(startup) is not bytes:
            parameters = wire.texts(fields.get("resume"))
            settings = wire.texts(fields.get("settings"))
        if number in self.sessions or not (startup or "user" in parameters):
            raise RemoteProtocolError(f"session {number} is open, or nobody says who comes")
        transport = Relayed(self, number, fields["base"], str(fields.get("peer") or "?"))
        transport.identity = (fields["pid"], fields["key"])
        self.sessions[number] = transport
        if startup:
            self._server.greet(transport, startup)
            return
        try:
            session = self._server.resume(transport, parameters)
        except PolarlessError as error:
            log.warning("a session of proxy %s cannot go on here: %s", self.name, error)
            transport.lost()
            return
        transport.resumed()
        session.settings.restore(settings)
        if self._server.engine.log is not None:
            # Its last commit was no later.
            session.last_commit_lsn = self._server.engine.log.durable
            session.settings.own_reuse.note(self._server.engine.log.published)
        transport.settings_version = session.settings.version

    def _adopt(self, snapshots: list[int]) -> None:
        """Keep what transactions need that the proxy will run again here."""
        engine = self._server.engine
        for snapshot in snapshots:
            engine.pin(snapshot)
        self._adopted += snapshots
        self._server.clock.call_later(ADOPTED_S, self._let_go)

    def _let_go(self) -> None:
        adopted, self._adopted = self._adopted, []
        for snapshot in adopted:
            self._server.engine.unpin(snapshot)

    async def _verdict(self, fields: dict[str, Any]) -> None:
        state, lsn, note = wire.UNKNOWN, 0, b""
        try:
            state, lsn, note = await self._server.engine.verdict(fields["xid"], fields["from_lsn"])
        except PolarlessError as error:
            log.info("no verdict on %x: %s", fields["xid"], error)
            # The proxy asks again, here or at the next writer.
            self.abort()
            return
        answer = {"id": fields["id"], "state": state, "lsn": lsn, "note": note}
        self.send(wire.VERDICT, 0, 0, wire.pack(answer))

    # Out.

    def send(
        self, kind: int, session: int, cycle: int, payload: bytes = b"", flag: int = 0
    ) -> None:
        """Send a frame with the next write."""
        out = self._out
        out.append(wire.HEADER.pack(len(payload), session, cycle, kind, flag))
        out.append(payload)
        if not self._flush_due and not self._receiving:
            self._flush_due = True
            self._server.clock.call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is."""
        self._flush_due = False
        if self._server.clock.now() - self._told_at > MARK_S:
            self.say_hello()
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    # The connection.

    def pause_writing(self) -> None:
        for session in list(self.sessions.values()):
            session.protocol.pause_writing()

    def resume_writing(self) -> None:
        for session in list(self.sessions.values()):
            session.protocol.resume_writing()

    def forget(self, number: int) -> None:
        """The session is over."""
        self.sessions.pop(number, None)

    def abort(self) -> None:
        """Close at once: the proxy takes its sessions elsewhere."""
        self._transport.abort()
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        sessions, self.sessions = self.sessions, {}
        for session in sessions.values():
            session.gone(ConnectionLost("the proxy is gone"))
        self._server.relay_lost(self)
