"""A PostgreSQL server of the test's own: a fresh cluster in a temporary folder, nothing synced."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = 15
_FOLDERS = (f"/usr/lib/postgresql/{VERSION}/bin", f"/usr/pgsql-{VERSION}/bin")


def bin_folder() -> Path | None:
    """Where PostgreSQL's programs are, or None."""
    for folder in _FOLDERS:
        if (Path(folder) / "initdb").exists():
            return Path(folder)
    return None


def _as_other(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server() -> Iterator[str]:
    """The URL of a running server.

    Its folder is not pytest's: that one is closed to others, and PostgreSQL runs as another user.
    """
    with tempfile.TemporaryDirectory(prefix="polarless-postgres-") as name:
        data = Path(name)
        if os.getuid() == 0:
            shutil.chown(data, "postgres", "postgres")
        with _running(data) as url:
            yield url


@contextmanager
def _running(data: Path) -> Iterator[str]:
    programs = bin_folder()
    assert programs is not None
    port = _free_port()
    options = (
        f"-p {port} -c fsync=off -c full_page_writes=off -c listen_addresses=127.0.0.1 "
        f"-c unix_socket_directories= -c timezone=UTC -c max_connections=10 -c shared_buffers=16MB"
    )
    control = str(programs / "pg_ctl")
    initdb = [
        *(str(programs / "initdb"), "-D", str(data / "data"), "-U", "postgres", "-A", "trust"),
        *("-E", "UTF8", "--locale=C", "--no-sync"),
    ]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": str(data), "timeout": 60}
    subprocess.run(_as_other(initdb), **quiet)  # type: ignore[call-overload]
    start = [
        *(control, "-D", str(data / "data"), "-o", options, "-l", str(data / "log")),
        *("-w", "start"),
    ]
    subprocess.run(_as_other(start), **quiet)  # type: ignore[call-overload]
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        stop = [control, "-D", str(data / "data"), "-m", "immediate", "stop"]
        subprocess.run(_as_other(stop), **quiet)  # type: ignore[call-overload]
