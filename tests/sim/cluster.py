"""A cluster in one loop: the production nodes, control, and processes that can be killed."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable, Coroutine
from typing import Any

from compute.node import ComputeNode
from memory_pool.node import MemoryNode
from polarless.config import ClusterConfig, ControlConfig, StorageConfig
from polarless.control.decisions import SwitchAsked
from polarless.control.failover import Failover
from polarless.control.membership import Member
from polarless.proxy.service import Proxy
from polarless.wire.control import COMPUTE, MEMORY, PROXY, STORAGE
from storage.backends.memory import MemoryLog, MemoryPages
from storage.engine import Engine, examine_both
from storage.node import StorageNode
from tests.sim.control import NOTICE_S, POOL_MB, Saved, SimControl
from tests.sim.loop import PROCESS, Process, VirtualLoop
from tests.sim.world import sim_world

CLUSTER = bytes(range(16))
SYNC_S = 150e-6
CACHE_BYTES = (4 << 20, 48 << 10, 4 << 20, 80 << 10)
APART_CACHE_BYTES = 1 << 20
# Imports and the interpreter's start, as control sees them.
START_S = 0.2


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

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        *,
        ro: int = 2,
        memory_nodes: int = 2,
        apart: float = 0.0,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.world, self.network, self.memory = sim_world(loop, seed)
        self.rng = self.network.rng
        self.trace: list[str] = []
        self.nodes: dict[str, Any] = {}
        self.processes: dict[str, Process] = {}
        self.settings = ClusterConfig(
            ro_count=ro, memory_node_count=memory_nodes, pool_mb=POOL_MB, cache_mb=4
        )
        self.config = ControlConfig()
        self.identity = CLUSTER
        self.disk_log, self.disk_pages = MemoryLog(), MemoryPages()
        self.sync_s = SYNC_S
        # How many of the compute processes are on hosts without any memory nodes.
        self.apart = apart
        # By seed: all pages fit, or most are fetched again and again.
        self.cache_bytes = CACHE_BYTES[seed % len(CACHE_BYTES)]
        self.while_storage_is_down: Callable[[], None] = lambda: None
        self._pid = 100
        self._ports = 20_000
        self.saved = Saved(self)
        self.saved.ro, self.saved.memory_nodes = ro, memory_nodes
        self.control = SimControl(self)

    @property
    def core(self) -> Failover:
        """What control decides with; that of the last control while there is none."""
        return self.control.core

    async def start(self) -> None:
        """Start everything, and return when it serves."""
        self.control.begin()
        await self.until_serving(30.0)

    def serves(self) -> bool:
        """Whether every member serves."""
        return self.control.serves()

    async def until_serving(self, limit_s: float) -> None:
        """Liveness: everything serves within a bounded time."""
        end = self.loop.now + limit_s
        while not self.serves():
            assert self.loop.now < end, [
                (m.name, m.role, m.state) for m in self.core.members.members.values()
            ]
            await asyncio.sleep(0.01)

    def control_dies(self) -> None:
        """Control is killed; everybody else goes on."""
        self.say("kill -9 control")
        self.control.die()

    def control_returns(self) -> None:
        """It is started again, and takes over what runs."""
        if not self.control.alive:
            self.control = SimControl(self)
            self.control.begin()

    def switch(self) -> None:
        """A planned switch."""
        self.control.emit(SwitchAsked(None))

    def free_addresses(self) -> tuple[str, str]:
        """Two that nobody has had: a node's, and its clients'."""
        self._ports += 2
        return f"127.0.0.1:{self._ports - 2}", f"127.0.0.1:{self._ports - 1}"

    def say(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.loop.now - 1000:10.6f} {text}")

    # Processes.

    def start_process(self, member: Member, config: dict[str, Any]) -> None:
        """Start a member's process."""
        self._pid += 1
        process = self.processes[member.name] = Process(member.name, self._pid)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        start = {
            STORAGE: self._storage, MEMORY: self._memory,
            COMPUTE: self._compute, PROXY: self._proxy,
        }[member.kind]  # fmt: skip
        self.loop.create_task(self._main(process, start(process, config)), context=context)

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
        self.saved.ready[f"run/{name}.ready"] = "READY " + json.dumps(fields) + "\n"

    def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self.processes.get(name)
        if process is not None and process.alive:
            self.say(f"kill -9 {name}")
            self._ended(process, -9)

    def stop(self, name: str) -> None:
        """SIGTERM."""
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
            self.while_storage_is_down()
        # Control hears of it a moment later, as from a pidfd.
        self.loop.call_later(NOTICE_S, self._noticed, process, code, context=contextvars.Context())

    def _noticed(self, process: Process, code: int) -> None:
        if self.processes[process.name] is process:
            self.control.ended(process.name, code)

    def bury(self, name: str) -> None:
        """Control removes what a dead memory node left; of a home it clears the words first."""
        for region, data in list(self.memory.regions.items()):
            if f"-{name}-" in region:
                if region.endswith("cells"):
                    data[64:] = bytes(len(data) - 64)
                del self.memory.regions[region]

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
        apart = self.rng.random() < self.apart
        node = ComputeNode(self.world, {**config, "shared_memory": not apart})
        # Where a page that is missing takes a while, all that a statement touches has to fit.
        node.cache.budget_bytes = max(self.cache_bytes, APART_CACHE_BYTES if apart else 0)
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
