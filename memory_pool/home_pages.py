"""The home's decisions about pages: register, offer, validate, pull.

A reader registers first (it is a holder from then on) and reads afterwards, so an invalidation can
never miss it. A stale page is pulled from the writer; what is in no slot comes from storage.
"""

from __future__ import annotations

from typing import Any

from memory_pool.directory import messages as m
from memory_pool.directory.pulls import Pull
from memory_pool.home_state import HomeState, Out
from memory_pool.slots import VALID, SlabTable
from polarless.wire.memory import ABSENT, HIT


class Pages:
    """Steps that concern single pages."""

    def __init__(self, state: HomeState) -> None:
        self._state = state
        self._tables = state.tables
        self._pulls = state.pulls

    def register(self, event: m.Register, out: Out) -> None:
        """Make the caller a holder and say where the page is."""
        state = self._state
        member = state.caller(event, out)
        if member is None:
            return
        connection, call, page_id, scan = event
        found = self._tables.register(page_id, member.place, scan=scan)
        member.known_mark = state.mark
        if found is None:
            out.append(m.Answer(call, (ABSENT, state.mark)))
        elif found[0].state[found[1]] == VALID:
            out.append(m.Answer(call, self._hit(*found)))
        elif member is state.writer or not state.caught_up:
            # The writer knows best itself. And one that is still bringing its cache up to date with
            # the log must not be asked for an image: it may take one from before for the newest.
            out.append(m.Answer(call, (ABSENT, state.mark)))
        else:
            self._pull(page_id, connection, call, out)

    def register_many(self, event: m.RegisterMany, out: Out) -> None:
        """The same for a prefetch: what is stale counts as absent."""
        state = self._state
        member = state.caller(event, out)
        if member is None:
            return
        answers: list[Any] = []
        for page_id in event.pages:
            found = self._tables.register(page_id, member.place, scan=event.scan)
            if found is not None and found[0].state[found[1]] == VALID:
                answers.append(self._hit(*found))
            else:
                answers.append((ABSENT, state.mark))
        member.known_mark = state.mark
        out.append(m.Answer(event.call, answers))

    def locate(self, event: m.Locate, out: Out) -> None:
        """Say where the pages are that have a valid slot; the caller is told of their changes."""
        state = self._state
        member = state.caller(event, out)
        if member is None:
            return
        found = [self._tables.locate(page_id, member.place) for page_id in event.pages]
        answers = [None if one is None else self._hit(*one) for one in found]
        member.known_mark = state.mark
        out.append(m.Answer(event.call, (answers, state.mark)))

    def release(self, event: m.Release, out: Out) -> None:
        """The caller has dropped its copies, and goes on being told of changes."""
        member = self._state.members.get(event.connection)
        if member is not None:
            for page_id in event.pages:
                self._tables.release(page_id, member.place)

    def unregister(self, event: m.Unregister, out: Out) -> None:
        """The caller has dropped its copies."""
        member = self._state.members.get(event.connection)
        if member is not None:
            for page_id in event.pages:
                self._tables.unregister(page_id, member.place)

    # Images.

    def offer(self, event: m.Offered, out: Out) -> None:
        """Hand out a slot to write an image into, or None."""
        member = self._state.caller(event, out)
        if member is None:
            return
        offer = self._tables.offer(
            event.page_id, event.lsn, member, scan=event.scan, now_us=self._state.now_us
        )
        if offer is None:
            out.append(m.Answer(event.call, None))
            return
        table, slot, generation = offer
        out.append(m.Answer(event.call, (table.node, table.slab, slot, generation)))

    def validate(self, event: m.Validate, out: Out) -> None:
        """Switch the page to the slot, if its image is still the newest; else free the slot."""
        state = self._state
        member = state.caller(event, out)
        if member is None:
            return
        page_id = event.page_id
        address = self._tables.offered(
            member, page_id, event.node, event.slab, event.slot, event.generation
        )
        accepted = address is not None and self._tables.validate(
            member, address, lsn=event.lsn, as_of=event.as_of, mark=state.mark
        )
        out.append(m.Answer(event.call, accepted))
        if accepted:
            self._finish_pull(page_id, out)
        elif member is state.writer:
            self._pull_again(page_id, out)

    def drop_offer(self, event: m.DropOffer, out: Out) -> None:
        """The slot was not written, or may not have been: free it."""
        state = self._state
        connection, page_id, node, slab, slot, generation = event
        member = state.members.get(connection)
        if member is None or state.rebuild is not None:
            return
        address = self._tables.offered(member, page_id, node, slab, slot, generation)
        if address is not None:
            self._tables.drop_offer(member, address)
        if member is state.writer:
            self._pull_again(page_id, out)

    # Pulls.

    def _pull(self, page_id: int, connection: int, call: Any, out: Out) -> None:
        """Let the caller wait for the writer's image of a stale page."""
        pull = self._pulls.get(page_id)
        if pull is None:
            pull = self._pulls.start(page_id, self._state.now_us)
            if pull is None or not self._ask(pull, out):
                self._pulls.finish(page_id)
                out.append(m.Answer(call, (ABSENT, self._state.mark)))
                return
        pull.waiters.append((connection, call))

    def _ask(self, pull: Pull, out: Out) -> bool:
        """Ask the writer, with a slot to write into; False if there is no room for its image."""
        writer = self._state.writer
        assert writer is not None, "pulls end with the writer"
        now_us = self._state.now_us
        offer = self._tables.offer(pull.page_id, 0, writer, scan=False, now_us=now_us)
        if offer is None:
            return False
        table, slot, generation = offer
        pull.slot = (table.base + slot, generation)
        self._state.stats.pulls += 1
        address = (table.node, table.slab, slot, generation)
        out.append(m.Push(writer.connection, "pull", (pull.page_id, pull.ticket, address)))
        return True

    def _take_back(self, pull: Pull) -> None:
        """The slot that went with the question is free, if the writer did not use it."""
        writer = self._state.writer
        if pull.slot is None or writer is None:
            return
        address, generation = pull.slot
        pull.slot = None
        if address in writer.offers:
            table, slot = self._tables.capacity.locate(address)
            if table.generation[slot] == generation:
                self._tables.drop_offer(writer, address)

    def _pull_again(self, page_id: int, out: Out) -> None:
        """The writer's image of a page that readers wait for came to nothing."""
        pull = self._pulls.get(page_id)
        if pull is None:
            return
        self._take_back(pull)
        if not self._pulls.refused(page_id) or not self._ask(pull, out):
            self._finish_pull(page_id, out)

    def pull_refused(self, event: m.PullRefused, out: Out) -> None:
        """The writer has nothing to give: the readers turn to storage."""
        writer, pull = self._state.writer, self._pulls.get(event.page_id)
        if writer is None or writer.connection != event.connection:
            return
        if pull is not None and pull.ticket == event.ticket:
            self._finish_pull(event.page_id, out)

    def _finish_pull(self, page_id: int, out: Out) -> None:
        pull = self._pulls.finish(page_id)
        if pull is not None:
            self.answer_pull(pull, out)

    def expire_pulls(self, out: Out) -> None:
        """The writer did not answer in time: the readers turn to storage."""
        for pull in self._pulls.expired(self._state.now_us):
            self._state.stats.pulls_expired += 1
            self.answer_pull(pull, out)

    def answer_pull(self, pull: Pull, out: Out) -> None:
        """Answer all who wait: the page has a valid slot by now, or it has not."""
        state, tables = self._state, self._tables
        self._take_back(pull)
        address = tables.addresses.get(pull.page_id)
        found = None if address is None else tables.capacity.locate(address)
        for connection, call in pull.waiters:
            member = state.members.get(connection)
            if member is None:
                continue
            # An invalidation may have taken it out of the holders since it asked. Wherever it
            # reads the page now, it is a holder again from this answer on.
            tables.references.add(pull.page_id, member.place)
            member.known_mark = state.mark
            if address is not None and found is not None and found[0].state[found[1]] == VALID:
                tables.eviction.referenced(address)
                state.stats.pulls_answered += 1
                out.append(m.Answer(call, self._hit(*found)))
            else:
                out.append(m.Answer(call, (ABSENT, state.mark)))

    def _hit(self, table: SlabTable, slot: int) -> tuple[Any, ...]:
        return (
            HIT, table.node, table.slab, slot, table.generation.item(slot), table.lsn.item(slot),
            self._state.mark,
        )  # fmt: skip
