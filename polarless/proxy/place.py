"""A session's part on one node: opened when needed, told what changed, left when it is over."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from zlib import crc32

from polarless.errors import Conflict, Retry
from polarless.proxy.messages import PARSE, SYNC_MESSAGE, first_error, message
from polarless.proxy.record import Cycle
from polarless.wire import relay as wire

if TYPE_CHECKING:
    from polarless.proxy.link import Link
    from polarless.proxy.session import Session

log = logging.getLogger(__name__)

CLOSE_STATEMENT = 0x43
# Each node may turn a cycle away once or twice while the pool is rebuilt.
RERUNS_MAX = 5


class Replayed:
    """The answer of a cycle that is run again: not for the client."""

    __slots__ = ("answered", "crc", "error", "future", "number")

    def __init__(self, number: int, future: asyncio.Future[int]) -> None:
        self.number = number
        self.future = future
        self.answered = 0
        self.crc = 0
        self.error = ""


class Place:
    """See the module."""

    __slots__ = (
        "_known", "_muted", "_seen_version", "_settings_version", "_statements_version", "link",
        "number", "replayed", "session",
    )  # fmt: skip

    def __init__(self, session: Session, link: Link) -> None:
        self.session = session
        self.link = link
        self.number = link.attach(self)
        self.replayed: Replayed | None = None
        # The cycle that prepares statements again; its answer is nobody's.
        self._muted = -1
        self._known: dict[bytes, bytes] = {}
        memory = session.memory
        self._settings_version = memory.settings_version
        self._statements_version = -1
        self._seen_version = 0

    def open(self, how: dict[str, Any]) -> None:
        """Make the session there: ``startup`` if it is new, ``resume`` if it was elsewhere."""
        session = self.session
        fields = {**how, "pid": session.pid, "key": session.key, "base": session.base,
                  "peer": session.peer}  # fmt: skip
        self.tell(wire.OPEN, wire.pack(fields))
        if "startup" in how:
            self._statements_version = session.memory.statements_version

    def resume(self) -> None:
        """Make the session there as it was at the beginning of its open transaction."""
        session = self.session
        self.open({"resume": session.parameters, "settings": session.memory.settings})

    def prepare(self, cycle: Cycle) -> None:
        """Bring settings and prepared statements there up to date before a cycle."""
        session = self.session
        memory = session.memory
        if self is session.writer and session.reader is None:
            # Whatever changed, changed there.
            if self._statements_version == -1:
                self._bring_statements(cycle)
            return
        if self._settings_version != memory.settings_version:
            self._settings_version = memory.settings_version
            self.tell(wire.SETTINGS, wire.pack(memory.settings))
        if self._statements_version != memory.statements_version:
            self._bring_statements(cycle)
        if self._seen_version != memory.seen_version:
            self._seen_version = memory.seen_version
            self.tell(wire.SEEN, wire.pack({"seen": memory.seen}))

    def _bring_statements(self, cycle: Cycle) -> None:
        # Under the number before the cycle's own: nobody waits for its answer.
        self.bring(cycle, cycle.number - 1)

    def bring(self, cycle: Cycle | None, number: int) -> None:
        """Prepare there what was prepared elsewhere; the answers are not for the client."""
        session = self.session
        statements = session.memory.statements
        self._statements_version = session.memory.statements_version
        parts = [
            message(CLOSE_STATEMENT, b"S" + name + b"\0")
            for name, body in self._known.items()
            if name and statements.get(name) != body
        ]
        # The unnamed statement is mostly parsed again by whoever uses it.
        unnamed = cycle is None or not cycle.data or cycle.data[0][:1] == b"B"
        parts += [
            message(PARSE, body) for name, body in statements.items()
            if self._known.get(name) != body and (name or unnamed)
        ]  # fmt: skip
        self._known = dict(statements)
        if parts:
            self._muted = number
            self.tell(wire.DATA, b"".join(parts) + SYNC_MESSAGE, number)

    def learned(self, meta: dict[str, Any]) -> None:
        """What the session says has changed there is known there."""
        if meta.get("cleared"):
            self._known.clear()
        for name, body in (meta.get("prepared") or {}).items():
            if body is None:
                self._known.pop(name, None)
            else:
                self._known[name] = body

    def data(self, cycle: Cycle, data: bytes) -> None:
        """The client's bytes."""
        self.link.send(wire.DATA, self.number, cycle.number, data)

    def tell(self, kind: int, payload: bytes = b"", cycle: int = 0) -> None:
        """Any other frame."""
        self.link.send(kind, self.number, cycle, payload)

    async def replay(
        self, number: int, data: bytes, snapshots: list[int], start_us: int
    ) -> Replayed:
        """Run a cycle again at its snapshots; its answer, with the state it leaves.

        Raises `Retry` if the node is lost meanwhile, or was before.
        """
        if self.link.backends.get(self.number) is not self:
            raise Retry(f"node {self.link.node} is gone")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        replayed = self.replayed = Replayed(number, future)
        if snapshots or start_us:
            at = {"snapshots": snapshots, "start_us": start_us}
            self.tell(wire.REPLAY, wire.pack(at))
        self.tell(wire.DATA, data, number)
        try:
            await future
        finally:
            self.replayed = None
        return replayed

    def leave(self) -> None:
        """The session needs it no more."""
        self.link.detach(self.number)

    # What the link brings.

    def on_data(self, cycle: int, flag: int, payload: bytes) -> None:
        if cycle == self._muted:
            error = first_error(payload)
            if error:
                log.warning(
                    "node %s: a statement cannot be prepared again: %s", self.link.node, error
                )
            return
        replayed = self.replayed
        if replayed is None:
            self.session.on_data(self, cycle, flag, payload)
            return
        if replayed.number != cycle:
            return
        replayed.answered += len(payload)
        replayed.crc = crc32(payload, replayed.crc)
        replayed.error = replayed.error or first_error(payload)
        if flag and not replayed.future.done():
            replayed.future.set_result(flag)

    def on_frame(self, cycle: int, kind: int, payload: bytes) -> None:
        session = self.session
        current = session.cycle
        mine = current is not None and current.backend is self and current.number == cycle
        if kind == wire.META:
            meta = wire.unpack(payload)
            self.learned(meta)
            if self.replayed is not None or mine or self is session.writer:
                session.memory.learn(meta, current if mine else None)
                if meta.get("seen") == session.memory.seen:
                    self._seen_version = session.memory.seen_version
        elif kind == wire.REROUTE and mine:
            assert current is not None
            session.proxy.rerouted += 1
            self.link.outstanding -= 1
            current.backend = None
            current.reruns += 1
            place = session.proxy.writer_place(session)
            if current.reruns > RERUNS_MAX:
                session.fail_cycle(
                    Conflict(
                        "the statement was turned away too often",
                        hint="The nodes are leaving and joining the memory pool; try again.",
                    )
                )
            elif place is None:
                session.queue("a writer")
            else:
                session.run(current, place)
        elif kind == wire.COPYING and mine:
            assert current is not None
            current.copying = True
            session.scanner.ended = False
        elif kind == wire.PAUSE and mine:
            session.hold(True)
        elif kind == wire.CONTINUE:
            # Also behind the answer: a COPY that has ended takes input again.
            session.hold(False)
        elif kind == wire.LOST:
            self.link.backends.pop(self.number, None)
            self.on_lost()
        elif kind == wire.CLOSE:
            self.link.backends.pop(self.number, None)
            if self is session.writer or mine:
                session.close()
            else:
                session.reader = None

    def on_lost(self) -> None:
        """The node is gone, or what the session had there."""
        if self.replayed is not None and not self.replayed.future.done():
            self.replayed.future.set_exception(Retry(f"node {self.link.node} is gone"))
        self.session.proxy.place_lost(self)

    def pause(self) -> None:
        self.session.hold(True)

    def proceed(self) -> None:
        self.session.hold(False)
