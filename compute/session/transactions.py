"""When a session's transaction begins and ends.

::

    idle ----- BEGIN ------> block ---- error ----> failed
     ^ |                     |  ^                     |  |
     | |                     |  +---- ROLLBACK TO ----+  |
     | statement             COMMIT, ROLLBACK            COMMIT (answers ROLLBACK), ROLLBACK
     | |                     |                           |
     | v                     v                           v
     +-implicit (ends with the statement, the script or Sync)

In the failed state everything else gets 25P02. Without savepoints the transaction itself is rolled
back as soon as it fails, so that its locks are free at once; only the state stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from compute.buffer.waits import Suspend
from compute.pgwire import backend
from compute.session.statements import drop_portals
from compute.session.tokens import token_settings
from compute.session.waits import Committing
from compute.sql.plan import TransactionOptions
from polarless.errors import CallerMistake, Reroute

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.session.statements import Control, Ready, Then
    from compute.sql.plan import Plan

BEGIN = backend.command_complete("BEGIN")
START = backend.command_complete("START TRANSACTION")
COMMIT = backend.command_complete("COMMIT")
ROLLBACK = backend.command_complete("ROLLBACK")
SAVEPOINT = backend.command_complete("SAVEPOINT")
SET = backend.command_complete("SET")
RELEASE = backend.command_complete("RELEASE")
EMPTY = backend.EMPTY_QUERY

_ALREADY = ("WARNING", "25001", "there is already a transaction in progress")
_NONE = ("WARNING", "25P01", "there is no transaction in progress")
_EXIT_TEXT = re.compile(
    r"(?:\s|;|--[^\n]*|/\*.*?\*/)*(?:$|(?:rollback|abort|commit|end)\b)",
    re.IGNORECASE | re.DOTALL,
)
_SET_NONE = ("WARNING", "25P01", "SET TRANSACTION can only be used in transaction blocks")
NO_OPTIONS = TransactionOptions()


class Savepoint(NamedTuple):
    """A name, and the positions in the write set and the settings to go back to."""

    name: str
    mark: int
    settings_mark: int


def failed_error() -> CallerMistake:
    """What a failed transaction answers to everything but its end."""
    return CallerMistake(
        "current transaction is aborted, commands ignored until end of transaction block",
        sqlstate="25P02",
    )


def refuse_if_failed(session: Session, text: str) -> None:
    """Raise 25P02 if the transaction has failed and ``text`` is not what would end it.

    Looks at the first word, since planning anything else would need the catalog.
    """
    if session.failed and not _EXIT_TEXT.match(text):
        raise failed_error()


def open_implicit(session: Session) -> None:
    """A transaction for a statement outside of any block."""
    settings = session.settings
    session.txn = session.begin(settings.isolation, read_only=settings.read_only)


def check_writable(session: Session, ready: Ready) -> None:
    """Refuse a write on a reader, or in a READ ONLY transaction: 25006."""
    check_plan_writable(session, ready.plan)


def check_plan_writable(session: Session, plan: Plan) -> None:
    """The same of a plan."""
    command = plan.verb or "a write"
    if not session.engine.writable:
        raise Reroute(
            f"cannot execute {command} in a read-only transaction",
            detail="This node is a reader (RO).",
            hint="Connect to the cluster's URL (`polarless status` shows it): it leads to the "
            "writer (RW).",
        )
    txn = session.txn
    if txn.read_only if txn is not None else session.settings.read_only:
        raise CallerMistake(
            f"cannot execute {command} in a read-only transaction", sqlstate="25006"
        )


def commit(session: Session, then: Then, answer: bytes) -> None:
    """Commit the session's transaction; ``then(session, answer)`` when it is acknowledged.

    The session holds everything back until then. Raises a `Suspend`, and must be called again; on
    any other error the transaction is over, and so is its block.
    """
    assert session.txn is not None
    if session.relay is not None:
        session.relay.committing(session.txn, then, answer)
    session.wait = Committing(then, answer)
    try:
        session.engine.commit(session.txn, session.on_committed)
    except Suspend:
        session.wait = None
        raise
    except BaseException:
        session.wait = None
        session.explicit = False
        raise


def end(session: Session, *, committed: bool) -> None:
    """The transaction is over: the state goes back to idle."""
    session.txn = None
    session.explicit = False
    session.failed = False
    session.savepoints.clear()
    if session.portals:
        drop_portals(session, committed=committed)
    session.unnamed_portal = None
    session.start_us = 0
    if session.relay is not None:
        session.relay.transaction_ended()
    if session.sql.advisory is not None:
        session.sql.advisory.end_transaction()
    if committed:
        session.settings.commit()
        session.stats.commits += 1
    else:
        session.settings.rollback()
        session.stats.rollbacks += 1


def rollback(session: Session) -> None:
    """End the transaction without a trace."""
    txn = session.txn
    session.txn = None
    if txn is not None:
        session.engine.rollback(txn)
    end(session, committed=False)


def abort(session: Session) -> None:
    """A statement failed: the block is failed, or the implicit transaction over."""
    if not session.explicit:
        rollback(session)
        return
    session.failed = True
    txn = session.txn
    if txn is None:
        return
    if session.savepoints:
        session.planner.rolled_back(session)
        txn.rollback_to(session.savepoints[-1].mark)
    else:
        session.txn = None
        session.engine.rollback(txn)


# The statements. Each is a `Control`: (session, ready, then).


def on_begin(session: Session, ready: Ready, then: Then) -> None:
    """BEGIN, START TRANSACTION: also turns an implicit transaction into a block."""
    if session.explicit:
        session.notice(*_ALREADY)
    else:
        if session.txn is None:
            options, settings = ready.plan.argument or NO_OPTIONS, session.settings
            read_only = options.read_only
            session.asked_isolation = options.isolation or settings.isolation
            session.txn = session.begin(
                session.asked_isolation,
                read_only=settings.read_only if read_only is None else read_only,
            )
            if options.deferrable is not None:
                set_deferrable(session, options.deferrable)
        session.explicit = True
    then(session, START if ready.plan.verb == "START TRANSACTION" else BEGIN)


def on_commit(session: Session, ready: Ready, then: Then) -> None:
    """COMMIT, END: of a failed transaction it is a ROLLBACK."""
    if session.failed:
        on_rollback(session, ready, then)
        return
    if not session.explicit:
        session.notice(*_NONE)
    if session.txn is None:
        end(session, committed=True)
        then(session, COMMIT)
        return
    chained = _chain(session, ready)
    commit(session, then if chained is None else _begin_again(chained, then), COMMIT)


def on_rollback(session: Session, ready: Ready, then: Then) -> None:
    """ROLLBACK, ABORT."""
    if not session.explicit:
        session.notice(*_NONE)
    chained = _chain(session, ready)
    rollback(session)
    if chained is not None:
        then = _begin_again(chained, then)
    then(session, ROLLBACK)


def on_savepoint(session: Session, ready: Ready, then: Then) -> None:
    """SAVEPOINT name."""
    _require_block(session, "SAVEPOINT")
    assert session.txn is not None
    mark = session.txn.savepoint()
    session.savepoints.append(Savepoint(ready.plan.argument, mark, session.settings.mark()))
    then(session, SAVEPOINT)


def on_release(session: Session, ready: Ready, then: Then) -> None:
    """RELEASE SAVEPOINT name: forgets it and those after it, keeps what was written."""
    _require_block(session, "RELEASE SAVEPOINT")
    del session.savepoints[_find(session, ready.plan.argument) :]
    then(session, RELEASE)


def on_rollback_to(session: Session, ready: Ready, then: Then) -> None:
    """ROLLBACK TO SAVEPOINT name: a failed transaction goes on from there."""
    _require_block(session, "ROLLBACK TO SAVEPOINT")
    index = _find(session, ready.plan.argument)
    savepoint = session.savepoints[index]
    assert session.txn is not None
    session.planner.rolled_back(session)
    session.txn.rollback_to(savepoint.mark)
    session.settings.rollback(savepoint.settings_mark)
    del session.savepoints[index + 1 :]
    session.failed = False
    then(session, ROLLBACK)


def on_set_transaction(session: Session, ready: Ready, then: Then) -> None:
    """SET TRANSACTION: isolation level and access mode of the block that has just begun."""
    options = ready.plan.argument or NO_OPTIONS
    if not session.explicit or session.txn is None:
        session.notice(*_SET_NONE)
    else:
        if options.isolation is not None:
            set_isolation(session, options.isolation)
        if options.read_only is not None:
            set_read_only(session, options.read_only)
        if options.deferrable is not None:
            set_deferrable(session, options.deferrable)
    then(session, SET)


def set_deferrable(session: Session, deferrable: bool) -> None:
    """Only to be shown: a READ ONLY transaction never waits for others."""
    value = "on" if deferrable else "off"
    session.settings.set("transaction_deferrable", value, local=True)


def set_isolation(session: Session, isolation: str) -> None:
    """Change the level of a transaction that has not looked at anything yet."""
    txn = session.txn
    if txn is None or isolation == session.asked_isolation == txn.isolation:
        return
    if txn.snapshot:
        raise CallerMistake(
            "SET TRANSACTION ISOLATION LEVEL must be called before any query", sqlstate="25001"
        )
    session.engine.rollback(txn)
    session.asked_isolation = isolation
    session.txn = session.begin(isolation, read_only=txn.read_only)


def set_read_only(session: Session, read_only: bool) -> None:
    """Change the access mode; READ WRITE only before the first query, as in PostgreSQL."""
    txn = session.txn
    if txn is None or read_only == txn.read_only:
        return
    if not read_only and txn.snapshot:
        raise CallerMistake(
            "transaction read-write mode must be set before any query", sqlstate="25001"
        )
    txn.read_only = read_only


def on_empty(session: Session, ready: Ready, then: Then) -> None:
    """No statement at all."""
    then(session, EMPTY)


CONTROLS: dict[str, Control] = {
    "begin": on_begin,
    "commit": on_commit,
    "rollback": on_rollback,
    "savepoint": on_savepoint,
    "release": on_release,
    "rollback_to": on_rollback_to,
    "set_transaction": on_set_transaction,
    "empty": on_empty,
}


def current_settings(
    session: Session,
) -> dict[str, tuple[Callable[[], str], Callable[[str], None]]]:
    """The settings that are the transaction's own state: how to read and how to change them."""

    def isolation() -> str:
        txn, settings = session.txn, session.settings
        if txn is None:
            return settings.isolation
        # READ UNCOMMITTED is READ COMMITTED under its own name.
        asked = session.asked_isolation if session.explicit else settings.isolation
        return asked if asked == "read uncommitted" else txn.isolation

    def read_only() -> str:
        if not session.engine.writable:
            return "on"
        txn = session.txn
        return "on" if (txn.read_only if txn else session.settings.read_only) else "off"

    def hot_standby() -> str:
        return "off" if session.engine.writable else "on"

    def refuse(value: str) -> None:
        raise CallerMistake('parameter "in_hot_standby" cannot be changed', sqlstate="55P02")

    return {
        "in_hot_standby": (hot_standby, refuse),
        "transaction_isolation": (isolation, lambda value: set_isolation(session, value)),
        "transaction_read_only": (read_only, lambda value: set_read_only(session, value == "on")),
        **token_settings(session),
    }


def _require_block(session: Session, command: str) -> None:
    if not session.explicit:
        raise CallerMistake(f"{command} can only be used in transaction blocks", sqlstate="25P01")


def _find(session: Session, name: str) -> int:
    for index in range(len(session.savepoints) - 1, -1, -1):
        if session.savepoints[index].name == name:
            return index
    raise CallerMistake(f'savepoint "{name}" does not exist', sqlstate="3B001")


def _chain(session: Session, ready: Ready) -> tuple[str, bool] | None:
    """AND CHAIN: the next transaction is like this one."""
    if not (ready.plan.argument or NO_OPTIONS).chain:
        return None
    _require_block(session, "AND CHAIN")
    txn = session.txn
    if txn is None:
        return session.settings.isolation, session.settings.read_only
    return txn.isolation, txn.read_only


def _begin_again(like: tuple[str, bool], then: Then) -> Then:
    def begun(session: Session, answer: bytes) -> None:
        session.txn = session.begin(like[0], read_only=like[1])
        session.explicit = True
        then(session, answer)

    return begun
