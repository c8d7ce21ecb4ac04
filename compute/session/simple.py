"""The simple protocol: a Query message with one statement, or several as one implicit transaction.

A script runs one statement after the other. Each step ends in `_done`, which asks for the next one
through ``session.again``; so a script of any length uses no stack, and a statement that parks is
repeated alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compute.pgwire import frontend
from compute.session import transactions
from compute.session.controls import CONTROLS
from compute.session.execution import execute
from compute.session.statements import Ready

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.sql.plan import Bound

ANSWER_READY: Final = 1
_READY_MAX: Final = 4096
# Plans are shared by sessions, and so is what was made of them for the simple protocol. By id: the
# entry keeps the object alive, so an id is never used for another one.
_ready: dict[int, Ready] = {}


def on_query(session: Session, body: bytes) -> None:
    """Q: run the statements, answer each, then ReadyForQuery."""
    session.mode = ANSWER_READY
    session.unnamed_portal = None
    if session.held:
        # A pipeline without a Sync: its implicit transaction ends with this Query.
        session.out.append(session.held)
        session.held = b""
    text = frontend.parse_query(body)
    if text.find(";") < 0 or text.find(";") == len(text) - 1:
        session.script = [text]
        session.script_text = ""
    else:
        # Nothing but semicolons is one empty query.
        session.script = session.planner.split(text) or [""]
        session.script.reverse()
        session.script_text = text
    run_next(session, None)


def run_next(session: Session, _: None) -> None:
    """Run the script's next statement; the end of the script is the end of the Query."""
    script = session.script
    if not script:
        _finish(session, b"")
        return
    text = script[-1]
    if session.script_text:
        # Statements are parts of the text, in order.
        session.script_offset = session.script_text.find(text, session.script_offset)
        if len(script) == 1:
            session.script_text = ""
    session.query = text
    session.stats.statements += 1
    transactions.refuse_if_failed(session, text)
    bound, parameters = session.planner.prepare_simple(session, text)
    ready = ready_of(bound)
    session.head = ready.description if ready.plan.columns else b""
    execute(session, ready, parameters, _done)


def ready_of(bound: Bound) -> Ready:
    """What is known of a plan bound to text formats before it runs."""
    ready = _ready.get(id(bound))
    if ready is None or ready.bound is not bound:
        if len(_ready) >= _READY_MAX:
            _ready.clear()
        ready = _ready[id(bound)] = Ready(bound, (), (), CONTROLS)
    return ready


def _done(session: Session, answer: bytes) -> None:
    """One statement was executed."""
    if session.relay is not None:
        session.relay.completed(session.txn.snapshot if session.txn is not None else 0)
    script = session.script
    if script:
        script.pop()
    if script:
        session.emit_head()
        session.out.append(answer)
        session.timeouts.statement_over()
        if session.txn is None and not session.explicit:
            session.start_us = 0
        session.again = (run_next, None)
        return
    if session.txn is not None and not session.explicit:
        # The answer of the last statement waits for the commit: it must not be claimed before.
        session.again = (_commit, answer)
        return
    _finish(session, answer)


def _commit(session: Session, answer: bytes) -> None:
    transactions.commit(session, _finish, answer)


def _finish(session: Session, answer: bytes) -> None:
    session.emit_head()
    if answer:
        session.out.append(answer)
    session.ready()
