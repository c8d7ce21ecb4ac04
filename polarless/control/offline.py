"""What can be seen and done without control: by the data directory and the processes themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polarless.config import ControlConfig
from polarless.net.datadir import DataDirectory, remove_shared_memory, shared_memory_names
from polarless.net.processes import Machine, ProcessId, identify, is_stopped, stop_all
from polarless.wire.control import COMPUTE, CONTROL, KINDS, MEMORY, PROXY, STORAGE, sql_url

CONTROL_GRACE_S = 3.0
# Names the files of a compute process that is no node yet.
SPARE = "spare"


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
        is_control = b"polarless.control" in arguments and str(data.root).encode() in arguments
        # A spare ends with control, but not while it is still being imported.
        if is_control or arguments[-3:-1] == [config_path(data, SPARE).encode(), b"--wait"]:
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


def config_path(data: DataDirectory, name: str) -> str:
    """The file that tells a node its settings; it is also how its process is recognised."""
    return f"{data.run}/{name}.config.json"


def running(data: DataDirectory, machine: Machine) -> dict[str, tuple[ProcessId, str]]:
    """The living processes of the nodes, with their kind: from the records, and from /proc."""
    found: dict[str, tuple[ProcessId, str]] = {}
    for record in data.records():
        process = ProcessId(record.pid, record.start)
        if record.role in KINDS and machine.is_alive(process):
            found[record.name] = (process, KINDS[record.role])
    for path, process in machine.find(f"{data.run}/").items():
        name = path.rpartition("/")[2].removesuffix(".config.json")
        kind = name.partition("-")[0]
        if path == config_path(data, name) and kind in (STORAGE, MEMORY, COMPUTE, PROXY):
            found.setdefault(name, (process, kind))
    return found


def stop_tiers(
    machine: Machine,
    data: DataDirectory,
    cluster: bytes,
    processes: dict[str, tuple[ProcessId, str]],
    config: ControlConfig,
) -> list[str]:
    """End processes in good order: what clients reach first, storage last."""
    killed: list[str] = []
    for tier in (PROXY, COMPUTE, MEMORY, STORAGE):
        of_tier = {process: name for name, (process, kind) in processes.items() if kind == tier}
        stubborn = machine.stop_all(list(of_tier), config.stop_grace_s)
        killed += [of_tier[process] for process in stubborn]
    remove_shared_memory(shared_memory_names(cluster))
    data.forget_records()
    return killed


def nodes(data: DataDirectory, control: ProcessId | None) -> list[dict[str, Any]]:
    """The nodes as the records and their processes show them, in the shape of ``status``."""
    alive = running(data, Machine())
    found = [_node(CONTROL, CONTROL, control, "", "starting")]
    for record in data.records():
        process, _ = alive.get(record.name, (None, ""))
        node = _node(record.name, record.role, process, record.address, "running")
        node["epoch"] = record.epoch
        if KINDS.get(record.role) == COMPUTE:
            node["sql_url"] = sql_url(record.sql)
        found.append(node)
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
