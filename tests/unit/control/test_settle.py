"""How a control that was killed finds its way back."""

from __future__ import annotations

from typing import Any

from polarless.control.decisions import Begin, Promote, Ready, Start, TakeHome, TellFenced
from polarless.control.membership import STARTING, initial_members
from tests.unit.control.fakes import Fake, names, only


def back(*, dead: tuple[str, ...] = (), epoch: int = 4) -> Fake:
    """A control that begins over running nodes, those in ``dead`` excepted."""
    members = initial_members(compute_count=3, memory_node_count=2)
    fake = Fake(members=members, epoch=epoch, home_epoch=2)
    for member in members.members.values():
        if member.name not in dead:
            member.state = STARTING
            member.since = member.answered_at = fake.now
    assert not only(fake.step(Begin(adopted=True)), Start)
    return fake


def answer(fake: Fake, name: str, **fields: Any) -> None:
    fake.ready(name, home_epoch=2, **fields)


def test_running_nodes_are_left_alone() -> None:
    fake = back()
    answer(fake, "storage", epoch=5)
    answer(fake, "memory-1", role="memory")
    answer(fake, "memory-2", role="home")
    answer(fake, "compute-1", role="ro", epoch=4)
    answer(fake, "compute-2", role="rw", epoch=5)
    answer(fake, "compute-3", role="ro", epoch=5)
    effects = fake.tick(0.1)
    assert names(effects) == []
    assert fake.members["compute-2"].role == "rw"
    assert fake.members["compute-1"].role == "ro"
    home = fake.members.home()
    assert home is not None
    assert home.name == "memory-2"
    # An epoch above all that was seen comes next.
    assert fake.core.epoch == 5


def test_writer_that_died_meanwhile_is_replaced() -> None:
    fake = back(dead=("compute-1",))
    for name in ("storage", "memory-1", "memory-2", "compute-2", "compute-3"):
        answer(fake, name, role={"memory-1": "home"}.get(name, "ro"), epoch=4)
    effects = fake.tick(0.1)
    assert [(p.name, p.epoch) for p in only(effects, Promote)] == [("compute-2", 5)]


def test_home_that_died_meanwhile_is_replaced() -> None:
    fake = back(dead=("memory-1",))
    answer(fake, "memory-2", role="memory")
    answer(fake, "storage")
    answer(fake, "compute-1", role="rw", epoch=4)
    answer(fake, "compute-2", role="ro", epoch=4)
    answer(fake, "compute-3", role="ro", epoch=4)
    assert only(fake.tick(0.1), TakeHome) == [TakeHome("memory-2", 3, "memory-1")]


def test_of_two_that_say_they_write_the_one_of_the_higher_epoch_does() -> None:
    fake = back()
    answer(fake, "storage")
    answer(fake, "memory-1", role="home")
    answer(fake, "memory-2", role="memory")
    answer(fake, "compute-1", role="rw", epoch=4)
    answer(fake, "compute-2", role="rw", epoch=5)
    answer(fake, "compute-3", role="ro", epoch=4)
    effects = fake.tick(0.2)
    writer = fake.members.writer()
    assert writer is not None
    assert writer.name == "compute-2"
    assert not only(effects, Promote)
    assert only(effects, TellFenced) == [TellFenced("compute-1", 5)]


def test_promotion_under_way_is_waited_for() -> None:
    fake = back(dead=("compute-1",))
    for name in ("storage", "memory-1", "memory-2", "compute-3"):
        answer(fake, name, role={"memory-1": "home"}.get(name, "ro"), epoch=4)
    fake.step(_promoting("compute-2"))
    assert not only(fake.tick(0.5), Promote)
    fake.pong("compute-2", role="rw", epoch=5, home_epoch=2)
    effects = fake.tick(0.1)
    assert not only(effects, Promote)
    assert fake.members["compute-2"].role == "rw"
    assert Start("compute-1") in effects


def test_writer_that_is_silent_is_superseded_after_the_wait() -> None:
    fake = back()
    for name in ("storage", "memory-1", "memory-2", "compute-2", "compute-3"):
        answer(fake, name, role={"memory-1": "home"}.get(name, "ro"), epoch=4)
    assert not only(fake.tick(1.0, silent=("compute-1",)), Promote)
    effects = fake.tick(1.2, silent=("compute-1",))
    assert [(p.name, p.epoch) for p in only(effects, Promote)] == [("compute-2", 5)]
    assert fake.members["compute-1"].state == "fenced"


def _promoting(name: str) -> Ready:
    return Ready(name, {"state": "promoting", "role": "ro", "epoch": 5, "home_epoch": 2})
