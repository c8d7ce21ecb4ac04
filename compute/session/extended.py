"""The extended protocol: Parse, Bind, Describe, Execute, Close, Flush, Sync.

An error skips everything up to the next Sync. Statements outside a BEGIN block form one implicit
transaction, which ends with Sync. The answer of the last Execute is held until then, so that a
commit that fails is answered by an error alone, not by a success and an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compute.pgwire import backend, frontend
from compute.session import transactions
from compute.session.controls import CONTROLS
from compute.session.execution import execute, too_large_for_portal
from compute.session.statements import (
    EXITS,
    Portal,
    Prepared,
    Ready,
    add_statement,
    find_statement,
    forget_statement,
    refresh,
)
from compute.session.wrapped import described
from compute.sql.plan import ANY_VERSION
from polarless.errors import CallerMistake, Overloaded, RemoteProtocolError

if TYPE_CHECKING:
    from compute.session.session import Session

ANSWER_READY: Final = 1
# Pairs of formats for which one prepared statement keeps a `Ready`.
_READY_MAX: Final = 16


def on_parse(session: Session, body: bytes) -> None:
    """P: prepare a statement under a name; the empty name is replaced, others must be new."""
    _release_held(session)
    name, text, oids = frontend.parse_parse(body)
    transactions.refuse_if_failed(session, text)
    session.query = text
    plan = described(session, session.planner.prepare(session, text, oids), oids)
    add_statement(session, name, text, oids, plan)
    if session.relay is not None:
        session.relay.changed[name] = body
    session.out.append(backend.PARSE_COMPLETE)


def on_bind(session: Session, body: bytes) -> None:
    """B: give a statement its values; the unnamed portal is replaced, others must be new."""
    _release_held(session)
    message = frontend.parse_bind(body)
    prepared = find_statement(session, message.statement)
    if session.failed and prepared.plan.kind not in EXITS:
        raise transactions.failed_error()
    refresh(session, prepared)
    if len(message.parameters) != prepared.parameter_count:
        raise wrong_parameter_count(prepared, message.statement, len(message.parameters))
    ready = ready_for(prepared, message.parameter_formats, message.result_formats)
    portal = Portal(prepared, ready, message.parameters)
    if not message.portal:
        session.unnamed_portal = portal
    elif message.portal in session.portals:
        raise CallerMistake(f'cursor "{_shown(message.portal)}" already exists', sqlstate="42P03")
    elif len(session.portals) >= session.limits.portals_max:
        raise Overloaded(
            f"this session has {len(session.portals)} portals",
            sqlstate="53000",
            hint="Close portals and cursors that are not used any more.",
        )
    else:
        session.portals[message.portal] = portal
    session.out.append(backend.BIND_COMPLETE)


def on_describe(session: Session, body: bytes) -> None:
    """D: the types of a statement's parameters, and the columns of a statement or portal."""
    _release_held(session)
    kind, name = frontend.parse_target(body)
    if kind == frontend.PORTAL:
        session.out.append(_portal(session, name).ready.description)
        return
    prepared = find_statement(session, name)
    if session.failed and prepared.plan.columns:
        raise transactions.failed_error()
    if not session.failed:
        refresh(session, prepared)
    session.out.append(backend.parameter_description(prepared.plan.parameter_oids))
    session.out.append(backend.row_description(prepared.plan.columns, ()))


def on_execute(session: Session, body: bytes) -> None:
    """E: run a portal, or go on with one that was suspended."""
    _release_held(session)
    name, row_count_max = frontend.parse_execute(body)
    portal = _portal(session, name)
    prepared, ready = portal.prepared, portal.ready
    if portal.started:
        if portal.done and not ready.plan.columns:
            raise CallerMistake(f'portal "{_shown(name)}" cannot be run', sqlstate="55000")
        if session.failed:
            raise transactions.failed_error()
        session.out.append(portal.take(row_count_max or 2**62))
        return
    if not session.failed and is_stale(session, ready):
        # Between Bind and Execute, or while this waited, somebody changed a table.
        refresh(session, prepared)
        ready = portal.ready = _same_formats(prepared, ready)
    session.query = prepared.text
    session.stats.statements += 1
    session.fetching = portal if row_count_max and ready.plan.columns else None
    session.fetch_count = row_count_max
    session.executing = portal
    execute(session, ready, portal.parameters, _executed)


def _executed(session: Session, answer: bytes) -> None:
    portal, fetching = session.executing, session.fetching
    session.executing = session.fetching = None
    if session.relay is not None:
        session.relay.completed(session.txn.snapshot if session.txn is not None else 0)
    if portal is not None:
        portal.started = True
        portal.done = fetching is None
    if fetching is not None:
        if len(answer) > session.limits.portal_bytes_max:
            raise too_large_for_portal(session.limits.portal_bytes_max)
        fetching.rest = answer
        answer = fetching.take(session.fetch_count)
    session.timeouts.statement_over()
    if session.txn is not None and not session.explicit:
        session.held = answer
    else:
        session.out.append(answer)
        if session.txn is None:
            session.start_us = 0


def on_close(session: Session, body: bytes) -> None:
    """C: forget a statement or portal; one that does not exist is no error."""
    _release_held(session)
    kind, name = frontend.parse_target(body)
    if kind == frontend.STATEMENT:
        forget_statement(session, name)
    elif name:
        session.portals.pop(name, None)
    else:
        session.unnamed_portal = None
    session.out.append(backend.CLOSE_COMPLETE)


def on_flush(session: Session, body: bytes) -> None:
    """H: send what there is."""
    _release_held(session)
    session.flush()


def on_sync(session: Session, body: bytes) -> None:
    """S: the end of a pipeline; commit its implicit transaction and say so."""
    session.skipping = False
    session.mode = ANSWER_READY
    if session.txn is not None and not session.explicit:
        held = session.held
        transactions.commit(session, _synced, held)
    else:
        _synced(session, session.held)


def _synced(session: Session, held: bytes) -> None:
    session.held = b""
    if held:
        session.out.append(held)
    session.ready()


def _release_held(session: Session) -> None:
    if session.held:
        session.out.append(session.held)
        session.held = b""


# Statements.


def is_stale(session: Session, ready: Ready) -> bool:
    """Whether the catalog has changed since the plan was made."""
    return ready.version != session.engine.catalog_version and ready.version != ANY_VERSION


def ready_for(
    prepared: Prepared, parameter_formats: tuple[int, ...], result_formats: tuple[int, ...]
) -> Ready:
    """The statement bound to these formats."""
    key = (parameter_formats, result_formats)
    ready = prepared.ready.get(key)
    if ready is None:
        if len(prepared.ready) >= _READY_MAX:
            prepared.ready.clear()
        bound = prepared.plan.bind(parameter_formats, result_formats)
        ready = prepared.ready[key] = Ready(bound, parameter_formats, result_formats, CONTROLS)
    return ready


def _same_formats(prepared: Prepared, old: Ready) -> Ready:
    return ready_for(prepared, old.parameter_formats, old.result_formats)


def wrong_parameter_count(prepared: Prepared, name: bytes, count: int) -> RemoteProtocolError:
    """A Bind with too few or too many values."""
    return RemoteProtocolError(
        f'bind message supplies {count} parameters, but prepared statement "{_shown(name)}" '
        f"requires {prepared.parameter_count}"
    )


def _portal(session: Session, name: bytes) -> Portal:
    portal = session.portals.get(name) if name else session.unnamed_portal
    if portal is None:
        raise CallerMistake(f'portal "{_shown(name)}" does not exist', sqlstate="34000")
    return portal


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "replace")
