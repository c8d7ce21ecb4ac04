"""Nonsense at every port of a real cluster: no process ends, grows, or leaves others waiting.

Each example is one connection that says something damaged and has to be hung up on. Meanwhile a
client's transactions go on; afterwards every process is the one that it was, has about the memory
that it had, and has nothing in its log that says "internal error".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from polarless.local import LocalCluster
from polarless.net import rpc
from tests.cluster.conftest import assert_nothing_left
from tests.faults import fuzz

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

MIB = 1024 * 1024
# Far below what one giant length would take; above what caches and allocators do by themselves.
GROWTH_BYTES_MAX = 40 * MIB
HALF_OPEN = 300
# Our own mistakes, whatever a peer has said.
OUR_FAULT = re.compile(r'"level": "(?:error|critical)"|Traceback|internal error')
PORTS = ["writer", "reader", "proxy", "relay", "storage", "memory", "home", "compute calls",
         "proxy calls", "fabric", "http"]  # fmt: skip
CALLERS = ["storage as compute", "storage as control", "home as compute", "memory as tool",
           "compute as control", "proxy as control"]  # fmt: skip


class Victim:
    """A cluster, its ports, and a client whose work must go on."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.processes = {node.name: node.process for node in cluster.nodes()}
        self.client = psycopg.connect(cluster.url, autocommit=True)
        self.commits = 0
        for table in ("fuzz", "fuzz_in"):
            self.client.execute(f"create table {table} (id int primary key, v text)")
        self.client.execute("insert into fuzz values (1, 'one'), (2, 'two')")
        self.client.execute("create table beside (id int primary key)")
        secret = cluster.data.cluster()
        self.ports = self._ports(secret)
        self.calls = self._calls(secret)

    def _ports(self, secret: bytes) -> dict[str, fuzz.Port]:
        node = self.cluster.node
        saved = self.cluster.data.read("control.json")
        fabric = self.cluster.control.node(node("home").name)["fabric"]
        hellos = [
            [fuzz.hello(secret, role), fuzz.rpc_frame(rpc.CALL, 1, method, ())]
            for role in ("control", "tool", "compute", "home")
            for method in ("ping", "status")
        ]
        places = {
            "writer": (node("rw").sql_url, fuzz.postgres()),
            "reader": (node("ro").sql_url, fuzz.postgres()),
            "proxy": (self.cluster.url, fuzz.postgres()),
            "relay": (node("rw").sql_url, fuzz.relayed(secret)),
            "storage": (node("storage").address, hellos),
            "memory": (node("memory").address, hellos[:4]),
            "home": (node("home").address, hellos[:4]),
            "compute calls": (node("rw").address, hellos),
            "proxy calls": (node("proxy").address, hellos),
            "fabric": (fabric, fuzz.fabric(secret)),
            "http": (saved["http"], fuzz.http(saved["token"])),
        }
        return {
            name: fuzz.Port(name, _address(place), conversations)
            for name, (place, conversations) in places.items()
        }

    def _calls(self, secret: bytes) -> dict[str, tuple[tuple[str, int], fuzz.Calls]]:
        reads = {"read_page": 2, "read_pages": 2, "page_lsns": 2, "read_log": 2, "verdict": 2,
                 "tail": 0, "status": 0, "ping": 0, "append": 3}  # fmt: skip
        compute = fuzz.Calls([fuzz.hello(secret, "compute")], reads, {"announce": 2})
        control = fuzz.Calls([fuzz.hello(secret, "control")], reads, {"announce": 2})
        member = fuzz.Calls(
            [
                fuzz.hello(secret, "compute", incarnation=5),
                # A reader that holds nothing, and never acknowledges anything.
                fuzz.rpc_frame(rpc.CALL, 9, "join", (False, 0, False, [], [])),
            ],
            {"register": 2, "register_many": 2, "offer": 3, "validate": 7, "mark": 0, "status": 0},
            {"ack": 1, "unregister": 1, "drop_offer": 5, "pull_refused": 2, "report": 1,
             "confirmed": 2},
        )  # fmt: skip
        tool = fuzz.Calls([fuzz.hello(secret, "tool")], {"ping": 0, "lend": 2, "fence": 1}, {})
        agent = fuzz.Calls([fuzz.hello(secret, "control")], {"ping": 0, "status": 0}, {})
        return {
            "storage as compute": (self.ports["storage"].address, compute),
            "storage as control": (self.ports["storage"].address, control),
            "home as compute": (self.ports["home"].address, member),
            "memory as tool": (self.ports["memory"].address, tool),
            "compute as control": (self.ports["compute calls"].address, agent),
            "proxy as control": (self.ports["proxy calls"].address, agent),
        }

    def work(self) -> None:
        """A commit and a read, through the proxy."""
        self.client.execute("insert into beside values (%s)", (self.commits,))
        self.commits += 1
        found = self.client.execute("select count(*) from beside").fetchone()
        assert found == (self.commits,)

    def memory(self) -> dict[str, int]:
        return {name: fuzz.resident_bytes(one.pid) for name, one in self.processes.items()}

    def logged(self) -> dict[str, int]:
        logs = self.cluster.data.logs
        return {path.name: path.stat().st_size for path in logs.glob("*.log")}

    def our_faults(self, since: dict[str, int]) -> list[str]:
        """Lines of logs that no peer should be able to cause."""
        found = []
        for path in self.cluster.data.logs.glob("*.log"):
            text = path.read_bytes()[since.get(path.name, 0) :].decode("utf-8", "replace")
            found += [
                f"{path.name}: {line}" for line in text.splitlines() if OUR_FAULT.search(line)
            ]
        return found

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Nothing but connections may come and go in here."""
        self.work()
        before, since = self.memory(), self.logged()
        yield
        self.work()
        assert {node.name: node.process for node in self.cluster.nodes()} == self.processes
        assert not self.our_faults(since)
        grown = {name: used - before[name] for name, used in self.memory().items()}
        assert max(grown.values()) < GROWTH_BYTES_MAX, grown


def _address(place: str) -> tuple[str, int]:
    host, _, port = (
        place.rpartition("@")[2].removeprefix("postgresql://").partition("/")[0].rpartition(":")
    )
    return host, int(port)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    made = LocalCluster(tmp_path_factory.mktemp("fuzz") / "data", ro=1, memory_nodes=2)
    try:
        made.start()
        one = Victim(made)
        yield one
        one.client.close()
    finally:
        made.stop()
    assert_nothing_left(made)


def run(
    strategy: st.SearchStrategy[list[bytes]], count: int, say: Callable[[list[bytes]], object]
) -> None:
    """Examples of the strategy. No shrinking: the bytes are short, and the process may be gone."""

    @settings(
        max_examples=count, phases=[Phase.generate], deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def example(chunks: list[bytes]) -> None:
        say(chunks)

    example()


def fuzz_port(victim: Victim, port: fuzz.Port, count: int) -> None:
    with victim.watched():
        for whole in port.conversations:
            fuzz.converse(port.address, [message.data for message in whole])
        run(
            fuzz.damaged(port.conversations) | st.lists(st.binary(max_size=300), max_size=3),
            count,
            lambda chunks: fuzz.converse(port.address, chunks),
        )


def fuzz_calls(victim: Victim, caller: str, count: int) -> None:
    address, calls = victim.calls[caller]
    with victim.watched():
        run(fuzz.calls_with_anything(calls), count, lambda chunks: fuzz.converse(address, chunks))


@pytest.mark.parametrize("name", PORTS)
def test_damaged_conversations(victim: Victim, name: str) -> None:
    fuzz_port(victim, victim.ports[name], 40)


@pytest.mark.parametrize("caller", CALLERS)
def test_calls_with_anything(victim: Victim, caller: str) -> None:
    fuzz_calls(victim, caller, 40)


@pytest.mark.parametrize("name", PORTS)
def test_half_open_connections(victim: Victim, name: str) -> None:
    port = victim.ports[name]
    with victim.watched(), contextlib.ExitStack() as stack:
        fuzz.half_open(stack, port, HALF_OPEN)
        victim.work()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PORTS)
def test_many_damaged_conversations(victim: Victim, name: str) -> None:
    fuzz_port(victim, victim.ports[name], 1000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("caller", CALLERS)
def test_many_calls_with_anything(victim: Victim, caller: str) -> None:
    fuzz_calls(victim, caller, 1000)
