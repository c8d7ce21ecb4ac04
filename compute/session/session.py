"""One client connection after its startup: messages in, answers out, one wait at a time.

::

    data_received --> hot: the usual messages, recognised as bytes
                 \\-> FrameReader --> process: one message after the other, until the session has to
                                   wait for something or the input is used up --> one write

Invariants:

* Handlers are plain functions ``(session, body)``. One that raises a `Suspend` has done nothing
  that doing again would do twice; it is called again with the same body when it is woken.
* At most one `Wait` at a time (`compute.session.waits`). While there is one no message is handled;
  input is kept up to a bound, then the socket is not read.
* A commit's answer is written when the engine has acknowledged it, never before.
* What goes wrong in a statement is answered and the session goes on; what goes wrong in the
  framing, or with the node, is FATAL and the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from compute.buffer.waits import Suspend
from compute.pgwire import backend, frontend
from compute.session import hot, transactions, waits
from compute.session.link import Link
from compute.session.messages import HANDLERS
from compute.session.positions import locate
from compute.session.settings import SEVERITIES, Settings, startup_settings
from compute.session.statements import drop_portals
from compute.session.timeouts import Timeouts
from compute.session.waits import Committing
from compute.sql.environment import USUAL, current
from compute.sql.plan import SqlState
from polarless.errors import (
    CommitUnknown,
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    Deadlock,
    Fenced,
    PolarlessError,
    RemoteProtocolError,
    Reroute,
    Retry,
)

if TYPE_CHECKING:
    from compute.session.copying import Copying
    from compute.session.host import Host, Planner
    from compute.session.relay import Relayed
    from compute.session.statements import Portal, Prepared
    from compute.session.transactions import Savepoint
    from compute.txn.transaction import Transaction

log = logging.getLogger(__name__)

# Classes of SQLSTATEs: what is said of a name depends on the catalog.
NAMES_UNKNOWN: Final = ("42", "3F")

# What an error does: skip to the next Sync (the other mode answers ReadyForQuery at once).
EXTENDED = 0

Handler = Callable[["Session", Any], None]


class Session(Link):
    """See the module's docstring; `compute.sql.plan.SessionLike` is the part that plans use."""

    def __init__(
        self,
        host: Host,
        *,
        pid: int,
        key: bytes,
        startup: dict[str, str],
        planner: Planner | None = None,
        superuser: bool = True,
    ) -> None:
        super().__init__(host)
        self.engine = host.engine
        self.planner = planner or host.planner
        self.stats = host.stats
        self.pid = pid
        self.key = key
        # Whether a handler runs, and with it the settings' environment.
        self._handling = False
        self.user = startup["user"]
        self.database = startup.get("database") or self.user
        self.settings = Settings(
            startup_settings(startup),
            fixed={
                "session_authorization": self.user,
                "is_superuser": "on" if superuser else "off",
            },
            report=self._report,
            current=transactions.current_settings(self),
            environment_changed=self._environment_changed,
        )
        self.sql = SqlState()
        # The transaction.
        self.txn: Transaction | None = None
        self.explicit = False
        # The isolation level that the block was begun with, as it was named.
        self.asked_isolation = "read committed"
        self.failed = False
        self.savepoints: list[Savepoint] = []
        self.start_us = 0
        # The protocol.
        self.statements: dict[bytes, Prepared] = {}
        self.statement_bytes = 0
        self.portals: dict[bytes, Portal] = {}
        self.unnamed_portal: Portal | None = None
        self.mode = EXTENDED
        self.skipping = False
        self.query = ""
        # The statements of a Query that are to come, the next one last.
        self.script: list[str] = []
        # Its whole text, and where in it the statement at hand begins.
        self.script_text = ""
        self.script_offset = 0
        # The answer of a statement whose implicit transaction ends with the next Sync.
        self.held = b""
        # The portal of the Execute at hand; the same again if it has a limit, and the limit.
        self.executing: Portal | None = None
        self.fetching: Portal | None = None
        self.fetch_count = 0
        self.copying: Copying | None = None
        # Tokens, see `compute.session.tokens`.
        self.last_commit_lsn = 0
        self.waited_for_lsn = 0
        # The proxy's side, if the client came through one.
        self.relay: Relayed | None = None
        self._doom: PolarlessError | None = None
        # Waiting.
        self.again: tuple[Handler, Any] | None = None
        self.timeouts = Timeouts(self)
        self._processing = False

    # For plans.

    @property
    def now_us(self) -> int:
        """When the transaction began, in microseconds since 1970."""
        now = self.start_us
        if not now:
            now = self.start_us = self.clock.wall_us()
        return now

    def random(self, count: int) -> bytes:
        """So many unpredictable bytes."""
        return self.planner.random(count)

    def _environment_changed(self) -> None:
        """Values are read and printed otherwise: what was planned is planned again."""
        if self._handling:
            current.environment = self.settings.environment or USUAL
        for prepared in getattr(self, "statements", {}).values():
            prepared.forget_plan()
        own = self.sql.catalog if hasattr(self, "sql") else None
        if own is not None:
            own.plans.clear()

    def notice(self, severity: str, sqlstate: str, message: str) -> None:
        """Tell the client something that is not an error."""
        if SEVERITIES[severity] >= self.settings.notices_from:
            self.out.append(backend.notice_response(severity, sqlstate, message))

    @property
    def tied(self) -> str:
        """What of this session cannot be had on another node; nothing for nearly all."""
        advisory = self.sql.advisory
        if advisory is not None and advisory.for_session:
            return "advisory locks"
        if self.portals and any(getattr(portal, "kept", False) for portal in self.portals.values()):
            return "cursors WITH HOLD"
        return ""

    def report_role(self) -> None:
        """The node's role has changed: a ParameterStatus may come at any time."""
        if self.relay is not None:
            return
        self._report("in_hot_standby", self.settings.show("in_hot_standby"))
        if self.wait is None and not self._processing and not self.writes_paused:
            self.flush()

    def _report(self, name: str, value: str) -> None:
        self.out.append(backend.parameter_status(name, value))

    # For transactions.

    def begin(self, isolation: str, *, read_only: bool) -> Transaction:
        """A new transaction of this session."""
        if self.relay is not None:
            return self.relay.begin(isolation, read_only=read_only)
        return self.engine.begin(isolation, read_only=read_only, reuse=self.settings.reuse)

    def doom(self, message: str) -> None:
        """Begin in a transaction block that has failed: its replay gave other answers."""
        self.explicit = self.failed = True
        self._doom = Conflict(message, hint="Run the whole transaction again.")

    def forget_statements(self) -> None:
        """All prepared statements are gone."""
        self.statements.clear()
        self.statement_bytes = 0
        if self.relay is not None:
            self.relay.changed.clear()
            self.relay.cleared = True

    # asyncio's side.

    def start(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Take over a connection whose startup is done; ``rest`` came behind it."""
        self.transport = transport
        transport.set_write_buffer_limits(high=self.limits.unread_bytes_max)
        self.timeouts.idle()
        if rest:
            self.data_received(rest)

    def data_received(self, data: bytes) -> None:
        if self.timeouts.armed:
            self.timeouts.heard()
        reader = self.reader
        if self.wait is None and not self.writes_paused and not self.closing:
            if not reader.buffered and hot.serve(self, data):
                return
            reader.feed(data)
            self.process()
            return
        if self.closing:
            return
        reader.feed(data)
        if self.copying is not None:
            self.copying.on_input()
        elif reader.buffered > self.limits.input_bytes_max:
            self.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closing:
            self.closing = True
            self._end(ConnectionLost("the client closed the connection"))
        self.resume_writing()

    # Messages.

    def process(self) -> None:
        """Handle messages until the session has to wait or there are no more; write the answers."""
        if self._processing:
            return
        self._processing = True
        reader, budget = self.reader, self.limits.messages_per_turn
        try:
            while self.wait is None and not self.writes_paused and not self.closing:
                if self.again is not None:
                    (handler, body), self.again = self.again, None
                    self.guarded(handler, body)
                    continue
                if budget == 0:
                    self.clock.call_soon(self.process)
                    break
                message = reader.next()
                if message is None:
                    break
                budget -= 1
                kind, body = message
                if not self.skipping or kind == frontend.SYNC or kind == frontend.TERMINATE:
                    self.guarded(HANDLERS[kind], body)
                    if len(self.out) > 64:
                        self.flush()
        except RemoteProtocolError as error:
            self.die(error)
        finally:
            self._processing = False
        wait = self.wait
        if wait is None or type(wait) is waits.Working:
            self.flush()
        if wait is None and self.reads_paused and not self.writes_paused:
            self.resume_reading()
        if reader.buffered > 65536 or self.partial_bytes:
            self.account()

    def handle(self, handler: Handler, body: Any) -> None:
        """Handle one thing, write the answer; what else has come gets a turn of its own."""
        self._processing = True
        try:
            self.guarded(handler, body)
        finally:
            self._processing = False
        self._go_on()

    def _go_on(self) -> None:
        wait = self.wait
        if wait is None:
            if (
                self.again is None
                and (self.explicit or self.txn is None)
                and self.reader.is_only_sync()
            ):
                # It only says Ready: one write instead of two, and no client has half an answer.
                self.process()
                return
            self.flush()
            if self.again is not None or self.reader.buffered or self.reads_paused:
                self.clock.call_soon(self.process)
        elif type(wait) is waits.Working:
            self.flush()

    def guarded(self, handler: Handler, body: Any) -> None:
        """Call a handler; park on a `Suspend`, answer an error."""
        before, outer = current.environment, self._handling
        current.environment = self.settings.environment or USUAL
        self._handling = True
        try:
            handler(self, body)
        except Suspend as suspend:
            waits.park(self, suspend, handler, body)
        except PolarlessError as error:
            doubt = self._doubt(error)
            if doubt is not None:
                waits.park(self, doubt, handler, body)
            else:
                self.fail(error)
        except Exception as error:
            self.fail(self.unexpected(error))
        finally:
            current.environment = before
            self._handling = outer

    def _doubt(self, error: PolarlessError) -> Suspend | None:
        """What to wait for before the client may be told that a name means nothing.

        A reader that is expelled and has not heard of it yet plans with an old catalog. Whatever
        takes a snapshot finds that out by itself; this error comes before.
        """
        if self.engine.writable or error.sqlstate[:2] not in NAMES_UNKNOWN:
            return None
        try:
            self.engine.snapshot()
        except Suspend as suspend:
            return suspend
        except PolarlessError:
            pass
        return None

    def fail(self, error: PolarlessError) -> None:
        """The statement at hand failed: answer, and set the transaction's state."""
        if isinstance(error, Fenced | CommitUnknown):
            self.die(error)
        else:
            self._answer_error(error)

    def _answer_error(self, error: PolarlessError) -> None:
        relay = self.relay
        if relay is not None:
            if self._may_run_again(error):
                relay.reroute()
            relay.completed(self.txn.snapshot if self.txn is not None else 0)
        if self._doom is not None and error.sqlstate == "25P02":
            error, self._doom = self._doom, None
        self.stats.errors += 1
        position = locate(error, self.query)
        error.position = position + self.script_offset if position is not None else None
        self.head = self.held = b""
        self.executing = self.fetching = self.copying = None
        self.script.clear()
        self.again = None
        try:
            transactions.abort(self)
        except Exception as second:
            self.die(self.unexpected(second))
            return
        self.out.append(backend.error_response(error))
        if self.mode == EXTENDED:
            self.skipping = True
            self.timeouts.statement_over()
        else:
            self.ready()

    def _may_run_again(self, error: PolarlessError) -> bool:
        """Whether a proxy should run the cycle again, which has done nothing so far.

        It needs the writer; or this node was out of the pool for a moment, and with it went the
        snapshot of a statement that is a transaction of its own.
        """
        if isinstance(error, Reroute):
            return True
        if self.engine.writable:
            return isinstance(error, Conflict) and not isinstance(error, Deadlock)
        return isinstance(error, Retry) and not isinstance(error, DeadlineExceeded)

    def ready(self) -> None:
        """The end of a Query or Sync: say what state the transaction is in."""
        self.mode = EXTENDED
        self.script_offset = 0
        self.timeouts.statement_over()
        if self.failed:
            self.out.append(backend.READY_FAILED)
        elif self.explicit:
            self.out.append(backend.READY_IN_TRANSACTION)
        else:
            if self.portals:
                drop_portals(self, committed=False)
            self.unnamed_portal = None
            self.settings.commit()
            self.out.append(backend.READY_IDLE)
        self.timeouts.idle()

    # Commits.

    def on_committed(self, lsn: int | None, error: PolarlessError | None) -> None:
        """The engine's acknowledgement; never raises into the engine."""
        wait = self.wait
        if type(wait) is not Committing:
            return
        self.wait = None
        if self.closing:
            self.txn = None
            return
        if error is None:
            if lsn is not None:
                self.last_commit_lsn = lsn
                if self.txn is not None:
                    self.settings.own_reuse.note(self.txn.cts)
            transactions.end(self, committed=True)
            self.guarded(waits.call_then, (wait.then, wait.answer))
        else:
            self.txn = None
            self.explicit = False
            if isinstance(error, CommitUnknown) and self.engine.fenced is None:
                # The disk is full, and the node lives: so does the session.
                self._answer_error(error)
            else:
                self.fail(unknown_commit() if isinstance(error, Fenced | ConnectionLost) else error)
        if not self._processing:
            self._go_on()

    # The end.

    def die(self, error: PolarlessError) -> None:
        """Say why, FATAL, and close. A commit under way has an unknown end: 08007."""
        if self.closing:
            return
        if type(self.wait) is Committing:
            error = unknown_commit()
        if self.relay is not None and (
            isinstance(error, Fenced | CommitUnknown) or error.sqlstate == "57P01"
        ):
            # The proxy goes on elsewhere, and asks what became of the commit.
            self.closing = True
            self.relay.lost()
            self._end(error)
            return
        if isinstance(error, RemoteProtocolError):
            self.stats.protocol_errors += 1
            log.warning("session %s: closed: %s", self.pid, error)
        self.out.append(backend.error_response(error, severity="FATAL"))
        self.flush()
        self.close(error)

    def close(self, error: PolarlessError) -> None:
        """Close the connection when what was written has been read, or a little later."""
        self.closing = True
        self.close_transport()
        self._end(error)

    def _end(self, error: PolarlessError) -> None:
        self.timeouts.cancel()
        self.again = None
        self.script.clear()
        self.drop_input()
        waits.abandon(self, error)
        if self.sql.advisory is not None:
            self.sql.advisory.end_all()
        self.host.forget(self)

    def roll_back(self) -> None:
        """End the transaction; used when nobody is there to be told of an error."""
        try:
            transactions.rollback(self)
        except Exception as error:
            self.unexpected(error)

    def unexpected(self, error: BaseException) -> PolarlessError:
        """A mistake of ours: the log gets all of it, the client a short message."""
        log.error(
            "session %s: %s in %.200r", self.pid, type(error).__name__, self.query, exc_info=error
        )
        return PolarlessError(
            f"internal error: {type(error).__name__}",
            hint="The log of the node has the details. The session can go on.",
        )


def unknown_commit() -> CommitUnknown:
    """The node went away between a COMMIT and its acknowledgement."""
    return CommitUnknown(
        "the node lost its role while the commit was under way; it may have taken effect",
        hint="Connect again and look whether its rows are there before you run it again.",
    )
