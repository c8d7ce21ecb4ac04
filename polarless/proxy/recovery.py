"""What happens to a session whose node was lost: nothing that its client would notice.

1. Wait for a writer, which by then has fenced the log.
2. If a cycle was under way on the old writer: what became of its commit? If it is durable, the
   client gets the answer that the commit carried. The same if it is not, from step 3 on.
3. A session there, with the settings and prepared statements from before the open transaction.
4. The transaction's cycles again, each statement at the snapshot that it had. If an answer differs
   from what the client was told, the transaction fails with 40001.
5. The cycle under way again; of its answer the client gets what it has not got yet.

Whatever has been answered, be it in part, is run again before anything new: it had its locks, and
a statement that was waiting for one of them must not get it first. That client may be one thread
with another that holds half an answer, and both would wait for ever. So a cycle under way of which
nothing was answered, and all that comes after, waits until no session is at steps 3 to 5 any more
(`Barrier`).

A session that held advisory locks or cursors WITH HOLD ends after step 2: it must not believe that
it still has them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from polarless.errors import CommitUnknown, Conflict, DeadlineExceeded, PolarlessError, Retry
from polarless.proxy.messages import parses
from polarless.proxy.place import Place
from polarless.proxy.record import Cycle
from polarless.wire import relay as wire

if TYPE_CHECKING:
    from polarless.proxy.link import Link
    from polarless.proxy.session import Session

log = logging.getLogger(__name__)

VERDICT_TIMEOUT_S: Final = 10.0
# One cycle of a replay; it may have to wait for locks of others that are replayed too.
REPLAY_TIMEOUT_S: Final = 10.0
# Numbers of replayed cycles: never those of a cycle under way.
REPLAY_NUMBERS: Final = 1 << 31

_AGAIN: Final = "Run the whole transaction again."


async def recover(session: Session) -> None:
    """Bring a session to the writer of now. Ends when that has worked, or the client is gone."""
    session.recovering = True
    proxy = session.proxy
    try:
        while not session.closed:
            link = await proxy.wait_for_writer(session)
            try:
                await _recover_at(session, link)
                return
            except (Retry, DeadlineExceeded) as error:
                log.info("session %s: once more: %s", session.pid, error)
                if session.writer is not None:
                    session.writer.leave()
                    session.writer = None
    except DeadlineExceeded as error:
        session.refuse(error)
    finally:
        session.recovering = False
        cycle = session.cycle
        if cycle is None or not (cycle.answered or session in proxy.barrier.ending):
            proxy.barrier.passed(session)
        # Only now may the next cycle begin.
        session.settled()


async def _recover_at(session: Session, link: Link) -> None:
    memory, cycle = session.memory, session.cycle
    on_writer = (
        cycle is not None and cycle.backend is not None and cycle.backend is not session.reader
    )
    if cycle is not None and on_writer:
        verdict = await link.verdict(
            session.base + cycle.number, cycle.from_lsn, deadline_s=VERDICT_TIMEOUT_S
        )
        if verdict["state"] != wire.ABSENT:
            _settle(session, cycle, verdict["state"], verdict["note"])
            if memory.tied:
                session.refuse(ties_lost(memory.tied))
            return
        cycle.backend = None
    if memory.tied:
        session.refuse(ties_lost(memory.tied))
        return
    said = memory.drop_news()
    place = _open_again(session, link)
    doomed = memory.unrepeatable if memory.status != wire.IDLE else ""
    if not doomed and memory.transaction:
        await session.proxy.barrier.turn(session)
        doomed = await _replay(session, place)
    if doomed:
        # A failed transaction takes back its settings, and leaves what it prepared.
        memory.drop_news()
        memory.keep_prepared(said)
        place.leave()
        place = _open_again(session, link)
        place.tell(wire.DOOM, doomed.encode())
    session.proxy.recovered += 1
    if cycle is None:
        return
    if cycle.data is None or (cycle.answered and (doomed or cycle.snapshots is None)):
        why = "its input was too long to be kept" if cycle.data is None else "it was half answered"
        session.fail_cycle(
            Conflict(f"the node that ran this statement was lost, and {why}", hint=_AGAIN)
        )
        return
    if not cycle.answered:
        # It held nothing that its client knows of; `Session.settled` puts it in the queue.
        return
    cycle.skip, cycle.skip_crc = cycle.answered, 0
    if cycle.snapshots is not None and not doomed:
        at = {"snapshots": cycle.snapshots, "start_us": cycle.start_us}
        place.tell(wire.REPLAY, wire.pack(at))
    session.run(cycle, place)


def _open_again(session: Session, link: Link) -> Place:
    """The session at a node, with what it had prepared and set before its transaction.

    Raises `Retry` if the node was lost meanwhile: nobody would tell the session of it again.
    """
    if not link.connected:
        raise Retry(f"node {link.node} is gone")
    place = session.writer = Place(session, link)
    place.resume()
    place.bring(session.cycle, REPLAY_NUMBERS)
    return place


def ties_lost(what: str) -> PolarlessError:
    """Why a session ends with its node."""
    return PolarlessError(
        f"terminating connection: its node was lost, and the session's {what} with it",
        sqlstate="57P01",
        hint="Connect again.",
    )


async def _replay(session: Session, place: Place) -> str:
    """Run the open transaction's cycles again; why it cannot be, if its answers differ."""
    for index, done in enumerate(list(session.memory.transaction)):
        try:
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                replayed = await place.replay(
                    REPLAY_NUMBERS + 1 + index, done.data, done.snapshots, done.start_us
                )
        except TimeoutError:
            return "the transaction could not be run again in time after its node was lost"
        session.proxy.barrier.moved()
        if (replayed.answered, replayed.crc) != (done.answered, done.crc):
            session.proxy.diverged += 1
            log.info(
                "session %s: statement %d of %d was answered differently when it ran again: %s",
                session.pid,
                index + 1,
                len(session.memory.transaction),
                replayed.error or f"{replayed.answered} bytes, {done.answered} before",
            )
            return "the transaction's node was lost, and running it again gave other answers"
    return ""


def _settle(session: Session, cycle: Cycle, state: str, note: bytes) -> None:
    """The cycle's commit is durable, or nobody knows."""
    session.proxy.settled += 1
    if state == wire.COMMITTED and cycle.data is not None:
        for name, body in parses(b"".join(cycle.data)).items():
            session.memory.prepared(name, body)
    session.memory.forget_seen()
    session.memory.forget_transaction()
    session.memory.unrepeatable = ""
    session.memory.status = wire.IDLE
    if not note:
        text = (
            "the transaction is committed; the rest of the answer was lost with the node"
            if state == wire.COMMITTED
            else "the node was lost while the commit was under way; it may have taken effect"
        )
        session.fail_cycle(
            CommitUnknown(text, hint="Look at the rows before you run the transaction again.")
        )
        return
    session.cycle = None
    session.write(note)
    session.memory.finished(cycle, wire.IDLE)
