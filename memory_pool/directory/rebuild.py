"""A home that has just started: what it knows, and what it still has to hear.

    SCANNING --Scanned--> WAITING --writer joins--> ADVANCING --its first advance--> (serving)
                             ^                          |
                             +---- the writer is lost --+

The order (a random walk over the protocol finds a counterexample for each step left out):

1. Slot headers of all memory nodes give the claims: one a page, its highest LSN. None counts yet:
   they are judged when the home serves, see `memory_pool.home_claims`.
2. The writer joins, and says which readers were members at its last completed advance. Only they
   keep their caches; the list of the expelled died with the old home.
3. The writer's first `advance` goes up to everything durable. It waits until those readers have
   announced what they hold (or a grace period is over: who comes later starts cold), because it
   must reach them. Until it is processed nothing is registered; until it is acknowledged nothing
   is published.

If there is no such writer, a new one fences, and everybody starts cold; the claims stay, since it
is storage that judges them. A first start is the same with no claims.
"""

from __future__ import annotations

from typing import Any, Final

from memory_pool.directory.messages import Advance, Joined

SCANNING: Final = "scanning"
WAITING: Final = "waiting for the writer"
ADVANCING: Final = "waiting for the first advance"

DEFERRED_MAX: Final = 8192


class Rebuild:
    """The state of a rebuild; the home drives it."""

    def __init__(self, started_us: int) -> None:
        self.state = SCANNING
        self.started_us = started_us
        # Joins that wait, by connection, with the time they came.
        self.joins: dict[int, tuple[Joined, int]] = {}
        self.admitted: set[str] = set()
        self.writer_joined_us = 0
        # The writer's advances; the first one ends the rebuild.
        self.advances: list[Advance] = []
        # Calls of the writer that must not be answered yet.
        self.deferred: list[Any] = []

    def forget_writer(self) -> None:
        """The writer is gone before its first advance: none of what it said counts."""
        self.state = WAITING
        self.admitted = set()
        self.advances = []
        self.deferred = []
