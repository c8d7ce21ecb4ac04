"""The home's decisions about commits: invalidate, wait, publish. See `memory_pool.home`."""

from __future__ import annotations

from memory_pool.directory import messages as m
from memory_pool.directory.members import merge_reports
from memory_pool.home_state import HomeState, Out
from polarless.errors import LocalProtocolError


class Commits:
    """Steps of the commit path."""

    def __init__(self, state: HomeState) -> None:
        self._state = state

    def advance(self, event: m.Advance, out: Out) -> None:
        """Make pages stale, tell their holders, move the mark; publish once all have heard."""
        state = self._state
        connection, call, epoch, lsn, _, pages = event
        writer = state.writer
        if writer is None or writer.connection != connection or epoch != state.epoch:
            out.append(m.Fail(call, state.refusal(connection, epoch)))
            return
        if lsn < state.mark:
            text = f"advance to LSN {lsn}, but the home's mark is {state.mark} already"
            out.append(m.Fail(call, LocalProtocolError(text)))
            return
        state.stats.advances += 1
        # A first advance may name pages that changed long ago, and were announced before.
        change = (lsn, state.mark if state.caught_up and lsn > state.mark else -1)
        state.caught_up = True
        writer.known_mark = state.mark = lsn
        out.append(m.SetMark(lsn))
        tables = state.tables
        make_stale, told_of = tables.make_stale, tables.told
        others = ~(1 << writer.place)
        concerned: dict[int, list[int]] = {}
        for page_id in pages:
            make_stale(page_id, change)
            holders = told_of(page_id) & others
            while holders:
                place = holders.bit_length() - 1
                holders ^= 1 << place
                concerned.setdefault(place, []).append(page_id)
        # Sorted, so that a seed replays exactly.
        for place in sorted(concerned):
            self._invalidate(place, concerned[place], out)
        state.pending.append(event)
        self.complete(out)

    def _invalidate(self, place: int, pages: list[int], out: Out) -> None:
        """Take a reader out of the pages' holders and watchers and tell it."""
        state = self._state
        reader, lsn = state.members.at(place), state.mark
        for page_id in pages:
            state.tables.unregister(page_id, place)
        reader.unacknowledged.append((lsn, state.now_us))
        reader.known_mark = lsn
        state.stats.invalidations += 1
        out.append(m.Push(reader.connection, "invalidate", (lsn, pages, lsn)))

    def ack(self, event: m.Ack, out: Out) -> None:
        """A reader has dropped the pages of one invalidation."""
        member = self._state.members.get(event.connection)
        if member is not None and member.acknowledge(event.lsn):
            self.complete(out)

    def complete(self, out: Out) -> None:
        """Publish and answer the advances that nothing holds up any more, in LSN order."""
        state = self._state
        pending = state.pending
        if not pending:
            return
        oldest = state.members.oldest_unacknowledged()
        while pending and (oldest is None or pending[0].lsn < oldest):
            advance = pending.popleft()
            if advance.cts > state.published:
                state.published = advance.cts
                out.append(m.Publish(advance.cts))
            if not state.knows:
                state.knows = True
                out.append(m.Know())
            out.append(m.Answer(advance.call, self._audience()))

    def _audience(self) -> tuple[list[str], list[int]]:
        """(the readers that are members, the snapshots that pruning must keep for them)."""
        state = self._state
        audience = state.audience
        if audience is None:
            readers = [member for member in state.members if member is not state.writer]
            names = sorted(member.name for member in readers)
            audience = (names, merge_reports([member.snapshots for member in readers]))
            state.audience = audience
        return audience
