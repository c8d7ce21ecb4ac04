"""Who is let in: trust on this host, passwords, encryption; and what a greeting may send."""

from __future__ import annotations

import struct

import pytest

from compute.greeting import Greeting
from compute.pgwire.scram import make_verifier
from compute.session.limits import Limits
from compute.sql.roles import Access, Role
from tests.unit.pgwire.test_scram import FIRST, Client
from tests.unit.session import wire
from tests.unit.session.fakes import FakeSuspend, FakeTransport, Harness

VERIFIER = make_verifier("secret", b"0123456789abcdef").to_text()
ROLES = {
    "ann": Role("ann", superuser=True, login=True, verifier=VERIFIER),
    "bob": Role("bob", login=True, verifier=VERIFIER),
    "cid": Role("cid", verifier=VERIFIER),
    "dan": Role("dan", login=True),
}


@pytest.fixture
def h() -> Harness:
    harness = Harness()
    harness.access.access = Access(ROLES)
    return harness


def sasl(body: bytes) -> bytes:
    return b"p" + struct.pack("!I", len(body) + 4) + body


def initial(body: bytes = FIRST, mechanism: bytes = b"SCRAM-SHA-256") -> bytes:
    return sasl(mechanism + b"\0" + struct.pack("!I", len(body)) + body)


def greet(h: Harness, peer: str = "127.0.0.1") -> tuple[Greeting, FakeTransport]:
    greeting, transport = h.greet()
    transport.peer = peer
    return greeting, transport


def log_in(h: Harness, user: str, password: str, **how: str) -> tuple[FakeTransport, list[str]]:
    greeting, transport = greet(h, **how)
    greeting.data_received(wire.startup(user=user))
    assert transport.take() == b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"
    greeting.data_received(initial())
    ((kind, body),) = wire.frames(transport.take())
    assert (kind, body[:4]) == ("R", b"\0\0\0\x0b")
    greeting.data_received(sasl(Client(password).final(FIRST, body[4:])))
    return transport, wire.lines(transport.take())


def refusal(transport: FakeTransport) -> str:
    (line,) = wire.lines(transport.take())
    assert transport.closed
    return line


def test_a_password_that_is_right(h: Harness) -> None:
    transport, answer = log_in(h, "bob", "secret")
    assert answer[:2] == ["R", "R"]
    assert "S is_superuser=off" in answer
    assert answer[-2:] == ["K", "Z I"]
    assert transport.protocol.user == "bob"
    assert "S is_superuser=on" in log_in(h, "ann", "secret")[1]


@pytest.mark.parametrize(
    ("user", "password"),
    [("bob", "wrong"), ("eve", "secret"), ("cid", "secret"), ("dan", "secret")],
)
def test_a_wrong_password_no_login_or_nobody_look_the_same(
    h: Harness, user: str, password: str
) -> None:
    transport, answer = log_in(h, user, password)
    assert answer == [f'E FATAL 28P01 password authentication failed for user "{user}"']
    assert transport.closed


def test_what_follows_a_password_is_not_lost(h: Harness) -> None:
    greeting, transport = greet(h)
    greeting.data_received(wire.startup(user="bob") + initial())
    body = wire.frames(transport.take())[1][1]
    proof = sasl(Client("secret").final(FIRST, body[4:]))
    for byte in proof[:-1]:
        greeting.data_received(bytes([byte]))
    greeting.data_received(proof[-1:] + wire.Q("select 1"))
    assert wire.lines(transport.take())[-4:] == ["T c0", "D 1", "C SELECT 1", "Z I"]


@pytest.mark.parametrize(
    "message",
    [
        wire.Q("select 1"),
        initial(mechanism=b"SCRAM-SHA-256-PLUS"),
        sasl(b"SCRAM-SHA-256\0\0\0\0\x50short"),
        b"p" + struct.pack("!I", 20_000),
        initial(b"nonsense"),
    ],
)
def test_what_is_no_answer(h: Harness, message: bytes) -> None:
    greeting, transport = greet(h)
    greeting.data_received(wire.startup(user="bob"))
    transport.take()
    greeting.data_received(message)
    assert refusal(transport).startswith("E FATAL 08P01")


def test_from_elsewhere_while_nobody_has_a_password() -> None:
    h = Harness()
    greeting, transport = greet(h, "192.0.2.7")
    greeting.data_received(wire.startup(user="u"))
    assert refusal(transport).startswith("E FATAL 28000 connections from other hosts are refused")


def test_from_elsewhere_only_encrypted(h: Harness) -> None:
    greeting, transport = greet(h, "192.0.2.7")
    greeting.data_received(wire.startup(user="bob"))
    assert refusal(transport).startswith("E FATAL 28000 connections from other hosts must be enc")
    greeting, transport = greet(h, "192.0.2.7")
    transport.tls = object()
    greeting.data_received(wire.startup(user="bob"))
    assert wire.lines(transport.take()) == ["R"]


async def test_listening_for_others_needs_both(h: Harness) -> None:
    from polarless.errors import CallerMistake

    with pytest.raises(CallerMistake) as caught:
        await h.server.listen("0.0.0.0", 0)
    assert caught.value.sqlstate == "55000"
    assert caught.value.hint is not None


def test_roles_that_have_to_be_fetched(h: Harness) -> None:
    h.access.suspend = FakeSuspend(h.engine, "page 1")
    greeting, transport = greet(h)
    greeting.data_received(wire.startup(user="bob"))
    assert transport.take() == b""
    h.engine.resume("page 1")
    assert wire.lines(transport.take()) == ["R"]


def test_roles_that_come_too_late(h: Harness) -> None:
    h.access.suspend = FakeSuspend(h.engine, "page 1")
    greeting, transport = greet(h)
    greeting.data_received(wire.startup(user="bob"))
    h.clock.advance(11)
    assert transport.closed
    h.engine.resume("page 1")
    assert transport.take() == b""


def test_silence_ends(h: Harness) -> None:
    greeting, transport = greet(h)
    greeting.data_received(wire.startup(user="bob"))
    h.clock.advance(11)
    assert transport.closed


def test_too_many_who_have_not_said_who_they_are() -> None:
    h = Harness(Limits(unauthenticated_max=2))
    kept = [h.greet() for _ in range(2)]
    assert h.greet()[1].aborted
    kept[0][0].connection_lost(None)
    assert not h.greet()[1].aborted


def test_encryption_is_refused_without_a_certificate() -> None:
    greeting, transport = Harness().greet()
    greeting.data_received(struct.pack("!II", 8, 80877104) + struct.pack("!II", 8, 80877103))
    assert transport.take() == b"NN"
    greeting.data_received(struct.pack("!II", 8, 80877103))
    assert refusal(transport) == "E FATAL 08P01 too many encryption requests"


def test_unencrypted_data_behind_an_ssl_request(h: Harness) -> None:
    import ssl

    h.server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    greeting, transport = greet(h)
    greeting.data_received(struct.pack("!II", 8, 80877103) + wire.startup(user="bob"))
    assert refusal(transport).startswith("E FATAL 08P01 unencrypted data behind")
