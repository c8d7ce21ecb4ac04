"""What control decides when the writer goes, hangs or is asked to go."""

from __future__ import annotations

from polarless.control.decisions import (
    Begin,
    Ended,
    EpochSeen,
    Kill,
    LearnEpoch,
    Promote,
    Promoted,
    PromoteRefused,
    Save,
    Start,
    Stop,
    StopAsked,
    SwitchAsked,
    TellFenced,
    Tick,
)
from tests.unit.control.fakes import Fake, names, only, records


def test_everything_is_started_at_once_and_epochs_are_saved_first() -> None:
    fake = Fake(ro=1)
    effects = fake.step(Begin(adopted=False))
    assert names(effects) == [
        "Start storage", "Save", "Start memory-1", "Start memory-2", "Save",
        "Start compute-1", "Start compute-2",
    ]  # fmt: skip
    assert only(effects, Save)[-1] == Save(epoch=1, home_epoch=1)


def test_killed_writer_is_followed_by_the_reader_with_the_highest_mark() -> None:
    fake = Fake().up()
    fake.pong("compute-2", mark=10)
    fake.pong("compute-3", mark=11)
    effects = fake.kill("compute-1")
    # The epoch is saved before it is used, and nothing else is started meanwhile.
    assert names(effects) == ["Save", "Promote compute-3"]
    assert only(effects, Promote)[0].epoch == only(effects, Save)[0].epoch == 2
    effects = fake.step(Promoted("compute-3", 2, {"fence_ms": 1}))
    assert fake.members["compute-3"].role == "rw"
    assert fake.members["compute-1"].role == "ro"
    assert names(effects) == ["Start compute-1"]
    (record,) = records(effects, "failover")
    assert record.fields["previous"] == "compute-1"
    assert record.fields["steps"] == {"fence_ms": 1}


def test_reader_that_refuses_is_passed_over_for_the_next_one() -> None:
    fake = Fake().up()
    fake.kill("compute-1")
    effects = fake.step(PromoteRefused("compute-2", 2, "no"))
    assert [(p.name, p.epoch) for p in only(effects, Promote)] == [("compute-3", 3)]


def test_epoch_that_storage_has_seen_is_never_used_again() -> None:
    fake = Fake().up()
    fake.kill("compute-1")
    effects = fake.step(PromoteRefused("compute-2", 2, "fenced", seen_epoch=40))
    assert only(effects, Promote)[0].epoch == 41


def test_all_readers_refusing_are_asked_again_with_growing_pauses() -> None:
    fake = Fake().up()
    fake.kill("compute-1")
    asked = 0
    for _ in range(100):
        promotion = fake.core.promotion
        if promotion is not None:
            asked += 1
            fake.step(PromoteRefused(promotion.name, promotion.epoch, "no"))
        fake.tick(0.1)
    assert 5 <= asked <= 9, asked


def test_answer_of_an_older_promotion_changes_nothing() -> None:
    fake = Fake().up()
    fake.kill("compute-1")
    fake.step(PromoteRefused("compute-2", 2, "time-out"))
    fake.tick(0.1)
    fake.step(Promoted("compute-2", 2, {}))
    assert fake.members["compute-2"].role == "ro"
    fake.step(Promoted("compute-3", 3, {}))
    writer = fake.members.writer()
    assert writer is not None
    assert writer.name == "compute-3"


def test_reader_dying_on_its_way_to_be_the_writer_is_replaced() -> None:
    fake = Fake().up()
    fake.kill("compute-1")
    effects = fake.kill("compute-2")
    assert names(effects) == ["Save", "Promote compute-3"]


def test_reader_hanging_on_its_way_is_superseded() -> None:
    fake = Fake().up()
    fake.kill("compute-1")
    fake.tick(1.7, silent=("compute-2",))
    assert fake.core.promotion is not None
    assert fake.core.promotion.name == "compute-3"
    assert fake.members["compute-2"].state == "fenced"


def test_without_readers_the_writer_is_started_cold() -> None:
    fake = Fake(ro=0).up()
    effects = fake.kill("compute-1")
    assert names(effects) == ["Save", "Start compute-1"]
    assert fake.members["compute-1"].role == "rw"
    assert fake.members["compute-1"].epoch == 2
    assert len(records(fake.ready("compute-1"), "failover")) == 1


def test_a_writer_is_started_cold_when_readers_that_start_do_not_serve() -> None:
    # A new home admits them only behind a writer's first advance.
    fake = Fake(ro=2).up()
    started = [*fake.kill("compute-2"), *fake.kill("compute-3"), *fake.tick()]
    assert {e.name for e in started if isinstance(e, Start)} == {"compute-2", "compute-3"}
    fake.kill("compute-1")
    assert not [e for e in fake.tick(1.5) if isinstance(e, Start)]
    (start,) = [e for e in fake.tick(1.0) if isinstance(e, Start)]
    assert start.name == "compute-1"
    assert fake.members["compute-1"].role == "rw"


def test_hung_writer_that_does_not_wake_is_started_again_in_the_end() -> None:
    fake = Fake().up()
    fake.tick(1.7, silent=("compute-1",))
    fake.step(Promoted("compute-2", 2, {}))
    assert only(fake.tick(11.0, silent=("compute-1",)), Kill) == [Kill("compute-1")]
    assert fake.members["compute-1"].role == "ro"


def test_hung_writer_is_superseded_and_left_alone_until_it_wakes() -> None:
    fake = Fake().up()
    effects = fake.tick(1.7, silent=("compute-1",))
    assert [p.name for p in only(effects, Promote)] == ["compute-2"]
    assert not only(effects, Kill)
    fake.step(Promoted("compute-2", 2, {}))
    assert not only(fake.tick(8.0, silent=("compute-1",)), Kill)
    # It wakes: it is told, and killed if it stays.
    effects = fake.pong("compute-1", role="rw", epoch=1)
    assert only(effects, TellFenced) == [TellFenced("compute-1", 2)]
    assert fake.members["compute-1"].role == "ro"
    assert only(fake.tick(2.2), Kill) == [Kill("compute-1")]
    assert fake.members["compute-1"].state in ("ended", "starting")


def test_writer_that_is_silent_for_a_second_is_not_replaced() -> None:
    fake = Fake().up()
    assert not only(fake.tick(1.4, silent=("compute-1",)), Promote)
    fake.tick(0.1)
    assert not only(fake.tick(1.4, silent=("compute-1",)), Promote)


def test_long_pause_of_control_itself_causes_no_failover() -> None:
    fake = Fake().up()
    fake.now += 60.0
    effects = fake.step(Tick(paused_s=59.9))
    assert not only(effects, Promote)
    assert not records(effects, "hung")


def test_hung_writer_without_reader_is_killed_and_started_cold() -> None:
    fake = Fake(ro=0).up()
    effects = fake.tick(7.0, silent=("compute-1",))
    assert Kill("compute-1") in effects
    assert Start("compute-1") in effects
    assert fake.members["compute-1"].role == "rw"


def test_old_writer_leaving_because_it_was_fenced_comes_back_as_a_reader() -> None:
    fake = Fake().up()
    fake.tick(1.7, silent=("compute-1",))
    fake.step(Promoted("compute-2", 2, {}))
    effects = fake.kill("compute-1", code=3)
    assert Start("compute-1") in effects
    assert fake.members["compute-1"].role == "ro"


def test_writer_fenced_at_its_start_makes_control_learn_the_epoch() -> None:
    fake = Fake(ro=0)
    fake.step(Begin(adopted=False))
    fake.ready("memory-1")
    effects = fake.step(Ended("compute-1", 3))
    assert only(effects, LearnEpoch)
    fake.step(EpochSeen(17))
    fake.tick(0.1)
    fake.kill("compute-1")
    fake.tick(1.0)
    assert fake.members["compute-1"].epoch > 17


def test_switch_stops_the_old_writer_first_and_takes_the_named_reader() -> None:
    fake = Fake().up()
    assert fake.core.switch_refusal("compute-3") is None
    effects = fake.step(SwitchAsked("compute-3"))
    assert only(effects, Stop) == [Stop("compute-1")]
    assert not only(effects, Promote)
    assert fake.core.switch_refusal(None) is not None
    effects = fake.kill("compute-1", code=0)
    assert [p.name for p in only(effects, Promote)] == ["compute-3"]
    (record,) = records(fake.step(Promoted("compute-3", 2, {})), "switch")
    assert record.fields["previous"] == "compute-1"


def test_switch_does_not_wait_for_ever_for_the_old_writer() -> None:
    fake = Fake().up()
    fake.step(SwitchAsked())
    effects = fake.tick(3.3)
    assert [p.name for p in only(effects, Promote)] == ["compute-2"]
    assert fake.members["compute-1"].state == "fenced"


def test_switch_without_a_reader_is_refused() -> None:
    fake = Fake(ro=0).up()
    assert fake.core.switch_refusal(None) == "there is no reader that could take over"
    assert not only(fake.step(SwitchAsked()), Stop)


def test_switch_to_a_node_that_is_no_reader_is_refused() -> None:
    fake = Fake().up()
    for name in ("compute-1", "storage", "nobody"):
        assert fake.core.switch_refusal(name) == f"{name} is not a reader that serves"


def test_what_ends_again_and_again_is_started_ever_more_rarely() -> None:
    fake = Fake().up()
    starts = 0
    for _ in range(600):
        if fake.members["compute-3"].has_process:
            fake.kill("compute-3", code=1)
        starts += len(only(fake.tick(0.1), Start))
    assert 6 <= starts <= 12, starts
    assert records(fake.effects, "failing")


def test_a_cluster_that_is_stopped_is_not_repaired() -> None:
    fake = Fake().up()
    fake.step(StopAsked())
    for name in ("compute-1", "memory-1", "storage"):
        assert names(fake.kill(name, code=0)) == []
    assert names(fake.tick(1.0)) == []


def test_node_that_does_not_get_ready_is_killed_and_started_again() -> None:
    fake = Fake().up()
    fake.kill("compute-3")
    assert Kill("compute-3") in fake.tick(21.0)
    assert Start("compute-3") in fake.effects
