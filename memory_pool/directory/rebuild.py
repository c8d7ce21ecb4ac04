"""A home that has just started: what it knows, and what it still has to hear.

    SCANNING --Scanned--> WAITING --writer joins--> CONFIRMING --verdicts--> ADVANCING --> (serving)
                             ^                          |                        |
                             +------- the writer is lost, or another one fences -+

The order (a random walk over the protocol finds a counterexample for each step left out):

1. Slot headers of all memory nodes give the addresses: one claim a page, its highest LSN.
2. The writer joins, and says which readers were members at its last completed advance. Only they
   keep their caches; the list of the expelled died with the old home.
3. A claim counts only if the writer confirms it: it has that page at that very LSN.
4. The writer's first `advance` goes up to everything durable. It waits until those readers have
   announced what they hold (or a grace period is over: who comes later starts cold), because it
   must reach them. Until it is processed nothing is registered; until it is acknowledged nothing
   is published.

If there is no such writer, a new one fences: the pool is emptied and everybody starts cold.
A first start is the same with no claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from memory_pool.directory.messages import Advance, Joined
from memory_pool.slots import CLAIMED, SlabTable
from polarless.wire.memory import CONFIRM_PAGES

SCANNING: Final = "scanning"
WAITING: Final = "waiting for the writer"
CONFIRMING: Final = "confirming slots"
ADVANCING: Final = "waiting for the first advance"

DEFERRED_MAX: Final = 8192

Claim = tuple[int, int, int]  # page id, LSN, address


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
        self._claims: list[Claim] = []
        self._next_claim = 0
        self._asked: dict[int, list[Claim]] = {}

    def collect(self, tables: Iterable[SlabTable]) -> list[int]:
        """Choose one claim a page from all slots; the addresses of those that are not chosen."""
        columns = []
        for table in tables:
            slots = np.nonzero(table.state == CLAIMED)[0]
            address = slots.astype(np.uint64) + np.uint64(table.base)
            columns.append((table.page[slots], table.lsn[slots], table.generation[slots], address))
        if not columns:
            return []
        page, lsn, generation, address = (np.concatenate(column) for column in zip(*columns))
        # Equal page and LSN are equal bytes; the highest generation is one choice like any other.
        order = np.lexsort((generation, lsn, page))
        page, lsn, address = page[order], lsn[order], address[order]
        last = np.ones(len(page), np.bool_)
        last[:-1] = page[:-1] != page[1:]
        self._claims = list(zip(page[last].tolist(), lsn[last].tolist(), address[last].tolist()))
        self._next_claim = 0
        self._asked = {}
        losers: list[int] = address[~last].tolist()
        return losers

    def questions(self) -> list[tuple[int, list[Claim]]]:
        """Every `confirm` to send: (ticket, claims)."""
        asked = []
        while self._next_claim < len(self._claims):
            part = self._claims[self._next_claim : self._next_claim + CONFIRM_PAGES]
            self._next_claim += len(part)
            self._asked[self._next_claim] = part
            asked.append((self._next_claim, part))
        return asked

    def verdict(self, ticket: int, verdicts: bytes) -> list[tuple[Claim, bool]] | None:
        """The claims of a question with what the writer said; None if it was not asked.

        An answer that does not fit the question confirms nothing.
        """
        claims = self._asked.pop(ticket, None)
        if claims is None:
            return None
        if len(verdicts) != len(claims):
            verdicts = bytes(len(claims))
        return [(claim, verdict != 0) for claim, verdict in zip(claims, verdicts)]

    @property
    def confirmed(self) -> bool:
        """Whether every question has been answered."""
        return not self._asked and self._next_claim == len(self._claims)

    def forget_writer(self) -> None:
        """The writer is gone before its first advance: none of what it said counts."""
        self.state = WAITING
        self.admitted = set()
        self.advances = []
        self.deferred = []
        self._claims = []
        self._next_claim = 0
        self._asked = {}
