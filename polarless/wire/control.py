"""What control and the nodes say to each other.

Control writes a node's settings into a JSON file, starts ``python -P -m PACKAGE --config FILE``,
and the node prints one line once it serves::

    READY {"address": "127.0.0.1:40001", "sql": "127.0.0.1:40002"}

Then control connects to ``address`` as role ``control`` and calls (`polarless.control.agent`):

    every node   ping() -> {"state", "role", "epoch", ...}     status() -> counters     stop()
    compute      promote(epoch, plan) -> step times in ms       home(address, home_epoch, fields)
                 fenced(epoch)                                  also in ping: mark, home_epoch
    proxy        topology({"nodes": {name: SQL address}, "draining": [names]})
                 also in ping: sessions, wants_compute
    memory       become_home(...)   attach_node(...)   detach_node(...)

A `RunRecord` per node, in ``DATA/run/NODE.json``, is what a control that was killed leaves to the
next one, and to ``polarless down``. A process is known by its pid *and* its start time, so that a
pid which was given to somebody else meanwhile is never signalled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

STORAGE: Final = "storage"
MEMORY: Final = "memory"
COMPUTE: Final = "compute"
PROXY: Final = "proxy"
# Kind of node -> the module that runs it.
PACKAGES: Final = {
    STORAGE: "storage",
    MEMORY: "memory_pool",
    COMPUTE: "compute",
    PROXY: "polarless.proxy",
}

RW: Final = "rw"
RO: Final = "ro"
HOME: Final = "home"
CONTROL: Final = "control"
# Role -> kind.
KINDS: Final = {
    RW: COMPUTE,
    RO: COMPUTE,
    MEMORY: MEMORY,
    HOME: MEMORY,
    STORAGE: STORAGE,
    PROXY: PROXY,
}

READY: Final = "READY "

EXIT_FENCED: Final = 3
# Control is to be started again at once: its turn in a rolling restart.
EXIT_AGAIN: Final = 75
EXIT_SYNC_FAILED: Final = 4


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One process as the data directory remembers it. ``start`` is its start time in ticks."""

    name: str
    role: str
    pid: int
    start: int
    address: str = ""
    sql: str = ""
    epoch: int = 0
    state: str = "starting"

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))


def parse_record(text: str | bytes) -> RunRecord | None:
    """The record, or None if the text is none (a write that a crash cut)."""
    try:
        values = json.loads(text)
        known = {field.name for field in fields(RunRecord)}
        return RunRecord(**{key: values[key] for key in values.keys() & known})
    except (ValueError, TypeError, AttributeError):
        return None


def parse_ready(text: str) -> dict[str, Any] | None:
    """The fields of the first whole READY line in what a node printed, or None so far."""
    for line in text.splitlines(keepends=True):
        if line.startswith(READY) and line.endswith("\n"):
            try:
                fields_ = json.loads(line[len(READY) :])
            except ValueError:
                return None
            return fields_ if isinstance(fields_, dict) else None
    return None


def sql_url(address: str) -> str:
    """What a client is given for ``host:port``; any user and database name is accepted."""
    return f"postgresql://{address}/postgres"
