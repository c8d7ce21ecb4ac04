"""A compute process that has imported everything and waits to be told who it is.

Imports cost most of a second, far more than joining a cluster does. So one such process is kept
ready: a new reader, a restarted node or the writer that a client wakes begins there. It is given
its name, settings and files by one line on its standard input, and ends if control does.
"""

from __future__ import annotations

import json
from typing import Final

from polarless.control import launch
from polarless.control.offline import SPARE, config_path
from polarless.net.datadir import DataDirectory
from polarless.net.processes import Machine, ProcessId

# Begun when the cluster has been well for so long: its imports should be in nobody's way.
QUIET_S: Final = 2.0


class Spare:
    """At most one waiting process."""

    def __init__(self, machine: Machine, data: DataDirectory, python: str) -> None:
        self._machine = machine
        self._data = data
        self._python = python
        self._process: ProcessId | None = None
        self._quiet_since: float | None = None

    def tick(self, is_quiet: bool, now: float) -> None:
        """Start one, if none is there and nothing else is going on."""
        if not is_quiet or self._process is not None:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since > QUIET_S:
            self._process = self._machine.spawn(
                [*launch.compute_command(self._python, config_path(self._data, SPARE)), "--wait"],
                output=self._data.run / f"{SPARE}.ready",
                errors=self._data.logs / f"{SPARE}.log",
                environment=launch.ENVIRONMENT,
                is_told=True,
            )

    def take(self) -> ProcessId | None:
        """The waiting process, which is no spare from now on; `begin` lets it go on."""
        process, self._process = self._process, None
        if process is not None and not self._machine.is_alive(process):
            self._machine.end_told(process)
            process = None
        return process

    def begin(self, process: ProcessId, name: str) -> None:
        """Let a process that was taken be the node ``name``, whose settings are written."""
        said = {
            "config": config_path(self._data, name),
            "output": str(self._data.run / f"{name}.ready"),
            "errors": str(self._data.logs / f"{name}.log"),
        }
        self._machine.tell(process, json.dumps(said).encode())

    def close(self) -> None:
        """End it; control ends, or the cluster does."""
        process = self.take()
        if process is not None:
            self._machine.end_told(process)
