"""Storage stands still while clients write more than may wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]

# Together more than a storage client takes unanswered.
CLIENTS = 14
ROW_BYTES = 12_000_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path / "data", ro=0) as made:
        yield made


def test_big_rows_while_storage_is_stopped(cluster: LocalCluster) -> None:
    def write(number: int) -> int:
        with psycopg.connect(cluster.url, autocommit=True) as client:
            text = "insert into t values (%s, repeat('x', %s))"
            return client.execute(text, (number, ROW_BYTES)).rowcount

    with psycopg.connect(cluster.sql_url("rw"), autocommit=True) as here:
        here.execute("create table t (id int primary key, v text)")
        # Control would replace a storage that hangs.
        control = cluster.pause("control")
        storage = None
        try:
            here.execute("select wait from polarless.sessions")
            storage = cluster.pause("storage")
            with ThreadPoolExecutor(CLIENTS) as threads:
                writing = [threads.submit(write, number) for number in range(CLIENTS)]
                waits: list[str] = []
                while "storage, which is behind" not in waits:
                    found = here.execute("select wait from polarless.sessions").fetchall()
                    waits = [row[0] for row in found]
                    failed = [one for one in writing if one.done()]
                    assert not failed, failed[0].result()
                cluster.resume(storage)
                assert [one.result(60) for one in writing] == [1] * CLIENTS
        finally:
            if storage is not None:
                cluster.resume(storage)
            cluster.resume(control)
        assert here.execute("insert into t values (-1, '')").rowcount == 1
        assert here.execute("select count(*) from t").fetchone() == (CLIENTS + 1,)
