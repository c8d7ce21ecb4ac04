"""What control decides when a memory node goes, above all the home."""

from __future__ import annotations

from polarless.control.decisions import (
    Attach,
    Detach,
    HomeRefused,
    HomeTaken,
    Kill,
    Promote,
    Promoted,
    Start,
    TakeHome,
    TellHome,
    Told,
)
from tests.unit.control.fakes import Fake, names, only


def attached(fake: Fake) -> Fake:
    fake.step(Told("memory-2", "attach", fake.core.home_epoch))
    fake.effects.clear()
    return fake


def test_memory_nodes_are_attached_once_the_home_serves() -> None:
    fake = Fake(memory=3)
    fake.up()
    assert sorted(fake.core.asked) == [("memory-2", "attach"), ("memory-3", "attach")]


def test_attaching_that_failed_is_tried_again() -> None:
    fake = Fake().up()
    effects = fake.step(Told("memory-2", "attach", 1, "no"))
    assert only(effects, Attach) == [Attach("memory-2", 1)]


def test_lost_memory_node_is_detached_started_and_attached_again() -> None:
    fake = attached(Fake().up())
    effects = fake.kill("memory-2")
    assert names(effects) == ["Detach memory-2", "Start memory-2"]
    assert only(effects, Detach)
    assert only(fake.ready("memory-2"), Attach) == [Attach("memory-2", 1)]


def test_lost_home_is_followed_by_another_memory_node_and_all_are_told() -> None:
    fake = attached(Fake().up())
    effects = fake.kill("memory-1")
    assert names(effects) == ["Save", "TakeHome memory-2", "Start memory-1"]
    assert only(effects, TakeHome)[0] == TakeHome("memory-2", 2, "memory-1")
    effects = fake.step(HomeTaken("memory-2", 2, {}))
    assert [tell.name for tell in only(effects, TellHome)] == [
        "compute-1", "compute-2", "compute-3",
    ]  # fmt: skip
    assert fake.members["memory-1"].role == "memory"
    assert only(fake.ready("memory-1"), Attach) == [Attach("memory-1", 2)]
    # Told once, not again.
    for name in ("compute-1", "compute-2", "compute-3"):
        fake.step(Told(name, "home", 2))
    assert not only(fake.tick(1.0), TellHome)


def test_hung_home_is_dead_before_another_takes_over() -> None:
    fake = attached(Fake().up())
    for _ in range(16):
        effects = fake.tick(0.1, silent=("memory-1",))
        kill = next((i for i, e in enumerate(effects) if e == Kill("memory-1")), None)
        take = next((i for i, e in enumerate(effects) if isinstance(e, TakeHome)), None)
        assert take is None or (kill is not None and kill < take)
    assert fake.core.taking_home is not None


def test_last_memory_node_comes_back_as_the_home() -> None:
    fake = attached(Fake().up())
    fake.kill("memory-2")
    effects = fake.kill("memory-1")
    assert "TakeHome memory-2" not in names(effects)
    assert Start("memory-1") in effects
    assert fake.members["memory-1"].role == "home"
    assert fake.core.home_epoch == 2
    effects = fake.ready("memory-1")
    assert len(only(effects, TellHome)) == 3


def test_writer_and_home_lost_together_the_home_comes_first() -> None:
    fake = attached(Fake().up())
    fake.kill("memory-1")
    effects = fake.kill("compute-1")
    assert not only(effects, Promote)
    effects = fake.step(HomeTaken("memory-2", 2, {}))
    assert names(effects)[:2] == ["Save", "Promote compute-2"]
    # The others are told as well, and the new writer too.
    assert len(only(fake.effects, TellHome)) == 2
    fake.step(Promoted("compute-2", 2, {}))
    assert fake.members["compute-1"].state == "starting"
    assert fake.members["compute-1"].home_epoch == 2


def test_memory_node_that_cannot_be_home_is_killed_and_the_next_one_asked() -> None:
    fake = Fake(memory=3).up()
    fake.kill("memory-1")
    effects = fake.step(HomeRefused("memory-2", 2, "no"))
    assert Kill("memory-2") in effects
    effects = fake.kill("memory-2")
    assert [take.name for take in only(effects, TakeHome)] == ["memory-3"]


def test_compute_started_with_the_address_of_an_old_home_is_started_again() -> None:
    fake = attached(Fake().up())
    fake.kill("compute-3")
    assert fake.members["compute-3"].state == "starting"
    fake.kill("memory-1")
    effects = fake.step(HomeTaken("memory-2", 2, {}))
    assert Kill("compute-3") in effects


def test_compute_is_not_started_while_the_home_changes() -> None:
    fake = attached(Fake().up())
    fake.kill("memory-1")
    assert not only(fake.kill("compute-3"), Start)
    effects = fake.step(HomeTaken("memory-2", 2, {}))
    assert Start("compute-3") in effects
