"""SCRAM-SHA-256 (RFC 5802, 7677), the server's side, without I/O.

::

    client                              server
      n,,n=user,r=CN            -->                        client-first
                                <--     r=CN+SN,s=salt,i=iterations
      c=biws,r=CN+SN,p=proof    -->
                                <--     v=server signature

What is kept of a password is a `Verifier`, in PostgreSQL's own spelling: neither the password nor
what a client would need to log in can be computed from it. Channel binding is not offered.

Somebody who does not exist is asked just as one who does (`Exchange` with ``verifier`` None), with
a salt that is always the same for a name, so that names cannot be found by trying.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import unicodedata
from typing import Final, NamedTuple

from polarless.errors import CallerMistake, RemoteProtocolError

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096
SALT_BYTES: Final = 16
_FIRST = re.compile(rb"([ny]),,((?:n=([^,]*)),r=([\x21-\x2b\x2d-\x7e]+))")
_FINAL = re.compile(rb"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)),p=([A-Za-z0-9+/=]+)")
_TEXT = re.compile(
    r"SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)


class Verifier(NamedTuple):
    """What the server keeps of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def to_text(self) -> str:
        """As PostgreSQL keeps it in pg_authid."""
        salt, stored, server = (
            base64.b64encode(part).decode()
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"


def parse_verifier(text: str) -> Verifier | None:
    """The inverse of `Verifier.to_text`; None for what is no verifier (so it is a password)."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    try:
        salt, stored, server = (base64.b64decode(found[i], validate=True) for i in (2, 3, 4))
    except binascii.Error:
        return None
    if len(stored) != 32 or len(server) != 32 or not int(found[1]):
        return None
    return Verifier(int(found[1]), salt, stored, server)


def make_verifier(password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """Takes some milliseconds: that is its purpose."""
    # The part of SASLprep that matters: one spelling for what looks the same.
    raw = unicodedata.normalize("NFKC", password).encode()
    salted = hashlib.pbkdf2_hmac("sha256", raw, salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    return Verifier(
        iterations, salt, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key")
    )


class Exchange:
    """One client that says who it is. ``first``, then ``final``; each raises what is wrong."""

    def __init__(self, user: str, verifier: Verifier | None, nonce: bytes, secret: bytes) -> None:
        self.user = user
        self._known = verifier is not None
        self._verifier = verifier or Verifier(
            ITERATIONS, _hmac(secret, user.encode())[:SALT_BYTES], bytes(32), bytes(32)
        )
        self._nonce = base64.b64encode(nonce)
        self._said = b""
        self._answered = b""

    def first(self, message: bytes) -> bytes:
        """client-first-message to server-first-message."""
        found = _FIRST.fullmatch(message)
        if found is None:
            if message.startswith(b"p="):
                raise RemoteProtocolError("channel binding was not offered")
            raise RemoteProtocolError("malformed SCRAM message")
        self._gs2 = found[1] + b",,"
        self._said = found[2]
        self._nonce = found[4] + self._nonce
        verifier = self._verifier
        self._answered = b"r=%b,s=%b,i=%d" % (
            self._nonce, base64.b64encode(verifier.salt), verifier.iterations,
        )  # fmt: skip
        return self._answered

    def final(self, message: bytes) -> bytes:
        """client-final-message to server-final-message. Raises `CallerMistake` 28P01."""
        found = _FINAL.fullmatch(message)
        if found is None:
            raise RemoteProtocolError("malformed SCRAM message")
        without_proof, binding, nonce, proof_text = found.groups()
        if binding != base64.b64encode(self._gs2) or nonce != self._nonce:
            raise RemoteProtocolError("SCRAM nonce or channel binding does not match")
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except binascii.Error:
            raise RemoteProtocolError("malformed SCRAM message") from None
        signed = b",".join((self._said, self._answered, without_proof))
        signature = _hmac(self._verifier.stored_key, signed)
        client_key = bytes(a ^ b for a, b in zip(proof, signature))
        stored = hashlib.sha256(client_key).digest()
        matches = len(proof) == 32 and hmac.compare_digest(stored, self._verifier.stored_key)
        if not matches or not self._known:
            raise CallerMistake(
                f'password authentication failed for user "{self.user}"', sqlstate="28P01"
            )
        return b"v=" + base64.b64encode(_hmac(self._verifier.server_key, signed))


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
