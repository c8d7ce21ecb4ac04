"""One client's session: its cycles go to a node one at a time, and come back as bytes.

::

    first packet --> greeting (cycle 0, on the writer) --> idle --+-- read --> a reader
                                                           ^      +-- else --> the writer
                                                           +------ ReadyForQuery

* At most one cycle is under way. What the client sends behind its end waits in ``inbox``, which is
  bounded: beyond it the client is not read.
* A cycle whose node was lost is settled by `polarless.proxy.recovery`; meanwhile everything waits.
* A read that a node refuses, having done nothing, goes to the writer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, cast
from zlib import crc32

from polarless.errors import PolarlessError, RemoteProtocolError
from polarless.proxy import messages, startup
from polarless.proxy.messages import COPY_KINDS, QUERY, TERMINATE, Scanner
from polarless.proxy.place import Place
from polarless.proxy.record import Cycle, Memory
from polarless.wire import relay as wire

if TYPE_CHECKING:
    from polarless.kernel.world import Timer
    from polarless.proxy.service import Proxy

log = logging.getLogger(__name__)

INBOX_BYTES_MAX: Final = 1024 * 1024
UNREAD_BYTES_MAX: Final = 256 * 1024
STARTUP_TIMEOUT_S: Final = 30.0


class Session(asyncio.Protocol):
    """See the module."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.memory = Memory()
        self.scanner = Scanner()
        self.transport: asyncio.Transport | None = None
        self.cycle: Cycle | None = None
        self.writer: Place | None = None
        self.reader: Place | None = None
        self.recovering = False
        # From before a restart of the proxy.
        self.is_brought = False
        self.closed = False
        self.pid = 0
        self.key = b""
        # Transaction ids are this plus the number of the cycle.
        self.base = 0
        self.packet = b""
        self.parameters: dict[str, str] = {}
        self.greeted = False
        # What it waits for, shown beside the session.
        self.waits_for = ""
        self.queued_since = 0.0
        self.last_number = 0
        self.peer = ""
        self._inbox = b""
        self._startup = b""
        self._encrypting: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._reading_paused = False
        # The rest of a failed cycle's input is passed over.
        self._swallowing = False

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        if self.is_brought:
            return
        self.peer = str(transport.get_extra_info("peername"))
        if not self.proxy.admit(self):
            self.transport.abort()
            return
        self._timer = self.proxy.world.clock.call_later(STARTUP_TIMEOUT_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        try:
            if (
                cycle is None
                and self.greeted
                and not self._inbox
                and not self._swallowing
                and not self.recovering
            ):
                self._begin(data)
            elif not self.packet:
                self._first(data)
            elif (
                cycle is None
                or self._swallowing
                or self.recovering
                or not self._continue(cycle, data)
            ):
                self._inbox += data
                if len(self._inbox) > INBOX_BYTES_MAX:
                    self._pause_reading()
                if cycle is None and self.greeted and not self.recovering:
                    self.next_cycle()
        except RemoteProtocolError as error:
            self.refuse(error)

    def pause_writing(self) -> None:
        if self.cycle is not None and self.cycle.backend is not None:
            self.cycle.backend.tell(wire.PAUSE)

    def resume_writing(self) -> None:
        if self.cycle is not None and self.cycle.backend is not None:
            self.cycle.backend.tell(wire.CONTINUE)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._end_timer()
        for place in (self.writer, self.reader):
            if place is not None:
                place.leave()
        self.writer = self.reader = None
        self.proxy.forget(self)

    # The beginning.

    def _first(self, data: bytes) -> None:
        self._startup += data
        if self._encrypting is not None:
            return  # it came behind the handshake, and may only be answered encrypted
        while (packet := startup.first_packet(self._startup)) is not None:
            if packet.code == startup.SSL_CODE and self.proxy.tls is not None:
                if packet.rest:
                    raise RemoteProtocolError("unencrypted data behind an SSL request")
                self._startup = b""
                self.write(b"S")
                self._encrypting = asyncio.get_running_loop().create_task(self._encrypt())
                return
            if packet.code in startup.ENCRYPTION_CODES:
                self._startup = packet.rest
                self.write(b"N")
            elif packet.code == startup.CANCEL_CODE:
                self.proxy.cancel(int.from_bytes(packet.whole[8:12], "big"), packet.whole[12:])
                self.close()
                return
            else:
                self.packet = packet.whole
                self.parameters = startup.parameters(packet.whole)
                self._inbox, self._startup = packet.rest, b""
                self.pid, self.key, self.base = self.proxy.identity(packet.code)
                self.start_greeting()
                return

    async def _encrypt(self) -> None:
        """TLS ends here; the nodes are told nothing of it."""
        assert self.proxy.tls is not None
        assert self.transport is not None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self.transport, self, self.proxy.tls, server_side=True,
                ssl_handshake_timeout=STARTUP_TIMEOUT_S,
            )  # fmt: skip
        except OSError as error:  # ssl.SSLError is one
            log.info("client %s: dropped in its TLS handshake: %s", self.peer, error)
            self.close()
            return
        if transport is None or self.closed:
            self.close()
            return
        self.transport = transport
        transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        self._encrypting = None
        try:
            self._first(b"")
        except RemoteProtocolError as refused:
            self.refuse(refused)

    def start_greeting(self) -> None:
        """Let the writer greet the client; cycle 0 is what is said until ReadyForQuery."""
        cycle = self.cycle = Cycle(0, b"", ended=False, query=False)
        cycle.data = None
        place = self.proxy.writer_place(self, at_once=True)
        if place is None:
            self.queue("a writer")
            return
        cycle.backend = self.writer = place
        place.open({"startup": self.packet})

    # Input.

    def _begin(self, data: bytes) -> None:
        """Bytes of a new cycle."""
        scanner = self.scanner
        scanner.begin()
        end = scanner.take(data, 0)
        first = scanner.first
        # Some clients send a COPY's rows right behind it, without waiting to be asked for them.
        eager = end < len(data) and scanner.queried and data[end] in COPY_KINDS
        if end < len(data) and not eager:
            self._inbox = data[end:]
            data = data[:end]
        if first in COPY_KINDS and scanner.whole:
            # Left over from a COPY that has failed.
            if self._inbox:
                self.next_cycle()
            return
        if first == TERMINATE:
            self.close()
            return
        self.last_number = number = self.last_number + 1
        cycle = self.cycle = Cycle(number, data, ended=scanner.ended, query=first == QUERY)
        cycle.copying = eager
        self.route(cycle)

    def _continue(self, cycle: Cycle, data: bytes) -> bool:
        """More bytes of the cycle under way; False if they belong to the next one."""
        if not self.greeted:
            if cycle.backend is None:
                return False
            cycle.backend.data(cycle, data)
            return True
        scanner = self.scanner
        if cycle.ended and not cycle.copying:
            if not (cycle.query and data[:1] and data[0] in COPY_KINDS and scanner.whole):
                return False
            if self._inbox:
                return False
            cycle.copying = True
        elif self._inbox:
            return False
        end = len(data)
        if not (cycle.query and cycle.ended):
            end = self._copy_end(cycle, data) if cycle.copying else scanner.take(data, 0)
            cycle.ended = scanner.ended and not cycle.copying
            if cycle.ended and scanner.queried:
                # From here on it is like a Query alone, rows that follow it included.
                cycle.query = True
                if end < len(data) and data[end] in COPY_KINDS:
                    cycle.copying, end = True, len(data)
        if end < len(data):
            self._inbox += data[end:]
            data = data[:end]
        cycle.add(data)
        if cycle.backend is not None:
            cycle.backend.data(cycle, data)
        return True

    def _copy_end(self, cycle: Cycle, data: bytes) -> int:
        """Where a COPY's input ends: a Sync means nothing before CopyDone or CopyFail."""
        scanner, position = self.scanner, 0
        while position < len(data):
            position = scanner.take(data, position)
            if scanner.last_copy and scanner.ended:
                cycle.copying = False
                return position
            scanner.ended = False
        return position

    def next_cycle(self) -> None:
        """Begin the next cycle with what has come already."""
        inbox, self._inbox = self._inbox, b""
        if self._reading_paused:
            self._resume_reading()
        if not inbox:
            return
        if self._swallowing:
            self.scanner.begin()
            end = self.scanner.take(inbox, 0)
            if self.scanner.ended:
                self._swallowing = False
                self.write(startup.ready(self.memory.status))
            self._inbox = inbox[end:]
            if self._inbox:
                self.next_cycle()
            return
        self._begin(inbox)

    # Where a cycle goes.

    def route(self, cycle: Cycle) -> None:
        """Send a cycle to a node, or wait for one."""
        memory = self.memory
        place = None
        if memory.status == wire.IDLE and cycle.ended and self.proxy.has_readers:
            data = cycle.data
            if data is not None and messages.is_read(data[0], self.scanner, memory.reads):
                place = self.proxy.reader_place(self)
        if place is None:
            ends = bool(self.proxy.barrier.waiting) and self.is_ending
            place = self.proxy.writer_place(self, at_once=ends)
        if place is None:
            self.queue("a writer")
            return
        self.run(cycle, place)

    @property
    def is_ending(self) -> bool:
        """Whether a COMMIT or ROLLBACK of its open transaction is under way."""
        cycle = self.cycle
        return (
            cycle is not None
            and self.memory.status != wire.IDLE
            and cycle.ended
            and cycle.data is not None
            and messages.ends_transaction(b"".join(cycle.data), self.memory.statements)
        )

    def run(self, cycle: Cycle, place: Place) -> None:
        """Send everything that there is of a cycle."""
        if self._reading_paused and not self._inbox:
            # Whoever held this client back is not the one that runs it now.
            self._resume_reading()
        cycle.backend = place
        cycle.from_lsn = place.link.lsn
        place.prepare(cycle)
        data = cycle.data
        assert data is not None
        place.link.outstanding += 1
        place.data(cycle, data[0] if len(data) == 1 else b"".join(data))

    def queue(self, what: str) -> None:
        """Nobody can run it now."""
        self.waits_for = what
        self.queued_since = self.proxy.world.clock.now()
        self.proxy.enqueue(self)

    def go_on(self) -> None:
        """Go on after a restart of the proxy."""
        self.recovering = False
        cycle = self.cycle
        if not self.packet:
            self._timer = self.proxy.world.clock.call_later(STARTUP_TIMEOUT_S, self._too_late)
        elif not self.greeted:
            if cycle is None or not cycle.answered:
                self.start_greeting()
            else:
                self.close()
        elif self.memory.status != wire.IDLE or (cycle is not None and cycle.backend is not None):
            self.proxy.recover(self)
        elif cycle is not None:
            self.queue("a writer")
        elif self._inbox:
            self.next_cycle()

    @property
    def is_run_again(self) -> bool:
        """Whether its client was answered something that holds only once it is run again."""
        cycle = self.cycle
        return self.memory.status != wire.IDLE or (cycle is not None and cycle.answered > 0)

    def try_again(self) -> None:
        """There may be a node now."""
        self.waits_for = ""
        cycle = self.cycle
        if self.closed or cycle is None or cycle.backend is not None or self.recovering:
            return
        if self.greeted:
            self.route(cycle)
        else:
            self.start_greeting()

    def settled(self) -> None:
        """The session is whole again after its node was lost: go on with what has come."""
        if self.closed:
            return
        cycle = self.cycle
        if cycle is None:
            if self._inbox:
                self.next_cycle()
            return
        if self._inbox:
            # What came meanwhile may be the rest of the cycle under way.
            inbox, self._inbox = self._inbox, b""
            if not self._continue(cycle, inbox):
                self._inbox = inbox
            elif self._reading_paused and not self._inbox:
                self._resume_reading()
        if cycle.backend is None and self in self.proxy.barrier.ending:
            self.route(cycle)
        elif cycle.backend is None:
            self.queue("a writer")

    # Output.

    def on_data(self, place: Place, number: int, flag: int, payload: bytes) -> None:
        """Bytes for the client, from the node that runs its cycle."""
        cycle = self.cycle
        if cycle is None or cycle.backend is not place or cycle.number != number:
            if place is self.writer and cycle is None and number:
                # Between cycles: a notice, or why the session ends.
                self.write(payload)
            return
        if cycle.skip:
            payload = self._unsent(cycle, payload)
        if self.memory.status != wire.IDLE or flag != wire.IDLE:
            cycle.note(payload)
        self.transport.write(payload)  # type: ignore[union-attr]
        if flag:
            place.link.outstanding -= 1
            self.cycle = None
            if not self.greeted:
                self._welcome()
            self.memory.finished(cycle, flag)
            if self.proxy.barrier.waiting and not self.recovering:
                self.proxy.barrier.passed(self)
            if self._inbox:
                if not self.recovering:
                    self.next_cycle()
            elif self._reading_paused:
                self._resume_reading()

    def _unsent(self, cycle: Cycle, payload: bytes) -> bytes:
        """The part of an answer made again that the client has not got yet."""
        known = min(cycle.skip, len(payload))
        cycle.skip_crc = crc32(payload[:known], cycle.skip_crc)
        cycle.skip -= known
        if not cycle.skip and cycle.skip_crc != cycle.crc:
            log.error("session %s: an answer made again differs; the session is closed", self.pid)
            self.close()
            return b""
        return payload[known:]

    def _welcome(self) -> None:
        self.greeted = True
        self.packet = self.packet or b"\0"
        self._end_timer()
        self.proxy.welcome(self)

    def write(self, data: bytes) -> None:
        """Send the client something."""
        if self.transport is not None and not self.closed:
            self.transport.write(data)

    def fail_cycle(self, error: PolarlessError) -> None:
        """The cycle under way cannot be settled: an error is all that the client hears of it."""
        cycle, self.cycle = self.cycle, None
        if cycle is None:
            return
        self.write(startup.error_response(error))
        if cycle.ended or cycle.query:
            self.write(startup.ready(self.memory.status))
        else:
            self._swallowing = True
        if self._reading_paused and not self._inbox:
            self._resume_reading()
        if self._inbox and not self.recovering:
            self.next_cycle()

    # The end.

    def refuse(self, error: PolarlessError) -> None:
        """Say why, and close."""
        log.info("client %s: %s", self.peer, error)
        self.proxy.refused += 1
        self.write(startup.error_response(error, severity="FATAL"))
        self.close()

    def close(self) -> None:
        """Close when what was written has been read."""
        if self.transport is not None:
            self.transport.close()

    def _too_late(self) -> None:
        self._timer = None
        if not self.packet:
            log.info("client %s did not say who it is in time", self.peer)
            self.close()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pause_reading(self) -> None:
        if not self._reading_paused and self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.proxy.restarting:
            # What is not read now is read by the next process.
            return
        self._reading_paused = False
        if self.transport is not None and not self.closed:
            self.transport.resume_reading()

    @property
    def is_encrypted(self) -> bool:
        """Whether the client speaks TLS, or is about to."""
        transport = self.transport
        return self._encrypting is not None or (
            transport is not None and transport.get_extra_info("sslcontext") is not None
        )

    def hold(self, is_held: bool) -> None:
        """The node takes no more of this client's input for now, or goes on."""
        if is_held:
            self._pause_reading()
        elif self._reading_paused:
            self._resume_reading()

    def describe(self) -> dict[str, Any]:
        """For `polarless sessions`."""
        cycle = self.cycle
        where = cycle.backend.link.node if cycle is not None and cycle.backend is not None else None
        state = {wire.IDLE: "idle", wire.FAILED: "idle in transaction (aborted)"}.get(
            self.memory.status, "idle in transaction"
        )
        return {
            "pid": self.pid,
            "user": self.parameters.get("user", ""),
            "peer": self.peer,
            "state": "active" if cycle is not None else state,
            "node": where,
            "wait": self.waits_for or None,
        }
