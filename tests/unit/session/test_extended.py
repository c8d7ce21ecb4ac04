"""The extended protocol: pipelines, portals, Describe, errors until Sync."""

from __future__ import annotations

import pytest

from compute.session.limits import Limits
from tests.unit.session.fakes import Harness
from tests.unit.session.wire import B, C, D, E, H, P, Q, S

LOST = "E ERROR 22012 it went wrong"


@pytest.fixture
def h() -> Harness:
    return Harness()


def test_one_round_trip(h: Harness) -> None:
    client = h.connect()
    answer = client.send(P("select $1"), D("S"), B("7"), D(), E(), S)
    assert answer == ["1", "t 25", "T c0", "2", "T c0", "D 7", "C SELECT 1", "Z I"]


def test_describe_says_no_data(h: Harness) -> None:
    client = h.connect()
    answer = client.send(P("put $1", "w"), D("S", "w"), B("k", name="w"), D(), S)
    assert answer == ["1", "t 25", "n", "2", "n", "Z I"]
    assert h.engine.committed == []


def test_an_error_skips_to_the_next_sync(h: Harness) -> None:
    client = h.connect()
    answer = client.send(
        *(P("put a"), B(), E()),
        *(P("error"), B(), E()),
        *(P("put b"), B(), E(), H, C("S"), S),
        *(P("put c"), B(), E(), S),
    )
    # The first write was in the implicit transaction that failed.
    assert answer == ["1", "2", "C INSERT 0 1", "1", "2", LOST, "Z I",
                      "1", "2", "C INSERT 0 1", "Z I"]  # fmt: skip
    assert h.engine.committed == ["c"]


def test_a_broken_statement_fails_at_parse(h: Harness) -> None:
    client = h.connect()
    answer = client.send(P("nonsense"), B(), D(), E(), S)
    assert answer == ['E ERROR 42601 syntax error at or near "nonsense"', "Z I"]
    assert client.send(B(), S) == [
        "E ERROR 26000 unnamed prepared statement does not exist", "Z I",
    ]  # fmt: skip


def test_an_error_in_a_block_fails_the_block(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    assert client.send(P("error"), B(), E(), P("select 1"), S)[-2:] == [LOST, "Z E"]
    assert client.send(P("select 1"), S)[0].startswith("E ERROR 25P02")
    assert client.send(P("rollback"), B(), E(), S) == ["1", "2", "C ROLLBACK", "Z I"]


def test_a_block_that_has_failed_describes_what_ends_it(h: Harness) -> None:
    client = h.connect()
    client.send(P("commit", "c"), P("select 1", "s"), S)
    client.query("begin")
    client.query("error")
    assert client.send(D("S", "c"), S) == ["t ", "n", "Z E"]
    assert client.send(D("S", "s"), S)[0].startswith("E ERROR 25P02")
    assert client.send(B(name="s"), S)[0].startswith("E ERROR 25P02")
    assert client.send(B(name="c"), E(), S) == ["2", "C ROLLBACK", "Z I"]


def test_flush_sends_what_there_is(h: Harness) -> None:
    client = h.connect()
    assert client.send(P("select 1"), H) == ["1"]
    assert client.send(B(), D(), E(), H) == ["2", "T c0", "D 1", "C SELECT 1"]
    assert client.send(S) == ["Z I"]


def test_the_last_answer_waits_for_the_commit(h: Harness) -> None:
    client = h.connect()
    h.engine.delayed = True
    client.send(P("put a"), B(), E(), S)
    h.engine.acknowledge()
    assert client.take()[-2:] == ["C INSERT 0 1", "Z I"]


def test_a_portal_in_portions(h: Harness) -> None:
    client = h.connect()
    answer = client.send(P("rows 5"), B(), E(2), E(2), E(2), S)
    assert answer == ["1", "2", "D 0", "D 1", "s", "D 2", "D 3", "s", "D 4", "C SELECT 1", "Z I"]


def test_a_portion_of_exactly_the_rows(h: Harness) -> None:
    client = h.connect()
    assert client.send(P("rows 2"), B(), E(2), S) == ["1", "2", "D 0", "D 1", "C SELECT 2", "Z I"]


def test_several_portals_take_turns(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    answer = client.send(
        P("rows 3", "r"), B(name="r", portal="p"), B(name="r", portal="q"),
        E(1, "p"), E(2, "q"), E(1, "p"), E(0, "q"), S,
    )  # fmt: skip
    assert answer == ["1", "2", "2", "D 0", "s", "D 0", "D 1", "s", "D 1", "s", "D 2",
                      "C SELECT 1", "Z T"]  # fmt: skip
    # They live until the transaction ends.
    assert client.send(E(0, "p"), S) == ["D 2", "C SELECT 1", "Z T"]
    client.query("commit")
    assert client.send(E(0, "p"), S) == ['E ERROR 34000 portal "p" does not exist', "Z I"]


async def test_a_portal_of_a_slow_statement(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    client.send(P("slow 3"), B(portal="p"), E(2, "p"), S)
    assert (await client.settle())[-4:] == ["D 0", "D 1", "s", "Z T"]
    assert client.send(E(2, "p"), S) == ["D 2", "C SELECT 1", "Z T"]


def test_a_portal_that_was_closed_is_gone(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    answer = client.send(P("rows 3"), B(portal="p"), C("P", "p"), C("P", "never"), E(0, "p"), S)
    assert answer == ["1", "2", "3", "3", 'E ERROR 34000 portal "p" does not exist', "Z E"]


def test_names_must_be_new_but_for_the_empty_one(h: Harness) -> None:
    client = h.connect()
    client.query("begin")
    assert client.send(P("select 1", "a"), P("select 2", "a"), S)[1].startswith("E ERROR 42P05")
    client.query("rollback")
    client.query("begin")
    answer = client.send(P("select 1"), P("select 2"), B(portal="p"), B(portal="p"), S)
    assert answer[-2:] == ['E ERROR 42P03 cursor "p" already exists', "Z E"]


def test_a_statement_that_was_closed_is_gone(h: Harness) -> None:
    client = h.connect()
    client.send(P("select 1", "a"), S)
    assert client.send(C("S", "a"), B(name="a"), S) == [
        "3", 'E ERROR 26000 prepared statement "a" does not exist', "Z I",
    ]  # fmt: skip
    assert client.session.statement_bytes == 0


def test_a_wrong_number_of_values(h: Harness) -> None:
    client = h.connect()
    answer = client.send(P("select $1", "a"), B(name="a"), S)
    assert answer[1].startswith("E ERROR 08P01 bind message supplies 0 parameters")
    assert client.query("select 1")[-1] == "Z I", "a wrong Bind ends the statement, not more"


def test_statements_and_their_text_are_bounded() -> None:
    h = Harness(Limits(statements_max=2, statement_bytes_max=100, portals_max=1))
    client = h.connect()
    assert client.send(P("select 1", "a"), P("select 1", "b"), S) == ["1", "1", "Z I"]
    assert client.send(P("select 1", "c"), S)[0].startswith("E ERROR 53000 this session has too")
    client.send(C("S", "a"), S)
    assert client.send(P("select " + "1" * 200, "c"), S)[0].startswith("E ERROR 53000")
    client.query("begin")
    answer = client.send(B(name="b", portal="p"), B(name="b", portal="q"), S)
    assert answer == ["2", "E ERROR 53000 this session has 1 portals", "Z E"]


def test_a_result_kept_for_portions_is_bounded() -> None:
    h = Harness(Limits(portal_bytes_max=50))
    client = h.connect()
    answer = client.send(P("rows 10"), B(), E(2), S)
    assert answer[-2:] == ["E ERROR 53200 a result fetched in portions exceeds 50 bytes", "Z I"]


def test_a_statement_whose_columns_changed(h: Harness) -> None:
    client = h.connect()
    client.send(P("get", "g"), S)
    h.engine.catalog_changed()
    h.planner.columns_now = (*h.planner.columns_now, h.planner.columns_now[0])
    answer = client.send(B(name="g"), E(), S)
    assert answer == ["E ERROR 0A000 cached plan must not change result type", "Z I"]


def test_query_between_pipelines(h: Harness) -> None:
    client = h.connect()
    answer = client.send(P("put a"), B(), E(), Q("put b"), P("put c"), B(), E(), S)
    assert answer == ["1", "2", "C INSERT 0 1", "C INSERT 0 1", "Z I", "1", "2", "C INSERT 0 1",
                      "Z I"]  # fmt: skip
    assert h.engine.committed == ["a", "b", "c"]


def test_parameters_that_are_null_or_binary(h: Harness) -> None:
    client = h.connect()
    client.send(P("select $1 $2", "a"), S)
    answer = client.send(B(b"x", b"y", name="a", formats=(1, 0), results=(0, 0)), E(), S)
    assert answer == ["2", "D x y", "C SELECT 1", "Z I"]
    assert client.send(B(b"x", b"y", name="a", formats=(2,)), S)[0].startswith(
        "E ERROR 08P01 unsupported format code"
    )
