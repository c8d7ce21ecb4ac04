"""COPY ... TO STDOUT: the query's rows as CopyData, with the back-pressure of any long result.

The query always runs in a task of its own: what it answers is not known to be small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compute.pgwire import backend
from compute.session import transactions
from compute.session.execution import Sink, run_into
from compute.session.waits import work
from compute.sql.copy_out import BinaryEncoder, CopyOut, encoder, header
from compute.sql.plan import BINARY_FORMAT
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.session.statements import Ready, Then


def on_copy_out(session: Session, ready: Ready, then: Then) -> None:
    """Begin it: a `Control`, may raise a `Suspend`."""
    copy: CopyOut = ready.plan.argument
    plan = session.planner.prepare(session, copy.query, ())
    if plan.parameter_oids:
        raise CallerMistake("there is no parameter $1", sqlstate="42P02")
    if not plan.columns:
        raise CallerMistake("COPY query must have a RETURNING clause", sqlstate="0A000")
    if plan.writes:
        transactions.check_plan_writable(session, plan)
    if session.txn is None:
        transactions.open_implicit(session)
    assert session.txn is not None
    session.txn.start_statement()
    session.txn.pin()
    session.head = b""
    options = copy.options
    session.out.append(backend.copy_out_response(len(plan.columns), binary=options.binary))
    head = header(options, [column.name for column in plan.columns])
    if head:
        session.out.append(head)
    sink = CopySink(session, copy, [column.name for column in plan.columns])
    formats = ((), (BINARY_FORMAT,) if options.binary else ())

    async def run() -> bytes:
        await run_into(session, copy.query, (), formats, (), sink)
        tag = backend.command_complete(f"COPY {sink.row_count}")
        return sink.trailer() + backend.COPY_DONE + tag

    work(session, run(), then, "COPY TO")


class CopySink(Sink):
    """Turns DataRows into CopyData."""

    def __init__(self, session: Session, copy: CopyOut, names: list[str]) -> None:
        super().__init__(session)
        self._binary = BinaryEncoder() if copy.options.binary else None
        self._encode = self._binary or encoder(copy.options, names)
        self.row_count = 0

    def trailer(self) -> bytes:
        """What comes after the rows."""
        return self._binary.trailer() if self._binary is not None else b""

    async def rows(self, data: bytes) -> None:
        """See `Sink.rows`."""
        self.row_count += backend.split_rows(data, 1 << 62)[0]
        await super().rows(self._encode(data))
