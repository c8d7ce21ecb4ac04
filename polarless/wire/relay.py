"""What a proxy and a compute node say to each other: many clients' sessions over one connection.

    byte  0            4            8          12       13      14
          +------------+------------+----------+--------+-------+---------+
          | bytes u32  | session u32| cycle u32| kind   | flag  | payload |
          +------------+------------+----------+--------+-------+---------+

The connection begins like a PostgreSQL one, with a startup packet whose code is `RELAY_CODE`: the
cluster's secret, then the proxy's name. The node answers with a HELLO frame.

A *cycle* is what a client sends up to the next point where it waits for ReadyForQuery: one Query,
or everything up to a Sync. A session has at most one cycle under way. Its number, added to the
session's transaction base, is the transaction id that a commit in it carries into the log.

From the proxy:

    OPEN      {"startup": packet, "pid", "key", "base", "peer"}         a client that has just come
              {"resume": parameters, "settings", "pid", "key", "base", "peer"}
    DATA      bytes of the client, belonging to this cycle
    REPLAY    {"snapshots": [...], "start_us"}    for the statements of the cycle that comes next
    SETTINGS  {name: value}                       all that differ from the defaults
    DOOM      why                                 the next cycle is in a failed transaction
    SEEN      {"seen"}                            the session's last commit or read; -1: unknown
    PAUSE, CONTINUE                               the client does not read, reads again
    CANCEL    {"pid", "key"}                      session 0: whichever has this pid
    VERDICT   {"id", "xid", "from_lsn"}           session 0
    CLOSE                                         the client is gone

From the node:

    HELLO     {"node", "epoch", "writable", "lsn"}
    DATA      bytes for the client; flag: the state in the ReadyForQuery at their end, or 0
    META      before a DATA: what has to survive the node, see `Meta`
    COPYING   the cycle goes on with what the client sends now
    REROUTE   nothing was done: this cycle needs the writer
    LOST      the session is over without a word to its client: another node goes on with it
    PAUSE, CONTINUE                               take no more input from this client, go on
    VERDICT   {"id", "state": "committed" | "absent" | "unknown", "lsn", "note"}
    CLOSE                                         the session has said good-bye
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypedDict

import msgpack

from polarless.errors import RemoteProtocolError

# As a protocol version in a startup packet, beside those of SSLRequest and its like.
RELAY_CODE: Final = (1234 << 16) | 7331
HEADER: Final = struct.Struct("<IIIBB")
HEADER_BYTES: Final = HEADER.size
PAYLOAD_BYTES_MAX: Final = 256 * 1024 * 1024

OPEN: Final = 1
DATA: Final = 2
REPLAY: Final = 3
SETTINGS: Final = 4
PAUSE: Final = 5
CONTINUE: Final = 6
CANCEL: Final = 7
VERDICT: Final = 8
CLOSE: Final = 9
HELLO: Final = 10
META: Final = 11
COPYING: Final = 12
REROUTE: Final = 13
LOST: Final = 14
DOOM: Final = 15
SEEN: Final = 16

IDLE: Final = 0x49
IN_TRANSACTION: Final = 0x54
FAILED: Final = 0x45

CYCLES_MAX: Final = 1 << 32
COMMITTED: Final = "committed"
ABSENT: Final = "absent"
UNKNOWN: Final = "unknown"


class Meta(TypedDict, total=False):
    """What a session must be given on another node, beside the client's own messages.

    ``prepared``: name -> the body of its Parse message, None if it was closed. ``cleared``: all
    earlier ones are gone. ``settings``: all that differ from the defaults. ``snapshots``: of the
    statements of this cycle, in order. ``start_us``: when the transaction began. ``tied``: what of
    it is lost with the node ("" for nothing), so that it has to end then. ``seen``: the newest
    timestamp that a session without strong reads has committed or read.
    """

    prepared: dict[bytes, bytes | None]
    cleared: bool
    settings: dict[str, str]
    snapshots: list[int]
    start_us: int
    tied: str
    seen: int


class Frame(NamedTuple):
    """One frame, decoded."""

    session: int
    cycle: int
    kind: int
    flag: int
    payload: bytes


class FrameBuffer:
    """Cuts a stream into frames. A payload in one piece is never copied twice."""

    __slots__ = ("_rest", "_wanted")

    def __init__(self) -> None:
        self._rest = bytearray()
        # How many bytes the first frame in ``_rest`` has, as far as that is known.
        self._wanted = 0

    def take(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now. Raises `RemoteProtocolError` for an impossible length."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._wanted:
                return
            data = bytes(rest)
            rest.clear()
        position, end = 0, len(data)
        unpack = HEADER.unpack_from
        self._wanted = HEADER_BYTES
        while end - position >= HEADER_BYTES:
            size, session, cycle, kind, flag = unpack(data, position)
            if size > PAYLOAD_BYTES_MAX:
                raise RemoteProtocolError(f"relay: a frame of {size} bytes")
            stop = position + HEADER_BYTES + size
            if stop > end:
                self._wanted = HEADER_BYTES + size
                break
            payload = data[position + HEADER_BYTES : stop]
            position = stop
            yield Frame(session, cycle, kind, flag, payload)
        if position < end:
            rest += data[position:] if position else data


def frame(
    kind: int, session: int = 0, cycle: int = 0, payload: bytes = b"", flag: int = 0
) -> bytes:
    """One frame's bytes."""
    return HEADER.pack(len(payload), session, cycle, kind, flag) + payload


def pack(value: Any) -> bytes:
    """A payload that is not a client's bytes."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(payload: bytes) -> Any:
    """Raises `RemoteProtocolError`."""
    try:
        return msgpack.unpackb(payload, use_list=True, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"relay: a payload cannot be decoded: {error}") from None


def fields(payload: bytes, **types: type) -> dict[str, Any]:
    """A payload that is a map with at least these fields. Raises `RemoteProtocolError`."""
    found = unpack(payload)
    if type(found) is not dict:
        raise RemoteProtocolError("relay: a payload is no map")
    for name, wanted in types.items():
        if type(found.get(name)) is not wanted:
            raise RemoteProtocolError(f"relay: field {name!r} is not {wanted.__name__}")
    return found


def texts(value: Any) -> dict[str, str]:
    """A map of names to texts. Raises `RemoteProtocolError`."""
    if type(value) is not dict or not all(
        type(one) is str for pair in value.items() for one in pair
    ):
        raise RemoteProtocolError("relay: no map of texts")
    return value


def positions(value: Any) -> list[int]:
    """A list of numbers that are not negative. Raises `RemoteProtocolError`."""
    if type(value) is not list or not all(type(one) is int and one >= 0 for one in value):
        raise RemoteProtocolError("relay: no list of numbers")
    return value


def hello_packet(cluster: bytes, name: str) -> bytes:
    """The first packet of a proxy."""
    body = RELAY_CODE.to_bytes(4, "big") + cluster + name.encode()
    return (len(body) + 4).to_bytes(4, "big") + body
