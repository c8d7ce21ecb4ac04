"""What a client says before it may say anything else.

::

    u32    length          counts itself, at most STARTUP_BYTES_MAX
    u32    code            version 3.x, or one of the requests below
    bytes  rest            StartupMessage: name\\0 value\\0 ... \\0
                           CancelRequest: u32 process id, the secret key (4 bytes; 4-256 in 3.2)

`StartupReader` is fed bytes of a peer that nobody knows yet. It holds at most one packet of
`STARTUP_BYTES_MAX` and says what was asked; after a startup message ``rest`` is what came behind
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polarless.errors import CallerMistake, RemoteProtocolError
from polarless.wire.relay import RELAY_CODE

STARTUP_BYTES_MAX: Final = 10_000

SSL_REQUEST: Final = 80877103
GSSENC_REQUEST: Final = 80877104
CANCEL_REQUEST: Final = 80877102
PROTOCOL_3_0: Final = 3 << 16
PROTOCOL_3_2: Final = PROTOCOL_3_0 | 2


@dataclass(frozen=True, slots=True)
class Encryption:
    """SSLRequest or GSSENCRequest: answered with one byte, then the client begins again."""

    gss: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel what session ``pid`` is running, if the key is its own."""

    pid: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Startup:
    """Begin a session. ``protocol`` is what both speak; ``negotiate`` asks for a 'v' message
    that names it and the ``unknown`` protocol options.
    """

    protocol: int
    parameters: dict[str, str]
    negotiate: bool
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy of this cluster, if ``cluster`` is its secret: see `polarless.wire.relay`."""

    cluster: bytes
    name: str


Request = Encryption | Cancel | Startup | Proxy


class StartupReader:
    """The first bytes of a connection."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    @property
    def rest(self) -> bytes:
        """Bytes behind the requests taken so far."""
        return self._data

    def feed(self, data: bytes) -> None:
        """Add what arrived."""
        self._data += data

    def next(self) -> Request | None:
        """The next request, or None until there is one. Raises `RemoteProtocolError` or, for a
        version or user that cannot be served, `CallerMistake`.
        """
        data = self._data
        if len(data) < 4:
            # One look at the first bytes tells TLS and HTTP from PostgreSQL.
            if data[:1] > b"\0":
                raise RemoteProtocolError("this is not the PostgreSQL protocol")
            return None
        length = int.from_bytes(data[:4], "big")
        if length < 8 or length > STARTUP_BYTES_MAX:
            raise RemoteProtocolError(f"invalid length of startup packet: {length}")
        if len(data) < length:
            return None
        self._data = data[length:]
        return parse_startup(data[4:length])


def parse_startup(packet: bytes) -> Request:
    """A whole packet without its length."""
    code = int.from_bytes(packet[:4], "big")
    if code in (SSL_REQUEST, GSSENC_REQUEST):
        if len(packet) != 4:
            raise RemoteProtocolError("an encryption request has a wrong length")
        return Encryption(gss=code == GSSENC_REQUEST)
    if code == RELAY_CODE:
        return Proxy(packet[4:20], packet[20:].decode("utf-8", "replace"))
    if code == CANCEL_REQUEST:
        if not 12 <= len(packet) <= 8 + 256:
            raise RemoteProtocolError("a cancel request has a wrong length")
        return Cancel(int.from_bytes(packet[4:8], "big"), packet[8:])
    if code >> 16 != 3:
        raise CallerMistake(
            f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}: server supports 3.0 "
            "to 3.2",
            sqlstate="0A000",
        )
    parameters = _parameters(packet[4:])
    if not parameters.get("user"):
        raise CallerMistake("no PostgreSQL user name specified in startup packet", sqlstate="28000")
    unknown = tuple(sorted(name for name in parameters if name.startswith("_pq_.")))
    protocol = PROTOCOL_3_2 if code >= PROTOCOL_3_2 else PROTOCOL_3_0
    return Startup(protocol, parameters, protocol != code or bool(unknown), unknown)


def _parameters(raw: bytes) -> dict[str, str]:
    fields = raw.split(b"\0")
    # "a\0b\0\0" splits into a, b, "" and "": the terminator of the list, then nothing.
    if len(fields) < 2 or fields[-2:] != [b"", b""] or len(fields) % 2:
        if raw != b"\0":
            raise RemoteProtocolError("invalid startup packet layout")
        return {}
    names, values = fields[:-2:2], fields[1:-2:2]
    if b"" in names:
        raise RemoteProtocolError("invalid startup packet layout")
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in zip(names, values, strict=True)
    }
