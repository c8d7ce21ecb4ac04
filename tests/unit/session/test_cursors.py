"""Where a cursor stands, and what it gives on the way."""

from __future__ import annotations

from typing import Any

import pytest

from compute.session.limits import Limits
from compute.session.statements import Cursor
from polarless.errors import CallerMistake
from tests.unit.session.fakes import Harness

ALL = 1 << 62


def cursor(count: int = 4, scroll: bool | None = None) -> Cursor:
    nothing: Any = None
    rows = [str(number).encode() for number in range(1, count + 1)]
    return Cursor(nothing, nothing, rows, scroll=scroll, hold=False)


def walk(found: Cursor, *steps: tuple[str, int]) -> list[str]:
    return [b"".join(found.move(*step)).decode() for step in steps]


def test_forward() -> None:
    steps = ("forward", 1), ("forward", 2), ("forward", 5), ("forward", 1)
    assert walk(cursor(), *steps) == ["1", "23", "4", ""]


def test_there_and_back() -> None:
    steps = ("forward", ALL), ("backward", 2), ("backward", ALL), ("backward", 1), ("forward", 1)
    assert walk(cursor(), *steps) == ["1234", "43", "21", "", "1"]


def test_the_row_itself_is_not_passed_again() -> None:
    steps = ("forward", 3), ("backward", 1), ("forward", 0), ("relative", 0), ("forward", 1)
    assert walk(cursor(), *steps) == ["123", "2", "2", "2", "3"]


def test_to_a_place() -> None:
    steps = (
        ("absolute", 3), ("absolute", -1), ("absolute", 9), ("relative", -1), ("relative", -3),
        ("absolute", 0), ("relative", 2), ("absolute", -9), ("forward", 1),
    )  # fmt: skip
    assert walk(cursor(), *steps) == ["3", "4", "", "4", "1", "", "2", "", "1"]


def test_no_rows() -> None:
    steps = ("forward", 1), ("backward", 1), ("absolute", 1), ("absolute", -1), ("forward", ALL)
    assert walk(cursor(0), *steps) == [""] * 5


def test_no_way_back() -> None:
    one_way = cursor(scroll=False)
    assert walk(one_way, ("forward", 2), ("absolute", 3)) == ["12", "3"]
    for step in (("backward", 1), ("absolute", 1), ("relative", -1)):
        with pytest.raises(CallerMistake) as caught:
            one_way.move(*step)
        assert caught.value.sqlstate == "55000"
    assert walk(one_way, ("forward", 1)) == ["4"]


def test_portals_with_hold_stay_if_their_transaction_commits() -> None:
    h = Harness(Limits())
    client = h.connect()
    held, other = cursor(), cursor()
    held.hold = True
    client.query("begin")
    client.session.portals = {b"held": held, b"other": other}
    client.query("commit")
    assert client.session.portals == {b"held": held}
    client.query("begin")
    client.session.portals[b"new"] = new = cursor()
    new.hold = True
    client.query("rollback")
    assert client.session.portals == {b"held": held}
    client.query("discard all")
    assert client.session.portals == {}
