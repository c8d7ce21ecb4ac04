"""Listening sockets that outlive the process that opened them.

Control opens the socket of the URL's port and every compute node inherits it. Each of them offers
it on a Unix socket, ``DATA/run/NODE.sock``: whoever connects gets the descriptor (SCM_RIGHTS) and
the connection ends. So a control that was killed gets the port back from any living compute node,
with the connections that wait on it.

A Unix socket's path may have 108 bytes and a data directory may be anywhere, so the paths here go
through ``/proc/self/fd``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)


class SharedListener:
    """Offers a descriptor until it is closed."""

    def __init__(self, path: Path, offer: socket.socket) -> None:
        self._path = path
        self._offer = offer

    def close(self) -> None:
        """Offer it no more."""
        asyncio.get_running_loop().remove_reader(self._offer)
        self._offer.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


async def share_listener(path: str | Path, fd: int) -> SharedListener:
    """Offer ``fd`` on the Unix socket ``path`` to processes of the same user."""
    path = Path(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    offer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as short:
        offer.bind(short)
    path.chmod(0o600)
    offer.listen(8)
    offer.setblocking(False)

    def connected() -> None:
        try:
            taker, _ = offer.accept()
        except OSError:
            return
        with taker:
            try:
                socket.send_fds(taker, [b"L"], [fd])
            except OSError as error:
                log.info("%s: the listener was not taken: %s", path.name, error)

    asyncio.get_running_loop().add_reader(offer, connected)
    return SharedListener(path, offer)


def take_listener(path: str | Path, deadline_s: float = 0.5) -> socket.socket | None:
    """The listening socket that is offered on ``path``, or None. Blocks up to the deadline."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taker:
        taker.settimeout(deadline_s)
        try:
            with _short(Path(path)) as short:
                taker.connect(short)
            data, descriptors, _, _ = socket.recv_fds(taker, 1, 1)
        except OSError:
            return None
    if data != b"L" or not descriptors:
        return None
    os.set_inheritable(descriptors[0], False)
    return socket.socket(fileno=descriptors[0])


def open_listener(host: str, port: int) -> socket.socket:
    """A new listening socket. Connections wait in it until somebody accepts. Raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
