"""How the command line and `polarless.local` talk to control: a blocking HTTP client.

``http.client`` and not aiohttp: a command should answer before the second library is imported.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, Final

from polarless.errors import CallerMistake, ConnectionLost, PolarlessError
from polarless.net.datadir import DataDirectory
from polarless.net.processes import ProcessId, is_alive

CALL_S: Final = 2.0
# A switch waits for the old writer, a stop for every node.
LONG_CALL_S: Final = 40.0
# Every node in turn.
ROLLING_S: Final = 310.0
CHECK_S: Final = 3600.0


class ControlClient:
    """Calls control's HTTP API; finds it anew for each call, since it may have been restarted."""

    def __init__(self, data: DataDirectory) -> None:
        self._data = data

    def control_process(self) -> ProcessId | None:
        """The living control process, if there is one."""
        saved = self._data.read("control.json")
        process = ProcessId(int(saved.get("pid", 0)), int(saved.get("start", 0)))
        return process if is_alive(process) else None

    def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        deadline_s: float = CALL_S,
    ) -> Any:
        """One request; its JSON.

        Raises `ConnectionLost` if control does not answer, CallerMistake or PolarlessError for
        what it answers.
        """
        saved = self._data.read("control.json")
        address = str(saved.get("http", ""))
        if self.control_process() is None or not address:
            raise ConnectionLost("control is not running")
        host, _, port = address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=deadline_s)
        try:
            headers = {"Authorization": f"Bearer {saved.get('token', '')}"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLost(f"control does not answer: {error or 'time-out'}") from None
        finally:
            connection.close()
        try:
            values = json.loads(text)
        except ValueError:
            raise ConnectionLost(f"control answered {response.status} and no JSON") from None
        if response.status >= 400 and isinstance(values, dict) and "error" in values:
            fields = values["error"]
            cls = CallerMistake if response.status in (400, 401) else PolarlessError
            raise cls(fields["message"], hint=fields.get("hint"), sqlstate=fields.get("sqlstate"))
        return values

    def is_alive(self) -> bool:
        """Whether control answers."""
        try:
            self.call("GET", "/livez")
        except PolarlessError:
            return False
        return True

    def status(self) -> dict[str, Any]:
        """What control knows."""
        values: dict[str, Any] = self.call("GET", "/status")
        return values

    def events(self) -> list[dict[str, Any]]:
        """Decisions, oldest first."""
        values: list[dict[str, Any]] = self.call("GET", "/events")
        return values

    def node(self, name: str) -> dict[str, Any]:
        """A node's own counters."""
        values: dict[str, Any] = self.call("GET", f"/nodes/{name}")
        return values

    def check(self, name: str) -> dict[str, Any]:
        """What a compute node finds when it walks every tree."""
        found: dict[str, Any] = self.call("POST", f"/nodes/{name}/check", deadline_s=CHECK_S)
        return found

    def failover(self, target: str | None = None) -> dict[str, Any]:
        """Make another node the writer; the event that says how it went."""
        body = {"to": target} if target else None
        values: dict[str, Any] = self.call("POST", "/failover", body, deadline_s=LONG_CALL_S)
        return values

    def scale(self, **wanted: int) -> dict[str, Any]:
        """Have so many readers (``ro``), ``memory_nodes`` or ``pool_mb``; returns once it is so."""
        values: dict[str, Any] = self.call("POST", "/scale", wanted, deadline_s=LONG_CALL_S)
        return values

    def autoscale(self, policy: dict[str, int] | None = None, *, change: bool) -> dict[str, Any]:
        """The policy and what was seen last; with ``change`` set the policy, None for off."""
        method = "POST" if change else "GET"
        values: dict[str, Any] = self.call(method, "/autoscale", policy)
        return values

    def restart(self, role: str | None = None) -> dict[str, Any]:
        """Restart everybody in turn, or those of a role; ``{"restarted", "seconds"}``."""
        body = {"role": role} if role else None
        values: dict[str, Any] = self.call("POST", "/restart", body, deadline_s=ROLLING_S)
        return values

    def sleep(self) -> dict[str, Any]:
        """Release all compute until a client comes."""
        values: dict[str, Any] = self.call("POST", "/sleep", deadline_s=LONG_CALL_S)
        return values

    def down(self) -> list[str]:
        """Stop the cluster and control; the names of nodes that had to be killed."""
        return list(self.call("POST", "/down", deadline_s=LONG_CALL_S)["killed"])
