"""Runs the home: turns messages into events, steps the core, carries the effects out in order.

It decides nothing. What it adds is I/O: the cells in shared memory, one connection a member, lines
to the memory nodes, keys granted before a join is answered, and the tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from memory_pool.directory import messages as m
from memory_pool.fabric.cells import OwnCells
from memory_pool.fabric.region import MAY_READ, Holder
from memory_pool.fabric.verbs import NAME_BYTES_MAX, RKEY_BYTES
from memory_pool.home import Home
from memory_pool.home_state import HomeConfig
from memory_pool.links import Links
from memory_pool.slab_node import SlabNode
from memory_pool.slots import Scan
from polarless.errors import RemoteProtocolError, Retry
from polarless.kernel.world import World
from polarless.net import rpc
from polarless.wire.memory import CELLS_BYTES

log = logging.getLogger(__name__)

TICK_S: Final = 0.01
NOTES_MAX: Final = 100
# A slot is waited for while somebody writes into it; that is over with its offer.
SHRINK_DEADLINE_S: Final = 20.0
# With ``verify``, all tables are looked at this often: it takes milliseconds.
VERIFY_TICKS: Final = 100

# What a compute node may call and say: method -> event, whose fields are the arguments.
CALLS: Final[dict[str, Callable[..., m.Event]]] = {
    "register": m.Register,
    "register_many": m.RegisterMany,
    "locate": m.Locate,
    "offer": m.Offered,
    "validate": m.Validate,
    "advance": m.Advance,
    "fence": m.Fence,
}
NOTIFICATIONS: Final[dict[str, Callable[..., m.Event]]] = {
    "ack": m.Ack,
    "release": m.Release,
    "unregister": m.Unregister,
    "drop_offer": m.DropOffer,
    "pull_refused": m.PullRefused,
    "report": m.Report,
    "confirmed": m.Confirmed,
}


class Connection:
    """One compute node's connection; a `links.Borrower`."""

    __slots__ = ("cells_key", "holder", "joining", "keys", "number", "peer")

    def __init__(self, number: int, peer: rpc.Peer, holder: Holder) -> None:
        self.number = number
        self.peer = peer
        self.holder = holder
        self.keys: dict[str, dict[int, bytes]] = {}
        self.cells_key = b""
        self.joining = False


class HomeNode:
    """The home's shell. ``tasks`` belongs to the process's node; `close` ends the role.

    ``on_failed`` is called when the core has met a bug of ours: its tables cannot be trusted.
    """

    def __init__(
        self,
        world: World,
        *,
        cluster: bytes,
        slabs: SlabNode,
        home_epoch: int,
        epoch: int,
        tasks: asyncio.TaskGroup,
        on_failed: Callable[[], None],
        config: HomeConfig | None = None,
        verify: bool = False,
    ) -> None:
        self.home_epoch = home_epoch
        self.closed = False
        self._world = world
        self._slabs = slabs
        self._tasks = tasks
        self._on_failed = on_failed
        self._verify = verify
        self._core = Home(home_epoch=home_epoch, epoch=epoch, now_us=self._now_us(), config=config)
        self._cells = OwnCells(slabs.create_region("cells", CELLS_BYTES), home_epoch)
        self._connections: dict[int, Connection] = {}
        self._next_connection = 0
        self._links = Links(
            world,
            cluster=cluster,
            home=slabs.node,
            home_epoch=home_epoch,
            tasks=tasks,
            events=self,
        )
        # Nodes that are to lend less, and who waits until they do.
        self._shrinking: dict[str, asyncio.Future[None]] = {}
        self._notes: deque[tuple[int, str]] = deque(maxlen=NOTES_MAX)
        self._tick = tasks.create_task(self._ticks())
        self._do: dict[type, Callable[[Any], None]] = {
            m.Answer: lambda e: e.call.answer(e.result),
            m.Fail: lambda e: e.call.fail(e.error),
            m.Push: self._push,
            m.Admit: self._admit,
            m.SetWord: lambda e: self._cells.set_word(e.place, e.value),
            m.SetMark: lambda e: self._cells.set_mark(e.mark),
            m.Publish: lambda e: self._cells.publish(e.cts),
            m.Know: lambda e: self._cells.know(),
            m.Revoke: self._revoke,
            m.Close: self._close,
            m.SlabsChanged: self._slabs_changed,
            m.Shrunk: self._shrunk,
            m.Note: self._note,
        }

    async def start(self, agents: dict[str, str]) -> None:
        """Attach the memory nodes (name -> agent address), look at their slots, then serve."""
        await asyncio.gather(
            *(self._links.attach(node, address, scan=True) for node, address in agents.items())
        )
        self._step(m.Scanned())

    def close(self, reason: str) -> None:
        """Lay the role down: every admission word is cleared, every connection ends."""
        if self.closed:
            return
        self.closed = True
        self._tick.cancel()
        # The words first: nobody may think that it is a member while connections end.
        self._cells.close()
        for connection in list(self._connections.values()):
            self._slabs.keys.revoke(connection.holder)
            connection.peer.close()
        self._links.close()
        log.info("%s: home %d ends: %s", self._slabs.node, self.home_epoch, reason)

    # Compute nodes.

    def on_hello(self, peer: rpc.Peer, fields: dict[str, Any]) -> dict[str, Any]:
        """A compute node connects; it is a member once its `join` is answered."""
        name, incarnation = fields["node"], fields["incarnation"]
        if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise RemoteProtocolError("a compute node needs a name of at most 64 bytes")
        if type(incarnation) is not int or not 0 < incarnation < 2**63:
            raise RemoteProtocolError("an incarnation is a positive 63-bit number")
        self._next_connection += 1
        connection = Connection(self._next_connection, peer, (name, incarnation))
        self._connections[connection.number] = connection
        peer.context = connection
        return {"home_epoch": self.home_epoch}

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        """A compute node's call becomes an event."""
        kind = CALLS.get(call.method)
        if kind is not None:
            self._step(_event(kind, peer.context.number, call, *call.args))
        elif call.method == "mark":
            call.answer(self._core.state.mark)
        elif call.method == "join":
            if peer.context.joining:
                raise RemoteProtocolError("one connection is one membership")
            event = _event(m.Joined, peer.context.number, call, *peer.context.holder, *call.args)
            peer.context.joining = True
            self._tasks.create_task(self._join(peer.context, event))
        elif call.method == "status":
            call.answer(self.status())
        else:
            raise RemoteProtocolError(f"the home has no method {call.method!r}")

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        """A compute node's message becomes an event."""
        kind = NOTIFICATIONS.get(method)
        if kind is None:
            raise RemoteProtocolError(f"the home does not know {method!r}")
        self._step(_event(kind, peer.context.number, *args))

    def on_lost(self, peer: rpc.Peer) -> None:
        """A compute node's connection ended."""
        connection = self._connections.get(peer.context.number)
        if connection is not None:
            self._step(m.Lost(connection.number))
            self._connections.pop(connection.number, None)

    async def _join(self, connection: Connection, event: m.Event) -> None:
        """Get the node its keys, then ask the core."""
        await self._links.grant(connection)
        if connection.peer.closed is not None or self.closed:
            await self._links.revoke(connection.holder)
            return
        if not connection.cells_key:
            connection.cells_key = self._world.random.token(RKEY_BYTES)
            self._slabs.keys.grant(
                connection.cells_key, self._cells.region, MAY_READ, connection.holder
            )
        self._step(event)

    # Control.

    def fence(self, call: rpc.Call, epoch: int) -> None:
        """Control fences without becoming the writer."""
        self._step(m.Fence(None, call, epoch))

    async def attach(self, node: str, address: str) -> None:
        """Control has a memory node for us. One that cannot be reached is tried again."""
        await self._links.attach(node, address, scan=False)

    def detach(self, node: str) -> None:
        """Control took a memory node away."""
        self._links.detach(node, "control took it away")

    async def lend(self, node: str, slots: int) -> None:
        """Let a memory node lend so many slots; returns when it does.

        Raises `Overloaded` without room, `Retry` if the node is not there (any more).
        """
        capacity = self._core.state.tables.capacity
        if slots > capacity.lent(node):
            await self._links.lend(node, slots)
            self._step(m.Lend(node, slots))
            return
        done = self._shrinking.pop(node, None)
        if done is not None:
            done.set_exception(Retry(f"{node} is to lend another number of slots"))
        done = self._shrinking[node] = asyncio.get_running_loop().create_future()
        self._step(m.Lend(node, slots))
        try:
            await asyncio.wait_for(done, SHRINK_DEADLINE_S)
        except TimeoutError:
            raise Retry(f"{node} is not empty after {SHRINK_DEADLINE_S:.0f} s") from None
        await self._links.lend(node, slots)

    def summary(self) -> dict[str, Any]:
        """State and epochs, cheaply."""
        state = self._core.state
        return {
            "state": "serving" if state.rebuild is None else "rebuilding",
            "epoch": state.epoch,
            "home_epoch": self.home_epoch,
            "mark": state.mark,
        }

    def status(self) -> dict[str, Any]:
        """Plain values for people; ``events`` are (wall time in us, text), oldest first."""
        return {
            **self._core.status(),
            "connections": len(self._connections),
            "events": list(self._notes),
        }

    # What the links tell.

    def on_attached(self, node: str, slabs: list[tuple[int, int, Scan | None]], lent: int) -> None:
        """A memory node lends slabs, and every connection has keys there."""
        self._step(m.Attached(node, slabs, lent))

    def on_detached(self, node: str, reason: str) -> None:
        """A memory node is out of reach."""
        self._step(m.Detached(node, reason))

    def on_fenced(self, reason: str) -> None:
        """There is a newer home."""
        self.close(reason)

    def borrowers(self) -> Iterable[Connection]:
        """Who has keys."""
        return list(self._connections.values())

    # Effects.

    def _now_us(self) -> int:
        return int(self._world.clock.now() * 1e6)

    def _step(self, event: m.Event) -> None:
        if self.closed:
            return
        do = self._do
        try:
            for effect in self._core.step(event, self._now_us()):
                do[type(effect)](effect)
        except Exception as error:
            self._failed(type(event).__name__, error)

    def _failed(self, at: str, error: Exception) -> None:
        """Half a step is done. Nobody may be told anything from these tables again."""
        log.error("home %d failed at %s", self.home_epoch, at, exc_info=error)
        self.close("a bug: see the log")
        self._on_failed()

    async def _ticks(self) -> None:
        ticks = 0
        while not self.closed:
            await self._world.clock.sleep(TICK_S)
            self._step(m.Tick())
            ticks += 1
            if self._verify and ticks % VERIFY_TICKS == 0:
                self._check()

    def _check(self) -> None:
        """Look at all tables, and at the cells that show them."""
        try:
            self._core.check()
            state = self._core.state
            words = {member.place: member.incarnation for member in state.members}
            self._cells.check(mark=state.mark, published=state.published, words=words)
        except AssertionError as error:
            self._failed("a check of its tables", error)

    def _push(self, effect: m.Push) -> None:
        connection = self._connections.get(effect.connection)
        if connection is not None:
            connection.peer.notify(effect.method, *effect.args)

    def _admit(self, effect: m.Admit) -> None:
        connection = self._connections.get(effect.connection)
        if connection is None:
            return  # lost; the event that says so comes next
        answer = {
            "cold": effect.cold,
            "mark": effect.mark,
            "place": effect.place,
            "cells": (self._cells.region.name, connection.cells_key, self._slabs.fabric),
            "nodes": self._links.nodes_for(connection),
        }
        effect.call.answer(answer)

    def _revoke(self, effect: m.Revoke) -> None:
        connection = self._connections.get(effect.connection)

        async def revoke() -> None:
            if connection is not None:
                self._slabs.keys.revoke(connection.holder)
                await self._links.revoke(connection.holder)
            self._step(m.Revoked(effect.connection))

        self._tasks.create_task(revoke())

    def _close(self, effect: m.Close) -> None:
        connection = self._connections.pop(effect.connection, None)
        if connection is not None:
            connection.peer.close()

    def _slabs_changed(self, effect: m.SlabsChanged) -> None:
        for member in self._core.state.members:
            connection = self._connections.get(member.connection)
            if connection is not None:
                connection.peer.notify("slabs", self._links.nodes_for(connection))

    def _shrunk(self, effect: m.Shrunk) -> None:
        done = self._shrinking.pop(effect.node, None)
        if done is not None and not done.done():
            done.set_result(None)

    def _note(self, effect: m.Note) -> None:
        self._notes.append((self._world.clock.wall_us(), effect.text))
        level = logging.WARNING if effect.warning else logging.INFO
        log.log(level, "%s: home %d: %s", self._slabs.node, self.home_epoch, effect.text)


def _event(kind: Callable[..., m.Event], *fields: Any) -> m.Event:
    """What a peer said, as an event. Raises `RemoteProtocolError` if it cannot be one."""
    try:
        event = kind(*fields)
        m.check(event)
    except (TypeError, ValueError) as error:
        raise RemoteProtocolError(f"{getattr(kind, '__name__', kind)}: {error}") from None
    return event
