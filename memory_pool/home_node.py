"""Runs the home: turns messages into events, steps the core, carries the effects out in order.

It decides nothing. What it adds is I/O: the cells in shared memory, one connection a member, one
line to each memory node's agent, keys granted before a join is answered, and the tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from memory_pool.directory import messages as m
from memory_pool.fabric.region import MAY_READ, Holder
from memory_pool.fabric.verbs import NAME_BYTES_MAX, RKEY_BYTES
from memory_pool.home import Home
from memory_pool.home_state import HomeConfig
from memory_pool.slab_node import SlabLink, SlabNode
from polarless.errors import Fenced, PolarlessError, RemoteProtocolError
from polarless.kernel.world import World
from polarless.net import rpc
from polarless.wire.memory import (
    CELL_ADMISSION,
    CELL_HOME_EPOCH,
    CELL_MARK,
    CELL_PUBLISHED,
    CELLS_BYTES,
    PoolNode,
    Slab,
    encode_nodes,
)

log = logging.getLogger(__name__)

TICK_S: Final = 0.01
NOTES_MAX: Final = 100
# An agent that cannot be reached is tried again after this, until the node is detached.
ATTACH_RETRY_S: Final = 0.5


# What a compute node may call and say: method -> event, whose fields are the arguments.
CALLS: Final[dict[str, Callable[..., m.Event]]] = {
    "register": m.Register,
    "register_many": m.RegisterMany,
    "offer": m.Offered,
    "validate": m.Validate,
    "advance": m.Advance,
    "fence": m.Fence,
}
NOTIFICATIONS: Final[dict[str, Callable[..., m.Event]]] = {
    "ack": m.Ack,
    "unregister": m.Unregister,
    "drop_offer": m.DropOffer,
    "pull_refused": m.PullRefused,
    "report": m.Report,
    "confirmed": m.Confirmed,
}


class Connection:
    """One compute node's connection. ``keys`` are its rkeys by node and slab."""

    __slots__ = ("cells_key", "holder", "keys", "number", "peer")

    def __init__(self, number: int, peer: rpc.Peer, holder: Holder) -> None:
        self.number = number
        self.peer = peer
        self.holder = holder
        self.keys: dict[str, dict[int, bytes]] = {}
        self.cells_key = b""


class HomeNode:
    """The home's shell. ``tasks`` belongs to the process's node; `close` ends the role."""

    def __init__(
        self,
        world: World,
        *,
        cluster: bytes,
        slabs: SlabNode,
        home_epoch: int,
        epoch: int,
        tasks: asyncio.TaskGroup,
        config: HomeConfig | None = None,
    ) -> None:
        self.home_epoch = home_epoch
        self._world = world
        self._cluster = cluster
        self._slabs = slabs
        self._tasks = tasks
        self._core = Home(home_epoch=home_epoch, epoch=epoch, now_us=self._now_us(), config=config)
        self._cells = slabs.create_region("cells", CELLS_BYTES)
        self._cells.words[CELL_HOME_EPOCH] = home_epoch
        self._connections: dict[int, Connection] = {}
        self._next_connection = 0
        # Where each agent is, and the lines that work.
        self._agents: dict[str, str] = {}
        self._links: dict[str, SlabLink] = {}
        self._notes: deque[tuple[int, str]] = deque(maxlen=NOTES_MAX)
        self._closed = False
        self._tick = tasks.create_task(self._ticks())
        self._do: dict[type, Callable[[Any], None]] = {
            m.Answer: lambda e: e.call.answer(e.result),
            m.Fail: lambda e: e.call.fail(e.error),
            m.Push: self._push,
            m.Admit: self._admit,
            m.SetWord: self._set_word,
            m.SetMark: self._set_mark,
            m.Publish: self._publish,
            m.Revoke: self._revoke,
            m.Close: self._close,
            m.SlabsChanged: self._slabs_changed,
            m.Note: self._note,
        }

    async def start(self, agents: dict[str, str]) -> None:
        """Attach the memory nodes (name -> agent address), look at their slots, then serve."""
        self._agents.update(agents)
        await asyncio.gather(*(self._attach(node) for node in agents))
        self._step(m.Scanned())

    def close(self, reason: str) -> None:
        """Lay the role down: every connection ends, every admission word is cleared."""
        if self._closed:
            return
        self._closed = True
        self._tick.cancel()
        words = self._cells.words
        for word in range(CELL_ADMISSION, len(words)):
            words[word] = 0
        for connection in list(self._connections.values()):
            connection.peer.close()
        for link in self._links.values():
            link.close()
        self._cells.release()
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
        method = call.method
        kind = CALLS.get(method)
        if kind is not None:
            try:
                event = kind(peer.context.number, call, *call.args)
            except TypeError as error:
                raise RemoteProtocolError(f"{method}: {error}") from None
            self._step(event)
        elif method == "mark":
            call.answer(self._core.state.mark)
        elif method == "join":
            self._tasks.create_task(self._join(peer.context, call))
        elif method == "status":
            call.answer(self.status())
        else:
            raise RemoteProtocolError(f"the home has no method {method!r}")

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        """A compute node's message becomes an event."""
        kind = NOTIFICATIONS.get(method)
        if kind is None:
            raise RemoteProtocolError(f"the home does not know {method!r}")
        self._step(kind(peer.context.number, *args))

    def on_lost(self, peer: rpc.Peer) -> None:
        """A compute node's connection ended."""
        connection = self._connections.get(peer.context.number)
        if connection is not None:
            self._step(m.Lost(connection.number))
            self._forget(connection)

    async def _join(self, connection: Connection, call: rpc.Call) -> None:
        """Get the node its keys, then ask the core."""
        try:
            writer, epoch, warm, held, admitted = call.args
            event = m.Joined(
                connection.number, call, connection.holder[0], connection.holder[1], bool(writer),
                int(epoch), bool(warm), list(held), list(admitted),
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            call.fail(RemoteProtocolError(f"join: {error}"))
            return
        await asyncio.gather(*(self._grant(link, connection) for link in self._links.values()))
        if connection.peer.closed is not None or self._closed:
            await self._revoke_everywhere(connection)
            return
        if not connection.cells_key:
            connection.cells_key = self._world.random.token(RKEY_BYTES)
            self._slabs.keys.grant(connection.cells_key, self._cells, MAY_READ, connection.holder)
        self._step(event)

    # Control.

    def fence(self, call: rpc.Call, epoch: int) -> None:
        """Control fences without becoming the writer."""
        self._step(m.Fence(None, call, epoch))

    async def attach(self, node: str, address: str) -> None:
        """Control has a memory node for us. Raises what hinders it; it is tried again then."""
        self._agents[node] = address
        link = self._links.pop(node, None)
        if link is not None:
            link.close()
        await self._attach(node)

    def detach(self, node: str) -> None:
        """Control took a memory node away."""
        self._agents.pop(node, None)
        self._drop_link(node, "control took it away")

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

    # Memory nodes.

    async def _attach(self, node: str) -> None:
        """Open the line to a memory node, give the members keys there, tell the core."""
        link = SlabLink(node, self._link_lost)
        try:
            await link.connect(
                self._world,
                cluster=self._cluster,
                address=self._agents[node],
                home_epoch=self.home_epoch,
                home=self._slabs.node,
            )
            scans: list[Any] = [None] * len(link.slabs)
            if self._core.state.rebuild is not None:
                scans = [await link.scan(slab) for slab, _, _ in link.slabs]
        except Fenced as error:
            link.close()
            self.close(str(error))
            return
        except PolarlessError as error:
            link.close()
            self._note(m.Note(f"memory node {node} cannot be attached: {error}", warning=True))
            self._retry_attach(node)
            return
        # From here on a join that starts asks this link, too.
        self._links[node] = link
        await asyncio.gather(
            *(self._grant(link, connection) for connection in self._connections.values())
        )
        if self._links.get(node) is link and not self._closed:
            slabs = [(slab, slots, scan) for (slab, _, slots), scan in zip(link.slabs, scans)]
            self._step(m.Attached(node, slabs))

    def _retry_attach(self, node: str) -> None:
        async def again() -> None:
            await self._world.clock.sleep(ATTACH_RETRY_S)
            if node in self._agents and node not in self._links and not self._closed:
                await self._attach(node)

        if not self._closed:
            self._tasks.create_task(again())

    def _link_lost(self, link: SlabLink, error: PolarlessError) -> None:
        if self._links.get(link.node) is link:
            self._drop_link(link.node, str(error))
            self._retry_attach(link.node)

    def _drop_link(self, node: str, reason: str) -> None:
        link = self._links.pop(node, None)
        if link is not None:
            link.close()
        for connection in self._connections.values():
            connection.keys.pop(node, None)
        self._step(m.Detached(node, reason))

    async def _grant(self, link: SlabLink, connection: Connection) -> None:
        try:
            connection.keys[link.node] = await link.grant(connection.holder)
        except PolarlessError as error:
            self._bad_link(link, f"no keys granted: {error}")

    async def _revoke_everywhere(self, connection: Connection) -> None:
        """After this the connection's keys open nothing on any attached node."""
        self._slabs.keys.revoke(connection.holder)
        await asyncio.gather(
            *(self._revoke_at(link, connection) for link in list(self._links.values()))
        )

    async def _revoke_at(self, link: SlabLink, connection: Connection) -> None:
        try:
            await link.revoke(connection.holder)
        except PolarlessError as error:
            self._bad_link(link, f"keys not revoked: {error}")

    def _bad_link(self, link: SlabLink, reason: str) -> None:
        """A node that does not do as it is told in time is not part of the pool."""
        if self._links.get(link.node) is link:
            self._drop_link(link.node, reason)
            self._retry_attach(link.node)

    # Effects.

    def _now_us(self) -> int:
        return int(self._world.clock.now() * 1e6)

    def _step(self, event: m.Event) -> None:
        if self._closed:
            return
        do = self._do
        for effect in self._core.step(event, self._now_us()):
            do[type(effect)](effect)

    async def _ticks(self) -> None:
        while True:
            await self._world.clock.sleep(TICK_S)
            self._step(m.Tick())

    def _push(self, effect: m.Push) -> None:
        connection = self._connections.get(effect.connection)
        if connection is not None:
            connection.peer.notify(effect.method, *effect.args)

    def _admit(self, effect: m.Admit) -> None:
        connection = self._connections[effect.connection]
        answer = {
            "cold": effect.cold,
            "mark": effect.mark,
            "place": effect.place,
            "cells": (self._cells.name, connection.cells_key, self._slabs.fabric),
            "nodes": self._nodes_for(connection),
        }
        effect.call.answer(answer)

    def _nodes_for(self, connection: Connection) -> dict[str, Any]:
        nodes = {}
        for name, link in self._links.items():
            keys = connection.keys.get(name, {})
            slabs = {
                slab: Slab(slab, shm, keys[slab], slots)
                for slab, shm, slots in link.slabs
                if slab in keys
            }
            nodes[name] = PoolNode(link.fabric, slabs)
        return encode_nodes(nodes)

    def _set_word(self, effect: m.SetWord) -> None:
        self._cells.words[CELL_ADMISSION + effect.place] = effect.value

    def _set_mark(self, effect: m.SetMark) -> None:
        self._cells.words[CELL_MARK] = effect.mark

    def _publish(self, effect: m.Publish) -> None:
        words = self._cells.words
        assert words[CELL_PUBLISHED] < effect.cts, "C6: the published cts only grows"
        words[CELL_PUBLISHED] = effect.cts

    def _revoke(self, effect: m.Revoke) -> None:
        connection = self._connections.get(effect.connection)

        async def revoke() -> None:
            if connection is not None:
                await self._revoke_everywhere(connection)
            self._step(m.Revoked(effect.connection))

        self._tasks.create_task(revoke())

    def _close(self, effect: m.Close) -> None:
        connection = self._connections.get(effect.connection)
        if connection is not None:
            self._forget(connection)
            connection.peer.close()

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)

    def _slabs_changed(self, effect: m.SlabsChanged) -> None:
        for member in self._core.state.members:
            connection = self._connections.get(member.connection)
            if connection is not None:
                connection.peer.notify("slabs", self._nodes_for(connection))

    def _note(self, effect: m.Note) -> None:
        self._notes.append((self._world.clock.wall_us(), effect.text))
        level = logging.WARNING if effect.warning else logging.INFO
        log.log(level, "%s: home %d: %s", self._slabs.node, self.home_epoch, effect.text)
