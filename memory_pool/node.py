"""A memory node: one process with slabs, a fabric port, an RPC port, and perhaps the home's role.

Who may call the RPC port depends on what the connecting side says it is:

* "compute": the home's members; refused where the home is not.
* "home": the agent, see `memory_pool.slab_node`.
* "control": ping, status, stop, become_home, attach_node, detach_node, lend, fence.
* "tool": ping and status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from memory_pool.home_node import HomeNode
from memory_pool.home_state import HomeConfig
from memory_pool.slab_node import SlabNode
from polarless.errors import Fenced, PolarlessError, RemoteProtocolError, Reroute
from polarless.kernel.world import Listener, World
from polarless.net import lag, rpc
from polarless.wire.memory import SLOT_BYTES

log = logging.getLogger(__name__)

MEGABYTE: Final = 1024 * 1024


class MemoryNode(rpc.Service):
    """The process's node. `run` serves until `stop`."""

    def __init__(
        self,
        world: World,
        *,
        cluster: bytes,
        node: str,
        memory_mb: int,
        reserve_mb: int = 0,
        home_config: HomeConfig | None = None,
        verify: bool = False,
    ) -> None:
        self.node = node
        self.address = ""
        self.slabs = SlabNode(world, cluster=cluster, node=node)
        self.exit_code = 0
        self._home: HomeNode | None = None
        self._world = world
        self._cluster = cluster
        self._memory_mb = memory_mb
        self._reserve_mb = reserve_mb
        self._home_config = home_config
        self._verify = verify
        self._listener: Listener | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._peers: set[rpc.Peer] = set()
        self._stopped = asyncio.Event()

    @property
    def home(self) -> HomeNode | None:
        """The home's role, while this node has it."""
        return None if self._home is None or self._home.closed else self._home

    @property
    def fabric(self) -> str:
        """Where the verbs are served."""
        return self.slabs.fabric

    async def start(self, tasks: asyncio.TaskGroup, *, host: str, port: int) -> None:
        """Create the slabs and open both ports. Raises `Overloaded` if the host has no room."""
        self._tasks = tasks
        await self.slabs.start(
            host,
            byte_count=self._memory_mb * MEGABYTE,
            reserve_bytes=self._reserve_mb * MEGABYTE,
        )
        self._listener = await rpc.serve(
            self._world.network,
            self,
            clock=self._world.clock,
            cluster=self._cluster,
            host=host,
            port=port,
        )
        self.address = f"{host}:{self._listener.port}"

    async def become_home(
        self, *, home_epoch: int, epoch: int, agents: dict[str, str]
    ) -> dict[str, Any]:
        """Take the home's role. Raises `Fenced` if there has been a newer home."""
        assert self._tasks is not None
        if self._home is not None and self._home.home_epoch >= home_epoch:
            if self._home.home_epoch == home_epoch and not self._home.closed:
                await asyncio.gather(*(self._home.attach(*agent) for agent in agents.items()))
                return self._home.summary()
            raise Fenced(f"home epoch {home_epoch} is over: {self._home.home_epoch} has been here")
        if self._home is not None:
            self._home.close(f"home epoch {home_epoch} begins")
        self._home = home = HomeNode(
            self._world,
            cluster=self._cluster,
            slabs=self.slabs,
            home_epoch=home_epoch,
            epoch=epoch,
            tasks=self._tasks,
            on_failed=self._fail,
            config=self._home_config,
            verify=self._verify,
        )
        await home.start({**agents, self.node: self.address})
        return home.summary()

    async def wait_stopped(self) -> None:
        """Until somebody calls `stop`."""
        await self._stopped.wait()

    def stop(self) -> None:
        """Ask the process to end."""
        self._stopped.set()

    def _fail(self) -> None:
        """Our own bug: control starts a new process."""
        self.exit_code = 1
        self.stop()

    def close(self) -> None:
        """End the role, hang up, remove the shared memory."""
        if self._listener is not None:
            self._listener.close()
        if self._home is not None:
            self._home.close("the process ends")
        for peer in list(self._peers):
            peer.close()
        self.slabs.close()

    def ping(self) -> dict[str, Any]:
        """Cheap, ten times a second."""
        if self.home is None:
            return {
                "state": "serving", "role": "memory", "epoch": 0,
                "home_epoch": self.slabs.home_epoch,
            }  # fmt: skip
        return {"role": "home", **self.home.summary()}

    def status(self) -> dict[str, Any]:
        """Plain values for people."""
        return {
            "node": self.node,
            "role": "memory" if self.home is None else "home",
            "state": "serving",
            "address": self.address,
            "fabric": self.fabric,
            "memory_mb": -(-self.slabs.lent * SLOT_BYTES // MEGABYTE),
            "verbs": self.slabs.stats.snapshot(),
            "home": None if self.home is None else self.home.status(),
            **lag.status(),
        }

    # rpc.Handler

    def on_hello(self, peer: rpc.Peer, fields: dict[str, Any]) -> dict[str, Any]:
        role = fields.get("role")
        if role == "compute":
            welcome = self._serving_home().on_hello(peer, fields)
        elif role == "home":
            home_epoch = int(fields["home_epoch"])
            if self._home is not None and self._home.home_epoch < home_epoch:
                self._home.close(f"home epoch {home_epoch} has begun elsewhere")
            welcome = self.slabs.on_home(peer, home_epoch)
        elif role in ("control", "tool"):
            welcome = {"node": self.node}
        else:
            raise RemoteProtocolError(f"a memory node has nothing for role {role!r}")
        self._peers.add(peer)
        return welcome

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        role = peer.fields["role"]
        if role == "compute":
            self._serving_home().on_call(peer, call)
        elif role == "home":
            self.slabs.on_call(peer, call)
        elif call.method == "ping":
            call.answer(self.ping())
        elif call.method == "status":
            call.answer(self.status())
        elif role == "control":
            self._control(call)
        else:
            raise RemoteProtocolError(f"{call.method!r} is not for role {role!r}")

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        if peer.fields["role"] != "compute":
            raise RemoteProtocolError(f"notification {method!r} is not expected here")
        self._serving_home().on_notify(peer, method, args)

    def on_lost(self, peer: rpc.Peer, error: PolarlessError) -> None:
        self._peers.discard(peer)
        if peer.fields["role"] == "compute" and self.home is not None:
            self.home.on_lost(peer)

    def _serving_home(self) -> HomeNode:
        home = self.home
        if home is None:
            raise Reroute(f"{self.node} is not the pool's home", hint="Ask control for it.")
        return home

    def _control(self, call: rpc.Call) -> None:
        args = call.args
        if call.method == "stop":
            call.answer()
            self.stop()
        elif call.method == "become_home":
            home_epoch, epoch, agents = args
            self._later(
                call,
                self.become_home(home_epoch=int(home_epoch), epoch=int(epoch), agents=dict(agents)),
            )
        elif call.method == "attach_node":
            node, address, *_ = args
            self._later(call, self._serving_home().attach(str(node), str(address)))
        elif call.method == "detach_node":
            self._serving_home().detach(str(args[0]))
            call.answer()
        elif call.method == "lend":
            node, memory_mb = args
            slots = int(memory_mb) * MEGABYTE // SLOT_BYTES
            self._later(call, self._serving_home().lend(str(node), slots))
        elif call.method == "fence":
            self._serving_home().fence(call, int(args[0]))
        else:
            raise RemoteProtocolError(f"a memory node has no method {call.method!r}")

    def _later(self, call: rpc.Call, work: Coroutine[Any, Any, Any]) -> None:
        """Answer a call when ``work`` is done."""
        assert self._tasks is not None

        async def run() -> None:
            try:
                result = await work
            except PolarlessError as error:
                call.fail(error)
            else:
                call.answer(result)

        self._tasks.create_task(run())
