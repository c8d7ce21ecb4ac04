"""``python -P -m compute --config FILE``: a compute node.

FILE is JSON, written by control: ``node``, ``cluster`` (hex), ``role`` (rw or ro), ``epoch``,
``storage``, ``home`` (addresses), ``host``, ``port``, ``sql_port``, ``serve_fd`` (the inherited
listening socket of the cluster's URL, or null), ``share_path``, ``cache_mb``, ``shared_memory``,
``prefetch``.

With ``--wait`` the process imports everything and then waits for a line of JSON on its standard
input: ``config`` (the FILE to use), ``output``, ``errors`` (where to write). It ends at its end.

Prints one READY line when it serves. Exit codes: 0 after SIGTERM or ``stop``, 1 if it could not
start or broke, 2 for a mistake in FILE, 3 when it was fenced by a higher epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from compute.node import EXIT_FENCED, ComputeNode
from compute.session.limits import Limits
from polarless.errors import Fenced, PolarlessError
from polarless.kernel import failpoints
from polarless.net import collector, lag
from polarless.net.logs import setup
from polarless.net.system import raise_descriptor_limit, run, system_world
from polarless.net.tls import server_context

log = logging.getLogger("compute")

OWN_DESCRIPTORS = 200


def kill(_: str) -> Any:
    """The failpoint action ``kill``: this process ends as if the machine had."""
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


async def main(settings: dict[str, Any]) -> int:
    """Serve until told to end; the exit code."""
    tls = server_context(settings["data"]) if settings.get("data") else None
    # What is open beside clients' connections: files, the other nodes, proxies.
    clients_max = max(50, raise_descriptor_limit() - OWN_DESCRIPTORS)
    limits = Limits(connections_max=min(Limits().connections_max, clients_max))
    node = ComputeNode(system_world(), settings, tls, limits)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.end, 0)
    starting = loop.create_task(node.start())
    both: set[asyncio.Future[Any]] = {starting, node.ended}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        server = node.server
        collector.tame(node.world.clock, gone=server.gone, is_idle=server.was_idle)
        lag.restart()
        ready = {"address": node.address, "sql": node.sql_address}
        print("READY " + json.dumps(ready), flush=True)
    else:
        starting.cancel()
    code = await node.ended
    await node.stop()
    # Whoever takes over waits for this process to be gone, and freeing a full cache takes a while.
    logging.shutdown()
    os._exit(code)


def wait_to_be_told() -> Path | None:
    """Where the configuration is, once control needs this process; None if it never will."""
    line = sys.stdin.readline()
    if not line:
        return None
    said = json.loads(line)
    for number, path in ((1, said["output"]), (2, said["errors"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    return Path(said["config"])


def start() -> int:
    """Read the configuration and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m compute", description=__doc__)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--wait", action="store_true", help="be told by standard input who to be")
    options = parser.parse_args()
    path = wait_to_be_told() if options.wait else options.config
    if path is None:
        return 0
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        setup(settings["node"])
        for key in ("cluster", "role", "storage", "home"):
            assert isinstance(settings[key], str), f"{key} is missing"
        failpoints.parse(
            os.environ.get("POLARLESS_FAILPOINTS", ""), {"kill": kill, "error": failpoints.error}
        )
    except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        print(f"compute: {path}: {error!r}", file=sys.stderr)
        return 2
    try:
        return run(main(settings))
    except Fenced as error:
        log.warning("fenced before it served: %s", error)
        return EXIT_FENCED
    except PolarlessError as error:
        log.error("the node cannot start: %s", error)
        return 1


if __name__ == "__main__":
    sys.exit(start())
