"""The protocol as psycopg and asyncpg speak it, against a real cluster."""

from __future__ import annotations

import io
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import asyncpg
import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

ROWS = 30_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("protocol") / "data", ro=1)
    try:
        made.start()
        with psycopg.connect(made.url, autocommit=True) as setup:
            setup.execute("create table big (id int primary key, v text)")
            with setup.cursor().copy("copy big from stdin") as copy:
                for number in range(ROWS):
                    copy.write_row((number, "x" * 20))
        yield made
    finally:
        made.stop()
    assert_nothing_left(made)


@pytest.fixture
def url(cluster: LocalCluster) -> str:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute("drop table if exists t")
        connection.execute("create table t (id int primary key, v text)")
        connection.execute("insert into t values (1, 'a'), (2, 'b'), (3, 'c')")
    return cluster.url


def refused(state: str, call: Callable[[], object]) -> psycopg.Error:
    """The error that the call ends with."""
    with pytest.raises(psycopg.Error) as caught:
        call()
    assert caught.value.sqlstate == state, caught.value
    return caught.value


def test_a_pipeline_up_to_its_error(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero), connection.pipeline() as pipeline:
            connection.execute("insert into t values (10, 'kept')")
            pipeline.sync()
            connection.execute("insert into t values (11, 'lost')")
            connection.execute("select 1/0")
            connection.execute("insert into t values (12, 'never')")
        found = connection.execute("select id from t where id > 9").fetchall()
        assert found == [(10,)]


def test_server_side_cursors(url: str) -> None:
    with psycopg.connect(url) as connection:
        with connection.cursor("c", scrollable=True) as cursor:
            cursor.execute("select id, v from t where id >= %s order by id", (2,))
            assert cursor.fetchone() == (2, "b")
            assert cursor.fetchall() == [(3, "c")]
            cursor.scroll(0, mode="absolute")
            assert cursor.fetchone() == (2, "b")
        with connection.cursor("b", binary=True) as cursor:
            cursor.execute("select id, v, id::numeric / 4 from t order by id")
            assert [str(value) for value in cursor.fetchone() or ()][:2] == ["1", "a"]
        with connection.cursor("h", withhold=True) as cursor:
            cursor.execute("select id from t order by id")
            connection.commit()
            connection.execute("delete from t")
            assert cursor.fetchall() == [(1,), (2,), (3,)]
        connection.rollback()
        refused("34000", lambda: connection.execute("fetch c"))
    with psycopg.connect(url, autocommit=True) as connection:
        refused("25P01", lambda: connection.execute("declare c cursor for select 1"))
        connection.execute("begin")
        connection.execute("declare c no scroll cursor for select id from t order by id")
        assert connection.execute("fetch forward 2 from c").fetchall() == [(1,), (2,)]
        assert connection.execute("move all in c").statusmessage == "MOVE 1"
        refused("55000", lambda: connection.execute("fetch prior from c"))


def test_prepare_and_execute(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("prepare p (int) as select v from t where id = $1")
        assert connection.execute("execute p (1 + 1)").fetchall() == [("b",)]
        refused("42P05", lambda: connection.execute("prepare p as select 1"))
        refused("42601", lambda: connection.execute("execute p (1, 2)"))
        refused("22P02", lambda: connection.execute("execute p ('x')"))
        connection.execute("prepare w as insert into t values ($1, $2)")
        assert connection.execute("execute w (4, 'it''s')").statusmessage == "INSERT 0 1"
        assert connection.execute("execute p (4)").fetchall() == [("it's",)]
        connection.execute("truncate t")
        assert connection.execute("execute p (4)").fetchall() == []
        connection.execute("deallocate p")
        refused("26000", lambda: connection.execute("execute p (1)"))


async def test_execute_and_fetch_in_the_extended_protocol(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("prepare p as select id, v from t where id = $1")
        assert await connection.fetch("execute p (3)") == [(3, "c")]
        async with connection.transaction():
            await connection.execute("declare c cursor for select id, v, id > 1 from t order by id")
            assert await connection.fetch("fetch 2 from c") == [(1, "a", False), (2, "b", True)]
    finally:
        await connection.close()


async def test_portals_take_turns(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            one = await connection.cursor("select id from big order by id")
            two = await connection.cursor("select v from t order by id")
            assert await one.fetch(2) == [(0,), (1,)]
            assert await two.fetch(1) == [("a",)]
            assert await one.fetch(1) == [(2,)]
            await one.forward(10)
            assert await one.fetchrow() == (13,)
            assert await two.fetch(5) == [("b",), ("c",)]
    finally:
        await connection.close()


async def test_copy_with_asyncpg(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        # Records go in binary.
        await connection.copy_records_to_table("t", records=[(4, "d"), (5, None)])
        out = io.BytesIO()
        await connection.copy_from_table("t", output=out)
        assert out.getvalue() == b"1\ta\n2\tb\n3\tc\n4\td\n5\t\\N\n"
        out = io.BytesIO()
        query = "select v, id from t where id > 3"
        await connection.copy_from_query(query, output=out, format="csv", header=True)
        assert out.getvalue() == b"v,id\nd,4\n,5\n"
    finally:
        await connection.close()


def test_copy_with_psycopg(url: str) -> None:
    with psycopg.connect(url) as connection:
        cursor = connection.cursor()
        with cursor.copy("copy t to stdout (format binary)") as copy:
            copy.set_types(["int4", "text"])
            assert list(copy.rows()) == [(1, "a"), (2, "b"), (3, "c")]
        with cursor.copy("copy t from stdin (format binary)") as copy:
            copy.set_types(["int4", "text"])
            copy.write_row((6, "f"))
        error = refused("22P03", lambda: _copy(cursor, b"\0\1\0\0\0\3abc"))
        assert error.diag.context == "COPY t, line 1, column id"
        connection.rollback()
        assert cursor.execute("select count(*) from t").fetchone() == (3,)


def _copy(cursor: psycopg.Cursor[tuple[object, ...]], row: bytes) -> None:
    with cursor.copy("copy t (id) from stdin (format binary)") as copy:
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + row + b"\xff\xff")


def test_a_copy_that_ends_badly(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.cursor()
        with pytest.raises(ZeroDivisionError), cursor.copy("copy t from stdin") as copy:
            copy.write("70\tx\n")
            raise ZeroDivisionError
        with pytest.raises(psycopg.Error) as caught, cursor.copy("copy t from stdin") as copy:
            copy.write("71\tx\nbad\ty\n")
        assert caught.value.diag.context == 'COPY t, line 2, column id: "bad"'
        assert cursor.execute("select count(*) from t").fetchone() == (3,)


CANCELLED = (
    "select pg_sleep(30)",
    "update t set v = 'x' where id = 1",
    "select count(*) from big a join big b on a.v <> b.v",
    "select pg_advisory_lock(7)",
)


@pytest.mark.parametrize("statement", CANCELLED)
def test_cancel(url: str, statement: str) -> None:
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as connection:
        holder.execute("update t set v = 'held' where id = 1")
        holder.execute("select pg_advisory_xact_lock(7)")
        timer = threading.Timer(0.1, connection.cancel)
        timer.start()
        began = time.monotonic()
        refused("57014", lambda: connection.execute(statement))
        assert time.monotonic() - began < 5
        timer.join()
        assert connection.execute("select 1").fetchone() == (1,)


def test_timeouts(url: str) -> None:
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as connection:
        holder.execute("update t set v = 'held' where id = 1")
        connection.execute("set lock_timeout = '50ms'")
        refused("55P03", lambda: connection.execute("update t set v = '' where id = 1"))
        connection.execute("set lock_timeout = 0; set statement_timeout = '50ms'")
        for statement in CANCELLED[:3]:
            refused("57014", lambda: connection.execute(statement))  # noqa: B023
        connection.execute("set idle_in_transaction_session_timeout = '50ms'")
        connection.execute("begin")
        time.sleep(0.2)
        refused("25P03", lambda: connection.execute("select 1"))


def test_advisory_locks(url: str) -> None:
    with (
        psycopg.connect(url, autocommit=True) as one,
        psycopg.connect(url, autocommit=True) as two,
    ):
        one.execute("select pg_advisory_lock(1), pg_advisory_lock(1)")
        assert two.execute("select pg_try_advisory_lock(1)").fetchone() == (False,)
        assert one.execute("select pg_advisory_unlock(1)").fetchone() == (True,)
        assert two.execute("select pg_try_advisory_lock(1)").fetchone() == (False,)
        assert one.execute("select pg_advisory_unlock(1)").fetchone() == (True,)
        assert one.execute("select pg_advisory_unlock(1)").fetchone() == (False,)
        with one.transaction():
            one.execute("select pg_advisory_xact_lock(1, 2)")
            assert two.execute("select pg_try_advisory_xact_lock(1, 2)").fetchone() == (False,)
        assert two.execute("select pg_try_advisory_xact_lock(1, 2)").fetchone() == (True,)
        waiting = threading.Thread(target=lambda: two.execute("select pg_advisory_lock(5)"))
        one.execute("select pg_advisory_lock(5)")
        waiting.start()
        one.close()  # a session that is over holds nothing
        waiting.join(10)
        assert not waiting.is_alive()


def test_what_is_refused(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in ("listen x", "notify x", "select pg_advisory_lock_shared(1)"):
            assert refused("0A000", lambda: connection.execute(statement)).diag.message_hint  # noqa: B023
        connection.execute("unlisten *")
        assert (
            refused("42601", lambda: connection.execute("selec 1")).diag.statement_position == "1"
        )
        duplicate = refused("23505", lambda: connection.execute("insert into t values (1, '')"))
        assert duplicate.diag.constraint_name == "t_pkey"


def test_ddl_behind_a_savepoint_is_forgotten(url: str) -> None:
    with psycopg.connect(url, prepare_threshold=0) as connection:
        connection.execute("savepoint s")
        connection.execute("create table made (a int)")
        connection.execute("insert into made values (1)")
        refused("42P01", lambda: connection.execute("select * from nowhere"))
        connection.execute("rollback to s")
        refused("42P01", lambda: connection.execute("insert into made values (1)"))
        connection.execute("rollback to s")
        connection.execute("create table made (b text)")
        connection.execute("insert into made values ('x')")
        assert connection.execute("select b from made").fetchall() == [("x",)]
        connection.rollback()


def test_encryption_requests_and_versions(url: str) -> None:
    found = re.search(r":(\d+)/", url)
    assert found is not None
    for code, answer in ((80877103, b"N"), (80877104, b"N")):
        with closing(socket.create_connection(("127.0.0.1", int(found[1])))) as peer:
            peer.sendall(struct.pack("!II", 8, code))
            assert peer.recv(1) == answer
    with closing(socket.create_connection(("127.0.0.1", int(found[1])))) as peer:
        body = struct.pack("!I", (3 << 16) | 9) + b"user\0u\0_pq_.x\0y\0\0"
        peer.sendall(struct.pack("!I", len(body) + 4) + body)
        answer = b""
        while not answer.endswith(b"Z\0\0\0\5I"):
            answer += peer.recv(4096)
        # Version 3.2 is spoken, one option is not known; so the cancel key is a long one.
        assert answer.startswith(b"v\0\0\0\x13\0\3\0\2\0\0\0\1_pq_.x\0R")
        assert b"K\0\0\0\x28" in answer
