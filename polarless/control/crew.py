"""The processes that control started or found, one `Link` each.

What the next control needs is written before anything depends on it: a process's record right after
its start. One that was started in the instant before a kill is found by its command line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from polarless.config import HOST, ClusterConfig, ControlConfig
from polarless.control import launch
from polarless.control.decisions import Ended, Event
from polarless.control.link import Link
from polarless.control.membership import STARTING, Member, Membership
from polarless.control.offline import config_path, running, stop_tiers
from polarless.control.spare import Spare
from polarless.kernel.world import World
from polarless.net.datadir import (
    DataDirectory,
    clear_words,
    remove_shared_memory,
    shared_memory_names,
)
from polarless.net.processes import Machine, ProcessId
from polarless.wire.control import COMPUTE, KINDS, MEMORY, PROXY, STORAGE, RunRecord

log = logging.getLogger(__name__)

SIGKILL: Final = 9
SIGTERM: Final = 15
# Words of a home's cells region before the admission words.
FIRST_ADMISSION_WORD: Final = 8


class Crew:
    """All processes of one cluster."""

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
        ports: dict[str, list[int]],
        emit: Callable[[Event], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.links: dict[str, Link] = {}
        # Node -> its ports, kept over restarts so that others find it again.
        self.ports = ports
        self.spare = Spare(machine, data, python)
        self._world = world
        self._machine = machine
        self._data = data
        self._cluster = cluster
        self.settings = settings
        self._config = config
        self._members = members
        self._python = python
        self._serve_fd = serve_fd
        self._emit = emit
        self._spawn = spawn
        # Members whose record has to be written.
        self._unwritten: dict[str, Member] = {}

    def start(self, member: Member, *, home_epoch: int, topology: dict[str, Any]) -> None:
        """Start the process of a member in its role."""
        self._choose_addresses(member)
        config = launch.node_config(
            member,
            self._members,
            self.settings,
            cluster=self._cluster,
            data=str(self._data.root),
            run=str(self._data.run),
            home_epoch=home_epoch,
            serve_fd=self._serve_fd,
            topology=topology,
        )
        name = member.name
        self._data.write(f"run/{name}.config.json", config)
        inherits = member.kind == self._members.url_kind
        spare = self.spare.take() if member.kind == COMPUTE and not inherits else None
        if spare is not None:
            # Its record is what it is known by: its command line says no name.
            self._data.clear(f"run/{name}.ready")
            self.follow(member, spare)
            self.remember(member)
            self.spare.begin(spare, name)
            return
        process = self._machine.spawn(
            launch.command(self._python, member, config_path(self._data, name)),
            output=self._data.run / f"{name}.ready",
            errors=self._data.logs / f"{name}.log",
            inherit=(self._serve_fd,) if inherits else (),
            environment=launch.ENVIRONMENT,
        )
        self.follow(member, process)
        self.remember(member)

    def follow(self, member: Member, process: ProcessId) -> None:
        """Watch a process and keep a line to it."""
        name = member.name
        member.pid = process.pid
        link = self.links[name] = Link(
            name,
            process,
            member.address,
            world=self._world,
            data=self._data,
            cluster=self._cluster,
            config=self._config,
            emit=self._emit,
        )

        def ended(code: int | None) -> None:
            link.close()
            if self.links.get(name) is link:
                del self.links[name]
                self.bury(member)
                self._emit(Ended(name, code))
                self.remember(member)

        self._machine.watch(process, ended)
        self._spawn(link.run(), f"link {name}")

    def bury(self, member: Member) -> None:
        """Remove what a dead memory node left. Nobody may go on reading a dead home's cell."""
        if member.kind != MEMORY:
            return
        names = shared_memory_names(self._cluster, member.name)
        for region in names:
            if region.endswith("cells"):
                clear_words(region, FIRST_ADMISSION_WORD)
        remove_shared_memory(names)

    def learn_addresses(self, member: Member) -> None:
        """Take the addresses that the node's READY line said."""
        link = self.links.get(member.name)
        if link is not None:
            member.address = link.address
            member.sql = str(link.ready.get("sql", member.sql))

    def remember(self, member: Member) -> None:
        """Write a member's record; a little later if there is no room on the disk now."""
        self._unwritten[member.name] = member
        self.write_records()

    def write_records(self) -> None:
        """Write the records that were not written yet."""
        for name, member in list(self._unwritten.items()):
            try:
                self._write_record(member)
            except OSError as error:
                log.warning("the record of %s was not written: %s", name, error)
                return
            del self._unwritten[name]

    def _write_record(self, member: Member) -> None:
        link = self.links.get(member.name)
        process = link.process if link else ProcessId(0, 0)
        self._data.write_record(
            RunRecord(
                member.name, member.role, process.pid, process.start, member.address, member.sql,
                member.epoch, member.state,
            )
        )  # fmt: skip

    def signal(self, name: str, number: int) -> None:
        """Signal a member's process, if there is one."""
        if name in self.links:
            self._machine.signal(self.links[name].process, number)

    def stop_all(self) -> list[str]:
        """End all in good order, tier by tier; the names of those that had to be killed. Blocks."""
        processes = {
            name: (link.process, self._members[name].kind) for name, link in self.links.items()
        }
        return stop_tiers(self._machine, self._data, self._cluster, processes, self._config)

    def close(self) -> None:
        """Let go of all; they go on."""
        self.spare.close()
        for link in self.links.values():
            link.close()

    def _choose_addresses(self, member: Member) -> None:
        wanted = 2 if member.kind in (COMPUTE, PROXY) else 1
        chosen = self.ports.get(member.name, [])
        if len(chosen) != wanted or not all(self._machine.is_free(port) for port in chosen):
            taken = {port for ports in self.ports.values() for port in ports}
            chosen = self.ports[member.name] = []
            for _ in range(wanted):
                chosen.append(self._machine.free_port(taken))
                taken.add(chosen[-1])
        member.address = f"{HOST}:{chosen[0]}"
        member.sql = f"{HOST}:{chosen[1]}" if wanted == 2 else ""


def adopt(
    data: DataDirectory, machine: Machine, members: Membership, now: float
) -> dict[str, ProcessId]:
    """Take over what runs already into ``members``; its processes."""
    alive = running(data, machine)
    counts = {kind: len(members.of_kind(kind)) for kind in (COMPUTE, MEMORY)}
    records = {record.name: record for record in data.records() if record.role in KINDS}
    for name, (_, kind) in alive.items():
        member = members[name] if name in members else members.add(name, PLAIN[kind])
        config = data.read(f"run/{name}.config.json")
        member.address = f"{HOST}:{config.get('port', 0)}"
        member.state = STARTING
        member.since = member.answered_at = now
        if name in records:
            record = records[name]
            member.address = record.address or member.address
            member.sql, member.epoch = record.sql, record.epoch
    # Roles as they were last known; settling corrects them by what the nodes say.
    for role in ("rw", "home"):
        holders = [record.name for record in records.values() if record.role == role]
        if alive and len(holders) == 1 and holders[0] in members:
            for member in members.of_role(role):
                member.role = PLAIN[member.kind]
            members[holders[0]].role = role
    # Scaling leaves gaps in the numbers: what runs under a higher one stands for one that does not.
    for kind, count in counts.items():
        spare = [m.name for m in members.of_kind(kind) if m.name not in alive]
        for name in spare[: max(0, len(members.of_kind(kind)) - count)]:
            if members[name].role == PLAIN[kind]:
                del members.members[name]
    return {name: process for name, (process, _) in alive.items()}


PLAIN: Final = {COMPUTE: "ro", MEMORY: "memory", STORAGE: "storage", PROXY: "proxy"}
