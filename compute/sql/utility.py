"""Statements without expressions, parsed from their tokens: transactions, settings, housekeeping.

`plan_utility` looks at the first word and returns a finished `Plan`, or None for what sqlglot must
read (SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, VALUES).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.plan import (
    Bound,
    Column,
    Params,
    Plan,
    SessionLike,
    TransactionOptions,
    command_complete,
)
from compute.sql.rowcode import length, pack_u32
from compute.sql.syntax import (
    NUMBER,
    OP,
    QUOTED,
    STRING,
    WORD,
    Token,
    near,
    string_value,
    token_name,
)
from compute.sql.types import TEXT
from polarless.errors import CallerMistake


class Reader:
    """A position in a list of tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0

    @property
    def peek(self) -> Token | None:
        """The next token, or None at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def next(self) -> Token:
        """Take a token. Raises 42601 at the end."""
        found = self.peek
        if found is None:
            end = self.tokens[-1].end if self.tokens else 0
            raise SyntaxMistake("syntax error at end of input", position=end + 1)
        self.position += 1
        return found

    def accept(self, *words: str) -> bool:
        """Take these words or operators if they come next."""
        for offset, word in enumerate(words):
            index = self.position + offset
            if index >= len(self.tokens):
                return False
            token = self.tokens[index]
            if token.kind not in (WORD, OP) or token.value != word:
                return False
        self.position += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Take these words. Raises 42601."""
        for word in words:
            if not self.accept(word):
                raise near(self.next())

    def name(self) -> str:
        """Take an identifier."""
        return token_name(self.next())

    def end(self) -> None:
        """Raises 42601 unless this is the end."""
        found = self.peek
        if found is not None:
            raise near(found)


def constant_bound(tag: str) -> Callable[[Plan, Any, Any], Bound]:
    """A bound that does nothing but answer."""
    answer = command_complete(tag)

    def run(session: SessionLike, params: Params) -> bytes:
        return answer

    return lambda plan, params, results: Bound(plan, results, run)


def nothing(verb: str, tag: str | None = None) -> Plan:
    """A statement that is accepted and has nothing to do."""
    return Plan("query", fast=True, verb=verb, binder=constant_bound(tag or verb))


def text_row(*values: str) -> bytes:
    """A DataRow of texts."""
    encoded = [value.encode() for value in values]
    body = b"".join(length(len(raw)) + raw for raw in encoded)
    return b"D" + pack_u32(len(body) + 6) + len(encoded).to_bytes(2, "big") + body


def text_column(name: str) -> Column:
    """A result column of type text."""
    return Column(name, TEXT.oid, TEXT.size, -1)


def session_plan(
    kind: str, verb: str, action: Callable[[SessionLike], bytes], columns: tuple[Column, ...] = ()
) -> Plan:
    """A plan that calls ``action(session)`` for the answer."""

    def run(session: SessionLike, params: Params) -> bytes:
        return action(session)

    return Plan(
        kind,
        columns=columns,
        fast=True,
        verb=verb,
        binder=lambda plan, params, results: Bound(plan, results, run),
    )


# ------------------------------------------------------------------------------------ transactions

_ISOLATIONS: Final = (
    "serializable",
    "repeatable read",
    "read committed",
    "read uncommitted",
)


def _options(reader: Reader) -> TransactionOptions:
    isolation: str | None = None
    read_only: bool | None = None
    deferrable: bool | None = None
    while reader.peek is not None:
        if reader.accept("isolation", "level"):
            for name in _ISOLATIONS:
                if reader.accept(*name.split()):
                    isolation = name
                    break
            else:
                raise near(reader.next())
        elif reader.accept("read", "only"):
            read_only = True
        elif reader.accept("read", "write"):
            read_only = False
        elif reader.accept("not", "deferrable"):
            deferrable = False
        elif reader.accept("deferrable"):
            deferrable = True
        elif not reader.accept(","):
            raise near(reader.next())
    return TransactionOptions(isolation, read_only, deferrable=deferrable)


def _begin(reader: Reader) -> Plan:
    if reader.tokens[0].value == "start":
        reader.expect("transaction")
        return Plan("begin", argument=_options(reader), verb="START TRANSACTION")
    if not reader.accept("work"):
        reader.accept("transaction")
    return Plan("begin", argument=_options(reader), verb="BEGIN")


def _end(kind: str) -> Callable[[Reader], Plan]:
    def plan(reader: Reader) -> Plan:
        verb = kind.upper()
        if not reader.accept("work"):
            reader.accept("transaction")
        if kind == "rollback" and reader.accept("to"):
            reader.accept("savepoint")
            name = reader.name()
            reader.end()
            return Plan("rollback_to", argument=name, verb="ROLLBACK")
        if reader.accept("prepared"):
            token = reader.next()
            if token.kind != STRING:
                raise near(token)
            raise CallerMistake(
                f'prepared transaction with identifier "{string_value(token)}" does not exist',
                sqlstate="42704",
            )
        chain = False
        if reader.accept("and"):
            chain = not reader.accept("no")
            reader.expect("chain")
        reader.end()
        return Plan(kind, argument=TransactionOptions(chain=chain), verb=verb)

    return plan


def _savepoint(reader: Reader) -> Plan:
    name = reader.name()
    reader.end()
    return Plan("savepoint", argument=name, verb="SAVEPOINT")


def _release(reader: Reader) -> Plan:
    if reader.peek is not None and len(reader.tokens) > 2:
        reader.accept("savepoint")
    name = reader.name()
    reader.end()
    return Plan("release", argument=name, verb="RELEASE")


# ----------------------------------------------------------------------------------------- settings


def _set(reader: Reader) -> Plan:
    if reader.accept("session", "characteristics", "as", "transaction"):
        return _set_characteristics(_options(reader))
    local = reader.accept("local")
    if not local:
        reader.accept("session")
    if reader.accept("transaction"):
        if reader.accept("snapshot"):
            raise not_supported("SET TRANSACTION SNAPSHOT")
        return Plan("set_transaction", argument=_options(reader), verb="SET")
    if reader.accept("time", "zone"):
        name = "timezone"
        value = _value_list(reader)
        if value is not None and value.lower() in ("local", "default"):
            value = None
    elif reader.accept("names"):
        name, value = "client_encoding", _value_list(reader)
    elif reader.accept("constraints"):
        return nothing("SET", "SET CONSTRAINTS")
    elif reader.accept("authorization") or reader.accept("role"):
        name, value = "role", _value_list(reader)
    else:
        name = _setting_name(reader)
        if not reader.accept("to"):
            reader.expect("=")
        value = _value_list(reader)

    def action(session: SessionLike) -> bytes:
        session.settings.set(name, value, local=local)
        return _SET

    return session_plan("set", "SET", action)


_SET: Final = command_complete("SET")
_RESET: Final = command_complete("RESET")


def _set_characteristics(options: TransactionOptions) -> Plan:
    def action(session: SessionLike) -> bytes:
        if options.isolation is not None:
            session.settings.set("default_transaction_isolation", options.isolation)
        if options.read_only is not None:
            value = "on" if options.read_only else "off"
            session.settings.set("default_transaction_read_only", value)
        if options.deferrable is not None:
            value = "on" if options.deferrable else "off"
            session.settings.set("default_transaction_deferrable", value)
        return _SET

    return session_plan("set", "SET", action)


def _setting_name(reader: Reader) -> str:
    name = reader.name()
    while reader.accept("."):
        name += "." + reader.name()
    return name


def _value_list(reader: Reader) -> str | None:
    """The value after ``=``: words, numbers and strings, with commas; None for DEFAULT."""
    values: list[str] = []
    while True:
        token = reader.next()
        if token.kind == STRING:
            values.append(string_value(token))
        elif token.kind in (WORD, QUOTED):
            if token.kind == WORD and token.value == "default" and not values:
                reader.end()
                return None
            values.append(token_name(token))
        elif token.kind == NUMBER:
            values.append(token.value)
        elif token.kind == OP and token.value in ("-", "+"):
            values.append(token.value.replace("+", "") + reader.next().value)
        else:
            raise near(token)
        if not reader.accept(","):
            reader.end()
            return ", ".join(values)


def _reset(reader: Reader) -> Plan:
    if reader.accept("all"):
        reader.end()

        def reset_all(session: SessionLike) -> bytes:
            session.settings.reset_all()
            return _RESET

        return session_plan("set", "RESET", reset_all)
    if reader.accept("session", "authorization"):
        name = "role"
    else:
        name = "timezone" if reader.accept("time", "zone") else _setting_name(reader)
    reader.end()

    def action(session: SessionLike) -> bytes:
        session.settings.set(name, None)
        return _RESET

    return session_plan("set", "RESET", action)


def _show(reader: Reader) -> Plan:
    if reader.accept("all"):
        reader.end()

        def show_all(session: SessionLike) -> bytes:
            rows = [text_row(name, value, "") for name, value in session.settings.all()]
            return b"".join(rows) + command_complete("SHOW")

        columns = (text_column("name"), text_column("setting"), text_column("description"))
        return session_plan("set", "SHOW", show_all, columns)
    if reader.accept("time", "zone"):
        name = "timezone"
    elif reader.accept("transaction", "isolation", "level"):
        name = "transaction_isolation"
    elif reader.accept("session", "authorization"):
        name = "session_authorization"
    else:
        name = _setting_name(reader)
    reader.end()
    shown = {"timezone": "TimeZone", "datestyle": "DateStyle", "intervalstyle": "IntervalStyle"}

    def action(session: SessionLike) -> bytes:
        return text_row(session.settings.show(name)) + command_complete("SHOW")

    return session_plan("set", "SHOW", action, (text_column(shown.get(name, name)),))


# ------------------------------------------------------------------------------------ housekeeping


def _discard(reader: Reader) -> Plan:
    word = reader.next().value
    if word not in ("all", "plans", "sequences", "temp", "temporary"):
        raise near(reader.tokens[reader.position - 1])
    reader.end()
    what = "TEMP" if word == "temporary" else word.upper()
    return Plan("discard", argument=what, verb=f"DISCARD {what}")


def _deallocate(reader: Reader) -> Plan:
    reader.accept("prepare")
    name = None if reader.accept("all") else reader.name()
    reader.end()
    return Plan("deallocate", argument=name, verb="DEALLOCATE")


def _close(reader: Reader) -> Plan:
    name = None if reader.accept("all") else reader.name()
    reader.end()
    return Plan("close", argument=name, verb="CLOSE CURSOR")


def _accepted(verb: str) -> Callable[[Reader], Plan]:
    def plan(reader: Reader) -> Plan:
        return nothing(verb)

    return plan


def _refused(what: str, hint: str | None = None) -> Callable[[Reader], Plan]:
    def plan(reader: Reader) -> Plan:
        raise not_supported(what, hint=hint)

    return plan


_STATEMENTS: Final[dict[str, Callable[[Reader], Plan]]] = {
    "begin": _begin,
    "start": _begin,
    "commit": _end("commit"),
    "end": _end("commit"),
    "rollback": _end("rollback"),
    "abort": _end("rollback"),
    "savepoint": _savepoint,
    "release": _release,
    "set": _set,
    "reset": _reset,
    "show": _show,
    "discard": _discard,
    "deallocate": _deallocate,
    "close": _close,
    "vacuum": _accepted("VACUUM"),
    "analyze": _accepted("ANALYZE"),
    "analyse": _accepted("ANALYZE"),
    "checkpoint": _accepted("CHECKPOINT"),
    "reindex": _accepted("REINDEX"),
    "cluster": _accepted("CLUSTER"),
    "listen": _refused("LISTEN", "Nothing is ever notified here; poll a table instead."),
    "unlisten": _accepted("UNLISTEN"),
    "notify": _refused("NOTIFY", "Write a row to a table that the others poll."),
    "do": _refused("DO", "There are no functions here; run the statements one by one."),
    "call": _refused("CALL"),
    "merge": _refused("MERGE", "Use INSERT ... ON CONFLICT, or UPDATE ... FROM and INSERT."),
    "comment": _refused("COMMENT"),
    "refresh": _refused("REFRESH MATERIALIZED VIEW"),
}


def plan_utility(tokens: list[Token]) -> Plan | None:
    """See the module's docstring."""
    if not tokens:
        return Plan("empty")
    first = tokens[0]
    handler = _STATEMENTS.get(first.value) if first.kind == WORD else None
    if handler is None:
        return None
    reader = Reader(tokens)
    reader.position = 1
    return handler(reader)
