"""When the collector looks at old objects."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from polarless.net import collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Looks:
    """A clock whose timer is run by hand."""

    def __init__(self) -> None:
        self.callback: Callable[[], object] = lambda: None

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Any:
        self.callback = callback


def test_old_objects_are_looked_at_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, ended, idle = Looks(), [0], [False]
    collector.tame(clock, gone=lambda: ended[0], is_idle=lambda: idle[0])  # type: ignore[arg-type]
    assert gc.get_threshold()[0] == collector.YOUNG
    assert gc.get_freeze_count() > 0
    collections: list[None] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(None))

    def looks() -> int:
        clock.callback()
        found = len(collections)
        collections.clear()
        return found

    assert looks() == 0
    ended[0] = 5
    assert looks() == 0
    idle[0] = True
    assert looks() == 1
    # Nothing has ended since.
    assert looks() == 0
    idle[0] = False
    ended[0] += collector.GONE_MAX + 1
    assert looks() == 1
