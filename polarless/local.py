"""A cluster of processes on this machine: start it, stop it, and do to it what machines do.

    with LocalCluster(ro=1) as cluster:
        connection = await asyncpg.connect(cluster.url)
        cluster.kill(cluster.node("rw"))
        cluster.wait_until_serving()

Everything the command line does to a cluster goes through here. It starts one process (the watcher
of control, ``python -P -m polarless.control --watch``) and talks to control over HTTP; where
control is dead it reads the data directory instead. Blocking code: in a coroutine use a thread.

Only processes of this cluster are signalled, each known by its pid and start time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from polarless.config import HOST
from polarless.control import offline
from polarless.control.client import ControlClient
from polarless.errors import CallerMistake, ConnectionLost, DeadlineExceeded, PolarlessError
from polarless.net.datadir import DataDirectory, remove_shared_memory, shared_memory_names
from polarless.net.logs import tail
from polarless.net.processes import (
    Machine,
    ProcessId,
    identify,
    send_signal,
    wait_ended,
)
from polarless.wire.control import sql_url

# `start` waits no longer for readers and spare memory nodes once the writer serves.
# The environment variable with what is added to each verb, in microseconds.
REMOTE_LATENCY: Final = "POLARLESS_REMOTE_LATENCY_US"
OTHERS_S: Final = 2.3
START_S: Final = 30.0
WATCHER_S: Final = 2.0
NEXT_CONTROL_S: Final = 15.0


class Node(NamedTuple):
    """One line of `LocalCluster.nodes`."""

    name: str
    role: str
    process: ProcessId
    address: str
    state: str
    sql_url: str


class LocalCluster:
    """A cluster in a data directory, by default a temporary one that `stop` removes.

    Settings that are None are those of the directory's last start, or the defaults.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        ro: int | None = None,
        memory_nodes: int | None = None,
        pool_mb: int | None = None,
        cache_mb: int | None = None,
        port: int | None = None,
        proxies: int | None = None,
        idle_timeout_s: float | None = None,
        shared_memory: bool | None = None,
        prefetch: bool | None = None,
        remote_latency_us: int | None = None,
        verify: bool | None = None,
    ) -> None:
        self._temporary = data is None
        root = tempfile.mkdtemp(prefix="polarless-") if data is None else data
        self.data = DataDirectory(root)
        self.control = ControlClient(self.data)
        if verify is None and os.environ.get("POLARLESS_VERIFY") == "1":
            verify = True
        if remote_latency_us is None and os.environ.get(REMOTE_LATENCY):
            # All benchmarks at once: `polarless bench --remote-latency-us`.
            remote_latency_us, shared_memory = int(os.environ[REMOTE_LATENCY]), False
        given = {
            "ro_count": ro, "memory_node_count": memory_nodes, "pool_mb": pool_mb,
            "proxy_count": proxies, "idle_timeout_s": idle_timeout_s,
            "cache_mb": cache_mb, "port": port, "shared_memory": shared_memory, "verify": verify,
            "prefetch": prefetch, "remote_latency_us": remote_latency_us,
        }  # fmt: skip
        self._settings = {key: value for key, value in given.items() if value is not None}
        self._watcher: subprocess.Popen[bytes] | None = None

    # Life.

    def start(self, progress: Callable[[dict[str, Any]], object] = lambda status: None) -> None:
        """Start, and return when a query on `url` would succeed.

        Raises CallerMistake for a directory in use or of others, PolarlessError if nothing serves.
        """
        self.data.open_or_create()
        self._refuse_if_in_use()
        out, log = self.data.run / "control.ready", self.data.logs / "control.log"
        with _private(log, os.O_APPEND) as errors, _private(out, os.O_TRUNC) as output:
            self._watcher = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "polarless.control", "--watch",
                    "--data", str(self.data.root), "--settings", json.dumps(self._settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_started(out, progress)
        except BaseException:
            self.stop(keep=True)
            raise

    def _refuse_if_in_use(self) -> None:
        # A watcher whose control was killed decides within this time what becomes of it.
        end = time.monotonic() + WATCHER_S
        while self.data.is_locked():
            if time.monotonic() > end or self.control.is_alive():
                raise CallerMistake(
                    f"{self.data.root} is in use by a running cluster",
                    hint="see `polarless status`, or stop it with `polarless down`",
                    sqlstate="55006",
                )
            time.sleep(0.02)

    def _wait_started(self, out: Path, progress: Callable[[dict[str, Any]], object]) -> None:
        assert self._watcher is not None
        began = time.monotonic()
        while True:
            said = out.read_text(errors="replace")
            for line in said.splitlines():
                if line.startswith("REFUSED "):
                    raise CallerMistake(**json.loads(line.removeprefix("REFUSED ")))
            code = self._watcher.poll()
            if code is not None:
                last = "; ".join(tail(self.data.logs / "control.log", 3))
                raise PolarlessError(f"control ended with code {code}: {last}")
            if "READY " in said:
                try:
                    status = self.control.status()
                except ConnectionLost:
                    status = {"state": "starting", "nodes": []}
                progress(status)
                waited_s = time.monotonic() - began
                ready = status["state"] in ("serving", "degraded")
                if status["state"] == "serving" or (ready and waited_s > OTHERS_S):
                    return
                if waited_s > START_S:
                    raise DeadlineExceeded(
                        f"start: nothing serves after {START_S:.0f} s: {self._broken(status)}",
                        hint=f"the logs are in {self.data.logs}",
                    )
            time.sleep(0.02)

    def _broken(self, status: dict[str, Any]) -> str:
        """Which nodes are not well, and the last line of each one's log."""
        parts = []
        for node in status["nodes"]:
            if node["state"] != "serving":
                last = self.tail(node["name"], 1)
                parts.append(f"{node['name']} is {node['state']} ({last[0] if last else 'no log'})")
        return "; ".join(parts)

    def stop(self, *, keep: bool = False) -> list[str]:
        """Stop every process in good order; the names of those that had to be killed.

        A temporary directory is removed, unless ``keep``.
        """
        if self.data.exists():
            try:
                killed = self.control.down()
            except PolarlessError:
                killed = offline.stop(self.data)
            offline.end_control(self.data)
            remove_shared_memory(shared_memory_names(self.data.cluster()))
        else:
            killed = []
        if self._watcher is not None:
            self._watcher.wait()
            self._watcher = None
        if self._temporary and not keep:
            shutil.rmtree(self.data.root, ignore_errors=True)
        return killed

    def wait_stopped(self) -> None:
        """Block until somebody has stopped the cluster."""
        if self._watcher is not None:
            self._watcher.wait()
            self._watcher = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # Looking.

    @property
    def url(self) -> str:
        """What clients use; it leads to the writer, whoever that is."""
        return sql_url(f"{HOST}:{self.data.read('control.json').get('port', 0)}")

    def status(self) -> dict[str, Any]:
        """What control says; with control down, what the data directory and the processes say."""
        cluster = self.data.cluster().hex()
        try:
            return self.control.status()
        except ConnectionLost as error:
            saved = self.data.read("control.json")
            nodes = offline.nodes(self.data, self.control.control_process())
            some = any(node["pid"] for node in nodes)
            return {
                "url": self.url,
                "cluster": cluster,
                "data": str(self.data.root),
                "state": "no control" if some else "stopped",
                "note": error.message,
                "epoch": int(saved.get("epoch", 0)),
                "home_epoch": int(saved.get("home_epoch", 0)),
                "nodes": nodes,
                "events": self.data.events(20),
            }

    def loops(self) -> dict[str, dict[str, Any]]:
        """By node: how late its event loop has been, see `polarless.net.lag`."""
        found = {}
        for node in self.nodes():
            try:
                counted = self.control.node(node.name)
            except PolarlessError:
                # It has just gone, or there is no control to ask.
                continue
            if "loop" in counted:
                found[node.name] = counted["loop"]
        return found

    def nodes(self) -> list[Node]:
        """The nodes, control included."""
        return [_node(fields) for fields in self.status()["nodes"]]

    def node(self, which: str) -> Node:
        """The node with this name, or the first with this role. Raises CallerMistake."""
        found = self.nodes()
        for node in found:
            if which in (node.name, node.role):
                return node
        names = ", ".join(node.name for node in found)
        raise CallerMistake(f"there is no node {which!r}", hint=f"there are: {names}")

    def sql_url(self, which: str) -> str:
        """A compute node's own address, by name or role."""
        return self.node(which).sql_url

    def events(self) -> list[dict[str, Any]]:
        """What was decided, oldest first."""
        try:
            return self.control.events()
        except ConnectionLost:
            return self.data.events(200)

    def tail(self, name: str, line_count: int = 20) -> list[str]:
        """The last lines of a node's log."""
        return tail(self.data.logs / f"{name}.log", line_count)

    # Doing.

    def failover(self, target: str | None = None) -> dict[str, Any]:
        """Make another node the writer; the event that says how it went."""
        return self.control.failover(target)

    def scale(
        self,
        ro: int | None = None,
        *,
        memory_nodes: int | None = None,
        pool_mb: int | None = None,
    ) -> dict[str, Any]:
        """Have so many readers and memory nodes, and so large a pool; wait until it is so."""
        asked = {"ro": ro, "memory_nodes": memory_nodes, "pool_mb": pool_mb}
        return self.control.scale(**{key: n for key, n in asked.items() if n is not None})

    def rolling_restart(self, role: str | None = None) -> dict[str, Any]:
        """Restart every process in turn, or those of a role, while the cluster serves."""
        before = self.data.read("control.json").get("pid")
        result = self.control.restart(role)
        if "control" in result["restarted"]:
            self._wait_for_next_control(before)
        return result

    def _wait_for_next_control(self, before: object) -> None:
        end = time.monotonic() + NEXT_CONTROL_S
        while time.monotonic() < end:
            if self.data.read("control.json").get("pid") not in (before, 0):
                with contextlib.suppress(PolarlessError):
                    self.wait_until_serving(max(0.0, end - time.monotonic()))
                    return
            time.sleep(0.02)
        raise DeadlineExceeded(f"control was not started again within {NEXT_CONTROL_S:.0f} s")

    def sleep(self) -> dict[str, Any]:
        """Release all compute; the next client wakes it."""
        return self.control.sleep()

    def sessions(self) -> list[dict[str, Any]]:
        """Every client at a proxy or directly at a compute node, and what it waits for."""
        found: list[dict[str, Any]] = []
        for node in self.nodes():
            if node.role in ("rw", "ro", "proxy") and node.process.pid:
                counters = self.control.node(node.name)
                clients = counters.get("clients" if node.role == "proxy" else "sessions") or ()
                found += [{"at": node.name, **client} for client in clients]
        return found

    def kill(self, which: str | Node) -> Node:
        """``kill -9``, and wait until the process has ended."""
        node = self._signal(which, signal.SIGKILL)
        wait_ended([node.process], 5.0)
        return node

    def pause(self, which: str | Node) -> Node:
        """``kill -STOP``."""
        return self._signal(which, signal.SIGSTOP)

    def resume(self, which: str | Node) -> Node:
        """``kill -CONT``."""
        return self._signal(which, signal.SIGCONT)

    def kill_all(self) -> None:
        """``kill -9`` to every process. All are stopped first, so that none sees another end."""
        processes: list[ProcessId] = []
        for number in (signal.SIGSTOP, signal.SIGKILL):
            processes = offline.control_processes(self.data)
            processes += [process for process, _ in offline.running(self.data, Machine()).values()]
            for process in processes:
                send_signal(process, number)
        wait_ended(processes, 5.0)
        if self._watcher is not None:
            self._watcher.wait()
            self._watcher = None

    def restart(self) -> None:
        """Stop everything and start it again on the same data."""
        self.stop(keep=True)
        self.start()

    def wait_until(
        self, what: str, condition: Callable[[dict[str, Any]], object], deadline_s: float = 15.0
    ) -> dict[str, Any]:
        """Poll `status` until ``condition`` holds; that status. Raises `DeadlineExceeded`."""
        end = time.monotonic() + deadline_s
        while True:
            status = self.status()
            if condition(status):
                return status
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"{what}: not within {deadline_s} s; {self._broken(status)}",
                    detail=json.dumps(status),
                )
            time.sleep(0.02)

    def wait_until_serving(self, deadline_s: float = 15.0) -> dict[str, Any]:
        """Wait until every node serves again."""
        return self.wait_until("all serve", lambda s: s["state"] == "serving", deadline_s)

    def _signal(self, which: str | Node, number: int) -> Node:
        node = self.node(which) if isinstance(which, str) else which
        if not send_signal(node.process, number):
            raise CallerMistake(f"{node.name} has no process")
        return node


def cluster(**settings: Any) -> LocalCluster:
    """A temporary cluster for a test: ``with polarless.cluster(ro=1) as c: ...``."""
    return LocalCluster(**settings)


def _node(fields: dict[str, Any]) -> Node:
    process = identify(fields["pid"]) if fields["pid"] else None
    return Node(
        fields["name"],
        fields["role"],
        process or ProcessId(0, 0),
        fields["address"],
        fields["state"],
        fields.get("sql_url", ""),
    )


def _private(path: Path, mode: int) -> Any:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600), "wb")
