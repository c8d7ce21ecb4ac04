"""Random walks over the pool's protocol; see `tests.properties.pool_walk` for what is checked.

``POLARLESS_WALKS=10000 pytest tests/properties/test_pool_walk.py`` walks longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from memory_pool.directory import messages as m
from memory_pool.directory.claims import Claims
from memory_pool.directory.members import Members
from memory_pool.directory.references import References
from memory_pool.directory.staleness import Staleness
from memory_pool.home import Home
from memory_pool.home_members import Membership
from memory_pool.tables import PageTables
from tests.properties.pool_walk import Walk

WALKS = int(os.environ.get("POLARLESS_WALKS", "60"))
STEPS = 1500
PARTS = 4


def walk(seed: int) -> Walk:
    one = Walk(seed)
    for number in range(STEPS):
        try:
            one.turn()
        except Exception as error:
            raise AssertionError(f"seed {seed}, step {number}: {error}") from error
    return one


@pytest.mark.parametrize("part", range(PARTS))
def test_every_step_of_a_random_walk_keeps_the_invariants(part: int) -> None:
    totals: dict[str, int] = {}
    acknowledged = 0
    for seed in range(part * 1_000_000, part * 1_000_000 + WALKS // PARTS):
        one = walk(seed)
        acknowledged += one.acknowledged_cts
        for name, count in one.counts.items():
            totals[name] = totals.get(name, 0) + count
    # A walk in which nothing happens proves nothing.
    assert acknowledged > 10 * (WALKS // PARTS), totals
    for name in (
        "crash_home",
        "promote",
        "crash_reader",
        "crash_memory",
        "write",
        "ack",
        "confirm",
        "adopted",
        "recall",
    ):
        assert totals.get(name, 0) > 0, (name, totals)


def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "oldest_unacknowledged", lambda self: None)


def without_stale_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_newest(self: Staleness, page_id: int, *, lsn: int, as_of: int, mark: int) -> bool:
        return lsn <= as_of <= mark

    monkeypatch.setattr(Staleness, "is_newest", is_newest)


def without_mark_check(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Staleness.is_newest

    def is_newest(self: Staleness, page_id: int, *, lsn: int, as_of: int, mark: int) -> bool:
        return real(self, page_id, lsn=lsn, as_of=as_of, mark=max(mark, as_of))

    monkeypatch.setattr(Staleness, "is_newest", is_newest)


def without_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Staleness, "raise_floor", lambda self, lsn: None)


def without_clearing_words(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Membership._remove

    def remove(self: Membership, member: object, out: list[m.Effect]) -> None:
        mine: list[m.Effect] = []
        real(self, member, mine)  # type: ignore[arg-type]
        out += [effect for effect in mine if not isinstance(effect, m.SetWord)]

    monkeypatch.setattr(Membership, "_remove", remove)


def without_register_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(References, "add", lambda self, page_id, member: None)


def without_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageTables, "told", lambda self, page_id: self.references.holders(page_id))


def without_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Claims.verdict

    def verdict(self: Claims, ticket: int, verdicts: bytes) -> object:
        return real(self, ticket, b"\1" * len(verdicts))

    monkeypatch.setattr(Claims, "verdict", verdict)


def with_everybody_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Membership._admit

    def admit(
        self: Membership, event: m.Joined, out: list[m.Effect], *, cold: bool, floor: int = 0
    ) -> bool:
        return real(self, event, out, cold=cold and not event.warm, floor=floor)

    monkeypatch.setattr(Membership, "_admit", admit)


def without_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Home.step

    def step(self: Home, event: m.Event, now_us: int) -> list[m.Effect]:
        if isinstance(event, m.Joined | m.Advance):
            event = event._replace(epoch=self.state.epoch)
        return real(self, event, now_us)

    monkeypatch.setattr(Home, "step", step)


@pytest.mark.parametrize(
    "break_it",
    [
        without_waiting,
        without_stale_check,
        without_mark_check,
        without_floor,
        without_clearing_words,
        without_register_first,
        without_watchers,
        without_confirmation,
        with_everybody_warm,
        without_epochs,
    ],
)
def test_the_walk_finds_a_home(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(400):
            walk(seed)
