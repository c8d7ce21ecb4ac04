"""The home: one step over its tables, an event in, effects out. No I/O, no clock.

It keeps every reader's cache a snapshot. To each member it speaks over one ordered channel; its
``mark`` is the highest `advance` it has processed, and every message to a member carries it.

    writer            home                       readers that hold p
      | advance(lsn,[p]) |                              |
      |----------------->| refuse a stale epoch         |
      |                  | p's slot: stale              |
      |                  |---- invalidate(lsn,[p]) ---->| drop p, then mark := lsn
      |                  | no holders of p, mark := lsn |
      |                  |<---------- ack(lsn) ---------|
      |                  | published := cts             |
      |<-----------------| (names of the members)       |

* C2  `advance` is answered, and its cts published, only when no member has an unacknowledged
  invalidation at or below its LSN. A member that does not answer in time is expelled: its admission
  word is cleared *before* anything is published that it may have missed.
* C4  A valid slot holds its page as of the mark: `validate` accepts an image only if nothing made
  its page stale after the LSN as of which it is the newest.
* C5  A lower epoch changes nothing here.
* C6  The published cell only grows.
* C7  Whoever leaves, leaves no holder, offer, wait or snapshot behind.

The decisions are in `memory_pool.home_pages`, `memory_pool.home_commits`,
`memory_pool.home_members` and, for a home that has just started, `memory_pool.home_rebuild` and
`memory_pool.home_claims`.
The paper's sections 1 and 3 have the tables and the protocol; here a page is durable first, then
invalidated, then visible, so that nobody ever holds what a crash could take back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memory_pool.directory import messages as m
from memory_pool.home_claims import Adoption
from memory_pool.home_commits import Commits
from memory_pool.home_members import Membership
from memory_pool.home_pages import Pages
from memory_pool.home_rebuild import Rebuilding
from memory_pool.home_state import HomeConfig, HomeState, Out
from memory_pool.slots import OFFERED


class Home:
    """``state`` may be looked at; it changes in `step` only."""

    def __init__(
        self, *, home_epoch: int, epoch: int, now_us: int, config: HomeConfig | None = None
    ) -> None:
        self.state = HomeState(
            home_epoch=home_epoch, epoch=epoch, now_us=now_us, config=config or HomeConfig()
        )
        pages, commits = Pages(self.state), Commits(self.state)
        rebuilding = Rebuilding(self.state, commits, self._dispatch)
        adoption = Adoption(self.state)
        members = Membership(self.state, pages, commits, rebuilding, adoption)
        self._commits, self._rebuilding = commits, rebuilding
        self._steps: dict[type, Callable[[Any, Out], None]] = {
            m.Register: pages.register,
            m.RegisterMany: pages.register_many,
            m.Locate: pages.locate,
            m.Release: pages.release,
            m.Unregister: pages.unregister,
            m.Offered: pages.offer,
            m.Validate: pages.validate,
            m.DropOffer: pages.drop_offer,
            m.PullRefused: pages.pull_refused,
            m.Advance: self._advance,
            m.Ack: commits.ack,
            m.Report: members.report,
            m.Joined: members.join,
            m.Lost: members.lost,
            m.Fence: members.fence,
            m.Revoked: members.revoked,
            m.Attached: rebuilding.attached,
            m.Detached: rebuilding.detached,
            m.Lend: rebuilding.lend,
            m.Scanned: rebuilding.scanned,
            m.Confirmed: adoption.confirmed,
            m.Tick: members.tick,
        }

    def step(self, event: m.Event, now_us: int) -> Out:
        """What follows from ``event``. ``now_us`` is monotonic."""
        self.state.now_us = now_us
        out: Out = []
        self._steps[type(event)](event, out)
        return out

    def _dispatch(self, event: m.Event, out: Out) -> None:
        self._steps[type(event)](event, out)

    def _advance(self, event: m.Advance, out: Out) -> None:
        if self.state.rebuild is None:
            self._commits.advance(event, out)
        else:
            self._rebuilding.first_advance(event, out)

    def status(self) -> dict[str, Any]:
        """Plain values for people."""
        state = self.state
        return {
            "state": "serving" if state.rebuild is None else state.rebuild.state,
            "home_epoch": state.home_epoch,
            "epoch": state.epoch,
            "mark": state.mark,
            "published": state.published,
            "writer": None if state.writer is None else state.writer.name,
            "members": {
                member.name: {
                    "role": "rw" if member is state.writer else "ro",
                    "mark": member.known_mark,
                    "unacknowledged": len(member.unacknowledged),
                    "pages": state.tables.references.page_count(member.place),
                    "watched": state.tables.watchers.page_count(member.place),
                }
                for member in state.members
            },
            "pages": len(state.tables.addresses),
            "claims": len(state.tables.claims),
            "nodes": state.tables.by_node(),
            "waiting_advances": len(state.pending),
            "waiting_pulls": len(state.pulls),
            **state.stats.snapshot(),
            **state.tables.stats.snapshot(),
        }

    def check(self) -> None:
        """Invariants that can be seen from outside; for tests."""
        state = self.state
        state.tables.check()
        places = {member.place for member in state.members}
        for relation in (state.tables.references, state.tables.watchers):
            assert set(relation.members()) <= places, "C7: a holder that is no member"
        offered = {address for member in state.members for address in member.offers}
        for address in offered:
            table, slot = state.tables.capacity.locate(address)
            assert table.state[slot] == OFFERED
        total = sum(table.count(OFFERED) for table in state.tables.capacity)
        assert total == len(offered), "C7: an offered slot without its member"
        lsns = [advance.lsn for advance in state.pending]
        assert lsns == sorted(lsns)
