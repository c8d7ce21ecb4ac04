"""``python -P -m polarless.control --data DIR``: the control plane of one data directory.

``--watch`` runs the small process that keeps it alive; that is what ``polarless up`` starts. Prints
``READY {...}`` when its HTTP API serves, or ``REFUSED {...}`` and exits with 4 if it cannot start.
SIGTERM ends control alone; the nodes go on, and the next control takes them over.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from polarless.config import HOST, PORT_PREFERRED, ClusterConfig, ControlConfig, parse_cluster
from polarless.control import watch
from polarless.errors import CallerMistake
from polarless.net import logs
from polarless.net.datadir import DataDirectory
from polarless.net.descriptors import open_listener, take_listener
from polarless.net.processes import ProcessId, identify

if TYPE_CHECKING:
    from polarless.control.service import Service
    from polarless.net.processes import Machine

log = logging.getLogger("polarless.control")


def main() -> int:
    """Parse, take the lock, run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m polarless.control", description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--settings", default="{}", help="JSON of ClusterConfig fields")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--lock-fd", type=int)
    parser.add_argument("--adopt", default="")
    options = parser.parse_args()
    data = DataDirectory(options.data)
    try:
        data.open_or_create()
        lock_fd = options.lock_fd if options.lock_fd is not None else data.lock()
        logs.setup("watcher" if options.watch else "control")
        if options.watch:
            pid, _, start = options.adopt.partition(":")
            adopted = ProcessId(int(pid), int(start)) if pid else None
            return watch.watch(data, lock_fd, ["--settings", options.settings], adopted)
        settings = _settings(data, json.loads(options.settings))
        return _run(data, lock_fd, settings)
    except CallerMistake as error:
        print("REFUSED " + json.dumps(_fields(error)), flush=True)
        return watch.EXIT_REFUSED


def _fields(error: CallerMistake) -> dict[str, str | None]:
    return {"message": error.message, "hint": error.hint, "sqlstate": error.sqlstate}


def _settings(data: DataDirectory, given: dict[str, Any]) -> ClusterConfig:
    """What was given now, else what was given before, else the defaults."""
    before = data.read("control.json").get("settings", {})
    try:
        return parse_cluster({**before, **given})
    except (ValueError, TypeError) as error:
        raise CallerMistake(str(error)) from None


def _run(data: DataDirectory, lock_fd: int, settings: ClusterConfig) -> int:
    from polarless.net.system import run

    return run(_serve(data, lock_fd, settings))


async def _serve(data: DataDirectory, lock_fd: int, settings: ClusterConfig) -> int:
    # Imported here: the watcher needs none of it.
    from polarless.control.crew import adopt
    from polarless.control.membership import initial_members
    from polarless.control.service import Service
    from polarless.net.processes import Machine
    from polarless.net.system import system_world

    world, machine = system_world(), Machine()
    saved = data.read("control.json")
    members = initial_members(
        compute_count=1 + settings.ro_count,
        memory_node_count=settings.memory_node_count,
        proxy_count=settings.proxy_count,
    )
    adopted = adopt(data, machine, members, world.clock.now())
    identity = identify(os.getpid())
    assert identity is not None
    with _listener(data, settings, int(saved.get("port", 0)), list(adopted)) as listener:
        port = listener.getsockname()[1]
        service = Service(
            world,
            machine,
            data,
            cluster=data.cluster(),
            settings=settings,
            config=ControlConfig(),
            members=members,
            python=sys.executable,
            serve_fd=listener.fileno(),
            port=port,
            identity=identity,
        )
        token = str(saved.get("token") or secrets.token_urlsafe(24))
        service.save(
            {
                "settings": settings.to_json(), "port": port, "token": token, "http": "",
                "pid": identity.pid, "start": identity.start,
            }
        )  # fmt: skip
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, service.leave)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run(adopted))
            _guard_watcher(service, machine, data, lock_fd)
            # In a thread: the HTTP library takes half a second, and the nodes are starting.
            module = await asyncio.to_thread(importlib.import_module, "polarless.control.http")
            api = module.Api(service, token)
            try:
                await api.start(int(str(saved.get("http", "")).rpartition(":")[2] or 0))
            except OSError:
                await api.start(0)
            service.save({"http": api.address})
            print("READY " + json.dumps({"http": api.address}), flush=True)
            await service.stopped.wait()
            await api.close()
    return service.exit_code


def _listener(
    data: DataDirectory, settings: ClusterConfig, port_before: int, nodes: list[str]
) -> socket.socket:
    """The listening socket of the URL: from a node that has it, else a new one."""
    for name in nodes:
        found = take_listener(data.run / f"{name}.sock")
        if found is not None:
            return found
    # The one that clients know comes before the one that is nicest; 0 is any that is free.
    wanted = [settings.port] if settings.port else [port_before or PORT_PREFERRED, 0]
    for port in wanted:
        try:
            return open_listener(HOST, port)
        except OSError as error:
            log.info("port %d cannot be used: %s", port, error)
    raise CallerMistake(
        f"port {settings.port} is in use", hint="name another with --port, or none for a free one"
    )


def _guard_watcher(service: Service, machine: Machine, data: DataDirectory, lock_fd: int) -> None:
    """If the process that watches us ends, start another."""
    watcher = identify(os.getppid())
    if watcher is None or watcher.pid == 1:
        return  # Run by hand.

    def ended(_: int | None) -> None:
        if service.stopped.is_set():
            return
        me = identify(os.getpid())
        assert me is not None
        log.warning("the watcher ended, starting another")
        process = machine.spawn(
            watch.command(data, lock_fd, me),
            output=data.run / "watcher.out",
            errors=data.logs / "control.log",
            inherit=(lock_fd,),
        )
        machine.watch(process, ended)

    machine.watch(watcher, ended)


if __name__ == "__main__":
    sys.exit(main())
