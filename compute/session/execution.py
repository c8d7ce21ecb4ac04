"""Runs one bound statement of a session, whichever protocol it came by.

::

    execute --+-- control (BEGIN, COPY, ...) --> its own function
              +-- fast: Bound.run, synchronous. May raise a `Suspend`: the write set goes back to
              |   the statement's mark, the session parks and executes again from here
              +-- slow: Bound.rows in a task, with back-pressure

All ways end in ``then(session, answer)``, at once or later, or in an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from compute.buffer.waits import Suspend, resumed
from compute.pgwire import backend
from compute.session import transactions
from compute.session.waits import work
from polarless.errors import Overloaded, PolarlessError

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.session.statements import Portal, Ready, Then
    from compute.sql.plan import SessionLike


def execute(session: Session, ready: Ready, parameters: Sequence[Any], then: Then) -> None:
    """Run it. Raises a `Suspend` (call again later) or what is wrong with it."""
    if session.failed and not ready.exits:
        raise transactions.failed_error()
    if ready.control is not None:
        ready.control(session, ready, then)
        return
    txn = session.txn
    if ready.writes:
        transactions.check_writable(session, ready)
    elif txn is None and ready.fast:
        session.start_us = 0
        answer = ready.run(session, parameters)
        if answer is not None:
            then(session, answer)
            return
    if txn is None:
        transactions.open_implicit(session)
        txn = session.txn
        assert txn is not None
    txn.start_statement()
    if ready.fast:
        mark = txn.savepoint()
        try:
            answer = ready.run(session, parameters)
        except Suspend:
            txn.rollback_to(mark)
            raise
        if answer is not None and txn.depends and ready.plan.columns:
            wait = txn.unpublished()
            if wait is not None:
                # The rows are made again when they may be shown; the locks stay.
                txn.rollback_to(mark)
                raise wait
        if answer is not None:
            then(session, answer)
            return
    run_slowly(session, ready, parameters, then)


def run_slowly(session: Session, ready: Ready, parameters: Sequence[Any], then: Then) -> None:
    """Run it as a task; the session waits for it."""
    assert session.txn is not None
    # It begins in a later step: until then its snapshot is in use, too.
    session.txn.pin()
    portal = session.fetching
    sink = Sink(session) if portal is None else PortalSink(portal, session)

    async def rows() -> bytes:
        tag = await ready.bound.rows(cast("SessionLike", session), parameters, sink)
        return sink.finish() + backend.command_complete(tag)

    work(session, rows(), then, ready.plan.verb or ready.plan.kind)


async def run_into(
    session: Session,
    text: str,
    oids: Sequence[int],
    formats: Formats,
    parameters: Sequence[Any],
    sink: Sink,
) -> None:
    """Run a query that is part of another statement, all its rows into ``sink``."""
    txn = session.txn
    assert txn is not None
    mark, bound = txn.savepoint(), None
    while bound is None:
        try:
            # Each time: while it waited the catalog may have changed.
            plan = session.planner.prepare(session, text, oids)
            if plan.writes:
                transactions.check_plan_writable(session, plan)
            made = plan.bind(*formats)
            answer = made.run(cast("SessionLike", session), parameters) if plan.fast else None
            if answer is not None:
                _, end = backend.split_rows(answer, 1 << 62)
                await sink.rows(answer[:end])
                return
            bound = made
        except Suspend as suspend:
            txn.rollback_to(mark)
            await resumed(suspend)
    await bound.rows(cast("SessionLike", session), parameters, sink)


Formats = tuple[tuple[int, ...], tuple[int, ...]]


class Sink:
    """Sends rows as they come, and lets the statement wait while the client does not read."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._byte_count = 0

    async def rows(self, data: bytes) -> None:
        """Take DataRows. Returns when there is room for more."""
        session = self._session
        txn = session.txn
        while txn is not None and txn.depends and (wait := txn.unpublished()) is not None:
            await resumed(wait)
        session.emit_head()
        session.out.append(data)
        self._byte_count += len(data)
        if self._byte_count >= session.limits.output_bytes_max:
            self._byte_count = 0
            session.flush()
            while session.writes_paused:
                await session.writable()
            # A result that never has to wait would otherwise keep all other sessions waiting.
            await asyncio.sleep(0)

    def finish(self) -> bytes:
        """Rows that were not sent."""
        return b""


class PortalSink(Sink):
    """Keeps the rows for a client that fetches them in portions, up to a bound."""

    def __init__(self, portal: Portal, session: Session) -> None:
        super().__init__(session)
        self._portal = portal
        self._parts: list[bytes] = []

    async def rows(self, data: bytes) -> None:
        """Take DataRows. Raises `Overloaded` beyond ``portal_bytes_max``."""
        self._parts.append(data)
        self._byte_count += len(data)
        limit = self._session.limits.portal_bytes_max
        if self._byte_count > limit:
            raise too_large_for_portal(limit)
        await asyncio.sleep(0)

    def finish(self) -> bytes:
        """All rows."""
        return b"".join(self._parts)


def too_large_for_portal(limit: int) -> PolarlessError:
    """A result that is fetched in portions is kept in memory, and does not fit."""
    return Overloaded(
        f"a result fetched in portions exceeds {limit} bytes",
        hint="Fetch it in one go, or narrow it with WHERE or LIMIT.",
    )
