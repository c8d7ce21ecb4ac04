"""The SQL server of a compute node: listeners, greetings, the registry of sessions.

It listens on the node's own port at all times, and on the socket of the cluster's URL, which every
compute node inherits, while the node is the writer.

A connection is a `compute.greeting.Greeting` first, and there is a bound on how many of these there
are. Then the transport is handed to a `Session`. Sessions of roles that may not do everything plan
through a `compute.sql.guard.GuardedPlanner`.

A CancelRequest comes on a connection of its own and is never answered, right or wrong.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from compute.buffer.waits import Suspend, resumed
from compute.greeting import AccessSource, Greeting
from compute.pgwire.startup import PROTOCOL_3_0, Proxy, Startup
from compute.relay import RelayLink
from compute.session.limits import Limits
from compute.session.relay import Relayed
from compute.session.session import Session
from compute.session.stats import ServerStats
from compute.session.waits import Committing, interrupt
from compute.sql.environment import TEMPORARY
from compute.sql.guard import GuardedPlanner
from compute.sql.roles import AccessCache
from compute.sql.temporary import drop_all
from polarless.errors import CallerMistake, Overloaded, PolarlessError

if TYPE_CHECKING:
    from compute.session.host import Planner
    from compute.txn.engine import Engine
    from polarless.kernel.world import Listener, World

log = logging.getLogger(__name__)


class SqlServer:
    """All PostgreSQL connections of one node."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        planner: Planner,
        limits: Limits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        access: AccessSource | None = None,
    ) -> None:
        self.engine = engine
        self.tls = tls
        self.access = access or AccessCache(engine)
        self.planner = planner
        self.limits = limits or Limits()
        self.stats = ServerStats()
        self.clock = world.clock
        self.partial_bytes = 0
        self._network = world.network
        self.random = world.random
        self.secret = world.random.token(16)
        self._sessions: dict[int, Session] = {}
        self._greetings: set[Greeting] = set()
        self._listeners: list[Listener] = []
        self._inherited: Listener | None = None
        self._last_pid = 0
        self._statements_seen = 0
        self._relays: dict[str, RelayLink] = {}
        # The cluster's secret, which proxies show; its node. None: no proxies.
        self.cluster: bytes | None = None
        self.name = ""
        self.spawn: Callable[[Coroutine[Any, Any, None]], None] = self._no_tasks

    # Listening.

    async def listen(self, host: str, port: int) -> int:
        """Accept connections on an address of this node; the port, if 0 was asked for.

        Raises `CallerMistake` for an address that others reach, without TLS and a password.
        """
        if not ipaddress.ip_address(host).is_loopback:
            await self._refuse_unsafe(host)
        listener = await self._network.listen(lambda: Greeting(self), host, port)
        self._listeners.append(listener)
        return listener.port

    async def _refuse_unsafe(self, host: str) -> None:
        secured: bool | None = None
        while secured is None:
            try:
                secured = self.access.current().secured
            except Suspend as suspend:
                await resumed(suspend)
        if self.tls is None or not secured:
            raise CallerMistake(
                f"listening on {host} needs a certificate and a role with a password",
                sqlstate="55000",
                hint="`polarless init` makes the certificate; CREATE ROLE name SUPERUSER LOGIN "
                "PASSWORD '...' the role.",
            )

    async def accept_on(self, fd: int) -> None:
        """Accept connections on a listening socket that this process inherited."""
        if self._inherited is None:
            self._inherited = await self._network.listen(
                lambda: Greeting(self), "", 0, inherited_fd=fd
            )

    def stop_accepting_inherited(self) -> None:
        """Leave the inherited socket to others. Sessions that came by it stay."""
        if self._inherited is not None:
            self._inherited.close()
            self._inherited = None

    def close(self, error: PolarlessError | None = None) -> None:
        """Stop listening and end every session."""
        self.stop_accepting_inherited()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for greeting in list(self._greetings):
            greeting.drop()
        self.close_sessions(
            error
            or PolarlessError(
                "terminating connection due to administrator command", sqlstate="57P01"
            )
        )

    # Sessions.

    def close_sessions(self, error: PolarlessError, *, writers_only: bool = False) -> None:
        """End sessions with a FATAL error; with ``writers_only`` those that have written something.

        A commit under way is answered with 08007 instead: nobody knows how it ends.
        """
        if not writers_only:
            for relay in list(self._relays.values()):
                relay.abort()
        for session in list(self._sessions.values()):
            if writers_only:
                txn = session.txn
                writes = txn is not None and txn.has_writes
                if not writes and type(session.wait) is not Committing:
                    continue
            session.die(error)

    def role_changed(self) -> None:
        """This node may write now, or no more: clients that watch ``in_hot_standby`` are told."""
        for session in self._sessions.values():
            session.report_role()
        for relay in self._relays.values():
            relay.say_hello()
            relay.flush()

    def cancel(self, pid: int, key: bytes) -> None:
        """Interrupt what a session waits for, if the key is its own."""
        session = self._sessions.get(pid)
        if session is None or not hmac.compare_digest(session.key, key):
            return
        self.stats.cancels += 1
        interrupt(
            session, CallerMistake("canceling statement due to user request", sqlstate="57014")
        )

    def forget(self, session: Session) -> None:
        """The session is over."""
        self._sessions.pop(session.pid, None)
        schema = session.settings.show(TEMPORARY)
        if schema and self.engine.writable:
            self.engine.spawn(drop_all(self.engine, schema))

    def open_session(self, startup: Startup, identity: tuple[int, bytes] | None = None) -> Session:
        """A session for a startup message. Raises `Overloaded` 53300, or what is wrong with it."""
        if len(self._sessions) >= self.limits.connections_max:
            self.stats.connections_refused += 1
            raise Overloaded(
                "sorry, too many clients already",
                sqlstate="53300",
                hint=f"This node takes {self.limits.connections_max} connections; "
                "use a connection pool, or another node.",
            )
        if identity is not None:
            pid, key = identity
        else:
            pid = self._last_pid = self._last_pid + 1
            key = self.random.token(4 if startup.protocol == PROTOCOL_3_0 else 32)
        parameters = dict(startup.parameters)
        for name in startup.unknown:
            del parameters[name]
        guard = self._guard(parameters["user"])
        session = Session(
            self, pid=pid, key=key, startup=parameters, planner=guard or self.planner,
            superuser=guard is None,
        )  # fmt: skip
        self._sessions[pid] = session
        self.stats.connections_accepted += 1
        return session

    def _guard(self, user: str) -> Any:
        """A planner that looks at what the user may do, or None for who may do everything."""
        try:
            if not self.access.current().restricted(user):
                return None
        except Suspend:
            pass  # It will know when there is something to plan.
        return GuardedPlanner(self.planner, self.access, user)

    # Proxies.

    def relay(self, proxy: Proxy, transport: asyncio.Transport, rest: bytes) -> None:
        """A proxy has come. One that comes again is rid of what it had here before.

        Raises `CallerMistake` if it does not know the cluster's secret.
        """
        if self.cluster is None or not hmac.compare_digest(proxy.cluster, self.cluster):
            raise CallerMistake("this is not a proxy of this cluster", sqlstate="28000")
        before = self._relays.pop(proxy.name, None)
        if before is not None:
            before.abort()
        link = RelayLink(self, transport, proxy.name, b"")
        self._relays[proxy.name] = link
        transport.set_protocol(link)
        if rest:
            link.data_received(rest)

    def relay_lost(self, relay: RelayLink) -> None:
        """The proxy is gone."""
        if self._relays.get(relay.name) is relay:
            del self._relays[relay.name]

    def greet(self, transport: Relayed, packet: bytes) -> None:
        """A client that comes through a proxy; ``packet`` is its startup packet."""
        greeting = Greeting(self)
        transport.set_protocol(greeting)
        greeting.connection_made(transport)
        greeting.data_received(packet)

    def resume(self, transport: Relayed, parameters: dict[str, str]) -> Session:
        """A session that was on another node before. Raises `Overloaded`."""
        startup = Startup(PROTOCOL_3_0, parameters, False, ())
        session = self.open_session(startup, transport.identity)
        transport.set_protocol(session)
        session.start(transport, b"")
        return session

    def _no_tasks(self, coroutine: Coroutine[Any, Any, None]) -> None:
        coroutine.close()
        raise PolarlessError("this server runs no tasks")

    def client_count(self) -> int:
        """Sessions that did not come through a proxy."""
        relayed = sum(len(relay.sessions) for relay in self._relays.values())
        return max(0, len(self._sessions) - relayed)

    # What `status` shows.

    def gone(self) -> int:
        """How many connections have ended."""
        return self.stats.connections_accepted - len(self._sessions)

    def was_idle(self) -> bool:
        """Whether no statement has come since this was asked the last time."""
        before, self._statements_seen = self._statements_seen, self.stats.statements
        return before == self._statements_seen

    def statistics(self) -> dict[str, Any]:
        """Counters, and how many connections there are."""
        return {
            **self.stats.snapshot(),
            "sessions": len(self._sessions),
            "unauthenticated": len(self._greetings),
            "partial_bytes": self.partial_bytes,
        }

    def sessions(self) -> list[dict[str, Any]]:
        """One record a session."""
        return [describe(session) for session in self._sessions.values()]

    # Greetings.

    def admit(self, greeting: Greeting) -> bool:
        """Whether one more unknown peer may wait for its turn to speak."""
        if len(self._greetings) >= self.limits.unauthenticated_max:
            self.stats.connections_refused += 1
            return False
        self._greetings.add(greeting)
        return True

    def dismiss(self, greeting: Greeting) -> None:
        """It has become a session, or is gone."""
        self._greetings.discard(greeting)


def describe(session: Session) -> dict[str, Any]:
    """What `status` shows of a session."""
    waits_for = getattr(session.txn, "waits_for", None) or session.wait
    if session.wait is not None:
        state = "active"
    elif session.explicit:
        state = "idle in transaction (aborted)" if session.failed else "idle in transaction"
    else:
        state = "idle"
    return {
        "pid": session.pid,
        "user": session.user,
        "database": session.database,
        "application": session.settings.show("application_name"),
        "state": state,
        "wait": waits_for.reason if waits_for is not None else None,
        "query": session.query[:1000],
    }
