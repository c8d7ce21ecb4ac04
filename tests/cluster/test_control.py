"""Control over real processes that hold no database: who is started, promoted, restarted, stopped.

The nodes are `tests.cluster.stub_node`; tested are control, its watcher and `polarless.local`.
"""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from polarless.control import offline
from polarless.errors import CallerMistake, PolarlessError
from polarless.local import LocalCluster
from polarless.net.processes import identify, is_alive, send_signal, wait_ended
from polarless.wire.control import RunRecord
from tests.cluster.conftest import is_loopback_only

pytestmark = pytest.mark.cluster


def who(url: str) -> str:
    """Which compute node answers: ``NAME ROLE EPOCH``."""
    host, _, port = url.removeprefix("postgresql://").partition("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        return connection.recv(100).decode().strip()


def pids(status: dict[str, Any]) -> dict[str, int]:
    return {node["name"]: node["pid"] for node in status["nodes"] if node["name"] != "control"}


def happened(cluster: LocalCluster) -> list[str]:
    return [event["event"] for event in cluster.events()]


def test_status_is_what_clients_rely_on(stubs: LocalCluster) -> None:
    status = stubs.status()
    assert status["state"] == "serving"
    assert status["url"].startswith("postgresql://127.0.0.1:")
    assert isinstance(status["epoch"], int)
    roles = sorted(node["role"] for node in status["nodes"])
    assert roles == ["control", "home", "memory", "ro", "ro", "rw", "storage"]
    for node in status["nodes"]:
        assert node.keys() >= {"name", "role", "pid", "address", "state", "epoch"}
        assert ("sql_url" in node) == (node["role"] in ("rw", "ro"))
        assert identify(node["pid"]) is not None
    assert who(status["url"]) == "compute-1 rw 1"
    for node in status["nodes"]:
        if "sql_url" in node:
            assert who(node["sql_url"]).startswith(node["name"])


def test_listens_on_loopback_only_and_keeps_others_out(stubs: LocalCluster) -> None:
    for node in stubs.nodes():
        assert is_loopback_only(node.process.pid), node.name
    for path in [stubs.data.root, *stubs.data.root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.parent == stubs.data.root and path.name == "fence":
            continue  # The stub's own.
        assert mode & 0o077 == 0, f"{path} has mode {mode:o}"


def test_killed_writer_is_replaced_on_the_same_url(stubs: LocalCluster) -> None:
    old = stubs.kill("rw")
    # The connection waits in the listening socket until the new writer accepts.
    assert who(stubs.url) == "compute-2 rw 2"
    status = stubs.wait_until_serving()
    assert {node["name"]: node["role"] for node in status["nodes"]}[old.name] == "ro"
    (event,) = [event for event in stubs.events() if event["event"] == "failover"]
    assert event["previous"] == old.name
    assert event["seconds"] < 0.5
    assert event["steps"] == {"fence_ms": 1.0}


@pytest.mark.parametrize("role", ["ro", "memory", "storage"])
def test_what_died_is_started_again_and_nobody_else_is(stubs: LocalCluster, role: str) -> None:
    before = pids(stubs.status())
    killed = stubs.kill(role)
    stubs.wait_until(f"{role} back", lambda s: pids(s)[killed.name] not in (0, before[killed.name]))
    after = pids(stubs.wait_until_serving())
    assert {name for name in after if after[name] != before[name]} == {killed.name}
    assert stubs.node(killed.name).address == killed.address


def test_lost_home_moves_to_another_memory_node(stubs: LocalCluster) -> None:
    stubs.kill("home")
    stubs.wait_until("new home", lambda s: s["home_epoch"] == 2)
    stubs.wait_until_serving()
    assert stubs.node("home").name == "memory-2"
    assert stubs.node("memory").name == "memory-1"

    def told(_: object) -> bool:
        calls = [stubs.control.node(f"compute-{n}")["calls"] for n in (1, 2, 3)]
        return all("home" in of_one for of_one in calls) and stubs.control.node("memory-2")[
            "nodes"
        ] == ["memory-1"]

    stubs.wait_until("all told", told)


def test_killed_control_comes_back_over_nodes_that_noticed_nothing(stubs: LocalCluster) -> None:
    before = pids(stubs.status())
    old = stubs.kill("control")
    assert who(stubs.url) == "compute-1 rw 1"
    status = stubs.wait_until_serving()
    assert pids(status) == before
    assert stubs.node("control").process != old.process
    assert "control-back" in happened(stubs)
    # It watches again, processes that are not its children.
    stubs.kill("rw")
    assert who(stubs.url) == "compute-2 rw 2"


def kill_control_and_watcher(stubs: LocalCluster) -> None:
    # Stopped first: whichever of the two outlived the other would start it again.
    processes = offline.control_processes(stubs.data)
    for signal in (19, 9):
        for process in processes:
            send_signal(process, signal)
    wait_ended(processes, 5.0)


def test_killed_watcher_is_replaced_and_does_its_work(stubs: LocalCluster) -> None:
    watcher = offline.control_processes(stubs.data)[0]
    send_signal(watcher, 9)

    def replaced(_: object) -> bool:
        found = offline.control_processes(stubs.data)
        return len(found) == 2 and found[0] != watcher

    stubs.wait_until("another watcher", replaced)
    stubs.kill("control")
    stubs.wait_until_serving()


def test_writer_lost_while_control_is_gone_is_replaced_when_it_is_back(
    stubs: LocalCluster,
) -> None:
    watcher = offline.control_processes(stubs.data)[0]
    send_signal(watcher, 19)
    stubs.kill("control")
    stubs.kill("rw")
    stubs.kill("home")
    assert stubs.status()["state"] == "no control"
    send_signal(watcher, 18)
    status = stubs.wait_until_serving()
    assert status["epoch"] == 2
    assert who(stubs.url).endswith(" rw 2")
    assert stubs.node("home").name == "memory-2"


def test_without_control_status_and_down_still_work(stubs: LocalCluster) -> None:
    nodes = stubs.nodes()
    kill_control_and_watcher(stubs)
    status = stubs.status()
    assert status["state"] == "no control"
    assert {node["state"] for node in status["nodes"]} == {"running", "ended"}
    assert stubs.stop() == []
    assert not any(is_alive(node.process) for node in nodes)
    assert stubs.status()["state"] == "stopped"


def test_start_takes_over_nodes_whose_control_is_gone(stubs: LocalCluster) -> None:
    before = pids(stubs.status())
    port = stubs.url
    kill_control_and_watcher(stubs)
    again = LocalCluster(stubs.data.root)
    again.start()
    assert pids(again.wait_until_serving()) == before
    assert again.url == port
    assert who(again.url) == "compute-1 rw 1"
    again.stop()


def test_stopped_writer_is_replaced_and_leaves_when_it_wakes(stubs: LocalCluster) -> None:
    old = stubs.pause("rw")
    began = time.monotonic()
    assert who(stubs.url) == "compute-2 rw 2"
    assert time.monotonic() - began < 3.0
    assert is_alive(old.process)
    stubs.resume(old)
    status = stubs.wait_until_serving()
    assert pids(status)[old.name] != old.process.pid
    assert {"hung", "superseded", "failover", "awake"} <= set(happened(stubs))


def test_control_that_was_stopped_for_long_causes_no_failover(stubs: LocalCluster) -> None:
    before = pids(stubs.status())
    control = stubs.pause("control")
    wait_ended([control.process], 2.5)  # Longer than what makes a node count as hung.
    stubs.resume(control)
    stubs.wait_until("control again", lambda s: s["state"] == "serving")
    wait_ended([control.process], 1.0)
    status = stubs.status()
    assert pids(status) == before
    assert status["epoch"] == 1


def test_reader_that_refuses_is_passed_over(stubs: LocalCluster) -> None:
    (stubs.data.root / "compute-2.fault").write_text("refuse")
    stubs.kill("rw")
    assert who(stubs.url) == "compute-3 rw 3"
    assert "promote-refused" in happened(stubs)


def test_all_readers_gone_starts_a_writer_cold(stub_packages: Path, data: Path) -> None:
    with LocalCluster(data, ro=0, proxies=0) as cluster:
        cluster.kill("rw")
        assert who(cluster.url) == "compute-1 rw 2"
        cluster.wait_until_serving()
        assert "cold-start" in happened(cluster)


def test_all_processes_killed_at_once_start_again_on_the_same_port(stubs: LocalCluster) -> None:
    url = stubs.url
    stubs.kill_all()
    stubs.start()
    assert stubs.url == url
    assert who(url) == "compute-1 rw 2"


def test_all_that_status_names_killed_at_once_can_be_started_again(stubs: LocalCluster) -> None:
    """The watcher is not in status; it must neither bring the cluster back nor be in the way."""
    for node in stubs.nodes():
        send_signal(node.process, 9)
    again = LocalCluster(stubs.data.root)
    again.start()
    assert who(again.url) == "compute-1 rw 2"
    again.stop()


def test_switch_on_purpose(stubs: LocalCluster) -> None:
    event = stubs.failover("compute-3")
    assert event["event"] == "switch"
    assert event["node"] == "compute-3"
    assert who(stubs.url) == "compute-3 rw 2"
    with pytest.raises(CallerMistake, match="is not a reader"):
        stubs.failover("compute-3")


def test_down_stops_stopped_processes_too(stubs: LocalCluster) -> None:
    nodes = stubs.nodes()
    stubs.pause("ro")
    assert stubs.stop() == []
    assert not any(is_alive(node.process) for node in nodes)


def test_directory_in_use_is_refused(stubs: LocalCluster) -> None:
    with pytest.raises(CallerMistake, match="in use") as refused:
        LocalCluster(stubs.data.root).start()
    assert refused.value.sqlstate == "55006"
    assert stubs.status()["state"] == "serving"


def test_directory_of_others_is_refused(data: Path) -> None:
    data.mkdir()
    (data / "thesis.txt").write_text("mine")
    with pytest.raises(CallerMistake, match="not empty"):
        LocalCluster(data).start()
    assert [path.name for path in data.iterdir()] == ["thesis.txt"]


def test_port_of_somebody_else_is_refused(stub_packages: Path, data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(CallerMistake, match=f"port {port} is in use"):
            LocalCluster(data, port=port).start()
    LocalCluster(data).stop()


def test_pid_that_is_another_process_now_is_never_signalled(stubs: LocalCluster) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for process in offline.control_processes(stubs.data):
            send_signal(process, 9)
            wait_ended([process], 5.0)
        stubs.data.write_record(RunRecord("compute-9", "ro", bystander.pid, start=1))
        stubs.stop()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_node_that_cannot_start_fails_the_start_with_a_reason(
    stub_packages: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(data, proxies=0)
    cluster.data.open_or_create()
    (data / "storage.fault").write_text("exit 1")
    monkeypatch.setattr("polarless.local.START_S", 2.0)
    (data / "compute-1.fault").write_text("exit 1")
    with pytest.raises(PolarlessError, match="compute-1 is"):
        cluster.start()
    assert offline.control_processes(cluster.data) == []


# ------------------------------------------------------------------------- the command line


def polarless(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "polarless", *arguments],
        capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip


def test_commands_and_their_exit_codes(stub_packages: Path, data: Path) -> None:
    flag = ("--data", str(data))
    assert polarless("status", *flag).returncode == 3
    started = polarless("up", "--detach", "--proxies", "0", "--ro", "1", *flag)
    assert started.returncode == 0, started.stderr
    assert "psql" in started.stdout
    assert "polarless down" in started.stdout
    try:
        again = polarless("up", "--detach", *flag)
        assert again.returncode == 4
        assert again.stderr.startswith("error: ")
        assert "Traceback" not in again.stderr
        values = json.loads(polarless("status", "--json", *flag).stdout)
        assert len(values["nodes"]) == 6
        switched = json.loads(polarless("failover", "--json", *flag).stdout)
        assert switched["event"] == "switch"
        assert polarless("failover", "nobody", *flag).returncode == 1
        assert "switch" in polarless("events", *flag).stdout
        assert polarless("kill", "ro", *flag).returncode == 0
        assert polarless("frobnicate").returncode == 2
    finally:
        stopped = polarless("down", *flag)
    assert stopped.returncode == 0, stopped.stderr
    assert polarless("down", *flag).returncode == 3
    # Settings are kept: one reader again.
    assert polarless("up", "--detach", *flag).returncode == 0
    values = json.loads(polarless("status", "--json", *flag).stdout)
    assert len(values["nodes"]) == 6
    assert polarless("down", *flag).returncode == 0


def test_http_without_the_token_is_refused(stubs: LocalCluster) -> None:
    import http.client

    host, _, port = stubs.data.read("control.json")["http"].partition(":")
    for path, expected in (("/livez", 200), ("/readyz", 200), ("/status", 401)):
        connection = http.client.HTTPConnection(host, int(port), timeout=2)
        connection.request("GET", path)
        assert connection.getresponse().status == expected
        connection.close()
    connection = http.client.HTTPConnection(host, int(port), timeout=2)
    connection.request("POST", "/down", headers={"Authorization": "Bearer wrong"})
    assert connection.getresponse().status == 401
    connection.close()
    assert stubs.status()["state"] == "serving"
