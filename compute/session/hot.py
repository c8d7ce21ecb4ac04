"""The short way: one statement that arrives whole, in the shape the usual drivers send, and runs
without waiting, from bytes to bytes in one function.

::

    libpq (pgbench -M prepared, psycopg)   Bind  Describe portal  Execute  Sync
    asyncpg                                Bind                   Execute  Sync

The messages behind Bind are constant, so they are recognised by comparing the end of the input.
All of them are answered with one concatenation and one write. `serve` returns False for anything
that is not exactly this, having done nothing, and the general way takes it; so does a statement
that has to wait, which is then run again from its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from compute.buffer.waits import Suspend
from compute.pgwire import backend, frontend
from compute.session import transactions
from compute.session.extended import ANSWER_READY, ready_for
from compute.sql.plan import ANY_VERSION
from polarless.errors import PolarlessError

if TYPE_CHECKING:
    from compute.session.session import Handler, Session
    from compute.session.statements import Prepared, Ready

_BIND: Final = frontend.BIND
_NULL: Final = 0xFFFFFFFF
_SYNC: Final = backend.message(b"S")
_EXECUTE: Final = backend.message(b"E", b"\0" + b"\0\0\0\0")
TAIL_ASYNCPG: Final = _EXECUTE + _SYNC
TAIL_LIBPQ: Final = backend.message(b"D", b"P\0") + TAIL_ASYNCPG
_ASYNCPG_BYTES: Final = len(TAIL_ASYNCPG)
_LIBPQ_BYTES: Final = len(TAIL_LIBPQ)
_BOUND: Final = backend.BIND_COMPLETE
_IDLE: Final = backend.READY_IDLE
_IN_TRANSACTION: Final = backend.READY_IN_TRANSACTION
assert (_ASYNCPG_BYTES, _LIBPQ_BYTES) == (15, 22)


def serve(session: Session, data: bytes) -> bool:
    """Answer ``data`` if it is the usual thing; False: nothing was done."""
    size = len(data)
    # A Bind for the unnamed portal, and nothing between it and the tail.
    if size < 30 or data[0] != _BIND or data[5] or session.skipping:
        return False
    tail = size - 1 - int.from_bytes(data[1:5], "big")
    if tail == _LIBPQ_BYTES:
        if not data.endswith(TAIL_LIBPQ):
            return False
    elif tail != _ASYNCPG_BYTES or not data.endswith(TAIL_ASYNCPG):
        return False
    bind_end = size - tail
    start = data.find(b"\0", 6, bind_end) + 1
    prepared = session.statements.get(data[6 : start - 1])
    if prepared is None or not start:
        return False

    position = start + 4 + 2 * int.from_bytes(data[start : start + 2], "big")
    count = prepared.parameter_count
    if int.from_bytes(data[position - 2 : position], "big") != count:
        return False
    formats_end = position - 2
    parameters: list[bytes | None] = []
    for _ in range(count):
        length = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if length != _NULL:
            parameters.append(data[position : position + length])
            position += length
        else:
            parameters.append(None)
    if position > bind_end:
        return False

    formats = data[start:formats_end] + data[position:bind_end]
    ready = prepared.ready.get(formats) or _first_time(prepared, data[5:bind_end], formats)
    if (
        ready is None
        or not ready.hot
        or (ready.version != session.engine.catalog_version and ready.version != ANY_VERSION)
        or session.held
        or session.settings.long_way
        or (session.failed and not ready.exits)
    ):
        return False
    bound = _BOUND + ready.description if tail == _LIBPQ_BYTES else _BOUND
    session.query = prepared.text
    if ready.control is not None:
        session.stats.statements += 1
        _finish_later(session, bound, _control, ready)
        return True

    txn = session.txn
    mark = 0
    try:
        if txn is not None:
            if ready.writes:
                transactions.check_writable(session, ready)
            # First: taking the snapshot may suspend too, and then this is where to go back to.
            mark = txn.savepoint()
            txn.start_statement()
        else:
            session.start_us = 0
            if ready.writes:
                transactions.check_writable(session, ready)
                transactions.open_implicit(session)
                txn = session.txn
                assert txn is not None
                txn.start_statement()
        answer = ready.run(session, parameters)
    except Suspend:
        if txn is not None:
            txn.rollback_to(mark)
        return False
    except PolarlessError as error:
        _failed(session, bound, error)
        return True
    except Exception as error:
        _failed(session, bound, session.unexpected(error))
        return True
    if answer is None:
        return False
    if txn is not None and txn.depends and ready.plan.columns and txn.unpublished() is not None:
        txn.rollback_to(mark)
        return False
    session.stats.statements += 1
    if session.unnamed_portal is not None:
        session.unnamed_portal = None
    if txn is None:
        session.write(bound + answer + _IDLE)
    elif session.explicit:
        if session.relay is not None:
            session.relay.completed(txn.snapshot)
        if session.out:
            session.flush()
        session.write(bound + answer + _IN_TRANSACTION)
    else:
        _finish_later(session, bound, _commit, answer)
    return True


def _first_time(prepared: Prepared, bind: bytes, formats: bytes) -> Ready | None:
    """Bind a statement to formats; None if the general way has something to say about them."""
    try:
        message = frontend.parse_bind(bind)
        ready = ready_for(prepared, message.parameter_formats, message.result_formats)
    except PolarlessError:
        return None
    prepared.ready[formats] = ready
    return ready


def _finish_later(session: Session, bound: bytes, handler: Handler, argument: Any) -> None:
    """Do something that may park or wait for the engine, then answer."""
    session.mode = ANSWER_READY
    session.unnamed_portal = None
    session.out.append(bound)
    session.handle(handler, argument)


def _control(session: Session, ready: Ready) -> None:
    assert ready.control is not None
    ready.control(session, ready, _answered)


def _commit(session: Session, answer: bytes) -> None:
    transactions.commit(session, _answered, answer)


def _answered(session: Session, answer: bytes) -> None:
    session.out.append(answer)
    session.ready()


def _failed(session: Session, bound: bytes, error: PolarlessError) -> None:
    session.mode = ANSWER_READY
    session.out.append(bound)
    session.fail(error)
    session.flush()
