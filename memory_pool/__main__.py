"""``python -P -m memory_pool --config FILE``: a memory node, perhaps with the home's role.

FILE is JSON: ``node``, ``cluster`` (hex), ``host``, ``port``, ``memory_mb``, ``verify``, ``home``
(true: take the home's role at once, under ``home_epoch`` and ``epoch``), ``pool`` (an object with
settings of `memory_pool.home_state.HomeConfig`).

Prints one READY line when it serves. Exit codes: 0 after SIGTERM or ``stop``, 1 if it could not
start, 2 for a mistake in FILE.
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

from memory_pool.home_state import HomeConfig
from memory_pool.node import MemoryNode
from polarless.errors import PolarlessError
from polarless.kernel import failpoints
from polarless.net import collector, lag
from polarless.net.logs import setup
from polarless.net.system import SystemClock, run, system_world

log = logging.getLogger("memory_pool")


def kill(_: str) -> Any:
    """The failpoint action ``kill``: this process ends as if the machine had."""
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


async def main(values: dict[str, Any]) -> int:
    """Serve until told to end; the exit code."""
    node = MemoryNode(
        system_world(),
        cluster=bytes.fromhex(values["cluster"]),
        node=values["node"],
        memory_mb=int(values["memory_mb"]),
        reserve_mb=int(values.get("reserve_mb", 0)),
        home_config=HomeConfig(**values.get("pool", {})),
        verify=bool(values.get("verify")),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    try:
        async with asyncio.TaskGroup() as tasks:
            host, port = values.get("host", "127.0.0.1"), values.get("port", 0)
            await node.start(tasks, host=host, port=port)
            if values.get("home"):
                await node.become_home(
                    home_epoch=int(values.get("home_epoch", 1)),
                    epoch=int(values.get("epoch", 1)),
                    agents={},
                )
            # The other nodes' connections are few, and there is always something to do.
            collector.tame(SystemClock(), gone=lambda: 0, is_idle=lambda: False)
            lag.restart()
            ready = {"address": node.address, "fabric": node.fabric}
            print("READY " + json.dumps(ready), flush=True)
            await node.wait_stopped()
            node.close()
            # What still runs is only waiting for others.
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
    finally:
        # Also when it ends by an error: shared memory outlives a process.
        node.close()
    return node.exit_code


def start() -> int:
    """Read the configuration and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m memory_pool", description=__doc__)
    parser.add_argument("--config", required=True, type=Path)
    path = parser.parse_args().config
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        setup(values["node"])
        bytes.fromhex(values["cluster"])
        assert isinstance(values["node"], str)
        int(values["memory_mb"])
        HomeConfig(**values.get("pool", {}))
        failpoints.parse(
            os.environ.get("POLARLESS_FAILPOINTS", ""), {"kill": kill, "error": failpoints.error}
        )
    except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        print(f"memory_pool: {path}: {error!r}", file=sys.stderr)
        return 2
    try:
        return run(main(values))
    except* PolarlessError as group:
        for reason in group.exceptions:
            log.error("the memory node cannot start: %s", reason)
            hint = getattr(reason, "hint", None)
            if hint:
                log.error("hint: %s", hint)
    return 1


if __name__ == "__main__":
    sys.exit(start())
