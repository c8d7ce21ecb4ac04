"""Bodies of messages: what they say, and what is no body."""

from __future__ import annotations

import pytest

from compute.pgwire import frontend
from polarless.errors import CallerMistake, PolarlessError, RemoteProtocolError
from tests.unit.session import wire


def body(message: bytes) -> bytes:
    return message[5:]


def test_parse_there_and_back() -> None:
    made = frontend.parse_body(b"s", "select $1", (23, 0))
    assert made == body(wire.P("select $1", "s", (23, 0)))
    assert frontend.parse_parse(made) == (b"s", "select $1", (23, 0))


def test_bind() -> None:
    message = wire.B("a", None, b"", name="s", portal="p", formats=(0, 1, 0), results=(1,))
    assert frontend.parse_bind(body(message)) == (
        b"p", b"s", (0, 1, 0), [b"a", None, b""], (1,),
    )  # fmt: skip


@pytest.mark.parametrize("end", range(1, len(body(wire.B("abc", None, name="s", formats=(1,))))))
def test_a_bind_that_is_cut_anywhere(end: int) -> None:
    whole = body(wire.B("abc", None, name="s", formats=(1,)))
    with pytest.raises(RemoteProtocolError):
        frontend.parse_bind(whole[:end])


@pytest.mark.parametrize("end", range(1, len(body(wire.P("select 1", "s", (23,))))))
def test_a_parse_that_is_cut_anywhere(end: int) -> None:
    whole = body(wire.P("select 1", "s", (23,)))
    with pytest.raises(RemoteProtocolError):
        frontend.parse_parse(whole[:end])


def test_bytes_left_over() -> None:
    with pytest.raises(RemoteProtocolError):
        frontend.parse_parse(body(wire.P("select 1")) + b"x")
    with pytest.raises(RemoteProtocolError):
        frontend.parse_bind(body(wire.B("a")) + b"x")
    with pytest.raises(RemoteProtocolError):
        frontend.parse_query(b"select 1\0x\0")


def test_counts_that_the_body_cannot_hold() -> None:
    with pytest.raises(RemoteProtocolError):
        frontend.parse_bind(b"\0\0" + b"\xff\xff" + bytes(10))
    with pytest.raises(RemoteProtocolError):
        frontend.parse_bind(b"\0\0" + b"\0\0" + b"\xff\xff" + bytes(10))
    with pytest.raises(RemoteProtocolError):
        frontend.parse_parse(b"\0\0\xff\xff" + bytes(10))


def test_text_that_is_not_utf8() -> None:
    with pytest.raises(CallerMistake) as caught:
        frontend.parse_query(b"select '\xff'\0")
    assert caught.value.sqlstate == "22021"


@pytest.mark.parametrize("raw", [b"", b"X\0", b"S", b"Sname", b"Sname\0more"])
def test_targets_that_are_none(raw: bytes) -> None:
    with pytest.raises(PolarlessError):
        frontend.parse_target(raw)


def test_execute() -> None:
    assert frontend.parse_execute(body(wire.E(7, "p"))) == (b"p", 7)
    with pytest.raises(RemoteProtocolError):
        frontend.parse_execute(b"p\0\0\0\0")
