"""What the home knows, for the modules that each decide a part: pages, commits, members."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from memory_pool.directory import messages as m
from memory_pool.directory.members import Member, Members
from memory_pool.directory.pulls import Pulls
from memory_pool.directory.rebuild import DEFERRED_MAX, Rebuild
from memory_pool.tables import PageTables
from polarless.errors import Fenced, PolarlessError, Retry
from polarless.kernel.stats import Stats

Out = list[m.Effect]


@dataclass(frozen=True, slots=True)
class HomeConfig:
    """Times in microseconds."""

    # A reader that has not acknowledged an invalidation by then is expelled: it holds up commits.
    ack_timeout_us: int = 500_000
    # A reader waits that long for the writer's image before it turns to storage.
    pull_timeout_us: int = 200_000
    # A slot that was offered and is neither written nor given back is free again; well above what
    # an offer's, a WRITE's and a validation's deadlines come to.
    offer_timeout_us: int = 10_000_000
    # Readers that get no other message learn the mark this often.
    mark_interval_us: int = 20_000
    # How long joins wait for a rebuild to end before they are told to try again.
    rebuild_timeout_us: int = 10_000_000
    # How long the first advance waits for the readers that kept their caches.
    rejoin_grace_us: int = 1_000_000
    # A question about found slots that was not answered by then is asked again.
    confirm_timeout_us: int = 5_000_000


class HomeStats(Stats):
    """Counters of the protocol since this home started."""

    __slots__ = (
        "advances", "expulsions", "fences", "invalidations", "joins", "pulls", "pulls_answered",
        "pulls_expired",
    )  # fmt: skip

    advances: int
    expulsions: int
    fences: int
    invalidations: int
    joins: int
    pulls: int
    pulls_answered: int
    pulls_expired: int


class HomeState:
    """Plain state; ``mark`` and ``published`` are what the cells show."""

    def __init__(self, *, home_epoch: int, epoch: int, now_us: int, config: HomeConfig) -> None:
        self.config = config
        self.home_epoch = home_epoch
        self.epoch = epoch
        self.now_us = now_us
        self.marks_pushed_us = now_us
        self.mark = 0
        self.published = 0
        # Whether ``published`` is what an earlier home has published, or more.
        self.knows = False
        self.tables = PageTables(home_epoch)
        self.members = Members()
        self.pulls = Pulls(config.pull_timeout_us)
        self.stats = HomeStats()
        self.writer: Member | None = None
        # None when the home serves.
        self.rebuild: Rebuild | None = Rebuild(now_us)
        # Advances that wait for acknowledgements, in LSN order.
        self.pending: deque[m.Advance] = deque()
        # Former writers whose keys may still work somewhere, and the fences that wait for that.
        self.revoking: set[int] = set()
        self.fences: list[m.Fence] = []
        # Whether the writer has advanced over everything that it had before it became the writer,
        # or a member again.
        self.caught_up = False
        # What goes with an answer to advance; None when it must be put together anew.
        self.audience: tuple[list[str], list[int]] | None = None

    def caller(self, event: Any, out: Out) -> Member | None:
        """The member that asks; None if it was refused, or must wait until the home serves."""
        member = self.members.get(event.connection)
        if member is None:
            out.append(m.Fail(event.call, Retry("not a member of the pool: join first")))
            return None
        rebuild = self.rebuild
        if rebuild is None:
            return member
        if len(rebuild.deferred) < DEFERRED_MAX:
            rebuild.deferred.append(event)
        else:
            out.append(m.Fail(event.call, Retry(f"the pool's home is {rebuild.state}")))
        return None

    def refusal(self, connection: int | None, epoch: int) -> PolarlessError:
        """Why ``epoch`` may not do that."""
        if epoch < self.epoch:
            return Fenced(f"epoch {epoch} is over: the home is at {self.epoch}")
        if connection is not None and self.members.get(connection) is None:
            return Retry("not a member of the pool: join first")
        return Fenced(f"not the writer of epoch {self.epoch}")
