"""A cluster in one loop: the production nodes, control's core, and processes that can be killed."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Coroutine
from typing import Any, cast

from compute.node import ComputeNode
from memory_pool.node import MemoryNode
from polarless.config import ClusterConfig, ControlConfig, StorageConfig
from polarless.control import launch
from polarless.control.calls import Calls
from polarless.control.decisions import (
    Attach,
    Begin,
    Detach,
    Effect,
    Ended,
    Event,
    Kill,
    LearnEpoch,
    Promote,
    Ready,
    Record,
    Start,
    Stop,
    SwitchAsked,
    TakeHome,
    TellFenced,
    TellHome,
    Tick,
)
from polarless.control.failover import Failover
from polarless.control.link import Link
from polarless.control.membership import SERVING, Member, initial_members
from polarless.net.processes import ProcessId
from polarless.proxy.service import Proxy
from polarless.wire.control import COMPUTE, MEMORY, PROXY, STORAGE
from storage.backends.memory import MemoryLog, MemoryPages
from storage.engine import Engine, examine_both
from storage.node import StorageNode
from tests.sim.loop import PROCESS, Process, VirtualLoop
from tests.sim.world import sim_world

log = logging.getLogger(__name__)

CLUSTER = bytes(range(16))
SYNC_S = 150e-6
# Imports and the interpreter's start, as control sees them.
START_S = 0.2


class _Files:
    """What control reads of a process that it has started: its READY line."""

    def __init__(self) -> None:
        self.ready: dict[str, str] = {}

    def text(self, path: str) -> str:
        return self.ready.get(path, "")


class _Crew:
    """The part of control's crew that its calls use."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}


class _Thread:
    """A thread of storage that works for a disk: one thing after the other."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._busy_until = 0.0

    def submit(self, work: Any, done: Any) -> None:
        def finish() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:
                failure = error
            done(result, failure)

        cluster = self._cluster
        takes_s = cluster.sync_s * cluster.rng.uniform(0.5, 3.0)
        self._busy_until = max(self._busy_until, cluster.loop.now) + takes_s
        cluster.loop.call_at(self._busy_until, finish)


class SimCluster:
    """See the module. ``trace`` is a line for each decision, with its virtual time."""

    def __init__(self, loop: VirtualLoop, seed: int, *, ro: int = 2, memory_nodes: int = 2) -> None:
        self.loop = loop
        self.seed = seed
        self.world, self.network, self.memory = sim_world(loop, seed)
        self.rng = self.network.rng
        self.trace: list[str] = []
        self.nodes: dict[str, Any] = {}
        self.processes: dict[str, Process] = {}
        self.settings = ClusterConfig(
            ro_count=ro, memory_node_count=memory_nodes, pool_mb=8, cache_mb=4
        )
        self.config = ControlConfig()
        members = initial_members(
            compute_count=1 + ro, memory_node_count=memory_nodes, proxy_count=1
        )
        self.core = Failover(members, self.config, epoch=0, home_epoch=0)
        self.core.ro_wanted = ro
        self.crew = _Crew()
        self.calls = Calls(self.core, cast("Any", self.crew), self.config, self.emit)
        self.disk_log, self.disk_pages = MemoryLog(), MemoryPages()
        self._files = _Files()
        self._pid = 100
        self._told: dict[str, Any] = {}
        self.sync_s = SYNC_S
        self._tasks: set[asyncio.Task[None]] = set()
        for number, member in enumerate(members.members.values()):
            member.address = f"127.0.0.1:{20_000 + 2 * number}"
            if member.kind in (COMPUTE, PROXY):
                member.sql = f"127.0.0.1:{20_001 + 2 * number}"

    # Control.

    async def start(self) -> None:
        """Start everything, and return when it serves."""
        self.emit(Begin(adopted=False))
        self.spawn(self._tick())
        await self.until_serving(30.0)

    def serves(self) -> bool:
        """Whether every member serves."""
        members = self.core.members.members.values()
        return self.core.loss is None and all(
            m.state == SERVING and m.fields and self.processes[m.name].alive for m in members
        )

    async def until_serving(self, limit_s: float) -> None:
        """Liveness: everything serves within a bounded time."""
        end = self.loop.now + limit_s
        while not self.serves():
            assert self.loop.now < end, [
                (m.name, m.role, m.state) for m in self.core.members.members.values()
            ]
            await asyncio.sleep(0.01)

    def emit(self, event: Event) -> None:
        """As control's service does: a step of the core, then its effects in order."""
        if isinstance(event, Ready):
            link = self.crew.links.get(event.name)
            if link is not None and link.ready.get("sql"):
                self.core.members[event.name].sql = str(link.ready["sql"])
        for effect in self.core.step(event, self.loop.now):
            self._carry_out(effect)
        self._tell_proxies()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Record(event, node, text):
                self.say(f"{event} {node}: {text}")
            case Start(name):
                self._start(self.core.members[name])
            case Kill(name):
                self.kill(name)
            case Stop(name):
                self._stop(name)
            case Promote():
                self.spawn(self.calls.promote(effect))
            case TakeHome():
                self.spawn(self.calls.take_home(effect))
            case TellHome():
                self.spawn(self.calls.tell_home(effect))
            case Attach():
                self.spawn(self.calls.attach(effect))
            case Detach(name):
                self.spawn(self.calls.detach(name))
            case TellFenced(name, epoch):
                self.spawn(self.calls.fence(name, epoch))
            case LearnEpoch():
                self.spawn(self.calls.learn_epoch())

    def _tell_proxies(self) -> None:
        now = launch.topology(self.core.members, self.core.leaving)
        for member in self.core.members.of_kind(PROXY):
            if member.state == SERVING and self._told.get(member.name) != (member.pid, now):
                self._told[member.name] = (member.pid, now)
                self.spawn(self._tell(member.name, now))

    async def _tell(self, name: str, now: dict[str, Any]) -> None:
        if await self.calls.attempt(name, "topology", now):
            self._told.pop(name, None)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.ping_interval_s)
            self.emit(Tick())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A task of control."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def say(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.loop.now - 1000:10.6f} {text}")

    # Processes.

    def _start(self, member: Member) -> None:
        self._pid += 1
        process = Process(member.name, self._pid)
        self.processes[member.name] = process
        member.pid = self._pid
        self._files.ready.pop(f"run/{member.name}.ready", None)
        config = launch.node_config(
            member, self.core.members, self.settings, cluster=CLUSTER, data="/data", run="/run",
            home_epoch=self.core.home_epoch, serve_fd=-1,
            topology=launch.topology(self.core.members, self.core.leaving),
        )  # fmt: skip
        config.pop("share_path", None)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        start = {
            STORAGE: self._storage, MEMORY: self._memory,
            COMPUTE: self._compute, PROXY: self._proxy,
        }[member.kind]  # fmt: skip
        self.loop.create_task(self._main(process, start(process, config)), context=context)
        link = Link(
            member.name, ProcessId(process.pid, 0), member.address, world=self.world,
            data=cast("Any", self._files), cluster=CLUSTER, config=self.config, emit=self.emit,
        )  # fmt: skip
        self.crew.links[member.name] = link
        self.spawn(link.run())

    async def _main(self, process: Process, main: Coroutine[Any, Any, int]) -> None:
        await asyncio.sleep(START_S * self.rng.uniform(0.5, 1.5))
        code = 1
        try:
            code = await main
        except Exception as error:
            self.say(f"{process.name} ends: {type(error).__name__}: {error}")
        finally:
            if process.alive:
                # From outside: what follows is no part of the process.
                self.loop.call_soon(self._ended, process, code, context=contextvars.Context())

    def ready(self, name: str, **fields: str) -> None:
        """What a node prints when it serves."""
        self._files.ready[f"run/{name}.ready"] = "READY " + json.dumps(fields) + "\n"

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self.processes.get(name)
        if process is not None and process.alive:
            self.say(f"kill -9 {name}")
            self._ended(process, -9)

    def _stop(self, name: str) -> None:
        node = self.nodes.get(name)
        process = self.processes.get(name)
        if process is None or not process.alive:
            return
        if isinstance(node, ComputeNode | Proxy | StorageNode):
            node.end(0)
        else:
            self._ended(process, 0)

    def _ended(self, process: Process, code: int) -> None:
        if not process.alive:
            return
        name = process.name
        process.kill()
        self.nodes.pop(name, None)
        if name == "storage":
            torn = self.rng.choice((0, 0, 1, 17, 300))
            self.disk_log = self.disk_log.crash(torn_bytes=torn)
            self.disk_pages = self.disk_pages.crash()
        for region, data in list(self.memory.regions.items()):
            if f"-{name}-" in region:
                if region.endswith("cells"):
                    data[64:] = bytes(len(data) - 64)
                del self.memory.regions[region]
        link = self.crew.links.pop(name, None)
        if link is not None:
            link.close()
        # Control hears of it a moment later, as from a pidfd.
        self.loop.call_later(0.002, self.emit, Ended(name, code), context=contextvars.Context())

    def switch(self) -> None:
        """A planned switch."""
        self.emit(SwitchAsked(None))

    # The nodes, as their `__main__` makes them.

    async def _storage(self, process: Process, config: dict[str, Any]) -> int:
        device, store = self.disk_log, self.disk_pages
        examined, folded = examine_both(device, store.read_state(), CLUSTER, accept_loss_at=None)
        node = StorageNode(self.world, cluster=CLUSTER)

        engine = Engine(
            self.world.clock, StorageConfig(), cluster=CLUSTER, device=device, store=store,
            submit_log=_Thread(self).submit, submit_pages=_Thread(self).submit, examined=examined,
            folded=folded, on_broken=node.end,
        )  # fmt: skip
        await engine.start()
        port = await node.serve(engine, "127.0.0.1", config["port"])
        self.nodes[process.name] = node
        self.ready(process.name, address=f"127.0.0.1:{port}")
        code = await node.ended
        if code == 0:
            await node.stop()
        return code

    async def _memory(self, process: Process, config: dict[str, Any]) -> int:
        node = MemoryNode(
            self.world,
            cluster=CLUSTER,
            node=process.name,
            memory_mb=config["memory_mb"],
            verify=True,
        )
        async with asyncio.TaskGroup() as tasks:
            await node.start(tasks, host="127.0.0.1", port=config["port"])
            if config["home"]:
                await node.become_home(
                    home_epoch=config["home_epoch"], epoch=config["epoch"], agents={}
                )
            self.nodes[process.name] = node
            self.ready(process.name, address=node.address, fabric=node.fabric)
            await node.wait_stopped()
            node.close()
            return node.exit_code

    async def _compute(self, process: Process, config: dict[str, Any]) -> int:
        node = ComputeNode(self.world, config)
        starting = asyncio.ensure_future(node.start())
        both: set[asyncio.Future[Any]] = {starting, node.ended}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            self.nodes[process.name] = node
            self.ready(process.name, address=node.address, sql=node.sql_address)
        code = await node.ended
        await node.stop()
        return code

    async def _proxy(self, process: Process, config: dict[str, Any]) -> int:
        proxy = Proxy(self.world, config)
        await proxy.start()
        self.nodes[process.name] = proxy
        self.ready(process.name, address=proxy.address, sql=proxy.sql_address)
        code = await proxy.ended
        await proxy.stop()
        return code
