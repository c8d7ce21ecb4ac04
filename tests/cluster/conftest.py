"""Clusters for tests. Each fixture ends with nothing left: no process, no shared memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polarless.local import LocalCluster
from polarless.net.datadir import shared_memory_names
from polarless.net.processes import find_processes

STUB = Path(__file__).with_name("stub_node.py")


@pytest.fixture
def stub_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts packages in front of the real tiers whose nodes are `tests.cluster.stub_node`."""
    folder = tmp_path / "stubs"
    for package in ("storage", "memory_pool", "compute"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        text = f"import runpy; runpy.run_path({str(STUB)!r}, run_name='__main__')\n"
        (folder / package / "__main__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that is not there yet."""
    return tmp_path / "data"


@pytest.fixture
def stubs(stub_packages: Path, data: Path) -> Iterator[LocalCluster]:
    """A running cluster of stub nodes: control is real, the tiers are not, and no proxy."""
    with running_cluster(data, proxies=0) as cluster:
        yield cluster


@contextlib.contextmanager
def running_cluster(data: Path, **settings: Any) -> Iterator[LocalCluster]:
    """A cluster that serves; what happened is printed for whoever reads a failure."""
    cluster = LocalCluster(data, **settings)
    try:
        cluster.start()
        yield cluster
    finally:
        for event in cluster.events():
            print(event["at"][11:23], event["event"], event["node"], event["text"])
        cluster.stop()
    assert_nothing_left(cluster)


def assert_nothing_left(cluster: LocalCluster) -> None:
    """No process and no shared memory of this cluster."""
    left = find_processes(str(cluster.data.root))
    assert not left, left
    assert not shared_memory_names(cluster.data.cluster())


def is_loopback_only(pid: int) -> bool:
    """Whether every TCP socket that the process listens on is bound to 127.0.0.1."""
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes and not fields[1].startswith("0100007F"):
            return False
    wide = Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]
    return not any(line.split()[3] == "0A" and line.split()[9] in inodes for line in wide)
