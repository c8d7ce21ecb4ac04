"""When readers and pool are made more or fewer, and that it does not go back and forth."""

from __future__ import annotations

from typing import Any

import pytest

from polarless.control.autoscale import (
    DOWN_S,
    SETTLE_S,
    UP_S,
    Autoscale,
    Decision,
    Policy,
    Sample,
    parse_policy,
    parse_range,
)

QUIET = Sample(ro=1, pool_mb=128, busy=0.5, waiting=0, lookups=1000, ghost_hits=0, filled=0.9)


def run(scale: Autoscale, sample: Sample, seconds: float, start: float = 0.0) -> list[Decision]:
    found: list[Decision] = []
    for number in range(int(seconds)):
        found += scale.step(sample, start + number)
    return found


def policy(**fields: Any) -> Policy:
    return Policy(**{"ro_min": 0, "ro_max": 4, "pool_mb_min": 64, "pool_mb_max": 1024, **fields})


def test_busy_for_a_while_adds_one_reader_and_then_looks_again() -> None:
    scale = Autoscale(policy())
    busy = QUIET._replace(busy=0.9)
    assert run(scale, busy, UP_S) == []
    (decision,) = run(scale, busy, 2, start=UP_S)
    assert (decision.what, decision.value) == ("ro", 2)
    assert "90% busy" in decision.reason
    assert run(scale, busy._replace(ro=2), SETTLE_S, start=UP_S + 1) == []


def test_a_spike_adds_nothing() -> None:
    scale = Autoscale(policy())
    for number in range(60):
        assert scale.step(QUIET._replace(busy=0.9 if number % 3 else 0.5), number) == []


def test_statements_that_wait_add_a_reader() -> None:
    scale = Autoscale(policy())
    assert run(scale, QUIET._replace(waiting=3), UP_S + 1)[0].value == 2


def test_idle_for_long_takes_one_reader_away() -> None:
    scale = Autoscale(policy())
    idle = QUIET._replace(ro=3, busy=0.1)
    assert run(scale, idle, DOWN_S) == []
    assert run(scale, idle, 2, start=DOWN_S)[0][:2] == ("ro", 2)


def test_a_reader_stays_if_the_others_would_be_too_busy_without_it() -> None:
    scale = Autoscale(policy())
    assert run(scale, QUIET._replace(ro=2, busy=0.3), 100) == []


@pytest.mark.parametrize("busy", [0.05, 0.3, 0.6, 0.69, 0.71, 1.0])
@pytest.mark.parametrize("load", [0.5, 1.0, 2.0, 3.5])
def test_the_same_load_never_goes_back_and_forth(busy: float, load: float) -> None:
    scale, count, changes = Autoscale(policy(ro_min=1)), 1, []
    for now in range(400):
        sample = QUIET._replace(ro=count, busy=min(1.0, busy * load / count))
        for decision in scale.step(sample, now):
            changes.append(decision.value - count)
            count = decision.value
    assert len(set(changes)) <= 1, changes


def test_ghost_hits_double_the_pool_up_to_the_limit() -> None:
    scale = Autoscale(policy(pool_mb_max=200))
    missing = QUIET._replace(ghost_hits=100)
    (decision,) = run(scale, missing, UP_S + 1)
    assert (decision.what, decision.value) == ("pool", 200)
    assert run(scale, missing._replace(pool_mb=200), 60, start=20) == []


def test_an_empty_pool_is_halved_down_to_the_limit() -> None:
    scale = Autoscale(policy(pool_mb_min=100))
    (decision,) = run(scale, QUIET._replace(filled=0.1), DOWN_S + 1)
    assert (decision.what, decision.value) == ("pool", 100)


def test_limits_hold_at_once() -> None:
    scale = Autoscale(policy(ro_min=2, pool_mb_min=256))
    assert [d[:2] for d in scale.step(QUIET, 0.0)] == [("ro", 2), ("pool", 256)]


@pytest.mark.parametrize("text", ["", "a", "1..b", "..3"])
def test_a_range_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_range(text)


def test_policies_are_kept_as_plain_values() -> None:
    assert parse_policy(policy().to_json()) == policy()
    assert parse_range("0..4") == (0, 4)
    assert parse_range("3") == (3, 3)
    with pytest.raises(ValueError, match="readers from 3 to 2"):
        policy(ro_min=3, ro_max=2)
    with pytest.raises(ValueError, match="unexpected keyword"):
        parse_policy({"other": 1})
