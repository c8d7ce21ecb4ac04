"""Looks at the cluster once a second and does what `autoscale` decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polarless.control.autoscale import Autoscale, Policy, Sample
from polarless.control.calls import SMALL_CALL_S, Calls
from polarless.control.crew import Crew
from polarless.control.decisions import Record
from polarless.control.failover import Failover
from polarless.control.membership import SERVING
from polarless.errors import PolarlessError
from polarless.kernel.world import Clock
from polarless.net.processes import Machine
from polarless.wire.control import COMPUTE, CONTROL, PROXY, RO

EVERY_S: Final = 1.0


class Scaler:
    """``apply`` takes the new numbers, ``note`` the reasons."""

    def __init__(
        self,
        core: Failover,
        crew: Crew,
        calls: Calls,
        machine: Machine,
        clock: Clock,
        *,
        apply: Callable[[dict[str, int]], None],
        note: Callable[[Record], None],
    ) -> None:
        self.autoscale: Autoscale | None = None
        self._core = core
        self._crew = crew
        self._calls = calls
        self._machine = machine
        self._clock = clock
        self._apply = apply
        self._note = note
        # Node -> (pid, processor seconds, when), as of the last look.
        self._cpu: dict[str, tuple[int, float, float]] = {}
        self._counted = (0, 0)

    def use(self, policy: Policy | None) -> None:
        """Decide by this policy from now on; None: not at all."""
        self.autoscale = None if policy is None else Autoscale(policy)

    def status(self) -> dict[str, Any]:
        """The policy, and what was seen last."""
        return {"on": False} if self.autoscale is None else {"on": True, **self.autoscale.status()}

    async def run(self) -> None:
        """Look and decide until cancelled."""
        while True:
            await self._clock.sleep(EVERY_S)
            core, autoscale = self._core, self.autoscale
            if autoscale is None or core.asleep or core.stopping or core.loss is not None:
                continue
            sample = await self._sample()
            if sample is None or core.leaving or self.autoscale is not autoscale:
                continue
            for decision in autoscale.step(sample, self._clock.now()):
                key = "ro_count" if decision.what == "ro" else "pool_mb"
                self._note(
                    Record(
                        "autoscale",
                        CONTROL,
                        f"{decision.what} {decision.value}: {decision.reason}",
                        {"what": decision.what, "value": decision.value},
                    )
                )
                self._apply({key: decision.value})

    async def _sample(self) -> Sample | None:
        core = self._core
        home = core.members.home()
        if home is None:
            return None
        try:
            counters = await self._calls.call(home.name, "status", deadline_s=SMALL_CALL_S)
        except PolarlessError:
            return None  # It is on its way back, or another is; look again in a second.
        pool = counters.get("home") or {}
        counted = int(pool.get("registers", 0)), int(pool.get("ghost_hits", 0))
        before, self._counted = self._counted, counted
        if counted[0] < before[0]:
            before = (0, 0)  # Another home.
        slots = [states for node in pool.get("nodes", {}).values() for states in node.items()]
        total = sum(count for _, count in slots)
        free = sum(count for state, count in slots if state == "free")
        return Sample(
            ro=core.ro_wanted,
            pool_mb=core.pool_mb,
            busy=self._busy(),
            waiting=sum(
                int(member.fields.get("waiting", 0)) for member in core.members.of_kind(PROXY)
            ),
            lookups=counted[0] - before[0],
            ghost_hits=counted[1] - before[1],
            filled=1 - free / total if total else 0.0,
        )

    def _busy(self) -> float:
        """Processor share of those who read, in the mean."""
        now, shares = self._clock.now(), []
        computes = [m for m in self._core.members.of_kind(COMPUTE) if m.state == SERVING]
        readers = [member for member in computes if member.role == RO] or computes
        for member in readers:
            link = self._crew.links.get(member.name)
            if link is None:
                continue
            seconds = self._machine.cpu_seconds(link.process)
            pid, used, at = self._cpu.get(member.name, (0, 0.0, 0.0))
            self._cpu[member.name] = (member.pid, seconds, now)
            if pid == member.pid and now > at:
                shares.append((seconds - used) / (now - at))
        return sum(shares) / len(shares) if shares else 0.0
