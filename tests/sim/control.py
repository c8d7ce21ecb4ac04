"""Control in the simulation: its core, its lines to the nodes and its calls are production's.

It may die like everybody else. What it needs when it is back is in `Saved`, as on disk: epochs,
numbers, and a record for each process, from which production's `adopt` finds those that live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from polarless.control import launch
from polarless.control.calls import Calls
from polarless.control.crew import adopt
from polarless.control.decisions import (
    Attach,
    Begin,
    Detach,
    Effect,
    Ended,
    Event,
    HomeTaken,
    Kill,
    LearnEpoch,
    Lend,
    Promote,
    Promoted,
    Ready,
    Record,
    Save,
    ScaleAsked,
    Start,
    Stop,
    TakeHome,
    TellFenced,
    TellHome,
    Tick,
)
from polarless.control.failover import Failover
from polarless.control.link import Link
from polarless.control.membership import SERVING, Member, initial_members
from polarless.net.processes import ProcessId
from polarless.wire.control import MEMORY, PROXY, RunRecord

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

POOL_MB = 8
# From a process's end to its event, as from a pidfd.
NOTICE_S = 0.002


class Saved:
    """What control finds on its disk: a `DataDirectory` and a `Machine`, as far as it asks."""

    run = "/run"

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.epochs = (0, 0)
        self.ro = 0
        self.memory_nodes = 0
        # Name -> address, clients' address. Storage comes back where it was.
        self.addresses: dict[str, tuple[str, str]] = {}
        self.ready: dict[str, str] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self._records: dict[str, RunRecord] = {}

    def text(self, path: str) -> str:
        """The READY line of a process that has said it."""
        return self.ready.get(path, "")

    def read(self, path: str) -> dict[str, Any]:
        return self.configs.get(path, {})

    def records(self) -> list[RunRecord]:
        return list(self._records.values())

    def write_record(self, record: RunRecord) -> None:
        self._records[record.name] = record

    def is_alive(self, process: ProcessId) -> bool:
        return any(p.pid == process.pid and p.alive for p in self._cluster.processes.values())

    def find(self, _: str) -> dict[str, ProcessId]:
        return {}


class SimControl:
    """One life of control."""

    def __init__(self, cluster: SimCluster) -> None:
        saved = cluster.saved
        self.cluster = cluster
        self.saved = saved
        self.alive = True
        members = initial_members(
            compute_count=1 + saved.ro, memory_node_count=saved.memory_nodes, proxy_count=1
        )
        self.adopted = adopt(cast("Any", saved), cast("Any", saved), members, cluster.loop.now)
        self.core = Failover(members, cluster.config, epoch=saved.epochs[0],
                             home_epoch=saved.epochs[1])  # fmt: skip
        self.core.ro_wanted, self.core.memory_wanted = saved.ro, saved.memory_nodes
        self.core.pool_mb = POOL_MB
        self.crew = SimpleNamespace(links={})
        self.calls = Calls(self.core, cast("Any", self.crew), cluster.config, self.emit)
        self._told: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Start the nodes, or take over those that run."""
        for member in self.core.members.members.values():
            if member.name in self.adopted:
                self.follow(member)
            else:
                self.cluster.bury(member.name)
        self.emit(Begin(adopted=bool(self.adopted)))
        self.spawn(self._tick())

    def die(self) -> None:
        """SIGKILL of control; the nodes go on."""
        self.alive = False
        for link in self.crew.links.values():
            link.close()
        for task in self._tasks:
            task.cancel()

    def scale(self, *, ro: int, memory_nodes: int) -> None:
        """As the API does: written down, then wanted."""
        self.saved.ro, self.saved.memory_nodes = ro, memory_nodes
        self.emit(ScaleAsked(ro, memory_nodes, POOL_MB))

    def emit(self, event: Event) -> None:
        """As control's service does: a step of the core, then its effects in order."""
        if not self.alive:
            return
        members = self.core.members
        if isinstance(event, Ready):
            link = self.crew.links.get(event.name)
            if link is not None:
                members[event.name].address = link.address
                if link.ready.get("sql"):
                    members[event.name].sql = str(link.ready["sql"])
        for effect in self.core.step(event, self.cluster.loop.now):
            self._carry_out(effect)
        self._tell_proxies()
        if isinstance(event, Ready | Promoted | HomeTaken):
            self._remember(members[event.name])

    def _carry_out(self, effect: Effect) -> None:
        cluster = self.cluster
        match effect:
            case Record(event, node, text):
                cluster.say(f"{event} {node}: {text}")
            case Save(epoch, home_epoch):
                self.saved.epochs = (epoch, home_epoch)
            case Start(name):
                self._start(self.core.members[name])
            case Kill(name):
                cluster.kill(name)
            case Stop(name):
                cluster.stop(name)
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
            case Lend():
                self.spawn(self.calls.lend(effect))
            case LearnEpoch():
                self.spawn(self.calls.learn_epoch())

    def _start(self, member: Member) -> None:
        if not member.address:
            addresses = self.saved.addresses
            if member.name not in addresses:
                addresses[member.name] = self.cluster.free_addresses()
            member.address, member.sql = addresses[member.name]
        topology = launch.topology(self.core.members, self.core.leaving)
        config = launch.node_config(
            member, self.core.members, self.cluster.settings, cluster=self.cluster.identity,
            data="/data", run="/run", home_epoch=self.core.home_epoch, serve_fd=-1,
            topology=topology,
        )  # fmt: skip
        config.pop("share_path", None)
        self.saved.configs[f"run/{member.name}.config.json"] = config
        self.saved.ready.pop(f"run/{member.name}.ready", None)
        self.cluster.start_process(member, config)
        self.follow(member)
        self._remember(member)

    def follow(self, member: Member) -> None:
        """Keep a line to a process, and hear of its end."""
        process = self.cluster.processes[member.name]
        member.pid = process.pid
        link = self.crew.links[member.name] = Link(
            member.name, ProcessId(process.pid, 0), member.address, world=self.cluster.world,
            data=cast("Any", self.saved), cluster=self.cluster.identity,
            config=self.cluster.config, emit=self.emit,
        )  # fmt: skip
        self.spawn(link.run())

    def ended(self, name: str, code: int) -> None:
        """A process that control follows has ended."""
        link = self.crew.links.pop(name, None)
        if not self.alive or link is None:
            return
        link.close()
        self.cluster.bury(name)
        member = self.core.members[name]
        self.emit(Ended(name, code))
        self._remember(member)

    def _remember(self, member: Member) -> None:
        link = self.crew.links.get(member.name)
        self.saved.write_record(
            RunRecord(
                member.name, member.role, link.process.pid if link else 0, 0, member.address,
                member.sql, member.epoch, member.state,
            )
        )  # fmt: skip

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
            await asyncio.sleep(self.cluster.config.ping_interval_s)
            self.emit(Tick())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A task of control."""
        if not self.alive:
            work.close()
            return
        task = self.cluster.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def serves(self) -> bool:
        """Whether every member serves, and there are as many as are wanted."""
        core = self.core
        members = core.members.members.values()
        return (
            self.alive
            and core.loss is None
            and not (core.settling or core.leaving or core.rolling)
            and len(core.members.of_kind(MEMORY)) == core.memory_wanted
            and all(
                m.state == SERVING and m.fields and self.cluster.processes[m.name].alive
                for m in members
            )
        )
