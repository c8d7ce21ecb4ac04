"""The home's decisions about who takes part: joins, expulsions, epochs.

A member is expelled when it does not acknowledge in time, when its connection ends, and when its
node joins again. Its admission word goes first, and nothing of it stays behind (C7).
"""

from __future__ import annotations

from memory_pool.directory import messages as m
from memory_pool.directory.members import Member, report
from memory_pool.home_claims import Adoption
from memory_pool.home_commits import Commits
from memory_pool.home_pages import Pages
from memory_pool.home_rebuild import Rebuilding
from memory_pool.home_state import HomeState, Out
from polarless.errors import Fenced, Overloaded, Retry


class Membership:
    """Steps that concern members and epochs."""

    def __init__(
        self,
        state: HomeState,
        pages: Pages,
        commits: Commits,
        rebuilding: Rebuilding,
        adoption: Adoption,
    ) -> None:
        self._state = state
        self._pages = pages
        self._commits = commits
        self._rebuilding = rebuilding
        self._adoption = adoption
        rebuilding.admit = self._admit

    # Joining and leaving.

    def join(self, event: m.Joined, out: Out) -> None:
        """Admit a node, now or when the home serves."""
        state = self._state
        known = state.members.named(event.name)
        if known is not None:
            self._expel(known, "its node joined again", out)
        if event.writer and event.epoch < state.epoch:
            out.append(m.Fail(event.call, state.refusal(event.connection, event.epoch)))
            return
        if state.rebuild is not None:
            self._rebuilding.join(state.rebuild, event, out)
        elif event.writer and event.epoch > state.epoch:
            # A new writer that was never a reader here: it comes in cold, and fences next.
            self._admit(event._replace(writer=False), out, cold=True)
        elif event.writer and state.writer is not None:
            text = f"epoch {event.epoch} belongs to {state.writer.name}"
            out.append(m.Fail(event.call, Fenced(text)))
        else:
            self._admit(event, out, cold=not event.writer)

    def _admit(self, event: m.Joined, out: Out, *, cold: bool, floor: int = 0) -> bool:
        """Make the node a member; a warm one is a holder of what it says it has kept.

        A cold one takes no snapshot below what is, or is about to be, published (``floor``); one
        that kept its cache may still use any.
        """
        state = self._state
        member = state.members.admit(event.connection, event.name, event.incarnation)
        if member is None:
            out.append(m.Fail(event.call, Overloaded("all admission words are taken")))
            return False
        state.stats.joins += 1
        if event.writer:
            state.writer = member
            state.caught_up = False
        member.snapshots = (max(state.published, floor) if cold else 0,)
        if not cold:
            for page_id in event.held:
                state.tables.hold(page_id, member.place)
        member.known_mark = state.mark
        state.audience = None
        out.append(m.SetWord(member.place, event.incarnation))
        out.append(m.Admit(event.call, event.connection, member.place, cold, state.mark))
        return True

    def lost(self, event: m.Lost, out: Out) -> None:
        """A connection ended; that is an expulsion, too."""
        state = self._state
        member = state.members.get(event.connection)
        if member is not None:
            self._remove(member, out)
            out.append(m.Note(f"{member.name}: connection lost, no member any more"))
            self._commits.complete(out)
            return
        if state.rebuild is not None:
            state.rebuild.joins.pop(event.connection, None)
        # It may have been given keys already.
        out.append(m.Revoke(event.connection))

    def report(self, event: m.Report, out: Out) -> None:
        """Which snapshots a reader uses."""
        member = self._state.members.get(event.connection)
        if member is None:
            return
        try:
            member.snapshots = report(event.snapshots)
        except ValueError as error:
            self._expel(member, f"its report of snapshots is malformed: {error}", out)
            return
        self._state.audience = None

    def _expel(self, member: Member, reason: str, out: Out) -> None:
        """End a membership from our side; the node learns it from its word, or from this."""
        self._state.stats.expulsions += 1
        self._remove(member, out)
        out.append(m.Push(member.connection, "expelled", (reason,)))
        out.append(m.Close(member.connection, f"expelled: {reason}"))
        out.append(m.Note(f"{member.name} expelled: {reason}", warning=True))
        self._commits.complete(out)

    def _remove(self, member: Member, out: Out) -> None:
        """The word first, then everything else. The caller completes what the member held up."""
        state = self._state
        out.append(m.SetWord(member.place, 0))
        state.tables.drop_offers(member)
        state.tables.drop_member(member.place)
        state.pulls.drop_waiter(member.connection)
        state.members.remove(member)
        state.audience = None
        if member is state.writer:
            state.writer = None
            state.caught_up = False
            state.revoking.add(member.connection)
            for pull in state.pulls.finish_all():
                self._pages.answer_pull(pull, out)
            self._adoption.writer_lost()
            if state.rebuild is not None:
                self._rebuilding.writer_lost(state.rebuild, out)
        out.append(m.Revoke(member.connection))

    # Epochs.

    def fence(self, event: m.Fence, out: Out) -> None:
        """Refuse lower epochs from now on; a compute node that asks is the writer from now on."""
        state, rebuild = self._state, self._state.rebuild
        connection, call, epoch = event
        if epoch < state.epoch:
            out.append(m.Fail(call, state.refusal(connection, epoch)))
            return
        member = joining = None
        if connection is not None:
            member = state.members.get(connection)
            if member is None and rebuild is not None:
                joining = rebuild.joins.get(connection)
            if member is None and joining is None:
                out.append(m.Fail(call, Retry(f"fence {epoch}: join first")))
                return
            if epoch == state.epoch and state.writer not in (None, member):
                assert state.writer is not None
                out.append(m.Fail(call, Fenced(f"epoch {epoch} belongs to {state.writer.name}")))
                return
        if epoch > state.epoch:
            self._new_epoch(epoch, member, out)
        if member is not None and member is not state.writer:
            state.writer = member
            state.caught_up = False
            state.audience = None
        if joining is not None:
            assert rebuild is not None
            self._rebuilding.take_over(rebuild, joining[0], out)
        state.fences.append(event)
        self._answer_fences(out)

    def _new_epoch(self, epoch: int, successor: Member | None, out: Out) -> None:
        state = self._state
        state.stats.fences += 1
        old = state.writer
        state.epoch = epoch
        out.append(m.Note(f"epoch {epoch}: fenced {'nobody' if old is None else old.name}"))
        # What the old writer has not been told is published is for the new one to publish.
        for advance in state.pending:
            error = state.refusal(advance.connection, advance.epoch)
            out.append(m.Fail(advance.call, error))
        state.pending.clear()
        for fence in state.fences:
            out.append(m.Fail(fence.call, state.refusal(fence.connection, fence.epoch)))
        state.fences.clear()
        if old is not None and old is not successor:
            self._remove(old, out)
            out.append(m.Push(old.connection, "fenced", (epoch,)))
            out.append(m.Close(old.connection, f"fenced by epoch {epoch}"))

    def revoked(self, event: m.Revoked, out: Out) -> None:
        """An old writer can write nowhere any more."""
        self._state.revoking.discard(event.connection)
        self._answer_fences(out)

    def _answer_fences(self, out: Out) -> None:
        """A fence is answered when no key of an older writer works anywhere."""
        state = self._state
        if state.revoking:
            return
        for fence in state.fences:
            answer = {
                "mark": state.mark,
                "published": state.published,
                "cold": state.rebuild is not None,
            }
            out.append(m.Answer(fence.call, answer))
        state.fences.clear()

    # Time.

    def tick(self, event: m.Tick, out: Out) -> None:
        """Expel who is late, end what waited too long, tell the mark to those who are behind."""
        state, now_us = self._state, self._state.now_us
        for member in list(state.members):
            waiting = member.unacknowledged
            if waiting and now_us - waiting[0][1] >= state.config.ack_timeout_us:
                self._expel(member, f"no acknowledgement of LSN {waiting[0][0]}", out)
            state.tables.expire_offers(member, now_us - state.config.offer_timeout_us)
        self._pages.expire_pulls(out)
        if now_us - state.marks_pushed_us >= state.config.mark_interval_us:
            state.marks_pushed_us = now_us
            for member in state.members:
                if member.known_mark < state.mark:
                    member.known_mark = state.mark
                    out.append(m.Push(member.connection, "mark", (state.mark,)))
        for node in state.tables.empty_leftovers():
            out.append(m.Shrunk(node, state.tables.capacity.lent(node)))
        if state.rebuild is not None:
            self._rebuilding.tick(state.rebuild, out)
        self._adoption.tick(out)
