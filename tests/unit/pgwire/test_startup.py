"""The first packet of a connection, and what it may be."""

from __future__ import annotations

import struct

import pytest

from compute.pgwire.framing import FrameReader
from compute.pgwire.startup import (
    PROTOCOL_3_0,
    PROTOCOL_3_2,
    Cancel,
    Encryption,
    Startup,
    StartupReader,
)
from polarless.errors import CallerMistake, PolarlessError, RemoteProtocolError
from tests.unit.session import wire


def first(data: bytes) -> object:
    reader = StartupReader()
    reader.feed(data)
    return reader.next()


def packet(code: int, rest: bytes = b"") -> bytes:
    return struct.pack("!II", 8 + len(rest), code) + rest


def test_a_startup_in_single_bytes() -> None:
    reader = StartupReader()
    data = wire.startup(user="u", database="d") + b"behind"
    for index in range(len(data)):
        assert index >= len(data) - 6 or reader.next() is None
        reader.feed(data[index : index + 1])
    request = reader.next()
    assert request == Startup(PROTOCOL_3_0, {"user": "u", "database": "d"}, False, ())
    assert reader.rest == b"behind"


@pytest.mark.parametrize(
    ("minor", "protocol", "negotiate"),
    [
        (0, PROTOCOL_3_0, False),
        (1, PROTOCOL_3_0, True),
        (2, PROTOCOL_3_2, False),
        (9, PROTOCOL_3_2, True),
    ],
)
def test_versions(minor: int, protocol: int, negotiate: bool) -> None:
    request = first(wire.startup((3 << 16) | minor, user="u"))
    assert isinstance(request, Startup)
    assert (request.protocol, request.negotiate) == (protocol, negotiate)


def test_an_unknown_protocol_option_is_named() -> None:
    request = first(packet(3 << 16, b"user\0u\0_pq_.new\x001\0\0"))
    assert isinstance(request, Startup)
    assert request.negotiate
    assert request.unknown == ("_pq_.new",)


def test_requests() -> None:
    assert first(packet(80877103)) == Encryption()
    assert first(packet(80877104)) == Encryption(gss=True)
    assert first(packet(80877102, struct.pack("!I", 7) + b"1234")) == Cancel(7, b"1234")
    long_key = bytes(range(256))
    assert first(packet(80877102, struct.pack("!I", 7) + long_key)) == Cancel(7, long_key)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01",
        packet(80877103, b"more"),
        packet(80877102, b"123"),
        packet(80877102, bytes(4 + 257)),
        struct.pack("!I", 7),
        struct.pack("!I", 10_001),
        packet(3 << 16, b"user\0u\0"),
        packet(3 << 16, b"user\0\0"),
        packet(3 << 16, b"\0x\0\0"),
    ],
)
def test_what_is_no_postgresql(data: bytes) -> None:
    with pytest.raises(PolarlessError):
        first(data)


def test_versions_that_are_not_spoken_and_nobodies() -> None:
    with pytest.raises(CallerMistake) as caught:
        first(packet(2 << 16))
    assert caught.value.sqlstate == "0A000"
    with pytest.raises(CallerMistake) as caught:
        first(wire.startup(database="d"))
    assert caught.value.sqlstate == "28000"


@pytest.mark.parametrize(
    "data",
    [
        b"z\0\0\0\4",
        b"Q\0\0\0\3",
        b"S\0\1\0\0",
        b"Q\x08\0\0\1",
        b"\0\0\0\0\4",
    ],
)
def test_frames_out_of_bounds(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    with pytest.raises(RemoteProtocolError):
        reader.next()


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_in_any_portions(step: int) -> None:
    messages = [wire.P("select 1"), wire.B("x" * 100), wire.E(), wire.S]
    reader, data, found = FrameReader(), b"".join(messages), []
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        while (message := reader.next()) is not None:
            found.append(message)
    assert [chr(kind) for kind, _ in found] == ["P", "B", "E", "S"]
    assert [body for _, body in found] == [message[5:] for message in messages]
    assert reader.buffered == 0
