"""DECLARE, FETCH and MOVE.

DECLARE runs the query to its end, at its own snapshot, and keeps the rows: a cursor is insensitive,
goes both ways, and with WITH HOLD outlives its transaction. What a session keeps is bounded by
``portal_bytes_max``. Rows are kept in the format of the declaration (text, or binary for BINARY
CURSOR) and converted when a FETCH of the protocol asks for another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compute.pgwire import backend
from compute.session import transactions
from compute.session.execution import PortalSink, run_into, too_large_for_portal
from compute.session.statements import Cursor, Portal, Prepared, Ready, kept_bytes, other_columns
from compute.session.waits import work
from compute.sql.plan import BINARY_FORMAT
from compute.sql.types import BINARY_OUTPUT, PARSERS, decode_utf8, type_by_oid
from compute.sql.wrapped import Declare, Fetch
from polarless.errors import CallerMistake, Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compute.session.session import Session
    from compute.session.statements import Then
    from compute.sql.plan import Column

DECLARED = backend.command_complete("DECLARE CURSOR")


def on_declare(session: Session, ready: Ready, then: Then) -> None:
    """DECLARE name CURSOR FOR query."""
    argument: Declare = ready.plan.argument
    name = argument.name.encode()
    if not session.explicit and not argument.hold:
        raise CallerMistake(
            "DECLARE CURSOR can only be used in transaction blocks", sqlstate="25P01"
        )
    if name in session.portals:
        raise CallerMistake(f'cursor "{argument.name}" already exists', sqlstate="42P03")
    if len(session.portals) >= session.limits.portals_max:
        raise Overloaded(
            f"this session has {len(session.portals)} portals",
            sqlstate="53000",
            hint="Close cursors that are not used any more.",
        )
    portal = session.executing
    oids = portal.prepared.parameter_oids if portal is not None else ()
    plan = session.planner.prepare(session, argument.text, oids)
    if plan.kind != "query":
        raise CallerMistake("a cursor must be declared for a SELECT", sqlstate="42601")
    if portal is None and plan.parameter_oids:
        raise CallerMistake("there is no parameter $1", sqlstate="42P02")
    if session.txn is None:
        transactions.open_implicit(session)
    assert session.txn is not None
    session.txn.start_statement()
    session.txn.pin()
    results = (BINARY_FORMAT,) if argument.binary else ()
    formats = (ready.parameter_formats, results)
    values: Sequence[Any] = portal.parameters if portal is not None else ()
    prepared = Prepared(argument.text, tuple(oids), plan)
    inner = Ready(plan.bind(*formats), *formats, {})
    sink = PortalSink(Portal(prepared, inner, ()), session)

    async def declare() -> bytes:
        await run_into(session, argument.text, oids, formats, values, sink)
        rows = backend.each_row(sink.finish())
        cursor = Cursor(prepared, inner, rows, scroll=argument.scroll, hold=argument.hold)
        limit = session.limits.portal_bytes_max
        if cursor.byte_count + kept_bytes(session) > limit:
            raise too_large_for_portal(limit)
        session.portals[name] = cursor
        return DECLARED

    work(session, declare(), then, "DECLARE CURSOR")


def on_fetch(session: Session, ready: Ready, then: Then) -> None:
    """FETCH and MOVE."""
    argument: Fetch = ready.plan.argument
    name = argument.name.encode()
    cursor = session.portals.get(name)
    if cursor is None:
        raise CallerMistake(f'cursor "{argument.name}" does not exist', sqlstate="34000")
    if not isinstance(cursor, Cursor):
        if not cursor.started:
            _run_portal(session, name, cursor, lambda: on_fetch(session, ready, then))
            return
        cursor = session.portals[name] = _from_portal(cursor, cursor.rest)
    columns = cursor.ready.plan.columns
    if session.executing is not None and not argument.move and columns != ready.plan.columns:
        # The protocol has described this FETCH before, for another cursor of this name.
        raise other_columns()
    rows = cursor.move(argument.direction, argument.distance)
    if argument.move:
        then(session, backend.command_complete(f"MOVE {len(rows)}"))
        return
    if session.executing is None:
        session.head = cursor.ready.description
    elif not cursor.ready.result_formats:
        rows = _as_binary(rows, columns, ready.result_formats)
    then(session, b"".join(rows) + backend.command_complete(f"FETCH {len(rows)}"))


def _from_portal(portal: Portal, rest: bytes) -> Cursor:
    """A portal of the protocol as a cursor; what was read of it before is gone."""
    end = backend.split_rows(rest, 1 << 62)[1]
    rows = backend.each_row(rest[:end])
    return Cursor(portal.prepared, portal.ready, rows, scroll=False, hold=False)


def _run_portal(session: Session, name: bytes, portal: Portal, then: Callable[[], None]) -> None:
    """A portal that was bound and not executed yet: run it, then go on."""
    prepared, ready = portal.prepared, portal.ready
    if not ready.plan.columns:
        raise CallerMistake("this portal returns no rows", sqlstate="55000")
    if session.txn is None:
        transactions.open_implicit(session)
    assert session.txn is not None
    session.txn.start_statement()
    session.txn.pin()
    sink = PortalSink(portal, session)
    formats = (ready.parameter_formats, ready.result_formats)

    async def run() -> bytes:
        oids, values = prepared.parameter_oids, portal.parameters
        await run_into(session, prepared.text, oids, formats, values, sink)
        session.portals[name] = _from_portal(portal, sink.finish())
        return b""

    work(session, run(), lambda session, answer: then(), "FETCH")


def _as_binary(
    rows: list[bytes], columns: Sequence[Column], formats: tuple[int, ...]
) -> list[bytes]:
    """Rows of texts, in the formats that the client asked for."""
    if BINARY_FORMAT not in formats:
        return rows
    each = formats * len(columns) if len(formats) == 1 else formats
    converters: list[Callable[[bytes], bytes] | None] = [
        _converter(column.oid) if code == BINARY_FORMAT else None
        for column, code in zip(columns, each)
    ]
    return [
        backend.data_row(
            [
                value if value is None or convert is None else convert(value)
                for value, convert in zip(backend.row_values(row), converters)
            ]
        )
        for row in rows
    ]


def _converter(oid: int) -> Callable[[bytes], bytes]:
    kind = type_by_oid(oid)
    parse, output = PARSERS[kind], BINARY_OUTPUT[kind]
    return lambda raw: output(parse(decode_utf8(raw)))
