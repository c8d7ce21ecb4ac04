"""Reads through the proxy that need not be the newest, where a strong one is a trip to the home."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("consistency") / "data"
    with running_cluster(folder, ro=1, shared_memory=False) as made:
        with psycopg.connect(made.url, autocommit=True) as setup:
            setup.execute("create table t (id int primary key, v int)")
            setup.execute("insert into t values (1, 0)")
        yield made


def reused(cluster: LocalCluster) -> int:
    """Statements of the reader that took a timestamp which was there."""
    found = cluster.control.node(cluster.node("ro").name)["snapshots_reused"]
    assert isinstance(found, int)
    return found


def test_a_session_reads_its_own_writes_and_waits_for_nothing_else(cluster: LocalCluster) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as client:
        client.execute("set polarless.read_consistency = session")
        before = reused(cluster)
        for number in range(1, 40):
            client.execute("update t set v = %s where id = 1", (number,))
            for _ in range(3):
                assert client.execute("select v from t where id = 1").fetchone() == (number,)
        assert reused(cluster) > before
        client.execute("set polarless.read_consistency = strong")
        before = reused(cluster)
        for _ in range(10):
            client.execute("select v from t where id = 1")
        assert reused(cluster) == before


@pytest.mark.parametrize("level", ["bounded", "session"])
def test_without_the_home_weaker_reads_go_on(cluster: LocalCluster, level: str) -> None:
    with (
        psycopg.connect(cluster.url, autocommit=True) as strong,
        psycopg.connect(cluster.url, autocommit=True) as weak,
    ):
        weak.execute(f"set polarless.read_consistency = {level}")
        weak.execute("set polarless.max_staleness = '60s'")
        strong.execute("set statement_timeout = '300ms'")
        for client in (strong, weak):
            for _ in range(3):
                client.execute("select count(*) from t where id = 1")
                client.execute("select v from t where id = 1")
        control = cluster.pause("control")
        home = cluster.pause("home")
        try:
            with pytest.raises(psycopg.errors.QueryCanceled):
                strong.execute("select v from t where id = 1")
            assert weak.execute("select v from t where id = 1").fetchone() is not None
        finally:
            cluster.resume(home)
            cluster.resume(control)
        cluster.wait_until_serving()


def test_how_old_a_read_may_be_can_be_said(cluster: LocalCluster) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as client:
        assert client.execute("show polarless.max_staleness").fetchone() == ("1s",)
        client.execute("set polarless.read_consistency = bounded")
        client.execute("set polarless.max_staleness = 0")
        before = reused(cluster)
        for _ in range(5):
            client.execute("select v from t where id = 1")
        assert reused(cluster) == before
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            client.execute("set polarless.max_staleness = 'for ever'")
