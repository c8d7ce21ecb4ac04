"""``python -P -m polarless.proxy --config FILE``: a proxy.

FILE is JSON, written by control: ``node``, ``cluster`` (hex), ``host``, ``port``, ``sql_port``,
``serve_fd`` (the inherited listening socket of the cluster's URL, or null), ``share_path``,
``topology``. Prints one READY line when it serves. Exit codes: 0 after SIGTERM or ``stop``, 1 if it
broke, 2 for a mistake in FILE.

Told to restart, the process replaces itself and keeps its clients (`polarless.proxy.handover`):
``--brought FD`` is then an open file with their sessions, whose sockets are open too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgpack

from polarless.errors import PolarlessError
from polarless.net import collector, lag
from polarless.net.logs import setup
from polarless.net.system import run, system_world
from polarless.net.tls import server_context
from polarless.proxy.handover import export_session, import_session
from polarless.proxy.service import EXIT_RESTART, Proxy
from polarless.proxy.session import Session

log = logging.getLogger("polarless.proxy")

# Of the process that comes next, while this one still has its event loop.
_next: list[str] = []


async def main(settings: dict[str, Any], brought: list[list[Any]]) -> int:
    """Serve until told to end; the exit code."""
    tls = server_context(settings["data"]) if settings.get("data") else None
    proxy = Proxy(system_world(), settings, tls)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, proxy.end, 0)
    sessions = [await _bring(proxy, fd, packed) for fd, packed in brought]
    await proxy.start()
    for session in sessions:
        session.go_on()
    # Sessions are all that it has, and they are looked at in a moment.
    collector.tame(
        proxy.world.clock,
        gone=lambda: proxy.accepted - len(proxy.sessions),
        is_idle=lambda: True,
    )
    lag.restart()
    ready = {"address": proxy.address, "sql": proxy.sql_address}
    print("READY " + json.dumps(ready), flush=True)
    code = await proxy.ended
    if code == EXIT_RESTART:
        _next[:] = _succession(*await proxy.hand_over())
    else:
        await proxy.stop()
    return code


async def _bring(proxy: Proxy, fd: int, packed: bytes) -> Session:
    """A client's session from before the restart."""
    os.set_inheritable(fd, False)
    session = Session(proxy)
    import_session(session, packed)
    proxy.sessions.add(session)
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: session, sock)
    return session


def _succession(sessions: list[Session], settings: dict[str, Any]) -> list[str]:
    """The arguments of the process that goes on; what it needs stays open for it."""
    brought = []
    for session in sessions:
        assert session.transport is not None
        fd = os.dup(session.transport.get_extra_info("socket").fileno())
        os.set_inheritable(fd, True)
        brought.append([fd, export_session(session)])
    file = os.memfd_create("polarless-proxy", 0)
    with os.fdopen(os.dup(file), "wb") as out:
        out.write(msgpack.packb({"settings": settings, "sessions": brought}))
    os.lseek(file, 0, os.SEEK_SET)
    return [sys.executable, "-P", "-m", "polarless.proxy", "--brought", str(file)]


def _read_brought(file: int) -> tuple[dict[str, Any], list[list[Any]]]:
    with os.fdopen(file, "rb") as source:
        fields = msgpack.unpackb(source.read(), strict_map_key=False)
    return fields["settings"], fields["sessions"]


def start() -> int:
    """Read the configuration and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m polarless.proxy", description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--brought", type=int)
    arguments = parser.parse_args()
    brought: list[list[Any]] = []
    try:
        if arguments.brought is not None:
            settings, brought = _read_brought(arguments.brought)
        else:
            settings = json.loads(arguments.config.read_text(encoding="utf-8"))
        setup(settings["node"])
        bytes.fromhex(settings["cluster"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        print(f"polarless.proxy: {arguments.config}: {error!r}", file=sys.stderr)
        return 2
    try:
        code = run(main(settings, brought))
    except PolarlessError as error:
        log.error("the proxy cannot start: %s", error)
        return 1
    if code == EXIT_RESTART:
        os.execv(_next[0], _next)
    return code


if __name__ == "__main__":
    sys.exit(start())
