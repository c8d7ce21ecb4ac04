"""COPY ... FROM STDIN: the client's rows go to the plan in portions, in one task per COPY.

::

    socket -> FrameReader -> chunks (bounded; beyond it the socket is not read) -> CopyIn.write

While it runs the client may only send CopyData, CopyDone and CopyFail; Flush and Sync mean nothing.
After CopyDone or CopyFail the next messages wait in the reader until the COPY has ended. When it
fails early, the rest of its messages is ignored one by one, as `messages.on_stray_copy`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from compute.pgwire import backend, frontend
from compute.session import transactions
from compute.session.waits import work
from polarless.errors import CallerMistake, RemoteProtocolError

if TYPE_CHECKING:
    from compute.session.session import Session
    from compute.session.statements import Ready, Then
    from compute.sql.plan import CopyIn, SessionLike


def on_copy_in(session: Session, ready: Ready, then: Then) -> None:
    """Begin it: a `Control`, may raise a `Suspend`."""
    transactions.check_writable(session, ready)
    if session.txn is None:
        transactions.open_implicit(session)
    assert session.txn is not None
    session.txn.start_statement()
    copier = ready.bound.copy(cast("SessionLike", session))
    session.head = b""
    session.out.append(backend.copy_in_response(copier.column_count, binary=copier.binary))
    copying = session.copying = Copying(session, copier)
    if session.relay is not None:
        session.relay.copying()
    work(session, copying.run(), then, "COPY")
    copying.on_input()


class Copying:
    """One COPY under way."""

    def __init__(self, session: Session, copier: CopyIn) -> None:
        self._session = session
        self._copier = copier
        self._chunks: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._ended = False
        self._failure: CallerMistake | RemoteProtocolError | None = None
        self._arrived: asyncio.Future[None] | None = None

    def on_input(self) -> None:
        """The reader has new bytes: take what belongs to the COPY."""
        session = self._session
        try:
            self._take()
        except RemoteProtocolError as error:
            session.die(error)
            return
        limits = session.limits
        if self._ended:
            if session.reader.buffered > limits.input_bytes_max:
                session.pause_reading()
        elif self._waiting_bytes > limits.copy_waiting_bytes_max:
            session.pause_reading()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _take(self) -> None:
        session = self._session
        reader, step = session.reader, session.limits.copy_step_bytes
        while not self._ended:
            data = reader.take_copy_data(step)
            if data:
                self._add(data)
                continue
            message = reader.next()
            if message is None:
                return
            kind, body = message
            if kind == frontend.COPY_DATA:
                self._add(body)
            elif kind == frontend.COPY_DONE:
                self._ended = True
            elif kind == frontend.COPY_FAIL:
                self._fail(
                    CallerMistake(
                        f"COPY from stdin failed: {frontend.parse_copy_fail(body)}",
                        sqlstate="57014",
                    )
                )
            elif kind == frontend.TERMINATE:
                raise RemoteProtocolError("the client said goodbye in the middle of a COPY")
            elif kind not in (frontend.FLUSH, frontend.SYNC):
                self._fail(
                    RemoteProtocolError(
                        f"unexpected message type {chr(kind)!r} during COPY from stdin"
                    )
                )

    def _add(self, data: bytes) -> None:
        self._chunks.append(data)
        self._waiting_bytes += len(data)

    def _fail(self, error: CallerMistake | RemoteProtocolError) -> None:
        self._failure = error
        self._ended = True

    async def run(self) -> bytes:
        """Feed the plan until the client is done; the answer."""
        session, copier, chunks = self._session, self._copier, self._chunks
        try:
            while self._failure is None:
                if chunks:
                    data = chunks.popleft()
                    await copier.write(data)
                    self._waiting_bytes -= len(data)
                    if self._waiting_bytes < session.limits.copy_waiting_bytes_max // 2:
                        session.resume_reading()
                    # A COPY that never has to wait would keep all other sessions waiting.
                    await asyncio.sleep(0)
                elif self._ended:
                    break
                else:
                    self._arrived = asyncio.get_running_loop().create_future()
                    await self._arrived
            if self._failure is not None:
                raise self._failure
            tag = await copier.finish()
        except BaseException:
            await copier.abort()
            raise
        finally:
            session.copying = None
        return backend.command_complete(tag)
