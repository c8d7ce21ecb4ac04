"""Delays of a loop, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polarless.net.lag import NAMES, PERIOD_S, LoopLag


class Hands:
    """A clock that is turned by hand; ``used`` is the thread's processor time."""

    def __init__(self) -> None:
        self.time = 0.0
        self.used = 0.0
        self.due: Callable[[], object] | None = None

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        self.due = callback

    def run(self, *, late_s: float, used_s: float) -> None:
        """The timer runs that much too late."""
        self.time += PERIOD_S + late_s
        self.used += used_s
        assert self.due is not None
        self.due()


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_delays_are_counted_by_their_length(hands: Hands) -> None:
    lag = LoopLag(hands, lambda: hands.used)  # type: ignore[arg-type]
    lag._arm()
    for late_s, used_s in ((0.0005, 0.0), (0.004, 0.004), (0.03, 0.001), (0.5, 0.4)):
        hands.run(late_s=late_s, used_s=used_s)
    found = lag.snapshot()
    assert {name: n for name, n in found["delays"].items() if n} == {
        "to_1_ms": 1, "to_5_ms": 1, "to_50_ms": 1, "over_100_ms": 1,
    }  # fmt: skip
    # The processor was somebody else's for the 30 ms.
    assert {name: n for name, n in found["busy_delays"].items() if n} == {
        "to_5_ms": 1, "over_100_ms": 1,
    }  # fmt: skip
    assert found["worst_ms"] == found["worst_busy_ms"] == 500.0
    assert list(found["delays"]) == list(NAMES)


def test_collections_are_timed(hands: Hands) -> None:
    lag = LoopLag(hands, lambda: hands.used)  # type: ignore[arg-type]
    lag.collecting("start", {})
    hands.time += 0.012
    lag.collecting("stop", {})
    hands.time += 1
    lag.collecting("start", {})
    lag.collecting("stop", {})
    assert lag.snapshot()["worst_collection_ms"] == 12.0
