"""Statements that are carried out by the session itself rather than by their plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compute.pgwire import backend
from compute.session import copying, copying_out, cursors, transactions, wrapped
from compute.session.statements import forget_statement
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.session.statements import Control, Ready, Then


def on_set(session: Session, ready: Ready, then: Then) -> None:
    """SET, RESET, SHOW: no transaction is needed, but inside one they follow it."""
    answer = ready.run(session, ())
    assert answer is not None, f"{ready.plan.verb} has no result"
    then(session, answer)


def on_deallocate(session: Session, ready: Ready, then: Then) -> None:
    """DEALLOCATE name, DEALLOCATE ALL."""
    name = ready.plan.argument
    if name is None:
        session.forget_statements()
        then(session, backend.command_complete("DEALLOCATE ALL"))
        return
    if not forget_statement(session, name.encode()):
        raise CallerMistake(f'prepared statement "{name}" does not exist', sqlstate="26000")
    then(session, backend.command_complete("DEALLOCATE"))


def on_discard(session: Session, ready: Ready, then: Then) -> None:
    """DISCARD ALL gives back a session as new; PLANS, SEQUENCES and TEMP have nothing to forget."""
    what = str(ready.plan.argument).upper()
    if what == "ALL":
        if session.explicit:
            raise CallerMistake(
                "DISCARD ALL cannot run inside a transaction block", sqlstate="25001"
            )
        session.forget_statements()
        session.portals.clear()
        session.settings.reset_all()
        if session.sql.advisory is not None:
            session.sql.advisory.end_session()
    then(session, backend.command_complete(f"DISCARD {what}"))


def on_close(session: Session, ready: Ready, then: Then) -> None:
    """CLOSE name, CLOSE ALL: portals under SQL's name for them."""
    name = ready.plan.argument
    if name is None:
        session.portals.clear()
        then(session, backend.command_complete("CLOSE CURSOR ALL"))
        return
    if session.portals.pop(name.encode(), None) is None:
        raise CallerMistake(f'cursor "{name}" does not exist', sqlstate="34000")
    then(session, backend.command_complete("CLOSE CURSOR"))


CONTROLS: dict[str, Control] = {
    **transactions.CONTROLS,
    "set": on_set,
    "copy_in": copying.on_copy_in,
    "copy_out": copying_out.on_copy_out,
    "prepare": wrapped.on_prepare,
    "execute": wrapped.on_execute,
    "declare": cursors.on_declare,
    "fetch": cursors.on_fetch,
    "deallocate": on_deallocate,
    "discard": on_discard,
    "close": on_close,
}
