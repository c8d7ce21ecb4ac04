"""What of a session is lost with its node, and that the session ends then instead of going on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


@pytest.fixture
def cluster(data: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(data, ro=1)
    try:
        made.start()
        yield made
    finally:
        made.stop()
    assert_nothing_left(made)


def test_locks_and_held_cursors_end_a_session_and_nothing_else_does(cluster: LocalCluster) -> None:
    def connect() -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(cluster.url, autocommit=True)

    with connect() as plain, connect() as unlocked, connect() as locked, connect() as held:
        plain.execute("prepare p as select 7")
        for session in (locked, unlocked):
            session.execute(f"select pg_advisory_lock({session.info.backend_pid})")
        unlocked.execute("select pg_advisory_unlock_all()")
        held.execute("declare c cursor with hold for select 1 union all select 2")
        cluster.kill("rw")
        assert plain.execute("execute p").fetchone() == (7,)
        assert unlocked.execute("select 1").fetchone() == (1,)
        for session, what in ((locked, "advisory locks"), (held, "cursors WITH HOLD")):
            with pytest.raises(psycopg.Error) as caught:
                session.execute("select 1")
            assert caught.value.sqlstate == "57P01", caught.value
            assert what in str(caught.value)
    cluster.wait_until_serving()
