"""A cluster of no processes: obeys the core's effects at once, as far as a test lets it."""

from __future__ import annotations

from typing import Any, TypeVar

from polarless.config import ControlConfig
from polarless.control.decisions import (
    Begin,
    Effect,
    Ended,
    Event,
    Kill,
    Pong,
    Ready,
    Record,
    Start,
    Tick,
)
from polarless.control.failover import Failover
from polarless.control.membership import Membership, initial_members

E = TypeVar("E")


class Fake:
    """Drives a `Failover` and keeps what it asked for. ``now`` moves only by `tick`."""

    def __init__(
        self,
        *,
        ro: int = 2,
        memory: int = 2,
        members: Membership | None = None,
        epoch: int = 0,
        home_epoch: int = 0,
    ) -> None:
        self.members = members or initial_members(compute_count=1 + ro, memory_node_count=memory)
        self.config = ControlConfig()
        self.core = Failover(self.members, self.config, epoch=epoch, home_epoch=home_epoch)
        self.now = 100.0
        self.effects: list[Effect] = []
        self.silent: set[str] = set()

    def step(self, event: Event) -> list[Effect]:
        """One event; what it led to."""
        found = self.core.step(event, self.now)
        self.effects += found
        return found

    def up(self) -> Fake:
        """Start everything and let everybody be ready."""
        for effect in self.step(Begin(adopted=False)):
            if isinstance(effect, Start):
                self.ready(effect.name)
        self.effects.clear()
        return self

    def ready(self, name: str, **fields: Any) -> list[Effect]:
        """The node answers for the first time."""
        return self.step(Ready(name, {"state": "serving", **fields}))

    def pong(self, name: str, **fields: Any) -> list[Effect]:
        return self.step(Pong(name, {"state": "serving", **fields}))

    def kill(self, name: str, code: int = -9) -> list[Effect]:
        return self.step(Ended(name, code))

    def tick(self, seconds: float = 0.1, *, silent: tuple[str, ...] = ()) -> list[Effect]:
        """Let time pass in steps of 0.1 s; all but ``silent`` answer. Killed ones end."""
        found: list[Effect] = []
        for _ in range(max(1, round(seconds / 0.1))):
            self.now += 0.1
            for member in list(self.members.members.values()):
                if member.has_process and member.name not in silent and member.state != "starting":
                    found += self.step(Pong(member.name, dict(member.fields)))
            found += self.step(Tick())
            for effect in list(found):
                if isinstance(effect, Kill) and self.members[effect.name].has_process:
                    found += self.kill(effect.name)
        return found


def only(effects: list[Effect], kind: type[E]) -> list[E]:
    """Those of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def records(effects: list[Effect], event: str) -> list[Record]:
    """The records of one event."""
    return [effect for effect in only(effects, Record) if effect.event == event]


def names(effects: list[Effect]) -> list[str]:
    """Kind and node of each effect that is no record."""
    return [
        f"{type(effect).__name__} {getattr(effect, 'name', '')}".strip()
        for effect in effects
        if not isinstance(effect, Record)
    ]
