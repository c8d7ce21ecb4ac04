"""A connection before its session: encryption, the startup packet, who it is.

::

    SSLRequest -> 'S', TLS; GSSENCRequest -> 'N'; CancelRequest -> done, never answered
    StartupMessage -> trust | SCRAM-SHA-256 -> a session takes the transport over

It may send at most one startup packet of 10,000 bytes and as much for its password, all within
``startup_timeout_s``.

Who is let in:

* No role has a password: who comes from this host, under any name, and may do everything. Nobody
  from elsewhere.
* Some role has one: roles that may log in, with their password; from elsewhere over TLS only. What
  comes through a proxy of this cluster was encrypted, or not, as the proxy saw fit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from typing import TYPE_CHECKING, Protocol

from compute.buffer.waits import Suspend
from compute.pgwire import backend, scram
from compute.pgwire.startup import Cancel, Encryption, Proxy, Startup, StartupReader
from compute.session.relay import Relayed
from polarless.errors import CallerMistake, PolarlessError, RemoteProtocolError

if TYPE_CHECKING:
    from compute.session.limits import Limits
    from compute.session.session import Session
    from compute.session.stats import ServerStats
    from compute.sql.roles import Access
    from polarless.kernel.world import Clock, Random, Timer

log = logging.getLogger(__name__)

# An SSLRequest and a GSSENCRequest, in either order.
ENCRYPTION_REQUESTS_MAX = 2
PASSWORD_BYTES_MAX = 10_000
_NONCE_BYTES = 18


class AccessSource(Protocol):
    """`compute.sql.roles.AccessCache` is one."""

    def current(self) -> Access:
        """May raise a `Suspend`."""


class Server(Protocol):
    """What a greeting needs of the SQL server."""

    clock: Clock
    limits: Limits
    stats: ServerStats
    access: AccessSource
    random: Random
    tls: ssl.SSLContext | None
    # Makes what those are asked who do not exist look like what those are who do.
    secret: bytes

    def admit(self, greeting: Greeting) -> bool: ...
    def dismiss(self, greeting: Greeting) -> None: ...
    def cancel(self, pid: int, key: bytes) -> None: ...
    def relay(self, proxy: Proxy, transport: asyncio.Transport, rest: bytes) -> None: ...
    def open_session(
        self, startup: Startup, identity: tuple[int, bytes] | None = None
    ) -> Session: ...


class Greeting(asyncio.Protocol):
    """See the module's docstring."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = StartupReader()
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._encryption_requests = 0
        self._encrypting: asyncio.Task[None] | None = None
        self._startup: Startup | None = None
        self._exchange: scram.Exchange | None = None
        self._began = False
        # What came behind the startup packet.
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        if not self._server.admit(self):
            log.info("connection refused: too many have not said who they are")
            self._transport.abort()  # type: ignore[union-attr]
            return
        server = self._server
        self._timer = server.clock.call_later(server.limits.startup_timeout_s, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._timer is None:
            return
        if self._startup is None:
            self._reader.feed(data)
        else:
            self._rest += data
        if self._encrypting is None:
            self._go_on()

    def drop(self) -> None:
        """Close without a word."""
        self._over()
        if self._transport is not None:
            self._transport.close()

    def _go_on(self) -> None:
        try:
            if self._startup is None:
                self._requests()
            elif self._exchange is not None:
                self._passwords()
            elif len(self._rest) > PASSWORD_BYTES_MAX:
                raise RemoteProtocolError("too much came before the session began")
        except PolarlessError as error:
            self._refuse(error)

    def _requests(self) -> None:
        transport = self._transport
        assert transport is not None
        while (request := self._reader.next()) is not None:
            if isinstance(request, Encryption):
                self._encryption_requests += 1
                if self._encryption_requests > ENCRYPTION_REQUESTS_MAX:
                    raise RemoteProtocolError("too many encryption requests")
                if request.gss or self._server.tls is None or isinstance(transport, Relayed):
                    transport.write(backend.ENCRYPTION_REFUSED)
                    continue
                if self._reader.rest:
                    # It would be taken for what came encrypted.
                    raise RemoteProtocolError("unencrypted data behind an SSL request")
                transport.write(backend.ENCRYPTION_ACCEPTED)
                self._encrypting = asyncio.get_running_loop().create_task(self._encrypt())
                return
            if isinstance(request, Cancel):
                self._server.cancel(request.pid, request.key)
                self.drop()
                return
            if isinstance(request, Proxy):
                self._server.relay(request, transport, self._reader.rest)
                self._over()
                return
            self._startup, self._rest = request, self._reader.rest
            self._authenticate()
            return

    # Encryption.

    async def _encrypt(self) -> None:
        server = self._server
        assert server.tls is not None
        assert self._transport is not None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                server.tls,
                server_side=True,
                ssl_handshake_timeout=server.limits.startup_timeout_s,
            )
        except OSError as error:  # ssl.SSLError is one
            log.info("connection dropped in its TLS handshake: %s", error)
            self.drop()
            return
        if transport is None or self._timer is None:
            self.drop()
            return
        self._transport = transport
        self._encrypting = None
        # What came behind the handshake waited: it may only be answered encrypted.
        self._go_on()

    # Who it is.

    def _authenticate(self, error: PolarlessError | None = None) -> None:
        """Ask, if need be. Called again when the roles had to be fetched."""
        if self._timer is None:
            return
        try:
            if error is not None:
                raise error
            self._ask()
        except Suspend as suspend:
            try:
                suspend.subscribe(self._authenticate)
            except PolarlessError as second:
                self._refuse(second)
        except PolarlessError as refused:
            self._refuse(refused)

    def _ask(self) -> None:
        server, transport, startup = self._server, self._transport, self._startup
        assert transport is not None
        assert startup is not None
        access = server.access.current()
        near = from_this_host(transport)
        if not access.secured:
            if not near:
                raise CallerMistake(
                    "connections from other hosts are refused while no role has a password",
                    sqlstate="28000",
                    hint="On the server: CREATE ROLE name SUPERUSER LOGIN PASSWORD '...'.",
                )
            self._welcome([])
            return
        relayed = isinstance(transport, Relayed)
        if not near and not relayed and transport.get_extra_info("sslcontext") is None:
            raise CallerMistake(
                "connections from other hosts must be encrypted",
                sqlstate="28000",
                hint="Connect with sslmode=require; `polarless init` makes the certificate.",
            )
        user = startup.parameters["user"]
        role = access.roles.get(user)
        verifier = None
        if role is not None and role.login and role.verifier:
            verifier = scram.parse_verifier(role.verifier)
        nonce = server.random.token(_NONCE_BYTES)
        self._exchange = scram.Exchange(user, verifier, nonce, server.secret)
        head = self._negotiation(startup)
        names = scram.MECHANISM.encode() + b"\0\0"
        transport.write(b"".join(head) + backend.authentication(10, names))
        self._passwords()

    def _passwords(self) -> None:
        """SASLInitialResponse, then SASLResponse."""
        exchange, transport = self._exchange, self._transport
        assert exchange is not None
        assert transport is not None
        while (body := self._password()) is not None:
            if not self._began:
                self._began = True
                mechanism, _, rest = body.partition(b"\0")
                if mechanism != scram.MECHANISM.encode():
                    raise RemoteProtocolError("client selected an invalid SASL mechanism")
                if int.from_bytes(rest[:4], "big") != len(rest) - 4:
                    raise RemoteProtocolError("malformed SASL message")
                transport.write(backend.authentication(11, exchange.first(rest[4:])))
                continue
            final = exchange.final(body)
            self._exchange = None
            self._welcome([backend.authentication(12, final)])
            return

    def _password(self) -> bytes | None:
        """The body of the next message 'p', if it is there."""
        data = self._rest
        if len(data) < 5:
            return None
        length = int.from_bytes(data[1:5], "big")
        if data[0] != ord("p") or not 4 <= length <= PASSWORD_BYTES_MAX:
            raise RemoteProtocolError("expected an answer to the authentication request")
        if len(data) < 1 + length:
            return None
        self._rest = data[1 + length :]
        return data[5 : 1 + length]

    def _negotiation(self, startup: Startup) -> list[bytes]:
        if not startup.negotiate:
            return []
        return [backend.negotiate_protocol_version(startup.protocol, startup.unknown)]

    def _welcome(self, answer: list[bytes]) -> None:
        """It is in: the session begins."""
        startup, transport = self._startup, self._transport
        assert startup is not None
        assert transport is not None
        session = self._server.open_session(startup, getattr(transport, "identity", None))
        self._over()
        if not answer:
            answer = self._negotiation(startup)
        answer.append(backend.AUTHENTICATION_OK)
        answer += [backend.parameter_status(*pair) for pair in session.settings.reported()]
        answer += [backend.backend_key_data(session.pid, session.key), backend.READY_IDLE]
        transport.write(b"".join(answer))
        transport.set_protocol(session)
        session.start(transport, self._rest)

    # Its end.

    def _refuse(self, error: PolarlessError) -> None:
        peer = self._transport.get_extra_info("peername") if self._transport else None
        if isinstance(error, RemoteProtocolError):
            self._server.stats.protocol_errors += 1
        log.info("connection from %s refused: %s", peer, error)
        if self._transport is not None:
            self._transport.write(backend.error_response(error, severity="FATAL"))
        self.drop()

    def _too_late(self) -> None:
        self._timer = None
        log.info("connection dropped: it did not say who it is in time")
        self.drop()

    def _over(self) -> None:
        self._server.dismiss(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def from_this_host(transport: asyncio.BaseTransport) -> bool:
    """Whether the client is on this host. One that nobody can name is not."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, str):
        # Through a proxy: the same tuple, printed.
        host = peer.split("'")[1] if peer.count("'") > 1 else peer
    else:
        host = peer[0] if peer else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
