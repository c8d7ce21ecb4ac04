"""A cluster whose disk is full, all of it: the writer can be replaced, and commits wait."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left
from tests.faults.shimmed import shim

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


class Disk:
    """The disk of a cluster. ``fill``: no file below the data directory can grow."""

    def __init__(self, rules: Path, data: Path) -> None:
        self._rules = rules
        self._data = data
        self.free()

    def fill(self) -> None:
        self._rules.write_text(f"grow {self._data} 0 1000000000 {errno.ENOSPC}\n")

    def free(self) -> None:
        self._rules.write_text("")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "rules", tmp_path / "data")


@pytest.fixture
def cluster(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    library = shim(tmp_path)
    made = LocalCluster(tmp_path / "data", ro=1)
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("SHIM_FOLDER", str(tmp_path / "data"))
        patch.setenv("SHIM_CONTROL", str(tmp_path / "rules"))
        made.start()
    yield made
    disk.free()
    made.stop()
    assert_nothing_left(made)


def test_a_failover_on_a_full_disk(cluster: LocalCluster, disk: Disk) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute("insert into t values (1)")
        disk.fill()
        killed = cluster.kill("rw")
        # The next writer serves; a statement through the proxy that needs it waits for no room.
        connection.execute("begin isolation level serializable")
        assert connection.execute("select id from t for update").fetchall() == [(1,)]
        connection.execute("rollback")
        (failover,) = [event for event in cluster.events() if event["event"] == "failover"]
        assert failover["previous"] == killed.name
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(connection.execute, "insert into t values (2)")
            cluster.wait_until(
                "storage refuses it", lambda _: cluster.control.node("storage")["disk_full"]
            )
            assert not waiting.done()
            disk.free()
            assert waiting.result(30).rowcount == 1
        assert len(connection.execute("select id from t").fetchall()) == 2
    # Whoever could not be started for want of room is, and control has written all down.
    cluster.wait_until_serving(30)
    assert cluster.data.read("control.json")["epoch"] == failover["epoch"]
