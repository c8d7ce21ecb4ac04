"""The proxy as it runs: links to the compute nodes, sessions of clients, and who waits for what.

The writer is the node that says so itself, under the highest epoch that was seen. Control only says
which nodes there are (``topology``); so a failover is noticed as soon as the new writer speaks.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from typing import Any, Final

from polarless.control.agent import Agent, SharedListener, serves, share_listener
from polarless.errors import DeadlineExceeded, PolarlessError, RemoteProtocolError
from polarless.kernel.world import Listener, World
from polarless.net import lag, rpc
from polarless.proxy.barrier import Barrier
from polarless.proxy.handover import DRAIN_S, DRAIN_STEP_S
from polarless.proxy.link import Link
from polarless.proxy.place import Place
from polarless.proxy.recovery import recover, ties_lost
from polarless.proxy.session import Session
from polarless.wire import relay as wire

log = logging.getLogger(__name__)

# How long a client waits for a writer before it is told that there is none.
WRITER_TIMEOUT_S: Final = 60.0
SESSIONS_MAX: Final = 10_000
# A reader that has just come is given fewer sessions at first: its cache is empty.
FRESH_S: Final = 3.0
FRESH_PENALTY: Final = 8.0
TICK_S: Final = 0.25
PROTOCOL_3_2: Final = (3 << 16) | 2
# Of `Proxy.ended`: this process is to be replaced by a new one.
EXIT_RESTART: Final = 75
# Control has its answer before that.
ANSWERED_S: Final = 0.01


class Proxy(rpc.Service):
    """One proxy process."""

    def __init__(
        self, world: World, settings: dict[str, Any], tls: ssl.SSLContext | None = None
    ) -> None:
        self.world = world
        self.tls = tls
        self.settings = settings
        self.name: str = settings["node"]
        self.cluster = bytes.fromhex(settings["cluster"])
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.links: dict[str, Link] = {}
        self.sessions: set[Session] = set()
        self.epoch = 0
        self.address = ""
        self.sql_address = ""
        # Counters, for `status`.
        self.accepted = self.refused = self.rerouted = 0
        self.recovered = self.diverged = self.settled = 0
        self.has_readers = False
        # How often this proxy has replaced its process, and whether it is about to.
        self.generation: int = settings.get("generation", 0)
        self.restarting = False
        self._topology: dict[str, Any] = {}
        self._readers: list[Link] = []
        self._writer: Link | None = None
        self._queue: dict[Session, None] = {}
        self.barrier = Barrier(world.clock, self._wake)
        self._control: set[rpc.Peer] = set()
        self._writer_there = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []
        self._shared: SharedListener | None = None
        self._agent = Agent(
            ping=self.ping, status=self.status, stop=lambda: self.end(0),
            methods={"topology": self._told_topology, "restart": self._told_restart},
        )  # fmt: skip

    # Life.

    async def start(self) -> None:
        """Listen for control and for clients."""
        host = self.settings.get("host", "127.0.0.1")
        network = self.world.network
        listener = await rpc.serve(
            network, self, clock=self.world.clock, cluster=self.cluster, host=host,
            port=int(self.settings.get("port", 0)),
        )  # fmt: skip
        self._listeners.append(listener)
        self.address = f"{host}:{listener.port}"
        own = await network.listen(
            lambda: Session(self), host, int(self.settings.get("sql_port", 0))
        )
        self._listeners.append(own)
        self.sql_address = f"{host}:{own.port}"
        fd = self.settings.get("serve_fd")
        if fd is not None and fd >= 0:
            self._listeners.append(
                await network.listen(lambda: Session(self), "", 0, inherited_fd=fd)
            )
            if self.settings.get("share_path"):
                self._shared = await share_listener(self.settings["share_path"], fd)
        self.set_topology(self.settings.get("topology") or {})
        self.spawn(self._watch())

    async def stop(self) -> None:
        """Close everything."""
        for listener in self._listeners:
            listener.close()
        if self._shared is not None:
            self._shared.close()
        for session in list(self.sessions):
            session.close()
        for link in self.links.values():
            link.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def hand_over(self) -> tuple[list[Session], dict[str, Any]]:
        """Stand still: the sessions that another process can go on with, and its settings."""
        self.restarting = True
        # Whoever comes now waits in the backlog of the socket.
        for listener in self._listeners:
            listener.close()
        for link in self.links.values():
            link.drop()
        clients = [session for session in self.sessions if session.transport is not None]
        for session in clients:
            session.hold(True)
        deadline = self.world.clock.now() + DRAIN_S
        while self.world.clock.now() < deadline and any(map(_is_unread, clients)):
            await self.world.clock.sleep(DRAIN_STEP_S)
        brought = []
        for session in clients:
            if session.closed:
                continue
            if _is_unread(session) or session.is_encrypted:
                session.refuse(_restarts())
            else:
                brought.append(session)
        settings = {
            **self.settings,
            "port": int(self.address.rpartition(":")[2]),
            "sql_port": int(self.sql_address.rpartition(":")[2]),
            "topology": self._topology,
            "generation": self.generation + 1,
        }
        log.info("the process starts anew, with %d of %d clients", len(brought), len(clients))
        return brought, settings

    def end(self, code: int) -> None:
        """The process ends with this code."""
        if not self.ended.done():
            self.ended.set_result(code)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task of the proxy."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the proxy failed; the process ends", exc_info=task.exception())
            self.end(1)

    async def _watch(self) -> None:
        """Clients that wait for a writer are told when it takes too long."""
        while True:
            await self.world.clock.sleep(TICK_S)
            late = self.world.clock.now() - WRITER_TIMEOUT_S
            for session in [one for one in self._queue if one.queued_since < late]:
                del self._queue[session]
                session.refuse(_no_writer())

    # Nodes.

    def set_topology(self, topology: dict[str, Any]) -> None:
        """Control's list: ``{"nodes": {name: address}, "serving": [name], "hung": [name]}``."""
        self._topology = topology
        nodes: dict[str, str] = topology.get("nodes") or {}
        for name, link in list(self.links.items()):
            if nodes.get(name) != link.address:
                del self.links[name]
                link.drop()
        for name, address in nodes.items():
            if name not in self.links:
                link = self.links[name] = Link(self, name, address)
                self.spawn(link.run())
        for name in topology.get("serving") or ():
            self.links[name].hurry()
        for name in topology.get("hung") or ():
            # What it was reading is read elsewhere. A writer is waited for until there is another.
            link = self.links[name]
            if link.connected and link is not self._writer:
                link.abort()
        self._look()

    def link_changed(self, link: Link) -> None:
        """A node was greeted, has another role now, or was lost."""
        self._look()

    def _look(self) -> None:
        """Who writes, who reads."""
        writers = [link for link in self.links.values() if link.connected and link.writable]
        best = max(writers, key=lambda link: link.epoch, default=None)
        if best is not None and best.epoch < self.epoch:
            best = None
        before, self._writer = self._writer, best
        drained = self._topology.get("draining") or ()
        self._readers = [
            link for link in self.links.values()
            if link.connected and not link.writable and link.node not in drained
        ]  # fmt: skip
        self.has_readers = bool(self._readers)
        if best is None:
            self._writer_there.clear()
        elif best is not before or best.epoch > self.epoch:
            self.epoch = best.epoch
            log.info("the writer is %s, epoch %d", best.node, best.epoch)
            self._adopt(best)
            self._writer_there.set()
            for link in writers:
                if link is not best:
                    # Its epoch is over; what its sessions had open goes on at the new one.
                    link.abort()
        self._wake()

    def _wake(self) -> None:
        """There may be something for those who wait."""
        queue, self._queue = self._queue, {}
        for session in queue:
            session.try_again()

    def _adopt(self, writer: Link) -> None:
        """Tell a new writer which snapshots it will be asked for; nothing new before those."""
        snapshots: set[int] = set()
        again: list[Session] = []
        for session in self.sessions:
            if session.writer is None or session.writer.link is not writer:
                snapshots |= session.memory.snapshots()
                cycle = session.cycle
                if cycle is not None:
                    snapshots.update(filter(None, cycle.snapshots or ()))
                if session.greeted and session.is_run_again:
                    again.append(session)
        self.barrier.close(again)
        if snapshots:
            writer.send(wire.REPLAY, 0, 0, wire.pack({"snapshots": sorted(snapshots)}))

    def writer_place(self, session: Session, *, at_once: bool = False) -> Place | None:
        """The session's part on the writer, or None if it has to wait for one.

        ``at_once``: it need not wait for others that are run again.
        """
        writer = self._writer
        place = session.writer
        if self.barrier.waiting and not at_once and self.barrier.holds(session):
            return None
        if place is not None:
            return place if writer is place.link or place.link.connected else None
        if writer is None:
            return None
        place = session.writer = Place(session, writer)
        if session.greeted:
            place.resume()
        return place

    def reader_place(self, session: Session) -> Place | None:
        """The session's part on a reader: the one that it has, unless that is busy."""
        place = session.reader
        readers = self._readers
        if place is not None and not place.link.writable and place.link in readers:
            return place
        now = self.world.clock.now()

        def load(link: Link) -> float:
            age = now - link.since
            fresh = FRESH_PENALTY * (1 - age / FRESH_S) if age < FRESH_S else 0.0
            return link.outstanding + len(link.backends) + fresh

        best = min(readers, key=load, default=None)
        if best is None:
            return None
        if place is not None:
            place.leave()
        place = session.reader = Place(session, best)
        place.resume()
        return place

    def place_lost(self, place: Place) -> None:
        """A node is gone, or what a session had there."""
        session = place.session
        if session.closed or self.restarting:
            return
        cycle = session.cycle
        if session.reader is place:
            session.reader = None
            if cycle is not None and cycle.backend is place:
                if cycle.answered:
                    self.recover(session)
                else:
                    cycle.backend = None
                    session.queue("another reader")
            return
        if session.writer is not place:
            return
        session.writer = None
        if session.recovering:
            return
        if not session.greeted:
            if cycle is not None and not cycle.answered:
                session.queue("a writer")
                cycle.backend = None
            else:
                session.refuse(_no_writer())
        elif session.memory.status != wire.IDLE or (cycle is not None and cycle.backend is place):
            self.recover(session)
        elif session.memory.tied:
            session.refuse(ties_lost(session.memory.tied))

    def recover(self, session: Session) -> None:
        """Bring a session to the writer of now."""
        # At once: until it is over nothing may be sent anywhere.
        session.recovering = True
        self.spawn(recover(session))

    async def wait_for_writer(self, session: Session) -> Link:
        """A writer that is connected. Raises `DeadlineExceeded`."""
        session.waits_for = "a writer"
        try:
            async with asyncio.timeout(WRITER_TIMEOUT_S):
                while self._writer is None:
                    await self._writer_there.wait()
                return self._writer
        except TimeoutError:
            raise _no_writer() from None
        finally:
            session.waits_for = ""

    # Sessions.

    def admit(self, session: Session) -> bool:
        """Whether one more client may come."""
        if len(self.sessions) >= SESSIONS_MAX:
            self.refused += 1
            return False
        self.sessions.add(session)
        self.accepted += 1
        return True

    def welcome(self, session: Session) -> None:
        """The writer has let the client in."""

    def forget(self, session: Session) -> None:
        """The client is gone."""
        self.sessions.discard(session)
        self._queue.pop(session, None)
        self.barrier.passed(session)

    def enqueue(self, session: Session) -> None:
        """It is told when a node has come."""
        self._queue[session] = None
        if self._writer is None:
            # Compute may have been released: control hears of it at once.
            for peer in self._control:
                peer.notify("wanted")
        elif not self.barrier.waiting:
            # There is one already: not from within whatever has just failed.
            self.world.clock.call_soon(self._look)

    def identity(self, code: int) -> tuple[int, bytes, int]:
        """Process id, cancel key and transaction base of a new session."""
        random = self.world.random
        pid = int.from_bytes(random.token(4), "big") & 0x3FFFFFFF | 0x40000000
        key = random.token(32 if code >= PROTOCOL_3_2 else 4)
        base = (int.from_bytes(random.token(4), "big") | 0x80000000) << 32
        return pid, key, base

    def cancel(self, pid: int, key: bytes) -> None:
        """A CancelRequest: the client may be another proxy's, so all nodes are told."""
        payload = wire.pack({"pid": pid, "key": key})
        for link in self.links.values():
            if link.connected:
                link.send(wire.CANCEL, 0, 0, payload)

    # What control asks.

    def on_lost(self, peer: rpc.Peer, error: PolarlessError) -> None:
        self._control.discard(peer)

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        """Only control calls a proxy."""
        self._control.add(peer)
        if not serves(peer):
            raise RemoteProtocolError(f"{peer.name} is not control")
        self._agent.on_call(call)

    def _told_topology(self, call: rpc.Call) -> None:
        self.set_topology(call.args[0])
        call.answer(None)

    def _told_restart(self, call: rpc.Call) -> None:
        call.answer(self.generation)
        self.world.clock.call_later(ANSWERED_S, lambda: self.end(EXIT_RESTART))

    def ping(self) -> dict[str, Any]:
        """Cheap: answered ten times a second."""
        return {
            "generation": self.generation,
            "state": "serving", "role": "proxy", "epoch": self.epoch,
            "sessions": len(self.sessions), "waiting": len(self._queue),
            "wants_compute": self._writer is None and bool(self._queue),
        }  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Counters of everything."""
        return {
            **self.ping(),
            **lag.status(),
            "writer": self._writer.node if self._writer is not None else None,
            "links": {
                link.node: {"connected": link.connected, "writable": link.writable,
                            "epoch": link.epoch, "sessions": len(link.backends),
                            "outstanding": link.outstanding}
                for link in self.links.values()
            },
            "accepted": self.accepted, "refused": self.refused, "rerouted": self.rerouted,
            "recovered": self.recovered, "diverged": self.diverged, "settled": self.settled,
            "clients": [session.describe() for session in list(self.sessions)[:1000]],
        }  # fmt: skip


def _is_unread(session: Session) -> bool:
    return session.transport is not None and session.transport.get_write_buffer_size() > 0


def _restarts() -> PolarlessError:
    return PolarlessError(
        "terminating connection: the proxy starts anew",
        sqlstate="57P01",
        hint="Connect again.",
    )


def _no_writer() -> DeadlineExceeded:
    return DeadlineExceeded(
        "there is no node to run this on",
        sqlstate="57P03",
        hint="`polarless status` and `polarless events` show what became of the compute nodes.",
    )
