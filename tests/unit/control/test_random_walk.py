"""Nodes die, hang, wake and refuse in any order; afterwards the cluster serves again."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from polarless.control.decisions import (
    Attach,
    Begin,
    Detach,
    Effect,
    Ended,
    Event,
    HomeRefused,
    HomeTaken,
    Kill,
    Lend,
    Lent,
    Pong,
    Promote,
    Promoted,
    PromoteRefused,
    Ready,
    RestartAsked,
    Save,
    ScaleAsked,
    Start,
    Stop,
    SwitchAsked,
    TakeHome,
    TellFenced,
    TellHome,
    Tick,
    Told,
)
from polarless.control.membership import STARTING
from tests.unit.control.fakes import Fake


class Walk:
    """Processes as far as control can tell: alive, stopped or gone; answers come late, or never."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fake = Fake(ro=self.random.randint(0, 3), memory=self.random.randint(2, 3))
        self.fake.core.pool_mb = 120
        self.alive: set[str] = set()
        self.stopped: set[str] = set()
        self.pending: list[tuple[float, str, Event]] = []
        self.epochs: set[int] = set()
        self.saved = 0
        self.calm = False

    def later(self, name: str, event: Event, delay_s: float) -> None:
        self.pending.append((self.fake.now + delay_s, name, event))

    def step(self, event: Event) -> None:
        for effect in self.fake.step(event):
            self.obey(effect)
        core = self.fake.core
        # These assert that there is one of each at most.
        core.members.writer()
        core.members.home()
        if core.promotion is not None:
            assert core.taking_home is None or core.taking_home.name != core.promotion.name

    def new_epoch(self, epoch: int) -> None:
        assert epoch not in self.epochs, f"epoch {epoch} is used twice"
        assert epoch <= self.saved, f"epoch {epoch} is used before it was saved"
        self.epochs.add(epoch)

    def obey(self, effect: Effect) -> None:
        delay_s = self.random.choice([0.0, 0.01, 0.3])
        good = self.calm or self.random.random() < 0.7
        match effect:
            case Save(epoch):
                self.saved = max(self.saved, epoch)
            case Start(name):
                assert name not in self.alive, f"{name} is started twice"
                member = self.fake.members[name]
                if member.role == "rw":
                    self.new_epoch(member.epoch)
                self.alive.add(name)
                self.later(name, Ready(name, self.fields(name)), 0.3)
            case Kill(name) | Stop(name) | TellFenced(name):
                if isinstance(effect, Kill) or name not in self.stopped:
                    self.later(name, Ended(name, -9), delay_s)
            case Promote(name, epoch):
                self.new_epoch(epoch)
                done = Promoted(name, epoch, {})
                self.later(name, done if good else PromoteRefused(name, epoch, "no"), delay_s)
            case TakeHome(name, home_epoch, previous):
                assert previous is None or previous not in self.alive
                done_home = HomeTaken(name, home_epoch, {})
                refused = HomeRefused(name, home_epoch, "no")
                self.later(name, done_home if good else refused, delay_s)
            case TellHome(name, home_epoch):
                self.later(name, Told(name, "home", home_epoch, "" if good else "no"), delay_s)
            case Attach(name, home_epoch):
                self.later(name, Told(name, "attach", home_epoch, "" if good else "no"), delay_s)
            case Lend(name, memory_mb):
                lent = Lent(name, memory_mb, "" if good else "no")
                self.later(self.home_name(), lent, delay_s)
            case Detach(name):
                pass

    def home_name(self) -> str:
        """Who answers for a memory node; if it dies the call fails."""
        home = self.fake.members.home()
        assert home is not None
        return home.name

    def fields(self, name: str) -> dict[str, object]:
        member = self.fake.members[name]
        return {"role": member.role, "epoch": member.epoch, "mark": self.random.randint(0, 9)}

    def run(self, seconds: float) -> None:
        end = self.fake.now + seconds
        while self.fake.now < end:
            self.fake.now += 0.05
            due = [entry for entry in self.pending if entry[0] <= self.fake.now]
            self.pending = [entry for entry in self.pending if entry[0] > self.fake.now]
            for _, name, event in due:
                self.deliver(name, event)
            for name in sorted(self.alive - self.stopped):
                if self.fake.members[name].state != STARTING:
                    self.step(Pong(name, self.fields(name)))
            self.step(Tick())
            if not self.calm and self.random.random() < 0.05:
                self.harm()

    def deliver(self, name: str, event: Event) -> None:
        if isinstance(event, Ended):
            if name in self.alive:
                self.alive.discard(name)
                self.stopped.discard(name)
                lost = [e for _, n, e in self.pending if n == name and isinstance(e, Lent)]
                self.pending = [entry for entry in self.pending if entry[1] != name]
                self.step(event)
                for lent in lost:
                    self.step(Lent(lent.name, lent.memory_mb, "the connection is lost"))
        elif name in self.stopped:
            self.later(name, event, 0.2)
        elif name in self.alive:
            self.step(event)

    def harm(self) -> None:
        name = self.random.choice(sorted(self.fake.members.members))
        match self.random.choice(["kill", "kill", "stop", "wake", "switch", "scale", "rolling"]):
            case "kill":
                self.deliver(name, Ended(name, -9))
            case "stop" if name in self.alive:
                self.stopped.add(name)
            case "wake":
                self.stopped.clear()
            case "switch":
                self.step(SwitchAsked())
            case "scale":
                ro, memory = self.random.randint(0, 3), self.random.randint(2, 4)
                self.step(ScaleAsked(ro=ro, memory_nodes=memory))
            case "rolling":
                self.step(RestartAsked())


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_cluster_serves_again_whatever_happened(seed: int) -> None:
    walk = Walk(seed)
    walk.step(Begin(adopted=False))
    walk.run(20.0)
    walk.calm = True
    walk.stopped.clear()
    walk.run(45.0)
    core = walk.fake.core
    states = {name: (m.role, m.state) for name, m in core.members.members.items()}
    assert all(state == "serving" for _, state in states.values()), states
    assert core.loss is None
    assert core.promotion is None
    writer = core.members.writer()
    assert writer is not None
    assert len(core.members.of_kind("compute")) == 1 + core.ro_wanted
    memories = core.members.of_kind("memory")
    assert [core.lent[m.name] for m in memories] == [120 // len(memories)] * core.memory_wanted
    for member in core.members.of_kind("compute"):
        assert member.home_epoch == core.home_epoch
    for member in core.members.of_role("memory"):
        assert core.attached[member.name] == core.home_epoch
