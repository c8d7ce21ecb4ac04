"""SCRAM-SHA-256: RFC 7677's example, and what is no proof."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from compute.pgwire.scram import Exchange, Verifier, make_verifier, parse_verifier
from polarless.errors import CallerMistake, RemoteProtocolError

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def test_the_example_of_the_rfc() -> None:
    verifier = make_verifier("pencil", SALT, 4096)

    exchange = Exchange("user", verifier, b"", b"")
    # The server's part of the nonce is text in the example, and may be any here.
    exchange._nonce = b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    answer = exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce_text = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert answer == b"r=" + nonce_text + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = exchange.final(b"c=biws,r=" + nonce_text + b",p=" + proof)
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


class Client:
    """The other side, from the RFC's formulas."""

    def __init__(self, password: str) -> None:
        self.password = password.encode()

    def final(self, first: bytes, answer: bytes) -> bytes:
        fields = dict(part.split(b"=", 1) for part in answer.split(b","))
        salted = hashlib.pbkdf2_hmac(
            "sha256", self.password, base64.b64decode(fields[b"s"]), int(fields[b"i"])
        )
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        bare = b"c=biws,r=" + fields[b"r"]
        signed = b",".join((first.removeprefix(b"n,,"), answer, bare))
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature))
        return bare + b",p=" + base64.b64encode(proof)


FIRST = b"n,,n=,r=abcdef"


def exchange(verifier: Verifier | None, password: str) -> bytes:
    made = Exchange("bob", verifier, b"0123456789", b"secret")
    return made.final(Client(password).final(FIRST, made.first(FIRST)))


def test_right_and_wrong() -> None:
    verifier = make_verifier("päss", SALT)
    assert exchange(verifier, "päss").startswith(b"v=")
    for wrong in ("pass", "", "päss "):
        with pytest.raises(CallerMistake) as caught:
            exchange(verifier, wrong)
        assert caught.value.sqlstate == "28P01"


def test_nobody_is_asked_like_somebody() -> None:
    with pytest.raises(CallerMistake, match='failed for user "bob"'):
        exchange(None, "x")
    asked = [Exchange("bob", None, b"n", b"secret").first(FIRST) for _ in range(2)]
    assert asked[0] == asked[1]
    assert Exchange("eve", None, b"n", b"secret").first(FIRST) != asked[0]


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,n=bob", b"x,,n=bob,r=abc", b"n,,n=bob,r=", b"p=tls-unique,,n=bob,r=abc"],
)
def test_malformed_first(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Exchange("bob", None, b"n", b"s").first(message)


def test_malformed_final() -> None:
    made = Exchange("bob", make_verifier("x", SALT), b"n", b"s")
    good = Client("x").final(FIRST, made.first(FIRST))
    for bad in (
        b"",
        good[:-4],
        good.replace(b"c=biws", b"c=eSws"),
        good.replace(b"r=abc", b"r=xbc"),
        good.replace(b",p=", b",p=!"),
    ):
        with pytest.raises((RemoteProtocolError, CallerMistake)):
            made.final(bad)
    assert made.final(good).startswith(b"v=")


def test_verifiers_as_text() -> None:
    verifier = make_verifier("x", SALT)
    assert parse_verifier(verifier.to_text()) == verifier
    for text in ("x", "SCRAM-SHA-256$4096:abc", verifier.to_text()[:-8], "md5" + "0" * 32):
        assert parse_verifier(text) is None
