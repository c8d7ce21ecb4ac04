"""A client's first packet, and the few messages that the proxy itself says to clients. A core."""

from __future__ import annotations

from typing import Final, NamedTuple

from polarless.errors import PolarlessError, RemoteProtocolError

STARTUP_BYTES_MAX: Final = 10_000
SSL_CODE: Final = 80877103
ENCRYPTION_CODES: Final = frozenset({SSL_CODE, 80877104})
CANCEL_CODE: Final = 80877102


class Packet(NamedTuple):
    """A first packet: its code, all of its bytes, and what came behind it."""

    code: int
    whole: bytes
    rest: bytes


def first_packet(data: bytes) -> Packet | None:
    """The packet, or None until it is whole. Raises `RemoteProtocolError`."""
    if len(data) < 4:
        if data[:1] > b"\0":
            raise RemoteProtocolError("this is not the PostgreSQL protocol")
        return None
    length = int.from_bytes(data[:4], "big")
    if not 8 <= length <= STARTUP_BYTES_MAX:
        raise RemoteProtocolError(f"invalid length of startup packet: {length}")
    if len(data) < length:
        return None
    return Packet(int.from_bytes(data[4:8], "big"), data[:length], data[length:])


def parameters(packet: bytes) -> dict[str, str]:
    """The names and values of a startup packet; protocol options (``_pq_.``) are left out."""
    fields = packet[8:].split(b"\0")
    found = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in zip(fields[::2], fields[1::2])
        if name and not name.startswith(b"_pq_.")
    }
    found.setdefault("user", "")
    return found


def error_response(error: PolarlessError, *, severity: str = "ERROR") -> bytes:
    """An ErrorResponse."""
    fields = {
        "S": severity, "V": severity, "C": error.sqlstate, "M": str(error),
        "H": getattr(error, "hint", None) or "",
    }  # fmt: skip
    body = b"".join(
        name.encode() + value.encode("utf-8", "replace").replace(b"\0", b"") + b"\0"
        for name, value in fields.items()
        if value
    )
    return b"E" + (len(body) + 5).to_bytes(4, "big") + body + b"\0"


def ready(status: int) -> bytes:
    """A ReadyForQuery."""
    return b"Z\0\0\0\x05" + bytes((status,))
