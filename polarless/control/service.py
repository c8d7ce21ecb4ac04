"""The control plane as it runs: carries out what `failover.Failover` decides, and shows it.

Every event goes through `emit`: the core's step, then its effects in order, in one go. What takes
time becomes a task, and its outcome the next event. Control may be killed at any moment: epochs are
written down before the promotion that carries them, and the nodes are found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from polarless.config import HOST, ClusterConfig, ControlConfig, parse_cluster
from polarless.control.autoscale import Policy, parse_policy
from polarless.control.calls import SMALL_CALL_S, Calls
from polarless.control.crew import SIGKILL, SIGTERM, Crew
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
    Renew,
    RestartAsked,
    Save,
    ScaleAsked,
    SleepAsked,
    Start,
    Stop,
    StopAsked,
    SwitchAsked,
    TakeHome,
    TellFenced,
    TellHome,
    Tick,
)
from polarless.control.elastic import all_well
from polarless.control.elastic_memory import share_mb
from polarless.control.failover import Failover
from polarless.control.launch import topology
from polarless.control.membership import ENDED, SERVING, Member, Membership
from polarless.control.scaler import Scaler
from polarless.errors import CallerMistake, DeadlineExceeded
from polarless.kernel.world import World
from polarless.net.datadir import DataDirectory
from polarless.net.logs import rotate
from polarless.net.processes import Machine, ProcessId
from polarless.wire.control import COMPUTE, CONTROL, EXIT_AGAIN, MEMORY, PROXY, sql_url

log = logging.getLogger(__name__)

EVENTS_SHOWN: Final = 20
ASLEEP: Final = "asleep"
ROTATE_S: Final = 5.0
# An answer over HTTP is out by then.
RENEW_AFTER_S: Final = 0.2
# A restart that is asked for waits so long for what is under way.
WELL_S: Final = 15.0
# A hundred gigabytes take minutes.
CHECK_S: Final = 3600.0


class Service:
    """One control plane over one data directory."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        data: DataDirectory,
        *,
        cluster: bytes,
        settings: ClusterConfig,
        config: ControlConfig,
        members: Membership,
        python: str,
        serve_fd: int,
        port: int,
        identity: ProcessId,
    ) -> None:
        self.port = port
        # What control.json holds.
        self.saved = data.read("control.json")
        self._is_unsaved = False
        self.core = Failover(
            members,
            config,
            epoch=int(self.saved.get("epoch", 0)),
            home_epoch=int(self.saved.get("home_epoch", 0)),
        )
        self.crew = Crew(
            world,
            machine,
            data,
            cluster=cluster,
            settings=settings,
            config=config,
            members=members,
            python=python,
            serve_fd=serve_fd,
            ports=dict(self.saved.get("ports", {})),
            emit=self.emit,
            spawn=self._spawn,
        )
        self.core.ro_wanted = settings.ro_count
        self.core.memory_wanted = settings.memory_node_count
        self.core.pool_mb = settings.pool_mb
        self.core.idle_timeout_s = settings.idle_timeout_s
        # Proxy -> what it was told last, and its pid then.
        self._told: dict[str, tuple[int, dict[str, Any]]] = {}
        self.calls = Calls(self.core, self.crew, config, self.emit)
        self.stopped = asyncio.Event()
        self.exit_code = 0
        self.scaler = Scaler(
            self.core,
            self.crew,
            self.calls,
            machine,
            world.clock,
            apply=self._reshape,
            note=self._note,
        )
        if self.saved.get("autoscale"):
            self.scaler.use(parse_policy(self.saved["autoscale"]))
        self._clock = world.clock
        self._data = data
        self._cluster = cluster
        self._config = config
        self._identity = identity
        self._tasks: asyncio.TaskGroup | None = None
        self._events: deque[dict[str, Any]] = deque(
            data.events(config.events_kept), maxlen=config.events_kept
        )
        self._changed = asyncio.Event()

    async def run(self, adopted: dict[str, ProcessId]) -> None:
        """Serve until `leave`, or until `down` is done. ``adopted`` processes run already."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for member in self.core.members.members.values():
                if member.name in adopted:
                    self.crew.follow(member, adopted[member.name])
                else:
                    self.crew.bury(member)
            self.emit(Begin(adopted=bool(adopted)))
            tasks.create_task(self._tick(), name="tick")
            tasks.create_task(self._rotate_logs(), name="rotate logs")
            scaling = tasks.create_task(self.scaler.run(), name="autoscale")
            await self.stopped.wait()
            scaling.cancel()
            self._tasks = None
            self.crew.close()

    def leave(self) -> None:
        """End control alone; the nodes go on."""
        self.save({"pid": 0})
        self.stopped.set()

    def renew(self) -> None:
        """End this process; the watcher starts the next one, which finds the nodes as they are."""
        self._note(Record("renew", CONTROL, "ends, to be started again"))
        self.exit_code = EXIT_AGAIN
        self.stopped.set()

    async def down(self) -> list[str]:
        """Stop every node in good order; the names of those that had to be killed."""
        self.emit(StopAsked())
        self._note(Record("down", CONTROL, "the cluster is asked to stop"))
        self.crew.spare.close()
        killed = await asyncio.to_thread(self.crew.stop_all)
        self._note(Record("stopped", CONTROL, "all nodes have ended"))
        return killed

    async def switch(self, target: str | None) -> dict[str, Any]:
        """Make another node the writer; the event that says how it went.

        Raises CallerMistake if that is not possible now, `DeadlineExceeded` if it took too long.
        """
        refusal = self.core.switch_refusal(target)
        if refusal is not None:
            raise CallerMistake(refusal, hint="see `polarless status`")
        seen: dict[str, Any] | None = self._events[-1] if self._events else None
        self.emit(SwitchAsked(target))
        limit_s = self._config.promote_timeout_s + self._config.stop_grace_s
        end = self._clock.now() + limit_s
        while self._clock.now() < end:
            for event in reversed(self._events):
                if event is seen:
                    break
                if event["event"] in ("switch", "failover"):
                    return dict(event)
            await self._next_change(0.2)
        raise DeadlineExceeded(
            f"the switch did not end within {limit_s:.0f} s", hint="see `polarless status`"
        )

    async def scale(
        self,
        ro: int | None = None,
        memory_nodes: int | None = None,
        pool_mb: int | None = None,
    ) -> dict[str, Any]:
        """Have so many readers, memory nodes and MiB; what there is now, and after how long.

        Raises CallerMistake for a number that cannot be, `DeadlineExceeded`.
        """
        began = self._clock.now()
        asked = {"ro_count": ro, "memory_node_count": memory_nodes, "pool_mb": pool_mb}
        try:
            self._reshape({key: value for key, value in asked.items() if value is not None})
        except ValueError as error:
            raise CallerMistake(str(error)) from None
        settings = self.crew.settings
        text = f"{settings.ro_count} readers, {settings.memory_node_count} memory nodes"
        await self._until(self._has_shape, f"{text}, {settings.pool_mb} MiB")
        return {
            "ro": settings.ro_count,
            "memory_nodes": settings.memory_node_count,
            "pool_mb": settings.pool_mb,
            "seconds": round(self._clock.now() - began, 3),
        }

    def _reshape(self, given: dict[str, int]) -> None:
        """Write new numbers down and let them be wanted. Raises ValueError."""
        settings = parse_cluster({**self.saved["settings"], **given})
        self.save({"settings": settings.to_json()})
        self.crew.settings = settings
        self.emit(ScaleAsked(settings.ro_count, settings.memory_node_count, settings.pool_mb))

    def autoscale(self, policy: Policy | None) -> dict[str, Any]:
        """Scale by a policy from now on; None: by hand."""
        self.scaler.use(policy)
        self.save({"autoscale": None if policy is None else policy.to_json()})
        text = "is off" if policy is None else f"is on: {policy.to_json()}"
        self._note(Record("autoscale", CONTROL, text))
        return self.scaler.status()

    def _has_shape(self) -> bool:
        """Whether as many serve, and lend as much, as is wanted."""
        core = self.core
        if core.leaving:
            return False
        memories = core.members.of_kind(MEMORY)
        computes = core.members.of_kind(COMPUTE)
        return (
            len(memories) == core.memory_wanted
            and all(
                m.state == SERVING and core.lent.get(m.name) == share_mb(core) for m in memories
            )
            and (core.asleep or sum(m.state == SERVING for m in computes) == 1 + core.ro_wanted)
        )

    async def restart(self, role: str | None) -> dict[str, Any]:
        """Restart everybody, or those of a role, in turn; names and seconds."""
        began = self._clock.now()
        if self.core.rolling:
            raise CallerMistake("a restart is under way", hint="see `polarless status`")
        await self._until(lambda: all_well(self.core), "what is under way", WELL_S)
        self.emit(RestartAsked(role))
        names = [*self.core.rolling_order, *([CONTROL] if role in (None, CONTROL) else [])]
        await self._until(lambda: not self.core.rolling and all_well(self.core), "the restart", 300)
        if CONTROL in names:
            # When this has been answered.
            self._clock.call_later(RENEW_AFTER_S, self.renew)
        return {"restarted": names, "seconds": round(self._clock.now() - began, 3)}

    async def sleep(self) -> dict[str, Any]:
        """Release all compute now; the next client wakes it."""
        if not self.core.members.of_kind(PROXY):
            raise CallerMistake("without a proxy nobody would wake it again")
        self.emit(SleepAsked())
        await self._until(
            lambda: all(m.state == ENDED for m in self.core.members.of_kind(COMPUTE)), "sleep"
        )
        return {"asleep": True}

    async def _until(self, done: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
        end = self._clock.now() + limit_s
        while not done():
            if self._clock.now() > end:
                raise DeadlineExceeded(
                    f"{what}: not within {limit_s:.0f} s", hint="see `polarless status`"
                )
            await self._next_change(0.02)

    async def node_status(self, name: str) -> dict[str, Any]:
        """A node's own counters."""
        counters: dict[str, Any] = await self.calls.call(name, "status", deadline_s=SMALL_CALL_S)
        return counters

    async def check_node(self, name: str) -> dict[str, Any]:
        """What a compute node finds when it walks every tree."""
        member = self.core.members.members.get(name)
        if member is None or member.kind != COMPUTE:
            raise CallerMistake(f"{name} is not a compute node", hint="see `polarless status`")
        found: dict[str, Any] = await self.calls.call(name, "check", deadline_s=CHECK_S)
        return found

    def is_ready(self) -> bool:
        """Whether a query on the URL would succeed now."""
        writer = self.core.members.writer()
        proxies = self.core.members.of_kind(PROXY)
        if proxies and not any(member.state == SERVING for member in proxies):
            return False
        if self.core.asleep:
            return True
        return writer is not None and writer.state == SERVING and self.core.loss is None

    def status(self) -> dict[str, Any]:
        """What ``polarless status --json`` prints."""
        nodes = [self._node_status(member) for member in self.core.members.members.values()]
        broken = [node["name"] for node in nodes if node["state"] not in (SERVING, ASLEEP)]
        control = {
            "name": CONTROL, "role": CONTROL, "pid": self._identity.pid,
            "address": self.saved.get("http", ""), "state": SERVING, "epoch": self.core.epoch,
        }  # fmt: skip
        return {
            "url": sql_url(f"{HOST}:{self.port}"),
            "cluster": self._cluster.hex(),
            "data": str(self._data.root),
            "state": "unavailable" if not self.is_ready() else "degraded" if broken else SERVING,
            "epoch": self.core.epoch,
            "home_epoch": self.core.home_epoch,
            "nodes": [control, *nodes],
            "events": list(self._events)[-EVENTS_SHOWN:],
        }

    def events(self) -> list[dict[str, Any]]:
        """The decisions that are kept in memory, oldest first."""
        return list(self._events)

    def save(self, values: dict[str, Any]) -> None:
        """Keep values in control.json; a little later if there is no room on the disk now."""
        self.saved |= values
        self._is_unsaved = True
        self._write_saved()

    def _write_saved(self) -> None:
        # Epochs are fenced in storage and told by the nodes: nothing may wait for this file.
        try:
            self._data.write("control.json", self.saved)
        except OSError as error:
            log.warning("control.json was not written: %s", error)
        else:
            self._is_unsaved = False

    # Events in, effects out.

    def emit(self, event: Event) -> None:
        """Let the core decide, and do what it says."""
        members = self.core.members
        if isinstance(event, Ready):
            self.crew.learn_addresses(members[event.name])
        for effect in self.core.step(event, self._clock.now()):
            self._carry_out(effect)
        self._tell_proxies()
        if isinstance(event, Ready | Promoted | HomeTaken) and not self.core.stopping:
            self.crew.remember(members[event.name])

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Record():
                self._note(effect)
            case Save(epoch, home_epoch):
                self.save({"epoch": epoch, "home_epoch": home_epoch})
            case Start(name):
                try:
                    self.crew.start(
                        self.core.members[name],
                        home_epoch=self.core.home_epoch,
                        topology=self._topology(),
                    )
                except OSError as error:
                    log.error("%s cannot be started: %s", name, error)
                    # As if it had been, and had ended at once: it is tried again, later.
                    self._clock.call_soon(partial(self.emit, Ended(name, None)))
                if self.saved.get("ports") != self.crew.ports:
                    self.save({"ports": dict(self.crew.ports)})
            case Kill(name):
                self.crew.signal(name, SIGKILL)
            case Renew(name):
                self._spawn(self.calls.renew(name), f"renew {name}")
            case Stop(name):
                self.crew.signal(name, SIGTERM)
            case Promote():
                self._spawn(self.calls.promote(effect), f"promote {effect.name}")
            case TakeHome():
                self._spawn(self.calls.take_home(effect), f"take home {effect.name}")
            case TellHome():
                self._spawn(self.calls.tell_home(effect), f"tell home {effect.name}")
            case Attach():
                self._spawn(self.calls.attach(effect), f"attach {effect.name}")
            case Detach(name):
                self._spawn(self.calls.detach(name), f"detach {name}")
            case TellFenced(name, epoch):
                self._spawn(self.calls.fence(name, epoch), f"fence {name}")
            case Lend():
                self._spawn(self.calls.lend(effect), f"lend {effect.name}")
            case LearnEpoch():
                self._spawn(self.calls.learn_epoch(), "learn epoch")

    def _topology(self) -> dict[str, Any]:
        return topology(self.core.members, self.core.leaving)

    def _tell_proxies(self) -> None:
        """Every proxy knows the compute nodes of now."""
        now = self._topology()
        for member in self.core.members.of_kind(PROXY):
            if member.state == SERVING and self._told.get(member.name) != (member.pid, now):
                self._told[member.name] = (member.pid, now)
                self._spawn(self._tell_proxy(member.name, now), f"topology {member.name}")

    async def _tell_proxy(self, name: str, now: dict[str, Any]) -> None:
        if await self.calls.attempt(name, "topology", now):
            # With the next event, once more.
            self._told.pop(name, None)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        if self._tasks is None:
            work.close()
            return
        self._tasks.create_task(work, name=name)

    def _note(self, record: Record) -> None:
        at = datetime.fromtimestamp(self._clock.wall_us() / 1e6, UTC)
        event = {
            "at": at.isoformat(timespec="milliseconds"),
            "event": record.event,
            "node": record.node,
            "text": record.text,
            **record.fields,
        }
        self._events.append(event)
        try:
            self._data.append_event(event, self._config.events_file_bytes_max)
        except OSError as error:
            log.warning("an event was not written down: %s", error)
        log.info("%s: %s: %s", record.event, record.node, record.text)
        self._changed.set()

    async def _next_change(self, at_most_s: float) -> None:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), at_most_s)
        except TimeoutError:
            return

    def _node_status(self, member: Member) -> dict[str, Any]:
        said = member.fields.get("state")
        node: dict[str, Any] = {
            "name": member.name, "role": member.role, "pid": member.pid,
            "address": member.address,
            "state": said if member.state == SERVING and isinstance(said, str) else member.state,
            "epoch": int(member.fields.get("epoch") or member.epoch),
        }  # fmt: skip
        if member.kind == COMPUTE and self.core.asleep and member.state == ENDED:
            node["state"] = ASLEEP
        if member.kind == COMPUTE:
            node["sql_url"] = sql_url(member.sql)
        if member.reason and not member.is_live:
            node["reason"] = member.reason
        return node

    async def _tick(self) -> None:
        interval_s = self._config.ping_interval_s
        last = self._clock.now()
        while not self.stopped.is_set():
            await self._clock.sleep(interval_s)
            now = self._clock.now()
            gap_s, last = now - last, now
            self.emit(Tick(paused_s=gap_s - interval_s if gap_s > 3 * interval_s else 0.0))
            core = self.core
            if self._is_unsaved:
                self._write_saved()
            self.crew.write_records()
            if core.members.url_kind == PROXY:
                self.crew.spare.tick(not core.stopping and (core.asleep or all_well(core)), now)

    async def _rotate_logs(self) -> None:
        while not self.stopped.is_set():
            for path in self._data.logs.glob("*.log"):
                rotate(path, self._config.log_file_bytes_max)
            try:
                await asyncio.wait_for(self.stopped.wait(), ROTATE_S)
            except TimeoutError:
                continue
