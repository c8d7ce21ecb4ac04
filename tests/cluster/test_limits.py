"""Bounds, as a client meets them: each has an SQLSTATE and a hint, and the session goes on."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

IDLE = 10_000
IDLE_BYTES_MAX = 500 * 1000 * 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("limits") / "data", ro=0)
    try:
        made.start()
        with psycopg.connect(made.url, autocommit=True) as setup:
            setup.execute("create table t (id int primary key, v text)")
            with setup.cursor().copy("copy t from stdin") as copy:
                for number in range(200):
                    copy.write_row((number, "x" * 1000))
        yield made
    finally:
        made.stop()
    assert_nothing_left(made)


MEGABYTE = 1024 * 1024
LARGE = "select repeat(v, 1000) from t"


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        pytest.param("select '" + "x" * (17 * MEGABYTE) + "'", "54000", id="statement bytes"),
        pytest.param("select " + "1," * 60_000 + "1", "54000", id="words"),
        pytest.param("select " + "(" * 500 + "1" + ")" * 500, "54001", id="nesting"),
        pytest.param("select " + "not " * 500 + "true", "54001", id="prefixes"),
        pytest.param(
            "select 1" + " + (1" * 150 + ")" * 150, "54001", id="nesting in an expression"
        ),
        pytest.param(
            f"update t set v = repeat('x', {17 * MEGABYTE}) where id = 1", "54000", id="row bytes"
        ),
        pytest.param(f"declare c cursor with hold for {LARGE}", "53200", id="rows of a cursor"),
    ],
)
def test_a_bound(cluster: LocalCluster, statement: str, state: str) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(statement)
        assert caught.value.sqlstate == state, caught.value
        assert caught.value.diag.message_hint
        assert connection.execute("select 1").fetchone() == (1,)


def test_parameters(cluster: LocalCluster) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("prepare p as select $70000::int")
        assert caught.value.sqlstate in ("54023", "54000", "42P02")
        many = connection.execute(
            f"select id from t where id in ({', '.join(['%s'] * 5000)})", list(range(5000))
        )
        assert len(many.fetchall()) == 200


def test_a_result_in_portions(cluster: LocalCluster) -> None:
    """Fetched in one go it is as large as it likes: it is never held here."""
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        assert sum(len(row[0]) for row in connection.cursor().stream(LARGE)) == 200_000_000


def test_prepared_statements_and_settings_of_a_session(cluster: LocalCluster) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        long = "x" * 900_000
        with pytest.raises(psycopg.Error) as caught:
            for number in range(50):
                connection.execute(f"prepare p{number} as select '{long}'")
        assert caught.value.sqlstate == "53000"
        assert caught.value.diag.message_hint
        connection.execute("deallocate all")
        with pytest.raises(psycopg.Error) as caught:
            for number in range(1000):
                connection.execute(f"set app.s{number} = 1")
        assert caught.value.sqlstate == "53400"
        assert caught.value.diag.message_hint
        with pytest.raises(psycopg.Error) as caught:
            for number in range(20_000):
                connection.execute(f"select pg_advisory_lock({number})")
        assert caught.value.sqlstate == "53200"
        assert caught.value.diag.message_hint


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_idle_connections_are_cheap(cluster: LocalCluster) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < IDLE + 500:
        pytest.skip("this process may not open so many sockets")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    writer = next(node for node in cluster.nodes() if node.role == "rw")
    address = cluster.sql_url("rw").rpartition("@")[2].removeprefix("postgresql://")
    port = int(address.partition("/")[0].rpartition(":")[2])
    body = struct.pack("!I", 3 << 16) + b"user\0u\0application_name\0idle\0\0"
    startup = struct.pack("!I", len(body) + 4) + body
    rss = resident_bytes(writer.process.pid)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        peers: list[socket.socket] = []
        while len(peers) < IDLE:
            batch = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            for peer in batch:
                stack.callback(peer.close)
                peer.sendall(startup)
            for peer in batch:
                answer(peer)
            peers += batch
        query = b"Q" + struct.pack("!I", 13) + b"select 1\0"
        for peer in peers:
            peer.sendall(query)
            answer(peer)
        grown = resident_bytes(writer.process.pid) - rss
        print(f"{IDLE} idle connections: {grown / 1e6:.0f} MB")
        assert grown < IDLE_BYTES_MAX


def answer(peer: socket.socket) -> None:
    """Read up to a ReadyForQuery."""
    data = b""
    while not data.endswith(b"Z\0\0\0\5I"):
        piece = peer.recv(4096)
        assert piece, data
        data += piece


def resident_bytes(pid: int) -> int:
    """What the process has in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no VmRSS of process {pid}")
