"""Decides how many readers and how large a pool there should be. A core, asked once a second.

Three things are looked at: how busy the loops of those who read are, how many statements wait at
the proxies, and how many of the pool's misses its ghost list would have turned into hits.

What is too much has to last for a while before anything is added, and what is too little much
longer before anything is taken away. One reader less must leave the others below the point at which
one would be added, so that it does not go back and forth. Each decision says why.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

# Share of one processor: above this a reader is added, and below this the rest would have to stay.
BUSY: Final = 0.7
IDLE: Final = 0.45
# Share of all lookups in the pool that would be hits if it were larger.
GHOSTS: Final = 0.02
LOOKUPS_MIN: Final = 50
# A pool that is filled up to here would do with half.
FILLED: Final = 0.4
# How long it has to last, and how long nothing is decided after a decision.
UP_S: Final = 3.0
DOWN_S: Final = 20.0
SETTLE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits within which it is decided."""

    ro_min: int
    ro_max: int
    pool_mb_min: int
    pool_mb_max: int

    def __post_init__(self) -> None:
        if not 0 <= self.ro_min <= self.ro_max <= 32:
            raise ValueError(f"readers from {self.ro_min} to {self.ro_max} cannot be")
        if not 4 <= self.pool_mb_min <= self.pool_mb_max:
            raise ValueError(f"a pool from {self.pool_mb_min} to {self.pool_mb_max} MiB cannot be")

    def to_json(self) -> dict[str, int]:
        """As plain values."""
        return asdict(self)


class Sample(NamedTuple):
    """What was seen in the last second."""

    ro: int
    pool_mb: int
    # Processor share of those who read, in the mean: the readers, or the writer if it is alone.
    busy: float
    waiting: int
    lookups: int
    ghost_hits: int
    # Share of the pool's slots that hold a page.
    filled: float


class Decision(NamedTuple):
    """Have so many readers, or so large a pool."""

    what: str
    value: int
    reason: str


class Autoscale:
    """The decisions under one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.seen: Sample | None = None
        # What is wanted ("ro+", "ro-", "pool+", "pool-"), and since when without a break.
        self._since: dict[str, float] = {}
        self._settled_at: dict[str, float] = {}

    def step(self, sample: Sample, now: float) -> list[Decision]:
        """What is to be changed now."""
        self.seen = sample
        return [*self._readers(sample, now), *self._pool(sample, now)]

    def status(self) -> dict[str, Any]:
        """For people."""
        return {
            "policy": self.policy.to_json(),
            "seen": None if self.seen is None else self.seen._asdict(),
        }

    def _readers(self, sample: Sample, now: float) -> list[Decision]:
        policy, count = self.policy, sample.ro
        within = min(max(count, policy.ro_min), policy.ro_max)
        if within != count:
            return self._decide("ro", within, "the policy's limits", now)
        # What each of the others would do with one reader less; the last one's falls to the writer.
        after = sample.busy * count / max(1, count - 1)
        more = sample.busy > BUSY or sample.waiting > 0
        if self._lasts("ro+", more and count < policy.ro_max, UP_S, now):
            reason = f"loops {sample.busy:.0%} busy, {sample.waiting} statements waiting"
            return self._decide("ro", count + 1, f"{reason} for {UP_S:.0f} s", now)
        fewer = after < IDLE and not sample.waiting and count > policy.ro_min
        if self._lasts("ro-", fewer, DOWN_S, now):
            reason = f"loops {sample.busy:.0%} busy for {DOWN_S:.0f} s"
            return self._decide("ro", count - 1, f"{reason}, nothing waits", now)
        return []

    def _pool(self, sample: Sample, now: float) -> list[Decision]:
        policy, size = self.policy, sample.pool_mb
        within = min(max(size, policy.pool_mb_min), policy.pool_mb_max)
        if within != size:
            return self._decide("pool", within, "the policy's limits", now)
        share = sample.ghost_hits / max(LOOKUPS_MIN, sample.lookups)
        if self._lasts("pool+", share > GHOSTS and size < policy.pool_mb_max, UP_S, now):
            reason = f"{share:.0%} of the lookups miss what a larger pool would have"
            return self._decide("pool", min(2 * size, policy.pool_mb_max), reason, now)
        fewer = not sample.ghost_hits and sample.filled < FILLED and size > policy.pool_mb_min
        if self._lasts("pool-", fewer, DOWN_S, now):
            reason = f"{sample.filled:.0%} of it is used for {DOWN_S:.0f} s"
            return self._decide("pool", max(size // 2, policy.pool_mb_min), reason, now)
        return []

    def _lasts(self, key: str, holds: bool, for_s: float, now: float) -> bool:
        if not holds or now < self._settled_at.get(key.rstrip("+-"), 0.0):
            self._since.pop(key, None)
            return False
        return now - self._since.setdefault(key, now) >= for_s

    def _decide(self, what: str, value: int, reason: str, now: float) -> list[Decision]:
        self._since = {key: at for key, at in self._since.items() if not key.startswith(what)}
        self._settled_at[what] = now + SETTLE_S
        return [Decision(what, value, reason)]


def parse_policy(values: dict[str, Any]) -> Policy:
    """The policy that `Policy.to_json` described. Raises ValueError."""
    try:
        return Policy(**{key: int(value) for key, value in values.items()})
    except TypeError as error:
        raise ValueError(str(error)) from None


def parse_range(text: str) -> tuple[int, int]:
    """``1..4``, or ``4`` for both ends. Raises ValueError."""
    first, dots, last = text.partition("..")
    return int(first), int(last if dots else first)
