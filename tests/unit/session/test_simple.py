"""The simple protocol, and how transactions begin and end."""

from __future__ import annotations

import pytest

from polarless.errors import CommitUnknown, Conflict, Fenced
from tests.unit.session.fakes import Harness
from tests.unit.session.wire import Q, X, copy_fail


@pytest.fixture
def h() -> Harness:
    return Harness()


def test_greeting_says_who_is_there(h: Harness) -> None:
    greeting = h.connect(application_name="psql").greeting
    assert greeting[0] == "R"
    assert "S server_encoding=UTF8" in greeting
    assert "S application_name=psql" in greeting
    assert "S in_hot_standby=off" in greeting
    assert any(line.startswith("S server_version=15.0") for line in greeting)
    assert greeting[-2:] == ["K", "Z I"]


def test_select_outside_a_transaction_opens_none(h: Harness) -> None:
    client = h.connect()
    assert client.query("select 7 8") == ["T c0 c1", "D 7 8", "C SELECT 1", "Z I"]
    assert h.engine.statements == 0
    assert len(client.transport.written) == 0


def test_one_write_per_query(h: Harness) -> None:
    client = h.connect()
    client.session.data_received(Q("select 1"))
    assert len(client.transport.written) == 1


def test_autocommit_waits_for_the_acknowledgement(h: Harness) -> None:
    client = h.connect()
    h.engine.delayed = True
    assert client.query("put k") == []
    h.engine.acknowledge()
    assert client.take() == ["C INSERT 0 1", "Z I"]
    assert h.engine.committed == ["k"]


def test_messages_behind_a_commit_wait_for_it(h: Harness) -> None:
    client = h.connect()
    h.engine.delayed = True
    assert client.send(Q("put k"), Q("get")) == []
    h.engine.acknowledge()
    assert client.take() == ["C INSERT 0 1", "Z I"]
    h.clock.run()
    assert client.take() == ["T a", "D k", "C SELECT 1", "Z I"]


def test_block(h: Harness) -> None:
    client = h.connect()
    assert client.query("begin") == ["C BEGIN", "Z T"]
    assert client.query("put a") == ["C INSERT 0 1", "Z T"]
    assert client.query("get") == ["T a", "D a", "C SELECT 1", "Z T"]
    assert h.engine.committed == []
    assert client.query("commit") == ["C COMMIT", "Z I"]
    assert h.engine.committed == ["a"]
    assert h.engine.open == 0


def test_rollback(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    client.query("put a")
    assert client.query("rollback") == ["C ROLLBACK", "Z I"]
    assert h.engine.committed == []
    assert h.engine.open == 0


def test_failed_block_refuses_until_its_end(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    assert client.query("error") == ["E ERROR 22012 it went wrong", "Z E"]
    assert h.engine.open == 0, "its locks are free at once"
    refused = "current transaction is aborted, commands ignored until end of transaction block"
    assert client.query("select 1") == [f"E ERROR 25P02 {refused}", "Z E"]
    assert client.query(" -- now\n commit") == ["C ROLLBACK", "Z I"]
    assert client.query("select 1")[-1] == "Z I"


def test_warnings_about_blocks(h: Harness) -> None:
    client = h.connect()
    assert client.query("commit") == [
        "N WARNING 25P01 there is no transaction in progress", "C COMMIT", "Z I",
    ]  # fmt: skip
    assert client.query("rollback")[0].startswith("N WARNING 25P01")
    client.query("begin")
    assert client.query("begin") == [
        "N WARNING 25001 there is already a transaction in progress", "C BEGIN", "Z T",
    ]  # fmt: skip


def test_script_is_one_implicit_transaction(h: Harness) -> None:
    client = h.connect()
    assert client.query("put a; put b; get") == [
        "C INSERT 0 1", "C INSERT 0 1", "T a", "D a,b", "C SELECT 1", "Z I",
    ]  # fmt: skip
    assert h.engine.committed == ["a", "b"]


def test_script_that_fails_leaves_nothing(h: Harness) -> None:
    client = h.connect()
    assert client.query("put a; error; put c") == [
        "C INSERT 0 1", "E ERROR 22012 it went wrong", "Z I",
    ]  # fmt: skip
    assert h.engine.committed == []
    assert h.engine.open == 0


def test_begin_in_a_script_takes_in_what_came_before(h: Harness) -> None:
    client = h.connect()
    assert client.query("put a; begin; put b")[-1] == "Z T"
    client.query("rollback")
    assert h.engine.committed == []


def test_commit_in_a_script_commits_in_the_middle(h: Harness) -> None:
    client = h.connect()
    h.engine.delayed = True
    assert client.query("begin; put a; commit; put b; error") == []
    h.engine.acknowledge()
    h.clock.run()
    assert client.take() == [
        "C BEGIN", "C INSERT 0 1", "C COMMIT", "C INSERT 0 1",
        "E ERROR 22012 it went wrong", "Z I",
    ]  # fmt: skip
    assert h.engine.committed == ["a"]


def test_commit_of_a_script_that_fails_is_the_last_statements_error(h: Harness) -> None:
    client = h.connect()
    h.engine.commit_error = Conflict("somebody else was first")
    assert client.query("put a; put b") == [
        "C INSERT 0 1", "E ERROR 40001 somebody else was first", "Z I",
    ]  # fmt: skip
    assert h.engine.open == 0


def test_commit_of_a_block_that_fails_ends_the_block(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    client.query("put a")
    h.engine.commit_error = Conflict("somebody else was first")
    assert client.query("commit") == ["E ERROR 40001 somebody else was first", "Z I"]
    assert h.engine.open == 0


@pytest.mark.parametrize("error", [Fenced("epoch 7"), CommitUnknown("?")])
def test_commit_that_nobody_knows_the_end_of_closes(h: Harness, error: Fenced) -> None:
    client = h.connect()
    h.engine.delayed = True
    client.query("put a")
    h.engine.fenced = Fenced("epoch 7")
    h.engine.acknowledge(error)
    assert client.take()[0].startswith("E FATAL 08007")
    assert client.transport.closed
    assert h.server.sessions() == []


def test_a_commit_that_waits_for_room_leaves_the_session_open(h: Harness) -> None:
    client = h.connect()
    h.engine.delayed = True
    client.query("begin")
    client.query("put a")
    client.query("commit")
    h.engine.acknowledge(CommitUnknown("the disk is full"))
    assert client.take() == ["E ERROR 08007 the disk is full", "Z I"]
    assert client.query("select 1")[-1] == "Z I"


def test_fenced_node_ends_the_session(h: Harness) -> None:
    client, other = h.connect(), h.connect()
    h.engine.delayed = True
    client.query("put a")
    h.server.close_sessions(Fenced("a higher epoch exists"))
    assert client.take()[0].startswith("E FATAL 08007")
    assert other.take() == ["E FATAL 57P01 a higher epoch exists"]
    h.engine.acknowledge()
    assert client.take() == []


def test_close_sessions_of_writers_only(h: Harness) -> None:
    reader, writer, idle = h.connect(), h.connect(), h.connect()
    reader.query("begin; get")
    writer.query("begin; put a")
    h.server.close_sessions(Fenced("not the writer any more"), writers_only=True)
    assert not reader.transport.closed
    assert not idle.transport.closed
    assert writer.take() == ["E FATAL 57P01 not the writer any more"]
    assert h.engine.open == 1


def test_savepoints(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    client.query("put a")
    assert client.query("savepoint s") == ["C SAVEPOINT", "Z T"]
    client.query("put b")
    assert client.query("error")[-1] == "Z E"
    assert client.query("rollback to s") == ["C ROLLBACK", "Z T"]
    client.query("put c")
    assert client.query("release s") == ["C RELEASE", "Z T"]
    assert client.query("rollback to s") == ['E ERROR 3B001 savepoint "s" does not exist', "Z E"]
    client.query("rollback")

    client.query("begin")
    client.query("put a")
    client.query("savepoint s")
    client.query("put b")
    client.query("savepoint t")
    client.query("put c")
    client.query("rollback to s")
    client.query("put d")
    client.query("commit")
    assert h.engine.committed == ["a", "d"]


def test_savepoint_outside_of_a_block_is_refused(h: Harness) -> None:
    assert h.connect().query("savepoint s") == [
        "E ERROR 25P01 SAVEPOINT can only be used in transaction blocks", "Z I",
    ]  # fmt: skip


def test_chain_begins_the_next_like_this_one(h: Harness) -> None:
    client = h.connect()
    client.query("begin repeatable read")
    assert client.query("commit chain") == ["C COMMIT", "Z T"]
    assert client.session.txn is not None
    assert client.session.txn.isolation == "repeatable read"


def test_write_on_a_reader_is_sent_elsewhere(h: Harness) -> None:
    h.engine.writable = False
    client = h.connect()
    assert client.query("put a") == [
        "E ERROR 25006 cannot execute PUT in a read-only transaction", "Z I",
    ]  # fmt: skip
    assert "in_hot_standby=on" in str(client.greeting)


def test_write_in_a_read_only_transaction_is_refused(h: Harness) -> None:
    client = h.connect()
    client.query("begin read only")
    assert client.query("put a")[0].startswith("E ERROR 25006")
    client.query("rollback")
    client.query("set default_transaction_read_only on")
    assert client.query("put a")[0].startswith("E ERROR 25006")


def test_empty_query(h: Harness) -> None:
    client = h.connect()
    assert client.query("") == ["I", "Z I"]
    assert client.query(" ; ") == ["I", "Z I"]


def test_syntax_error(h: Harness) -> None:
    client = h.connect()
    assert client.query("frobnicate") == [
        'E ERROR 42601 syntax error at or near "frobnicate"', "Z I",
    ]  # fmt: skip


def test_text_that_is_no_utf8_is_refused(h: Harness) -> None:
    client = h.connect()
    answer = client.send(b"Q\0\0\0\x06\xff\0")
    assert answer == [
        'E ERROR 22021 invalid byte sequence for encoding "UTF8" at byte 0', "Z I",
    ]  # fmt: skip


@pytest.mark.allow_log("ValueError in 'bug'")
def test_mistake_of_ours_is_no_detail_for_the_client(h: Harness) -> None:
    client = h.connect()
    assert client.query("bug") == ["E ERROR XX000 internal error: ValueError", "Z I"]
    assert client.query("select 1")[-1] == "Z I"


def test_terminate(h: Harness) -> None:
    client = h.connect()
    client.query("begin; put a")
    client.send(X)
    assert client.transport.closed
    assert h.engine.open == 0
    assert h.server.sessions() == []


def test_lost_client_rolls_back(h: Harness) -> None:
    client = h.connect()
    client.query("begin; put a")
    client.lose()
    assert h.engine.open == 0


def test_stray_copy_messages_are_ignored(h: Harness) -> None:
    assert h.connect().send(copy_fail("x"), Q("select 1"))[-1] == "Z I"


def test_set_follows_its_transaction(h: Harness) -> None:
    client = h.connect()
    assert client.query("set application_name one") == [
        "S application_name=one", "C SET", "Z I",
    ]  # fmt: skip
    client.query("begin")
    client.query("set application_name two")
    assert client.query("rollback") == ["S application_name=one", "C ROLLBACK", "Z I"]
    assert client.query("show application_name") == ["T a", "D one", "C SHOW", "Z I"]
    client.query("begin")
    assert client.query("show transaction_isolation")[1] == "D read committed"


def test_discard_all(h: Harness) -> None:
    client = h.connect(application_name="start")
    client.query("set application_name one")
    assert client.query("discard all") == ["S application_name=start", "C DISCARD ALL", "Z I"]
    client.query("begin")
    assert client.query("discard all")[0].startswith("E ERROR 25001")
