"""Certificates: made once by ``polarless init``, and loaded by whoever accepts clients.

    DATA/tls/server.crt   self-signed, for this host's names; clients may be given it as their root
    DATA/tls/server.key   its private key, 0600

Other certificates may be put in their place.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

CERTIFICATE: Final = "server.crt"
KEY: Final = "server.key"
DAYS_VALID: Final = 3650


def paths(data: str | Path) -> tuple[Path, Path]:
    """Certificate and key of a data directory."""
    folder = Path(data) / "tls"
    return folder / CERTIFICATE, folder / KEY


def server_context(data: str | Path) -> ssl.SSLContext | None:
    """What serves TLS with the directory's certificate; None if there is none.

    Raises CallerMistake if it cannot be read, or if others may read the key.
    """
    certificate, key = paths(data)
    if not certificate.exists():
        return None
    try:
        if key.stat().st_mode & 0o077:
            raise CallerMistake(
                f"{key} may be read by others", hint=f"chmod 600 {key}", sqlstate="F0000"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise CallerMistake(
            f"the certificate in {certificate.parent} cannot be used: {error}",
            hint="Make a new one with `polarless init --force`.",
            sqlstate="F0000",
        ) from None
    return context


def make_certificate(data: str | Path, names: Sequence[str] = (), *, force: bool = False) -> Path:
    """A key and a certificate signed with it; the certificate's path. Raises CallerMistake."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    certificate, key_path = paths(data)
    if (certificate.exists() or key_path.exists()) and not force:
        raise CallerMistake(
            f"{certificate.parent} holds a certificate already",
            hint="Replace it with `polarless init --force`; clients that trust it must be told.",
            sqlstate="55000",
        )
    host = socket.gethostname()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=DAYS_VALID))
        .add_extension(
            x509.SubjectAlternativeName(
                [_general_name(item) for item in ("localhost", "127.0.0.1", "::1", host, *names)]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate.parent.mkdir(mode=0o700, exist_ok=True)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(key_path, private)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM))
    return certificate


def _general_name(text: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
