"""Statements around another statement: PREPARE, EXECUTE, DECLARE, and FETCH and MOVE on a cursor.

They are understood here and carried out by the session, which keeps prepared statements and
cursors. What is inside stays text: the session has it planned when its time has come, so that the
plan is the one for the catalog of that time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from compute.sql.binder import type_of
from compute.sql.mistakes import not_supported
from compute.sql.plan import Plan
from compute.sql.syntax import NUMBER, OP, STRING, WORD, Token, near, parse
from compute.sql.utility import Reader
from polarless.errors import CallerMistake

# Statements that may stand behind PREPARE.
PREPARABLE: Final = frozenset(
    {"select", "insert", "update", "delete", "values", "table", "with", "merge", "("}
)
ALL: Final = 1 << 62


class Prepare(NamedTuple):
    """``oids`` are the types that were declared; those of further parameters are inferred."""

    name: str
    oids: tuple[int, ...]
    text: str


class Execute(NamedTuple):
    """``arguments`` are expressions."""

    name: str
    arguments: tuple[str, ...]


class Declare(NamedTuple):
    """``scroll`` None: not said."""

    name: str
    text: str
    binary: bool
    scroll: bool | None
    hold: bool


class Fetch(NamedTuple):
    """``direction``: forward, backward, absolute or relative. ``move``: the rows are not wanted."""

    name: str
    direction: str
    distance: int
    move: bool


def plan_wrapped(text: str, tokens: list[Token]) -> Plan | None:
    """The plan, or None if it is another statement."""
    maker = _MAKERS.get(tokens[0].value) if tokens[0].kind == WORD else None
    if maker is None:
        return None
    reader = Reader(tokens)
    reader.position = 1
    return maker(text, reader)


def _rest(text: str, reader: Reader) -> str:
    """The text from here to the statement's end."""
    first = reader.peek
    if first is None:
        reader.next()  # raises
    assert first is not None
    return text[first.start : reader.tokens[-1].end]


def _inner(text: str, reader: Reader) -> str:
    first = reader.peek
    if first is not None and (first.kind not in (WORD, OP) or first.value not in PREPARABLE):
        raise near(first)
    return _rest(text, reader)


def _list(text: str, reader: Reader) -> tuple[str, ...]:
    """The texts between commas, up to the closing parenthesis that belongs here."""
    items: list[str] = []
    while True:
        first, depth = reader.next(), 0
        last, token = first, first
        if token.kind == OP and token.value in (",", ")"):
            raise near(token)
        while True:
            if token.kind == OP and token.value in ("(", "["):
                depth += 1
            elif token.kind == OP and token.value in (")", "]") and depth:
                depth -= 1
            elif token.kind == OP and token.value in (",", ")") and not depth:
                break
            last, token = token, reader.next()
        items.append(text[first.start : last.end])
        if token.value == ")":
            return tuple(items)


def _type_oid(name: str) -> int:
    if name.strip().lower() == "unknown":
        return 0
    try:
        cast = parse(f"select null::{name}").expressions[0]
        return type_of(cast.args["to"])[0].oid
    except (KeyError, IndexError, AttributeError):
        raise CallerMistake(f'type "{name}" does not exist', sqlstate="42704") from None


def _prepare(text: str, reader: Reader) -> Plan:
    following = reader.tokens[2] if len(reader.tokens) > 2 else None
    if following is not None and following.kind == STRING and reader.accept("transaction"):
        raise CallerMistake(
            "prepared transactions are disabled",
            sqlstate="55000",
            hint="Two-phase commit is not supported; the transaction can be committed.",
        )
    name = reader.name()
    types: tuple[str, ...] = _list(text, reader) if reader.accept("(") else ()
    reader.expect("as")
    oids = tuple(_type_oid(item) for item in types)
    return Plan("prepare", argument=Prepare(name, oids, _inner(text, reader)), verb="PREPARE")


def _execute(text: str, reader: Reader) -> Plan:
    name = reader.name()
    arguments: tuple[str, ...] = ()
    if reader.accept("(") and not reader.accept(")"):
        arguments = _list(text, reader)
    reader.end()
    return Plan("execute", argument=Execute(name, arguments), verb="EXECUTE")


def _declare(text: str, reader: Reader) -> Plan:
    name = reader.name()
    binary, scroll, hold = False, None, False
    while not reader.accept("cursor"):
        if reader.accept("binary"):
            binary = True
        elif reader.accept("no", "scroll"):
            scroll = False
        elif reader.accept("scroll"):
            scroll = True
        elif not (reader.accept("insensitive") or reader.accept("asensitive")):
            raise near(reader.next())
    if reader.accept("with", "hold"):
        hold = True
    else:
        reader.accept("without", "hold")
    reader.expect("for")
    argument = Declare(name, _inner(text, reader), binary, scroll, hold)
    return Plan("declare", argument=argument, verb="DECLARE CURSOR")


def _count(reader: Reader) -> int | None:
    """A signed number, or None."""
    sign = -1 if reader.accept("-") else 1
    if sign == 1:
        reader.accept("+")
    token = reader.peek
    if token is None or token.kind != NUMBER or not token.value.isdigit():
        if sign < 0:
            raise near(reader.next())
        return None
    reader.next()
    return sign * int(token.value)


_FIXED: Final = {
    "next": ("forward", 1),
    "prior": ("backward", 1),
    "first": ("absolute", 1),
    "last": ("absolute", -1),
    "all": ("forward", ALL),
}


def _fetch(text: str, reader: Reader) -> Plan:
    move = reader.tokens[0].value == "move"
    direction, count = "forward", 1
    first = reader.peek
    word = first.value if first is not None and first.kind == WORD else ""
    # A word may also be the cursor's name, when nothing follows it.
    alone = len(reader.tokens) == reader.position + 1
    if word in _FIXED and not alone:
        reader.next()
        direction, count = _FIXED[word]
    elif word in ("absolute", "relative") and not alone:
        reader.next()
        number = _count(reader)
        if number is None:
            raise near(reader.next())
        direction, count = word, number
    elif word in ("forward", "backward") and not alone:
        reader.next()
        direction = word
        if reader.accept("all"):
            count = ALL
        else:
            number = _count(reader)
            count = 1 if number is None else number
    else:
        number = _count(reader)
        count = 1 if number is None else number
    if not reader.accept("from"):
        reader.accept("in")
    name = reader.name()
    reader.end()
    if count < 0 and direction in ("forward", "backward"):
        direction = "backward" if direction == "forward" else "forward"
        count = -count
    verb = "MOVE" if move else "FETCH"
    return Plan("fetch", argument=Fetch(name, direction, count, move), verb=verb)


_MAKERS: Final[dict[str, Callable[[str, Reader], Plan]]] = {
    "prepare": _prepare,
    "execute": _execute,
    "declare": _declare,
    "fetch": _fetch,
    "move": _fetch,
}


def not_preparable(what: str) -> CallerMistake:
    """A statement of the protocol that EXECUTE cannot run."""
    return not_supported(f"EXECUTE of {what}", hint="Send the statement itself.")
