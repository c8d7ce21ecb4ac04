"""A compute node: the engine, its two pools, the SQL server, and what control asks of it.

    start      connect to storage and the home; the writer takes over (`compute.txn.recovery`)
    serve      SQL on the node's own port; on the URL's inherited socket while it is the writer
    promote    control chose this reader: take over, accept on the URL's socket
    fenced     a higher epoch exists: end every session, end the process with code 3

All tasks belong to the node; an unexpected exception in one of them is logged and ends the process:
a node holds nothing durable, and a clean start is always right.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from typing import Any, Final

from compute import role as roles
from compute.buffer.coherence import ReaderEvents
from compute.buffer.fetch import Fetcher
from compute.buffer.frames import FrameCache
from compute.buffer.writeback import TICK_S, Writeback
from compute.checking import check_trees
from compute.membership import Member
from compute.role import Role
from compute.server import SqlServer
from compute.session.limits import Limits
from compute.sql.planner import Planner
from compute.txn.engine import Engine
from compute.txn.recovery import take_over
from compute.txn.sweeper import free_dropped, sweep
from compute.verify import CacheAuditor
from memory_pool.client import PoolClient
from polarless.control.agent import Agent, SharedListener, serves, share_listener
from polarless.errors import Fenced, PolarlessError, RemoteProtocolError
from polarless.kernel.world import Listener, World
from polarless.net import lag, rpc
from storage.client import StorageClient

log = logging.getLogger(__name__)

EXIT_FENCED: Final = 3
EXIT_BROKEN: Final = 1
LARGE_VALUE_BYTES: Final = 64 * 1024 * 1024
SWEEP_LEAVES: Final = 8
SWEEP_S: Final = 0.05
FREE_DROPPED_S: Final = 2.0


class ComputeNode(rpc.Service):
    """One compute process. ``settings`` is the configuration that control wrote."""

    def __init__(
        self,
        world: World,
        settings: dict[str, Any],
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.world = world
        self.settings = settings
        self.name: str = settings["node"]
        self.role = Role()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.epoch = int(settings.get("epoch", 1))
        self.address = ""
        self.sql_address = ""
        self._cluster = bytes.fromhex(settings["cluster"])
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._shared: SharedListener | None = None
        self._reported: list[int] = []
        self.store = StorageClient(world, settings["storage"], self._cluster, self.name)
        self.member = Member(world, self.spawn, settings["home"])
        self.pool = PoolClient(
            world,
            self._cluster,
            self.name,
            settings["home"],
            writer=settings["role"] == roles.RW,
            epoch=self.epoch,
            events=self.member,
            shared_memory=bool(settings.get("shared_memory", True)),
            latency_s=int(settings.get("remote_latency_us", 0)) / 1e6,
        )
        self.cache = FrameCache(int(settings.get("cache_mb", 256)) << 20)
        self.fetcher = Fetcher(
            self.cache, self.pool, self.store, spawn=self.spawn, large_bytes=LARGE_VALUE_BYTES,
            prefetch=bool(settings.get("prefetch", True)),
        )  # fmt: skip
        self.engine = Engine(
            world.clock, self.cache, self.fetcher, self.pool, self.store, spawn=self.spawn
        )
        self.store.on_full = self.engine.disk_full
        self.reader = ReaderEvents(self.cache, self.fetcher, ack=self.pool.ack)
        self.reader.on_catalog = self.engine.catalog_changed
        self.writeback = Writeback(
            self.cache,
            self.pool,
            places=self.fetcher.places,
            spawn=self.spawn,
            advance_sent=self._advance_sent,
            durable=self._durable,
        )
        self.member.pool = self.pool
        self.member.engine = self.engine
        self.member.reader = self.reader
        self.member.writeback = self.writeback
        self.member.on_fenced = self._fenced
        self.member.on_joined = self._reported.clear
        # A reader's frames are never ahead of what storage and the pool may be asked for.
        self.cache.evictable_lsn = 1 << 62
        self.cache.on_evict = self.fetcher.places.evicted
        self.auditor = (
            CacheAuditor(self.cache, self.store, lambda: self.fetcher.mark())
            if settings.get("verify")
            else None
        )
        self.server = SqlServer(
            world, self.engine, Planner(self.engine, world.random.token), limits, tls=tls
        )
        self.server.cluster = self._cluster
        self.server.name = self.name
        self.server.spawn = self.spawn
        self.agent = Agent(
            ping=self.ping,
            status=self.status,
            stop=lambda: self.end(0),
            methods={
                "promote": self._promote,
                "home": self._home,
                "fenced": self._told_fenced,
                "check": lambda call: self.spawn(self._check(call)),
            },
        )

    # Life.

    async def start(self) -> None:
        """Serve. Raises what makes that impossible; `Fenced` if this node is too old."""
        host = self.settings.get("host", "127.0.0.1")
        self._listener = await rpc.serve(
            self.world.network,
            self,
            clock=self.world.clock,
            cluster=self._cluster,
            host=host,
            port=int(self.settings.get("port", 0)),
        )
        self.address = f"{host}:{self._listener.port}"
        await self.store.connect(deadline_s=30.0)
        await self.member.join()
        if self.settings["role"] == roles.RW:
            self.role.on("join_writer")
            await self._take_over(self.epoch)
            await self._accept()
        else:
            self.role.on("join_reader")
        port = await self.server.listen(host, int(self.settings.get("sql_port", 0)))
        self.sql_address = f"{host}:{port}"
        fd = self.settings.get("serve_fd")
        if fd is not None and fd >= 0 and self.settings.get("share_path"):
            self._shared = await share_listener(self.settings["share_path"], fd)
        self.spawn(self._housekeeping())

    def end(self, code: int) -> None:
        """The process ends with this code."""
        if not self.ended.done():
            self.ended.set_result(code)

    async def stop(self) -> None:
        """Close sessions and connections."""
        self.server.close()
        if self._shared is not None:
            self._shared.close()
        if self._listener is not None:
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.pool.close()
        self.store.close()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of this node."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("a task of this node failed; the process ends", exc_info=error)
            self.end(EXIT_BROKEN)

    # Roles.

    async def _take_over(self, epoch: int) -> dict[str, Any]:
        engine = self.engine
        took = await take_over(engine, epoch, self._fenced)
        self.epoch = epoch
        self.member.become_writer()
        engine.on_applied = self.writeback.applied
        self.cache.on_evict = self.writeback.evicted
        for page_id, frame in self.cache.frames.items():
            if frame.dirty:
                self.writeback.dirty[page_id] = None
        if self.role.state == roles.PROMOTING:
            self.role.on("caught_up")
        engine.admitted()
        self.server.role_changed()
        return {
            "fenced_ms": took.fenced_us / 1000,
            "caught_up_ms": took.caught_up_us / 1000,
            "advanced_ms": took.advanced_us / 1000,
            "groups": took.groups,
            "pages": took.pages,
            "tail": took.tail,
            "mark": took.mark,
        }

    async def _accept(self) -> None:
        fd = self.settings.get("serve_fd")
        if fd is not None and fd >= 0:
            await self.server.accept_on(fd)

    def _promote(self, call: rpc.Call) -> None:
        epoch, plan = call.args[0], call.args[1]
        if self.role.state == roles.RW and self.epoch == epoch:
            call.answer({})
            return
        self.role.on("promote")
        self.spawn(self._promoted(call, epoch, plan))

    async def _promoted(self, call: rpc.Call, epoch: int, plan: dict[str, Any]) -> None:
        start = self.world.clock.now()
        try:
            if plan.get("storage"):
                self.store.set_address(plan["storage"])
            steps = await self._take_over(epoch)
            await self._accept()
        except Fenced as error:
            call.fail(error)
            self._fenced(error)
            return
        except PolarlessError as error:
            log.warning("the promotion to epoch %s failed: %s", epoch, error)
            self.role.on("give_up")
            call.fail(error)
            return
        steps["serving_ms"] = (self.world.clock.now() - start) * 1000
        log.info("promoted to the writer under epoch %s: %s", epoch, steps)
        call.answer(steps)

    async def _check(self, call: rpc.Call) -> None:
        """Walk every tree."""
        try:
            call.answer(await check_trees(self.engine, lambda: self.world.clock.sleep(0)))
        except PolarlessError as error:
            call.fail(error)

    def _home(self, call: rpc.Call) -> None:
        self.member.new_home(call.args[0], call.args[1])
        call.answer(None)

    def _told_fenced(self, call: rpc.Call) -> None:
        if call.args[0] > self.epoch and self.role.state == roles.RW:
            self._fenced(Fenced(f"control is at epoch {call.args[0]}, this node at {self.epoch}"))
        call.answer(None)

    def _fenced(self, error: PolarlessError) -> None:
        if self.role.state == roles.FENCED:
            return
        log.warning("fenced: %s", error)
        self.role.on("fence")
        self.engine.fence(error)
        self.server.stop_accepting_inherited()
        self.server.close_sessions(
            PolarlessError(
                "terminating connection: another node is the writer now",
                sqlstate="57P01",
                hint="Connect again; the cluster's URL leads to the new writer.",
            )
        )
        # One turn for the farewells to be written.
        self.world.clock.call_later(0.05, lambda: self.end(EXIT_FENCED))

    def _advance_sent(self) -> int:
        return self.engine.log._advance_sent if self.engine.log is not None else 0

    def _durable(self) -> int:
        return self.engine.log.durable if self.engine.log is not None else 0

    # In the background.

    async def _housekeeping(self) -> None:
        clock = self.world.clock
        next_sweep = next_free = 0.0
        while True:
            await clock.sleep(TICK_S)
            self.cache.trim()
            self.fetcher.places.flush()
            if self.auditor is not None:
                await self.auditor.step()
            engine = self.engine
            if not engine.writable:
                self._report()
                continue
            now = clock.now()
            self.writeback.durable()
            self.writeback.tick()
            if not engine.can_log:
                continue
            if now >= next_sweep:
                next_sweep = now + SWEEP_S
                sweep(engine, SWEEP_LEAVES)
            if now >= next_free:
                next_free = now + FREE_DROPPED_S
                await free_dropped(engine)

    def _report(self) -> None:
        """Tell the home which snapshots are in use here, when that has changed."""
        try:
            floor = self.pool.published()
        except PolarlessError:
            return
        if floor is None:
            self.spawn(self._report_remote())
            return
        self._report_from(floor, self.world.clock.now())

    async def _report_remote(self) -> None:
        begun = self.world.clock.now()
        try:
            self._report_from(await self.pool.fetch_published(), begun)
        except PolarlessError as error:
            log.debug("no report of snapshots: %s", error)

    def _report_from(self, floor: int, read_at: float) -> None:
        # First: no snapshot taken later may be older than what is reported.
        self.engine.note_published(floor, read_at)
        snapshots = self.engine.pinned_snapshots(floor)
        if snapshots != self._reported and self.pool.connected:
            self._reported[:] = snapshots
            self.pool.report(snapshots)

    # What others ask.

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        """Only control calls a compute node."""
        if not serves(peer):
            raise RemoteProtocolError(f"{peer.name} is not control")
        self.agent.on_call(call)

    def ping(self) -> dict[str, Any]:
        """Cheap: answered ten times a second."""
        state = self.role.state
        serving = state in (roles.RO, roles.RW)
        return {
            "state": "serving" if serving else state,
            "role": roles.RO if state == roles.PROMOTING else state,
            "epoch": self.epoch,
            "mark": self._advance_sent() if state == roles.RW else self.reader.mark,
            "home_epoch": self.pool.home_epoch if self.pool.connected else 0,
            "cached": self.cache.used_bytes,
            "clients": self.server.client_count(),
        }

    def status(self) -> dict[str, Any]:
        """Counters of everything."""
        engine = self.engine
        result: dict[str, Any] = {
            **self.ping(),
            **lag.status(),
            "cache": {
                "bytes": self.cache.used_bytes,
                "budget_bytes": self.cache.budget_bytes,
                "frames": len(self.cache.frames),
                "places": len(self.fetcher.places.known),
                **self.cache.stats.snapshot(),
            },
            "fetch": self.fetcher.stats.snapshot(),
            "pool": {
                "connected": self.pool.connected,
                "rejoins": self.member.rejoins,
                "expulsions": self.member.expulsions,
                **self.pool.statistics(),
            },
            "storage_connected": self.store.connected,
            "snapshots_reused": engine.snapshots_reused,
            "server": self.server.statistics(),
            "sessions": self.server.sessions(),
            "locks": {"waits": engine.locks.waits, "deadlocks": engine.locks.deadlocks},
        }
        if self.auditor is not None:
            result["pages_verified"] = self.auditor.checked
        if engine.log is not None:
            writer = engine.log
            result["log"] = {
                "tail": writer.tail,
                "durable": writer.durable,
                "advanced": writer.advanced,
                "published": writer.published,
                **writer.stats.snapshot(),
            }
            result["writeback"] = {
                "dirty": len(self.writeback.dirty), **self.writeback.stats.snapshot(),
            }  # fmt: skip
        return result
