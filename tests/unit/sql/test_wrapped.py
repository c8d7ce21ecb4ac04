"""PREPARE, EXECUTE, DECLARE, FETCH and MOVE, from their text."""

from __future__ import annotations

from typing import Any

import pytest

from compute.sql.syntax import scan
from compute.sql.wrapped import ALL, Declare, Execute, Fetch, Prepare, plan_wrapped
from polarless.errors import CallerMistake


def argument(text: str) -> Any:
    plan = plan_wrapped(text, scan(text))
    assert plan is not None
    return plan.argument


def test_prepare() -> None:
    assert argument("prepare p as select 1") == Prepare("p", (), "select 1")
    types = "int, varchar(10), unknown, timestamp with time zone"
    text = f'PREPARE "P" ({types}) AS insert into t values ($1)'
    assert argument(text) == Prepare("P", (23, 1043, 0, 1184), "insert into t values ($1)")


def test_execute() -> None:
    assert argument("execute p") == Execute("p", ())
    assert argument("execute p()") == Execute("p", ())
    assert argument("execute p(1, f(2, 3), 'a,b)', array[1,2])") == Execute(
        "p", ("1", "f(2, 3)", "'a,b)'", "array[1,2]")
    )


def test_declare() -> None:
    made = argument("declare c cursor for select 1")
    assert made == Declare("c", "select 1", binary=False, scroll=None, hold=False)
    made = argument("declare C binary insensitive no scroll cursor with hold for values (1)")
    assert made == Declare("c", "values (1)", binary=True, scroll=False, hold=True)


@pytest.mark.parametrize(
    ("text", "direction", "distance"),
    [
        ("fetch c", "forward", 1),
        ("fetch next from c", "forward", 1),
        ("fetch prior in c", "backward", 1),
        ("fetch first c", "absolute", 1),
        ("fetch last from c", "absolute", -1),
        ("fetch absolute -2 from c", "absolute", -2),
        ("fetch relative 0 from c", "relative", 0),
        ("fetch 5 c", "forward", 5),
        ("fetch -5 from c", "backward", 5),
        ("fetch all c", "forward", ALL),
        ("fetch forward from c", "forward", 1),
        ("fetch forward 3 in c", "forward", 3),
        ("fetch backward all in c", "backward", ALL),
        ("fetch backward -3 in c", "forward", 3),
    ],
)
def test_fetch(text: str, direction: str, distance: int) -> None:
    assert argument(text) == Fetch("c", direction, distance, move=False)
    moved = argument(text.replace("fetch", "move"))
    assert moved == Fetch("c", direction, distance, move=True)


def test_a_cursor_may_be_called_next() -> None:
    assert argument("fetch next") == Fetch("next", "forward", 1, move=False)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("prepare p as drop table t", "42601"),
        ("prepare p as", "42601"),
        ("prepare p (nonsense) as select 1", "42704"),
        ("prepare p (int as select 1", "42601"),
        ("execute p(1", "42601"),
        ("execute p(1,)", "42601"),
        ("execute p 1", "42601"),
        ("declare c cursor select 1", "42601"),
        ("declare c nice cursor for select 1", "42601"),
        ("fetch absolute from c", "42601"),
        ("fetch - from c", "42601"),
        ("fetch", "42601"),
        ("fetch 1 from c d", "42601"),
    ],
)
def test_mistakes(text: str, state: str) -> None:
    with pytest.raises(CallerMistake) as caught:
        plan_wrapped(text, scan(text))
    assert caught.value.sqlstate == state


def test_other_statements() -> None:
    assert plan_wrapped("select 1", scan("select 1")) is None
