"""What can be seen and done without control: by the data directory and the processes themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polarless.config import ControlConfig
from polarless.control.crew import running, stop_tiers
from polarless.net.datadir import DataDirectory
from polarless.net.processes import Machine, ProcessId, identify, is_stopped, stop_all
from polarless.wire.control import COMPUTE, CONTROL, KINDS, sql_url

CONTROL_GRACE_S = 3.0


def control_processes(data: DataDirectory) -> list[ProcessId]:
    """The watcher, then control; by their command lines, as the last start may be unrecorded."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"polarless.control" in arguments and str(data.root).encode() in arguments:
            process = identify(int(entry.name))
            if process is not None:
                found.append((b"--watch" not in arguments, process))
    return [process for _, process in sorted(found)]


def end_control(data: DataDirectory) -> None:
    """End control and its watcher, whatever state they are in; the nodes go on.

    All at once: the watcher does not start control again after a SIGTERM of its own.
    """
    stop_all(control_processes(data), CONTROL_GRACE_S)


def stop(data: DataDirectory) -> list[str]:
    """Stop the whole cluster; the names of the nodes that had to be killed."""
    # Control first, which would start again what is being stopped.
    end_control(data)
    machine = Machine()
    return stop_tiers(machine, data, data.cluster(), running(data, machine), ControlConfig())


def nodes(data: DataDirectory, control: ProcessId | None) -> list[dict[str, Any]]:
    """The nodes as the records and their processes show them, in the shape of ``status``."""
    alive = running(data, Machine())
    found: list[dict[str, Any]] = []
    for record in data.records():
        process, _ = alive.get(record.name, (None, ""))
        node = _node(record.name, record.role, process, record.address, "running")
        node["epoch"] = record.epoch
        if KINDS.get(record.role) == COMPUTE:
            node["sql_url"] = sql_url(record.sql)
        found.append(node)
    found.append(_node(CONTROL, CONTROL, control, "", "starting"))
    return found


def _node(
    name: str, role: str, process: ProcessId | None, address: str, state: str
) -> dict[str, Any]:
    if process is None:
        state = "ended"
    elif is_stopped(process):
        state = "stopped"
    pid = process.pid if process else 0
    return {"name": name, "role": role, "pid": pid, "address": address, "state": state, "epoch": 0}
