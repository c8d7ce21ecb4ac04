"""PREPARE and EXECUTE: prepared statements under SQL's names, which are the protocol's names too.

The arguments of EXECUTE are expressions: they are computed by a SELECT of their own, as text, and
bound like the parameters of a Bind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from compute.pgwire import backend, frontend
from compute.session.execution import execute
from compute.session.statements import (
    Ready,
    add_statement,
    find_statement,
    other_columns,
    refresh,
)
from compute.sql.types import BY_OID, display
from compute.sql.wrapped import Execute, Prepare, not_preparable
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compute.session.session import Session
    from compute.session.statements import Prepared, Then
    from compute.sql.plan import Plan, SessionLike

PREPARE = backend.command_complete("PREPARE")
# Kinds of plans that EXECUTE may run.
_PLAIN = frozenset({"query", "write", "ddl"})


def described(session: Session, plan: Plan, oids: Sequence[int]) -> Plan:
    """The plan with the columns and parameters that what is inside has. May raise a `Suspend`."""
    argument = plan.argument
    if plan.kind == "execute":
        prepared = find_statement(session, argument.name.encode())
        return replace(plan, columns=prepared.plan.columns, bounds=None)
    if plan.kind == "fetch" and not argument.move:
        cursor = session.portals.get(argument.name.encode())
        columns = cursor.ready.plan.columns if cursor is not None else ()
        return replace(plan, columns=columns, bounds=None)
    if plan.kind == "declare":
        inner = session.planner.prepare(session, argument.text, oids)
        return replace(plan, parameter_oids=inner.parameter_oids, bounds=None)
    return plan


def on_prepare(session: Session, ready: Ready, then: Then) -> None:
    """PREPARE name (types) AS statement."""
    argument: Prepare = ready.plan.argument
    name = argument.name.encode()
    plan = session.planner.prepare(session, argument.text, argument.oids)
    add_statement(session, name, argument.text, argument.oids, plan)
    if session.relay is not None:
        body = frontend.parse_body(name, argument.text, argument.oids)
        session.relay.changed[name] = body
    then(session, PREPARE)


def on_execute(session: Session, ready: Ready, then: Then) -> None:
    """EXECUTE name (expressions)."""
    argument: Execute = ready.plan.argument
    name = argument.name.encode()
    prepared = find_statement(session, name)
    if prepared.plan.kind not in _PLAIN:
        raise not_preparable(prepared.plan.verb or "nothing")
    refresh(session, prepared)
    plan = prepared.plan
    if session.executing is not None and plan.columns != ready.plan.columns:
        # The protocol has described this EXECUTE before.
        raise other_columns()
    parameters = _arguments(session, prepared, argument)
    inner = _inner(prepared, ready.result_formats)
    if session.executing is None:
        session.head = inner.description if plan.columns else b""
    execute(session, inner, parameters, then)


def _inner(prepared: Prepared, result_formats: tuple[int, ...]) -> Ready:
    key = ("execute", result_formats)
    found = prepared.ready.get(key)
    if found is None:
        bound = prepared.plan.bind((), result_formats)
        found = prepared.ready[key] = Ready(bound, (), result_formats, {})
    return found


def _arguments(session: Session, prepared: Prepared, argument: Execute) -> list[bytes | None]:
    """The values as texts. May raise a `Suspend`."""
    given, oids = len(argument.arguments), prepared.plan.parameter_oids
    if given != len(oids):
        raise CallerMistake(
            f'wrong number of parameters for prepared statement "{argument.name}"',
            sqlstate="42601",
            detail=f"Expected {len(oids)} parameters but got {given}.",
        )
    if not given:
        return []
    parts = []
    for text, oid in zip(argument.arguments, oids):
        kind = BY_OID.get(oid)
        parts.append(f"({text})::{display(kind)}" if kind is not None else text)
    bound, values = session.planner.prepare_simple(session, f"select {', '.join(parts)}")
    like = cast("SessionLike", session)
    answer = bound.run(like, values) if bound.plan.fast else None
    if answer is None:
        raise CallerMistake(
            "cannot use subquery in EXECUTE parameter",
            sqlstate="0A000",
            hint="Compute it beforehand.",
        )
    return backend.row_values(answer)
