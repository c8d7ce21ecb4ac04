"""Readers, memory nodes and the pool by number; sleep and waking; restarts in turn."""

from __future__ import annotations

import pytest

from polarless.control.decisions import (
    Attach,
    Begin,
    Detach,
    Effect,
    HomeTaken,
    Lend,
    Lent,
    Promote,
    Promoted,
    Renew,
    RestartAsked,
    ScaleAsked,
    SleepAsked,
    Start,
    Stop,
    TakeHome,
    TellHome,
    Told,
    Wanted,
)
from polarless.control.elastic import all_well
from polarless.control.membership import initial_members
from tests.unit.control.fakes import Fake, names, only, records


def scaled(fake: Fake, **wanted: int) -> list[Effect]:
    return fake.step(ScaleAsked(**wanted))


def pooled(*, ro: int = 2, memory: int = 2, pool_mb: int = 256) -> Fake:
    """A cluster that knows how large its pool is."""
    fake = Fake(ro=ro, memory=memory)
    fake.core.pool_mb = pool_mb
    obey(fake, fake.step(Begin(adopted=False)))
    return fake


def obey(fake: Fake, effects: list[Effect]) -> list[Effect]:
    """Answer calls with success, and what follows from that."""
    found: list[Effect] = []
    while effects:
        answers: list[Effect] = []
        for effect in effects:
            match effect:
                case Attach(name, home_epoch):
                    answers += fake.step(Told(name, "attach", home_epoch))
                case TellHome(name, home_epoch):
                    answers += fake.step(Told(name, "home", home_epoch))
                case Lend(name, memory_mb):
                    answers += fake.step(Lent(name, memory_mb))
                case Start(name):
                    answers += fake.ready(name)
                case Stop(name):
                    answers += fake.kill(name, 0)
                case TakeHome(name, home_epoch):
                    answers += fake.step(HomeTaken(name, home_epoch, {}))
                case Promote(name, epoch):
                    answers += fake.step(Promoted(name, epoch, {}))
        found += answers
        effects = answers
    return found


def test_one_more_reader_is_started_under_a_free_name() -> None:
    fake = Fake(ro=1).up()
    assert names(scaled(fake, ro=2)) == ["Start compute-3"]
    assert fake.members["compute-3"].role == "ro"


def test_a_reader_that_leaves_gets_time_for_what_it_runs_and_is_forgotten() -> None:
    fake = Fake(ro=2).up()
    effects = scaled(fake, ro=1)
    assert [record.node for record in records(effects, "leaves")] == ["compute-3"]
    assert not only(effects, Stop)
    effects = fake.tick(1.2)
    assert only(effects, Stop) == [Stop("compute-3")]
    fake.kill("compute-3", 0)
    assert "compute-3" not in fake.members
    assert not only(fake.tick(1.0), Start)


def test_a_reader_that_was_promoted_while_it_left_stays() -> None:
    fake = Fake(ro=1).up()
    scaled(fake, ro=0)
    (promote,) = only(fake.kill("compute-1"), Promote)
    effects = fake.step(Promoted(promote.name, promote.epoch, {}))
    effects += fake.tick(3.0)
    assert fake.members.writer() is fake.members["compute-2"]
    assert not only(effects, Stop)


def test_sleep_stops_all_compute_and_a_client_wakes_the_writer_first() -> None:
    fake = Fake(ro=2).up()
    assert len(only(fake.step(SleepAsked()), Stop)) == 3
    for number in (1, 2, 3):
        assert not only(fake.kill(f"compute-{number}", 0), Start)
    assert not only(fake.tick(5.0), Start)
    (started,) = only(fake.step(Wanted("proxy-1")), Start)
    writer = fake.members.writer()
    assert writer is not None
    assert started.name == writer.name
    effects = fake.ready(writer.name)
    assert records(effects, "awake")
    assert len(only(effects, Start)) == 2


@pytest.mark.parametrize(("sessions", "sleeps"), [(0, True), (1, False)])
def test_nobody_there_for_long_enough_is_what_sleep_waits_for(sessions: int, sleeps: bool) -> None:
    fake = Fake(members=initial_members(compute_count=2, memory_node_count=2, proxy_count=1))
    fake.core.idle_timeout_s = 2.0
    fake.up()
    fake.tick()
    fake.pong("proxy-1", sessions=sessions)
    effects = fake.tick(1.5)
    assert not fake.core.asleep
    effects = fake.tick(1.0)
    assert fake.core.asleep is sleeps
    assert bool(only(effects, Stop)) is sleeps


def test_rolling_restart_takes_one_at_a_time_and_the_writer_last_by_a_switch() -> None:
    fake = pooled()
    fake.effects.clear()
    effects = fake.step(RestartAsked())
    for _ in range(20):
        assert len(only(effects, Stop)) <= 1
        obey(fake, effects)
        effects = fake.tick()
    assert not fake.core.rolling
    assert all_well(fake.core)
    order = [stop.name for stop in only(fake.effects, Stop)]
    assert order == ["compute-2", "compute-3", "compute-1", "memory-2", "memory-1", "storage"]


def test_a_proxy_is_asked_to_replace_itself_and_waited_for() -> None:
    fake = Fake(members=initial_members(compute_count=2, memory_node_count=2, proxy_count=1))
    obey(fake, fake.step(Begin(adopted=False)))
    fake.tick()
    effects = fake.step(RestartAsked("proxy"))
    assert only(effects, Renew) == [Renew("proxy-1")]
    assert not only(effects, Stop)
    assert not all_well(fake.core)
    fake.tick(1.0)
    assert not all_well(fake.core)
    assert records(fake.pong("proxy-1", generation=1), "renewed")
    assert all_well(fake.core)


def test_a_proxy_that_does_not_replace_itself_is_left_as_it_is() -> None:
    fake = Fake(members=initial_members(compute_count=2, memory_node_count=2, proxy_count=1))
    obey(fake, fake.step(Begin(adopted=False)))
    fake.tick()
    fake.step(RestartAsked("proxy"))
    assert records(fake.tick(16.0), "kept")
    assert all_well(fake.core)


# Memory.


def test_a_larger_pool_is_lent_in_equal_shares() -> None:
    fake = pooled()
    effects = scaled(fake, pool_mb=512)
    assert only(effects, Lend) == [Lend("memory-1", 256), Lend("memory-2", 256)]
    obey(fake, effects)
    assert not only(fake.tick(2.0), Lend)


def test_one_more_memory_node_is_started_attached_and_the_shares_are_smaller() -> None:
    fake = pooled(pool_mb=300)
    effects = scaled(fake, memory_nodes=3)
    assert only(effects, Start) == [Start("memory-3")]
    # It is started with its share; the others give theirs at once.
    assert only(effects, Lend) == [Lend("memory-1", 100), Lend("memory-2", 100)]
    assert only(obey(fake, effects), Attach) == [Attach("memory-3", 1)]
    assert not only(fake.tick(2.0), Lend)


def test_a_memory_node_that_leaves_is_empty_first_and_never_the_home() -> None:
    fake = pooled(memory=3, pool_mb=300)
    effects = scaled(fake, memory_nodes=2)
    assert only(effects, Lend) == [
        Lend("memory-1", 150), Lend("memory-2", 150), Lend("memory-3", 0),
    ]  # fmt: skip
    assert not only(effects, Stop)
    effects = fake.step(Lent("memory-3", 0))
    effects += fake.tick()
    assert only(effects, Detach) == [Detach("memory-3")]
    assert only(effects, Stop) == [Stop("memory-3")]
    assert not only(fake.kill("memory-3", 0), Start)
    assert "memory-3" not in fake.members


def test_a_memory_node_that_leaves_stays_if_it_had_to_become_the_home() -> None:
    fake = pooled(memory=3, pool_mb=300)
    scaled(fake, memory_nodes=2)
    effects = fake.kill("memory-1")
    while (home := only(effects, TakeHome)) and home[0].name != "memory-3":
        fake.kill("memory-1") if fake.members["memory-1"].has_process else None
        effects = fake.kill(home[0].name)
    obey(fake, fake.effects[-20:])
    for _ in range(60):
        obey(fake, fake.tick())
    home_now = fake.members.home()
    assert home_now is not None
    assert home_now.state == "serving"
    assert len(fake.members.of_kind("memory")) == 2
    assert {fake.core.lent[m.name] for m in fake.members.of_kind("memory")} == {150}


def test_a_refused_share_is_asked_for_again_after_a_while() -> None:
    fake = pooled()
    scaled(fake, pool_mb=512)
    fake.step(Lent("memory-2", 256))
    effects = fake.step(Lent("memory-1", 256, "no room"))
    assert records(effects, "lend-refused")
    assert not only(effects, Lend)
    assert only(fake.tick(1.2), Lend) == [Lend("memory-1", 256)]


def test_a_new_home_is_asked_for_what_the_old_one_did_not_finish() -> None:
    fake = pooled(memory=3, pool_mb=300)
    scaled(fake, pool_mb=600)
    effects = fake.kill("memory-1")
    for name in ("memory-1", "memory-2", "memory-3"):
        effects += fake.step(Lent(name, 200, "the home is gone"))
    found = obey(fake, effects)
    for _ in range(20):
        found += obey(fake, fake.tick())
    assert {fake.core.lent[m.name] for m in fake.members.of_kind("memory")} == {200}


def test_whoever_leaves_is_not_restarted() -> None:
    fake = pooled(ro=2)
    assert only(fake.step(RestartAsked("ro")), Stop) == [Stop("compute-2")]
    effects = scaled(fake, ro=0)
    effects += fake.kill("compute-2", 0)
    effects += fake.tick(0.2)
    # Its turn would come now. It is being drained, and that is not cut short.
    assert not records(effects, "restart")
    assert not fake.core.rolling
    assert not only(effects, Stop)
