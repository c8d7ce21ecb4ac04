"""Valid conversations of every port, and ways to damage them.

A conversation is a list of messages, as bytes, each with the place of its length word. `damaged`
draws what is sent instead: cut, flipped, with another length, repeated, out of order, noise.
`converse` sends it to a real port and reads until the other side has hung up.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack
from hypothesis import strategies as st

from memory_pool.fabric import verbs
from polarless.net import rpc
from polarless.wire import relay

# Far more than any answer takes; a peer that has said its last word must not be kept for longer.
HANG_UP_S: Final = 10.0
# How long an answer is waited for before we say that this is all: half of what was said is no
# question, and gets none. A late answer is read, too, unless the other side drops it then.
LINGER_S: Final = 0.01
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


class Message(NamedTuple):
    """Its bytes, and where its length is: (offset, format), or None."""

    data: bytes
    length: tuple[int, str] | None = None


class Port(NamedTuple):
    """Where it is and what may be said there."""

    name: str
    address: tuple[str, int]
    conversations: list[list[Message]]


# ------------------------------------------------------------------------------------ PostgreSQL


def pg(kind: bytes, body: bytes) -> Message:
    """A message with a type."""
    return Message(kind + struct.pack("!I", len(body) + 4) + body, (1, "!I"))


def packet(code: int, body: bytes) -> Message:
    """A startup packet."""
    return Message(struct.pack("!II", len(body) + 8, code) + body, (0, "!I"))


STARTUP: Final = packet(3 << 16, b"user\0fuzz\0database\0fuzz\0client_encoding\0UTF8\0\0")
SYNC: Final = pg(b"S", b"")


def postgres() -> list[list[Message]]:
    """What drivers say."""
    query = pg(b"Q", b"select id, v from fuzz where id < 3\0")
    prepared = [
        pg(b"P", b"s\0select v, id from fuzz where id = $1\0" + struct.pack("!HI", 1, 23)),
        pg(b"D", b"Ss\0"),
        pg(
            b"B",
            b"p\0s\0"
            + struct.pack("!HhH", 1, 1, 1)
            + struct.pack("!iI", 4, 1)
            + struct.pack("!Hhh", 2, 0, 1),
        ),
        pg(b"D", b"Pp\0"),
        pg(b"E", b"p\0" + struct.pack("!I", 1)),
        pg(b"H", b""),
        pg(b"C", b"Pp\0"),
        SYNC,
    ]
    copied = [
        pg(b"Q", b"copy fuzz_in from stdin\0"),
        pg(b"d", b"1\tone\n2\ttwo\n"),
        pg(b"c", b""),
        pg(b"Q", b"copy fuzz_in from stdin (format binary)\0"),
        pg(b"d", b"PGCOPY\n\xff\r\n\0" + struct.pack("!IIHiIi", 0, 0, 2, 4, 7, 1) + b"x"),
        pg(b"f", b"no more\0"),
    ]
    return [
        [STARTUP, query, *prepared, pg(b"X", b"")],
        [STARTUP, *copied, query],
        [packet(80877103, b""), packet(80877104, b""), STARTUP, query],
        [packet(80877102, struct.pack("!I", 7) + b"key!")],
        [packet((3 << 16) + 2, b"user\0fuzz\0_pq_.option\0on\0options\0-c x.y=1\0\0"), query],
    ]


def relayed(cluster: bytes) -> list[list[Message]]:
    """What a proxy says to a compute node."""

    def frame(kind: int, payload: bytes = b"", session: int = 1, cycle: int = 1) -> Message:
        return Message(relay.frame(kind, session, cycle, payload), (0, "<I"))

    hello = Message(relay.hello_packet(cluster, "fuzz"), (0, "!I"))
    opening = {
        "startup": STARTUP.data, "pid": 7, "key": b"key!", "base": 1 << 62, "peer": "'127.0.0.1'",
    }  # fmt: skip
    query = pg(b"Q", b"select v from fuzz where id = 1\0").data
    return [
        [
            hello,
            frame(relay.OPEN, relay.pack(opening)),
            frame(relay.SETTINGS, relay.pack({"application_name": "fuzz"})),
            frame(relay.DATA, query),
            frame(relay.PAUSE),
            frame(relay.CONTINUE),
            frame(relay.DATA, query, cycle=2),
            frame(relay.CLOSE),
        ],
        [
            hello,
            frame(
                relay.OPEN,
                relay.pack(
                    {
                        "resume": {"user": "fuzz"},
                        "settings": {},
                        "pid": 9,
                        "key": b"key!",
                        "base": 1 << 61,
                        "peer": "?",
                    }
                ),
            ),
            frame(relay.REPLAY, relay.pack({"snapshots": [1], "start_us": 5})),
            frame(relay.DOOM, b"why"),
            frame(relay.DATA, query),
            frame(relay.CANCEL, relay.pack({"pid": 7, "key": b"key?"}), session=0),
            frame(relay.VERDICT, relay.pack({"id": 1, "xid": 1 << 62, "from_lsn": 0}), session=0),
            frame(relay.REPLAY, relay.pack({"snapshots": [1]}), session=0),
        ],
    ]


# ------------------------------------------------------------------------------------------ rpc


def rpc_frame(*message: Any) -> Message:
    """A frame of `polarless.net.rpc`."""
    body = msgpack.packb(message)
    return Message(struct.pack("<I", len(body)) + body, (0, "<I"))


def hello(cluster: bytes, role: str, **fields: Any) -> Message:
    """The first frame."""
    return rpc_frame(
        rpc.HELLO, cluster, {"version": 1, "node": "fuzz", "role": role, "epoch": 0, **fields}
    )


ODD_VALUES: Final = st.recursive(
    st.sampled_from(
        [None, True, 0, 1, -1, 2**31, 2**63, 2**64 - 1, -(2**63), 1.5, float("nan"), "", "x", b""]
    )
    | st.binary(max_size=40)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


class Calls(NamedTuple):
    """Whoever says ``hello`` may call these with anything, and nothing comes of it.

    By name, with the number of arguments that is right. Not here: what stops or fences a node, as
    the cluster's secret allows it.
    """

    hello: list[Message]
    methods: dict[str, int]
    notifications: dict[str, int]


def calls_with_anything(calls: Calls) -> st.SearchStrategy[list[bytes]]:
    """A greeting and calls whose arguments may be of any type and number."""
    call = _with_arguments({**calls.methods, "": 0}).flatmap(
        lambda named: st.integers(1, 5).map(
            lambda number: rpc_frame(rpc.CALL, number, named[0], named[1]).data
        )
    )
    # These and other frames end the connection, so they come last.
    note = _with_arguments({**calls.notifications, "x": 0}).map(
        lambda named: rpc_frame(rpc.NOTIFY, named[0], named[1]).data
    )
    other = st.lists(ODD_VALUES).map(lambda values: rpc_frame(*values).data)
    return st.tuples(st.lists(call, max_size=6), st.lists(note | other, max_size=2)).map(
        lambda drawn: [message.data for message in calls.hello] + drawn[0] + drawn[1]
    )


def _with_arguments(names: dict[str, int]) -> st.SearchStrategy[tuple[str, list[Any]]]:
    """A method and its arguments: mostly the right number of them, and often numbers."""
    value = st.integers(0, 20) | ODD_VALUES

    def arguments(name: str) -> st.SearchStrategy[tuple[str, list[Any]]]:
        right = st.lists(value, min_size=names[name], max_size=names[name])
        return st.tuples(st.just(name), right | right | st.lists(value, max_size=9))

    return st.sampled_from(sorted(names)).flatmap(arguments)


# --------------------------------------------------------------------------------------- fabric


def fabric(cluster: bytes) -> list[list[Message]]:
    """What the active side of the fabric says. Its keys open nothing."""
    greeting = Message(verbs.pack_greeting(cluster, "fuzz", 1), (32, "<H"))

    def request(op: int, length: int, data: bytes = b"", flags: int = 0) -> Message:
        asked = verbs.Request(op, flags, 1, 1, b"k" * 16, 64, length, 1, 2)
        return Message(verbs.pack_request(asked) + data, (36, "<I"))

    return [
        [
            greeting,
            request(verbs.READ, 16384),
            request(verbs.WRITE, 64, bytes(64), verbs.GUARDED),
            request(verbs.CAS, 0),
            request(verbs.FETCH_ADD, 0),
            request(verbs.WRITE, 8, bytes(8)),
        ]
    ]


# ----------------------------------------------------------------------------------------- HTTP


def http(token: str) -> list[list[Message]]:
    """What may be asked of control, and nothing that it would do."""

    def ask(method: str, path: str, body: str = "", *, with_token: bool = True) -> Message:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        if with_token:
            head += f"Authorization: Bearer {token}\r\n"
        return Message(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    chunked = (
        f"POST /scale HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n5\r\n[1,2]\r\n0\r\n\r\n"
    )
    return [
        [ask("GET", "/livez", with_token=False), ask("GET", "/status"), ask("GET", "/nodes/x")],
        [ask("POST", "/scale", '{"rows": 1}'), ask("POST", "/autoscale", '{"ro_min": "x"}')],
        [ask("POST", "/failover", '{"to": 5}'), ask("POST", "/scale", '{"ro": "x"}')],
        [Message(chunked.encode()), ask("GET", "/events")],
    ]


# --------------------------------------------------------------------------------------- damage


@st.composite
def damaged(draw: st.DrawFn, conversations: Sequence[list[Message]]) -> list[bytes]:
    """One of the conversations with up to four damages, or only noise."""
    messages = list(draw(st.sampled_from(conversations)))
    chunks = [message.data for message in messages]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(chunks) - 1))
        data = chunks[at]
        kind = draw(st.sampled_from(["flip", "cut", "length", "noise", "twice", "swap", "only"]))
        if kind == "flip" and data:
            place = draw(st.integers(0, len(data) - 1))
            bit = 1 << draw(st.integers(0, 7))
            chunks[at] = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        elif kind == "cut":
            chunks[at] = data[: draw(st.integers(0, len(data)))]
        elif kind == "length" and at < len(messages):
            chunks[at] = _with_length(draw, data, messages[at].length)
        elif kind == "noise":
            chunks.insert(at, draw(st.binary(max_size=200)))
        elif kind == "twice":
            chunks.insert(at, data)
        elif kind == "swap":
            chunks[at], chunks[-1] = chunks[-1], chunks[at]
        elif kind == "only":
            chunks = chunks[: at + 1]
    return chunks


def _with_length(draw: st.DrawFn, data: bytes, length_at: tuple[int, str] | None) -> bytes:
    place, form = length_at or (0, "<I")
    size = struct.calcsize(form)
    if len(data) < place + size:
        return data
    (length,) = struct.unpack_from(form, data, place)
    top = 256**size - 1
    other = draw(
        st.sampled_from([0, 1, 3, length - 1, length + 1, 4096, 128 << 20, top // 2, top - 3, top])
    )
    return data[:place] + struct.pack(form, min(max(other, 0), top)) + data[place + size :]


# ------------------------------------------------------------------------------------- speaking


def converse(address: tuple[str, int], chunks: Sequence[bytes]) -> bytes:
    """Say it all, hear the answer, say that this is all, and read until the other has hung up.

    Raises TimeoutError if it keeps the connection, AssertionError for an endless answer.
    """
    answer = bytearray()
    with socket.create_connection(address, timeout=HANG_UP_S) as peer:
        try:
            for chunk in chunks:
                peer.sendall(chunk)
            while select.select([peer], [], [], LINGER_S)[0] and (piece := peer.recv(65536)):
                answer += piece
                assert len(answer) < ANSWER_BYTES_MAX, bytes(answer[:100])
            peer.shutdown(socket.SHUT_WR)
            while piece := peer.recv(65536):
                answer += piece
                assert len(answer) < ANSWER_BYTES_MAX, bytes(answer[:100])
        except (ConnectionResetError, BrokenPipeError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
    return bytes(answer)


def half_open(stack: contextlib.ExitStack, port: Port, count: int) -> None:
    """Connections that have begun to say something, or nothing, and stay."""
    beginnings = [b""]
    for messages in port.conversations:
        first = messages[0]
        beginnings += [first.data[:1], first.data[:-1], first.data]
        if first.length is not None:
            place, form = first.length
            giant = struct.pack(form, 256 ** struct.calcsize(form) - 1)
            beginnings.append(first.data[:place] + giant)
    for number in range(count):
        peer = stack.enter_context(socket.create_connection(port.address, timeout=HANG_UP_S))
        with contextlib.suppress(ConnectionError):
            peer.sendall(beginnings[number % len(beginnings)])


def resident_bytes(pid: int) -> int:
    """What the process has in memory of its own: without what it shares with others."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        fields[name] = value
    return int(fields["RssAnon"].split()[0]) * 1024
