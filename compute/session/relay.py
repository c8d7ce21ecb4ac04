"""A session's side of a proxy: its transport, and the record of what must survive this node.

To its session a `Relayed` is the transport. Beside the client's bytes it tells the proxy

* where a cycle ends, and in which transaction state,
* at which snapshots the statements of an open transaction ran, so that they can be run again
  elsewhere with the same answers. Those snapshots stay pinned until the transaction ends;
* prepared statements and settings as they change.

A commit carries the proxy's transaction id into the log, and with it, if it is the last thing of
its cycle, the answer that the client is owed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from compute.pgwire import backend
from compute.session import extended, hot, simple
from compute.session.waits import Working
from polarless.kernel.redo import NOTE_BYTES_MAX
from polarless.wire import relay as wire

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.session.statements import Then
    from compute.txn.transaction import Transaction

# Snapshots that one transaction may keep from being pruned.
KEPT_MAX: Final = 512

_READY: Final = backend.READY_IDLE[:-1]


class Frames(Protocol):
    """The connection to the proxy."""

    def send(
        self, kind: int, session: int, cycle: int, payload: bytes = b"", flag: int = 0
    ) -> None:
        """Send a frame soon."""

    def forget(self, number: int) -> None:
        """The session is over."""


class Relayed(asyncio.Transport):
    """See the module. ``number`` is the session's on its connection, ``base`` its transaction ids'.

    ``protocol`` is a greeting first, then the session.
    """

    def __init__(self, link: Frames, number: int, base: int, peer: str) -> None:
        super().__init__({"peername": peer})
        self.link = link
        self.number = number
        self.base = base
        self.cycle = 0
        self.identity: tuple[int, bytes] | None = None
        self.protocol: Any = None
        self.session: Session | None = None
        # Parse bodies by name, None for closed ones, since the last META.
        self.changed: dict[bytes, bytes | None] = {}
        self.cleared = False
        self.settings_version = 0
        self.tied = ""
        # What the proxy knows of what the session has seen: see `compute.txn.reuse`.
        self.told_seen = 0
        # Of the statements completed in this cycle, 0 where there was none.
        self.snapshots: list[int] = []
        self.replaying: list[int] = []
        # The same for the cycle that is still to come.
        self.replay_next: list[int] = []
        # Why the transaction in which the next cycle comes has failed.
        self.doom_next = ""
        self.start_us = 0
        self.too_long = False
        self._kept: set[int] = set()
        # A cycle that is not answered yet, and those behind it.
        self._busy = True
        self._later: deque[tuple[int, bytes]] = deque()
        self._sent = False
        self._in_block = False
        self._committed = False
        self._chunked = False
        self._rerouted = False
        self._closing = False

    # What the session tells.

    def completed(self, snapshot: int) -> None:
        """A statement has ended that ran at this snapshot (0: none)."""
        self.snapshots.append(snapshot)
        if snapshot and self.session is not None and self.session.explicit:
            kept = self._kept
            if snapshot not in kept and not self.too_long:
                kept.add(snapshot)
                self.session.engine.pin(snapshot)
                if len(kept) > KEPT_MAX:
                    self.too_long = True
                    self._release()

    def transaction_ended(self) -> None:
        """Its snapshots may be pruned."""
        self.too_long = False
        self.start_us = 0
        if self._kept:
            self._release()

    def committing(self, txn: Transaction, then: Then, answer: bytes) -> None:
        """Give the commit its id, and the note for whoever asks what became of it."""
        self._committed = self._committed or txn.has_writes
        txn.transaction_id = self.base + self.cycle
        session = self.session
        assert session is not None
        if (
            then is hot._answered
            or then is simple._finish
            or then is extended._synced
            or (then is simple._done and len(session.script) < 2)
            or (then is extended._executed and session.reader.is_only_sync())
        ):
            parts = [*session.out, session.head, answer, backend.READY_IDLE]
            if sum(map(len, parts)) <= NOTE_BYTES_MAX:
                txn.note = b"".join(parts)

    def begin(self, isolation: str, *, read_only: bool) -> Transaction:
        """A transaction that can be run again elsewhere."""
        session = self.session
        assert session is not None
        if self.start_us:
            session.start_us = self.start_us
        return session.engine.begin(
            isolation, read_only=read_only, recorder=self, reuse=session.settings.reuse
        )

    def replay_at(self) -> int:
        """The snapshot at which the statement that begins ran the first time, or 0."""
        index = len(self.snapshots)
        return self.replaying[index] if index < len(self.replaying) else 0

    def reroute(self) -> bool:
        """The cycle is to be run again, here or on the writer.

        False if that would not be the same: its client has been answered in part, it began inside
        a transaction block, or it has committed something.
        """
        if self._sent or self._in_block or self._committed:
            return False
        self._rerouted = True
        return True

    def copying(self) -> None:
        """The cycle goes on with what the client sends now."""
        self.link.send(wire.COPYING, self.number, self.cycle)

    def lost(self) -> None:
        """The session ends here without a word to its client."""
        if not self._closing:
            self._closing = True
            self.link.send(wire.LOST, self.number, self.cycle)
            self._over()

    # What the proxy tells.

    def take(self, cycle: int, data: bytes) -> None:
        """Bytes of the client."""
        if cycle != self.cycle:
            if self._busy:
                # The answer to the one before is still to come, and is told by its number.
                self._later.append((cycle, data))
                return
            self.cycle = cycle
            self._sent = False
            self._committed = False
            self._in_block = self.session is not None and self.session.explicit
            self.replaying, self.replay_next = self.replay_next, []
            if self.doom_next and self.session is not None:
                self.session.doom(self.doom_next)
                self.doom_next = ""
        self._busy = True
        self.protocol.data_received(data)

    def _next(self) -> None:
        if self._later and not self._busy and not self._closing:
            cycle, data = self._later.popleft()
            self.take(cycle, data)
            while self._later and self._later[0][0] == self.cycle:
                self.take(*self._later.popleft())

    def resumed(self) -> None:
        """The session was elsewhere before: nobody waits for a greeting."""
        self._busy = False

    # A transport.

    def write(self, data: Any) -> None:
        if self._closing:
            return
        session = self.session
        flag = 0
        if data[-6:-1] == _READY and (session is None or session.wait is None):
            flag = data[-1]
        if self._rerouted:
            if flag:
                self._rerouted = False
                self._answered()
                self.link.send(wire.REROUTE, self.number, self.cycle)
            return
        self._sent = True
        if session is not None and (
            flag != wire.IDLE
            or self.changed
            or self.cleared
            or session.settings.version != self.settings_version
            or (flag and session.tied != self.tied)
            or (session.settings.reuse is not None and session.settings.reuse.seen > self.told_seen)
        ):
            self._meta(session, flag)
        self.link.send(wire.DATA, self.number, self.cycle, data, flag)
        if flag:
            self._answered()

    def _answered(self) -> None:
        self._busy = self._chunked = False
        if self.snapshots:
            self.snapshots.clear()
        if self.replaying:
            self.replaying = []
        if self._later:
            asyncio.get_running_loop().call_soon(self._next)

    def _meta(self, session: Session, flag: int) -> None:
        meta: dict[str, Any] = {}
        if flag:
            if flag != wire.IDLE and not self.too_long:
                meta["snapshots"] = self.snapshots
                meta["start_us"] = session.start_us
        elif not self._chunked:
            # A part of the answer: if it has to be made again it must begin with the same bytes.
            running = type(session.wait) is Working
            self._chunked = running
            now = [session.txn.snapshot] if running and session.txn is not None else []
            meta["snapshots"] = [*self.snapshots, *now]
            meta["start_us"] = session.start_us
        if self.changed or self.cleared:
            meta["prepared"], self.changed = self.changed, {}
            meta["cleared"], self.cleared = self.cleared, False
        if session.settings.version != self.settings_version and flag:
            self.settings_version = session.settings.version
            meta["settings"] = session.settings.export()
        if flag and session.tied != self.tied:
            self.tied = meta["tied"] = session.tied
        reuse = session.settings.reuse
        if flag and reuse is not None and reuse.seen > self.told_seen:
            meta["seen"] = self.told_seen = reuse.seen
        if meta:
            self.link.send(wire.META, self.number, self.cycle, wire.pack(meta))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol
        if isinstance(protocol, asyncio.Protocol) and hasattr(protocol, "settings"):
            session = cast("Session", protocol)
            self.session = session
            session.relay = self
            self.settings_version = session.settings.version

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The proxy says when the client does not read."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.link.send(wire.PAUSE, self.number, self.cycle)

    def resume_reading(self) -> None:
        self.link.send(wire.CONTINUE, self.number, self.cycle)

    def is_reading(self) -> bool:
        return not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.link.send(wire.CLOSE, self.number, self.cycle)
            self._over()

    def abort(self) -> None:
        self.close()

    def gone(self, error: Exception) -> None:
        """The proxy has closed the session, or is gone itself."""
        if not self._closing:
            self._closing = True
            self._over(error)

    def _over(self, error: Exception | None = None) -> None:
        self._release()
        self.link.forget(self.number)
        # As a socket does: not from within the protocol's own call.
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)

    def _release(self) -> None:
        kept, self._kept = self._kept, set()
        if self.session is not None:
            for snapshot in kept:
                self.session.engine.unpin(snapshot)
