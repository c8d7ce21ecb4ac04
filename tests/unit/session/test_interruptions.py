"""What ends a statement or a session from outside: cancel, time-outs, a role that changes."""

from __future__ import annotations

import struct

import pytest

from compute.session.limits import Limits
from polarless.errors import CallerMistake
from tests.unit.session import wire
from tests.unit.session.fakes import Connection, Harness
from tests.unit.session.wire import B, E, P, Q, S

CANCELED = "E ERROR 57014 canceling statement due to user request"


@pytest.fixture
def h() -> Harness:
    return Harness()


def cancel(h: Harness, client: Connection, key: bytes | None = None) -> None:
    """A CancelRequest, on a connection of its own, which is closed without an answer."""
    greeting, transport = h.greet()
    body = struct.pack("!II", 80877102, client.session.pid) + (key or client.session.key)
    greeting.data_received(struct.pack("!I", len(body) + 4) + body)
    assert transport.closed
    assert transport.take() == b""


def test_cancel_while_waiting_for_a_lock(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    assert client.query("lock k") == []
    cancel(h, client)
    h.clock.run()
    assert client.take() == [CANCELED, "Z E"]
    assert h.engine.cancelled == ["lock k"]
    assert h.engine.open == 0


async def test_cancel_of_a_task(h: Harness) -> None:
    client = h.connect()
    client.query("hang")
    assert await client.settle() == []
    cancel(h, client)
    assert await client.settle() == [CANCELED, "Z I"]
    assert client.query("select 1")[-1] == "Z I"


async def test_cancel_in_a_pipeline_skips_to_sync(h: Harness) -> None:
    client = h.connect()
    assert client.send(P("hang"), B(), E(), P("put k"), B(), E(), S) == ["1", "2"]
    cancel(h, client)
    assert await client.settle() == [CANCELED, "Z I"]
    assert h.engine.committed == []


def test_cancel_with_a_wrong_key_or_of_nobody(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    client.query("lock k")
    cancel(h, client, key=b"\0\0\0\0")
    h.clock.run()
    assert client.take() == []
    cancel(h, client, key=client.session.key + b"\0")
    assert h.server.stats.cancels == 0
    h.engine.resume("lock k")
    h.clock.run()
    assert client.take()[-1] == "Z T"


def test_cancel_does_not_touch_a_commit(h: Harness) -> None:
    client = h.connect()
    h.engine.delayed = True
    client.query("put k")
    cancel(h, client)
    h.engine.acknowledge()
    assert client.take() == ["C INSERT 0 1", "Z I"]


def test_cancel_of_an_idle_session_is_forgotten(h: Harness) -> None:
    client = h.connect()
    cancel(h, client)
    h.clock.run()
    assert client.query("select 1") == ["T c0", "D 1", "C SELECT 1", "Z I"]


def test_statement_timeout(h: Harness) -> None:
    client = h.connect()
    client.query("set statement_timeout 2s")
    client.query("begin")
    client.query("lock k")
    h.clock.advance(1.9)
    assert client.take() == []
    h.clock.advance(0.2)
    assert client.take() == ["E ERROR 57014 canceling statement due to statement timeout", "Z E"]
    assert h.clock.timers == 0


def test_statement_timeout_spans_the_waits_of_a_statement(h: Harness) -> None:
    client = h.connect()
    client.query("set statement_timeout 2s")
    client.session.data_received(Q("page 1"))
    h.clock.advance(1.5)
    # Awake once, and asleep again: the time that has gone is not given back.
    h.engine.resume("page 1")
    assert client.take()[-1] == "Z I"
    client.session.data_received(Q("page 2"))
    h.clock.advance(1.5)
    assert client.take() == [], "a statement of its own has the whole time"
    h.clock.advance(0.6)
    assert client.take()[0].startswith("E ERROR 57014")


def test_lock_timeout(h: Harness) -> None:
    client = h.connect()
    client.query("set lock_timeout 100ms")
    client.query("begin")
    client.query("lock k")
    h.clock.advance(0.2)
    assert client.take() == ["E ERROR 55P03 canceling statement due to lock timeout", "Z E"]


def test_lock_timeout_is_not_for_pages(h: Harness) -> None:
    client = h.connect()
    client.query("set lock_timeout 100ms")
    client.query("page 1")
    h.clock.advance(10)
    assert client.take() == []
    h.engine.resume("page 1")
    assert client.take()[-1] == "Z I"


async def test_lock_timeout_of_a_task(h: Harness) -> None:
    client = h.connect()
    client.query("set lock_timeout 100ms")
    client.query("begin")
    client.query("slowlock k")
    await client.settle()
    h.clock.advance(0.06)
    assert await client.settle() == []
    h.clock.advance(0.06)
    assert (await client.settle())[0].startswith("E ERROR 55P03")


def test_idle_in_transaction(h: Harness) -> None:
    client = h.connect()
    client.query("set idle_in_transaction_session_timeout 1min")
    h.clock.advance(100)
    assert not client.is_closed()
    client.query("begin")
    client.query("put k")
    h.clock.advance(59)
    client.query("select 1")
    h.clock.advance(59)
    assert not client.is_closed()
    h.clock.advance(2)
    assert client.take() == [
        "E FATAL 25P03 terminating connection due to idle-in-transaction timeout"
    ]
    assert client.is_closed()
    assert h.engine.open == 0


def test_idle_session(h: Harness) -> None:
    client = h.connect()
    client.query("set idle_session_timeout 1s")
    client.query("begin")
    h.clock.advance(5)
    assert not client.is_closed()
    client.query("commit")
    h.clock.advance(2)
    assert client.take()[0].startswith("E FATAL 57P05")


def test_timeouts_are_shown_in_their_largest_unit(h: Harness) -> None:
    client = h.connect()
    for given, shown in (
        ("1500", "1500ms"), ("2000", "2s"), ("60s", "1min"), ("120 min", "2h"), ("24h", "1d"),
        ("0", "0"), ("0.5s", "500ms"),
    ):  # fmt: skip
        client.query(f"set statement_timeout {given}")
        assert client.query("show statement_timeout")[1] == f"D {shown}"
    assert client.query("set statement_timeout soon")[0].startswith("E ERROR 22023")


def test_a_promotion_is_reported(h: Harness) -> None:
    h.engine.writable = False
    client = h.connect()
    assert "S in_hot_standby=on" in client.greeting
    h.engine.writable = True
    h.server.role_changed()
    assert client.take() == ["S in_hot_standby=off"]


def test_a_promotion_is_reported_to_who_waits_when_the_wait_is_over(h: Harness) -> None:
    h.engine.writable = False
    client = h.connect()
    client.query("page 1")
    h.engine.writable = True
    h.server.role_changed()
    h.engine.resume("page 1")
    assert client.take() == ["S in_hot_standby=off", "T a", "D 1", "C SELECT 1", "Z I"]


def test_client_min_messages(h: Harness) -> None:
    client = h.connect()
    client.query("set client_min_messages error")
    assert client.query("commit") == ["C COMMIT", "Z I"]
    client.query("set client_min_messages warning")
    assert client.query("commit")[0].startswith("N WARNING")
    assert client.query("set client_min_messages loud")[0].startswith("E ERROR 22023")


def test_going_back_to_a_savepoint_tells_the_planner(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    client.query("savepoint s")
    client.query("error")
    assert h.planner.rollbacks_seen == 1
    assert client.query("rollback to s")[-1] == "Z T"
    assert h.planner.rollbacks_seen == 2


def test_errors_say_where_and_what(h: Harness) -> None:
    from compute.pgwire import backend

    error = CallerMistake("m", hint="h", detail="d")
    error.position, error.context = 7, "COPY t, line 1"
    error.schema_name, error.table_name, error.column_name = "s", "t", "c"
    error.constraint_name = "k"
    ((kind, body),) = wire.frames(backend.error_response(error))
    fields = {part[:1]: part[1:] for part in body.split(b"\0") if part}
    assert kind == "E"
    assert fields == {
        b"S": b"ERROR", b"V": b"ERROR", b"C": b"42601", b"M": b"m", b"D": b"d", b"H": b"h",
        b"P": b"7", b"W": b"COPY t, line 1", b"s": b"s", b"t": b"t", b"c": b"c", b"n": b"k",
    }  # fmt: skip


def test_too_many_sessions() -> None:
    h = Harness(Limits(connections_max=1))
    h.connect()
    greeting, transport = h.greet()
    greeting.data_received(wire.startup(user="u"))
    assert wire.lines(transport.take()) == ["E FATAL 53300 sorry, too many clients already"]
    assert transport.closed


def positions(client: Connection, *messages: bytes) -> list[str | None]:
    """Field P of each error."""
    client.session.data_received(b"".join(messages))
    client.harness.clock.run()
    found = []
    for kind, body in wire.frames(client.transport.take()):
        if kind == "E":
            fields = {part[:1]: part[1:].decode() for part in body.split(b"\0") if part}
            found.append(fields.get(b"P"))
    return found


def test_positions(h: Harness) -> None:
    client = h.connect()
    assert positions(client, Q("missing T")) == ["9"]
    assert positions(client, Q("select 1; select 2;  missing T")) == ["30"]
    assert positions(client, Q("select 1; missing T; select 2")) == ["19"]
    assert positions(client, Q("missing T")) == ["9"]
    assert positions(client, Q("error")) == [None]
    assert positions(client, P("missing T"), S) == ["9"]
    assert positions(client, Q("select 1; select 2"), Q("missing T")) == ["9"]


@pytest.mark.parametrize(
    ("state", "message", "text", "position"),
    [
        ("42P01", 'relation "t" does not exist', "select t.a, 't' from t", 8),
        ("42703", 'column "a" does not exist', "select 'a', aa, A", 17),
        ("42703", "column t.a does not exist", "select x, t.a", 11),
        ("42883", "function f(integer) does not exist", "select ff, f(1)", 12),
        ("42704", 'type "T" does not exist', 'select 1::"T"', 11),
        ("42703", 'column "gone" does not exist', "select 1", None),
        ("22012", 'column "a"', "select a", None),
    ],
)
def test_names_are_looked_for(state: str, message: str, text: str, position: int | None) -> None:
    from compute.session.positions import locate

    assert locate(CallerMistake(message, sqlstate=state), text) == position
