"""What goes wrong in a seed: which faults, how many, how close together.

Each seed uses some kinds of faults only: with all of them in every seed the frequent ones hide the
rare ones. Each is a coroutine that begins a fault, waits, and ends it if it does not end itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from polarless.kernel import failpoints
from tests.sim import disk_faults, operations
from tests.sim.cluster import SimCluster
from tests.sim.loop import PROCESS, Killed
from tests.sim.outcome import Outcome

FAULTS_MAX: Final = 6
# A reader that does not acknowledge is expelled well before.
EXPELLED_S: Final = 2.0
# A fault is long, and clients are slower meanwhile, by so much.
LONG_S: Final = 1.0
SLOW_PACE: Final = 10.0
# Somebody who is a reader or the writer, the home or another memory node, storage.
NODES: Final = ("rw", "ro", "home", "memory", "storage", "proxy")
# Who talks to whom.
PAIRS: Final = (
    ("rw", "storage"), ("rw", "storage"), ("rw", "home"), ("ro", "home"), ("ro", "storage"),
    ("proxy", "rw"), ("proxy", "ro"), ("home", "memory"), ("rw", "memory"),
)  # fmt: skip
POINTS: Final = (
    "commit.before_append", "commit.after_durable", "commit.before_advance",
    "commit.after_advance", "takeover.before_fence", "takeover.after_fence",
    "takeover.before_advance", "storage.before_write", "storage.before_sync", "storage.after_sync",
    "storage.before_fence", "storage.after_fence", "storage.before_fold_commit",
    "storage.after_fold_commit",
)  # fmt: skip


class Chaos:
    """See the module."""

    def __init__(self, cluster: SimCluster, outcome: Outcome, rng: random.Random) -> None:
        self.cluster = cluster
        self.outcome = outcome
        self.rng = rng
        self.count = rng.randrange(2, FAULTS_MAX + 1)
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.kill, self.kill, self.stop, self.slow, self.partition, self.tear, self.failpoint,
            self.late_append, self.late_append, self.all_of_a_kind, self.wall_jumps,
            self.unheard_expulsion, self.unheard_expulsion,
            *(partial(fault, self) for fault in (
                disk_faults.sync_fails, disk_faults.sync_is_slow, disk_faults.write_is_torn,
                disk_faults.full, operations.switch, operations.scale, operations.restart,
                operations.control_dies,
            )),
        ]  # fmt: skip
        self.kinds = rng.sample(kinds, rng.randrange(2, 6))
        # How many pairs of processes are far apart, and what that means for storage.
        cluster.network.far = rng.choice((0.0, 0.0, 0.15, 0.4))

    async def run(self) -> None:
        """Some faults, one after the other, with time between them or none."""
        for _ in range(self.count):
            await asyncio.sleep(self.rng.choice((0.0, 0.02, 0.3)))
            await self.rng.choice(self.kinds)()
            if self.rng.random() < 0.6:
                await self.cluster.until_serving(30.0)
        failpoints.disarm()
        disk_faults.end(self)

    async def wait(self, seconds: float) -> None:
        """A fault goes on. What clients do late in a long one shows little, and costs most."""
        if seconds < LONG_S:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(LONG_S / 2)
        self.outcome.pace = SLOW_PACE
        await asyncio.sleep(seconds - LONG_S * 0.75)
        self.outcome.pace = 1.0
        await asyncio.sleep(LONG_S / 4)

    def someone(self, *roles: str) -> str | None:
        """A node that has one of these roles now."""
        role = self.rng.choice(roles or NODES[:5])
        members = self.cluster.core.members.members.values()
        names = sorted(m.name for m in members if m.role == role)
        return self.rng.choice(names) if names else None

    def say(self, text: str) -> None:
        self.cluster.say(f"fault: {text}")

    async def kill(self) -> None:
        """``kill -9``, perhaps just when it has sent something."""
        name = self.someone("rw", "rw", "ro", "home", "memory", "storage")
        if name:
            self.cluster.kill(name)

    async def late_append(self) -> None:
        """The writer is killed, and its last appends reach storage when there is another one."""
        writer, storage = self.someone("rw"), self.someone("storage")
        if not writer or not storage:
            return
        self.say(f"what {writer} sends to {storage} is held up")
        network = self.cluster.network
        network.cut(writer, storage, both=False)
        await asyncio.sleep(0.003)
        self.cluster.kill(writer)
        await asyncio.sleep(self.rng.uniform(0.001, 0.006))
        network.mend()

    async def unheard_expulsion(self) -> None:
        """A reader hears nothing of the home, not even that it is expelled; and the home dies."""
        reader, home = self.someone("ro"), self.someone("home")
        if not reader or not home:
            return
        self.say(f"{reader} hears nothing of {home}, which dies")
        self.cluster.network.cut(home, reader, both=False)
        await asyncio.sleep(self.rng.uniform(0.4, 0.8))
        self.cluster.kill(home)
        self.cluster.network.mend()

    async def stop(self) -> None:
        """SIGSTOP, for shorter or longer than every time-out, and SIGCONT."""
        role = self.rng.choice(("rw", "rw", "ro", "storage"))
        process = self.cluster.processes.get(self.someone(role) or "")
        if process is None:
            return
        calm = self.cluster.serves() and not failpoints.armed()
        seconds = self.rng.choice((0.05, 0.2, 2.5, 4.0))
        self.say(f"SIGSTOP {process.name} for {seconds} s")
        process.stopped = True
        if role == "ro" and calm and seconds > EXPELLED_S:
            # It is expelled, and nobody waits for it any longer.
            await self.wait(EXPELLED_S)
            seconds -= EXPELLED_S
            before = self.outcome.commits + self.outcome.transfers
            await asyncio.sleep(seconds)
            after = self.outcome.commits + self.outcome.transfers
            assert after > before, f"all wait for {process.name}, which is stopped"
        else:
            await self.wait(seconds)
        process.go_on(self.cluster.loop)

    async def slow(self) -> None:
        """Everything takes longer."""
        self.say("a slow network")
        self.cluster.network.slow_s = self.rng.choice((0.0005, 0.002))
        await asyncio.sleep(0.2)
        self.cluster.network.slow_s = 0.0

    async def partition(self) -> None:
        """Two processes do not hear of each other, or one not of the other."""
        pair = self.rng.choice(PAIRS)
        one, other = [self.someone(role) for role in self.rng.sample(pair, 2)]
        if not one or not other or one == other:
            return
        both = self.rng.random() < 0.5
        seconds = self.rng.choice((0.01, 0.1, 1.0, 3.0))
        self.say(f"a cut from {one} to {other}{' and back' if both else ''} for {seconds} s")
        self.cluster.network.cut(one, other, both=both)
        await self.wait(seconds)
        self.cluster.network.mend()

    async def tear(self) -> None:
        """A connection between living processes is lost at any byte."""
        ends = self.cluster.network.between_processes()
        if ends:
            end = self.rng.choice(ends)
            assert end.peer is not None
            self.say(f"the connection of {end.name} to {end.peer.name} is lost")
            end.tear()

    async def failpoint(self) -> None:
        """A process is killed at a place in the code, the next time or some times later."""
        name, passes = self.rng.choice(POINTS), self.rng.choice((0, 0, 1, 5, 20))
        self.say(f"{name} kills, after {passes} times")

        def killed() -> None:
            process = PROCESS.get()
            failpoints.disarm(name)
            if process is not None and process.alive:
                self.cluster.kill(process.name)
                raise Killed

        failpoints.arm(name, killed, passes=passes)
        await asyncio.sleep(0.3)

    async def all_of_a_kind(self) -> None:
        """Compute, or the whole pool, at once."""
        kind = self.rng.choice(("compute", "memory", "all"))
        self.say(f"kill -9 of {kind}")
        for member in list(self.cluster.core.members.members.values()):
            if kind in (member.kind, "all") and member.kind != "proxy":
                self.cluster.kill(member.name)

    async def wall_jumps(self) -> None:
        """The wall clock is set."""
        jump_s = self.rng.choice((-3600, -1, 1, 86_400))
        self.say(f"the wall clock jumps by {jump_s} s")
        clock: Any = self.cluster.world.clock
        clock.jump_us += jump_s * 1_000_000
