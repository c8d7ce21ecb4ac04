"""``python -P -m storage --config FILE``: the storage process.

FILE is JSON: ``node``, ``cluster`` (hex), ``host``, ``port``, ``data``; optional ``storage`` (an
object with settings of `polarless.config.StorageConfig`) and ``accept_loss_at`` (see
storage/log/recovery.py). Files are in ``DATA/storage/log`` and ``DATA/storage/pages``.

Prints one READY line when it serves. Exit codes: 0 after SIGTERM or ``stop``; 1 if it could not
start; 2 for a mistake in FILE; 4 after a failed write or sync to its disk.
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

from polarless.config import StorageConfig, parse_storage
from polarless.errors import PolarlessError
from polarless.kernel import failpoints
from polarless.net import collector, lag
from polarless.net.logs import setup
from polarless.net.system import run, system_world
from storage.backends.log_files import LogFiles
from storage.backends.page_lmdb import PageLmdb
from storage.backends.worker import Worker
from storage.engine import EXIT_DISK_FAILED, Engine, examine_both
from storage.node import StorageNode

log = logging.getLogger("storage")

# There may be half a million records, all with several references: less at a time.
YOUNG = 5_000


def kill(_: str) -> Any:
    """The failpoint action ``kill``: this process ends as if the machine had."""
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


async def main(values: dict[str, Any], config: StorageConfig) -> int:
    """Open, serve until told to end, close; the exit code."""
    world, loop = system_world(), asyncio.get_running_loop()
    cluster = bytes.fromhex(values["cluster"])
    folder = Path(values["data"]) / "storage"
    device = LogFiles(folder / "log")
    state = None
    if PageLmdb.exists(folder / "pages"):
        looked_at = PageLmdb(folder / "pages", read_only=True)
        state = looked_at.read_state()
        looked_at.close()
    examined, folded = examine_both(
        device, state, cluster, accept_loss_at=values.get("accept_loss_at")
    )
    store = PageLmdb(folder / "pages")
    log_worker, page_worker = Worker(loop, "log"), Worker(loop, "pages")
    node = StorageNode(world, cluster=cluster)
    engine = Engine(
        world.clock, config, cluster=cluster, device=device, store=store,
        submit_log=log_worker.submit, submit_pages=page_worker.submit,
        examined=examined, folded=folded, on_broken=node.end,
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.end, 0)
    await engine.start()
    host = values.get("host", "127.0.0.1")
    port = await node.serve(engine, host, values.get("port", 0))
    collector.tame(
        world.clock, young=YOUNG, gone=lambda: node.connections_lost,
        is_idle=lambda: not engine.pending.records,
    )  # fmt: skip
    lag.restart()
    print("READY " + json.dumps({"address": f"{host}:{port}"}), flush=True)
    code = await node.ended
    if code == 0:
        await node.stop()
        log_worker.close()
        page_worker.close()
        store.close()
        device.close()
    logging.shutdown()
    if code:
        # A thread may hang in a failed disk: nothing is waited for.
        os._exit(code)
    return code


def start() -> int:
    """Read the configuration and run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m storage", description=__doc__)
    parser.add_argument("--config", required=True, type=Path)
    path = parser.parse_args().config
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        setup(values["node"])
        config = parse_storage(values.get("storage") or {})
        failpoints.parse(
            os.environ.get("POLARLESS_FAILPOINTS", ""), {"kill": kill, "error": failpoints.error}
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"storage: {path}: {error}", file=sys.stderr)
        return 2
    try:
        return run(main(values, config))
    except PolarlessError as error:
        log.error("storage cannot start: %s", error)
        if error.hint:
            log.error("hint: %s", error.hint)
        return 1
    except OSError as error:
        log.error("storage cannot start: its disk failed: %s", error)
        return EXIT_DISK_FAILED


if __name__ == "__main__":
    sys.exit(start())
