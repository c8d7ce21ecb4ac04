"""``python -P -m polarless.proxy --config FILE``: a proxy.

FILE is JSON, written by control: ``node``, ``cluster`` (hex), ``host``, ``port``, ``sql_port``,
``serve_fd`` (the inherited listening socket of the cluster's URL, or null), ``share_path``,
``topology``. Prints one READY line when it serves. Exit codes: 0 after SIGTERM or ``stop``, 1 if it
broke, 2 for a mistake in FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from polarless.errors import PolarlessError
from polarless.net.logs import setup
from polarless.net.system import run, system_world
from polarless.net.tls import server_context
from polarless.proxy.service import Proxy

log = logging.getLogger("polarless.proxy")


async def main(settings: dict[str, Any]) -> int:
    """Serve until told to end; the exit code."""
    tls = server_context(settings["data"]) if settings.get("data") else None
    proxy = Proxy(system_world(), settings, tls)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, proxy.end, 0)
    await proxy.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 1_000)
    ready = {"address": proxy.address, "sql": proxy.sql_address}
    print("READY " + json.dumps(ready), flush=True)
    code = await proxy.ended
    await proxy.stop()
    return code


def start() -> int:
    """Read the configuration and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m polarless.proxy", description=__doc__)
    parser.add_argument("--config", required=True, type=Path)
    path = parser.parse_args().config
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        setup(settings["node"])
        bytes.fromhex(settings["cluster"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"polarless.proxy: {path}: {error!r}", file=sys.stderr)
        return 2
    try:
        return run(main(settings))
    except PolarlessError as error:
        log.error("the proxy cannot start: %s", error)
        return 1


if __name__ == "__main__":
    sys.exit(start())
