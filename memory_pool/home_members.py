"""The home's decisions about who takes part: joins, expulsions, epochs, and its own first steps.

A member is expelled when it does not acknowledge in time, when its connection ends, and when its
node joins again. Its admission word goes first, and nothing of it stays behind (C7).
How a home that has just started comes to serve is told in `memory_pool.directory.rebuild`.
"""

from __future__ import annotations

from collections.abc import Callable

from memory_pool.directory import messages as m
from memory_pool.directory.members import Member, report
from memory_pool.directory.rebuild import ADVANCING, CONFIRMING, SCANNING, WAITING, Rebuild
from memory_pool.home_commits import Commits
from memory_pool.home_pages import Pages
from memory_pool.home_state import HomeState, Out
from polarless.errors import Fenced, Overloaded, Retry
from polarless.wire.memory import encode_claims


class Membership:
    """Steps that concern members, epochs and memory nodes. ``replay`` runs what was deferred."""

    def __init__(
        self,
        state: HomeState,
        pages: Pages,
        commits: Commits,
        replay: Callable[[m.Event, Out], None],
    ) -> None:
        self._state = state
        self._pages = pages
        self._commits = commits
        self._replay = replay

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
        rebuild = state.rebuild
        if rebuild is not None:
            for connection, (other, _) in list(rebuild.joins.items()):
                if other.name == event.name:
                    del rebuild.joins[connection]
                    out.append(m.Fail(other.call, Retry(f"{other.name} joined again")))
            rebuild.joins[event.connection] = (event, state.now_us)
            self._progress(rebuild, out)
        elif event.writer and (state.writer is not None or event.epoch > state.epoch):
            text = f"epoch {event.epoch} has to fence first: the home is at {state.epoch}"
            out.append(m.Fail(event.call, Fenced(text)))
        else:
            self._admit(event, out, cold=not event.writer)

    def _admit(self, event: m.Joined, out: Out, *, cold: bool) -> bool:
        """Make the node a member; a warm one is a holder of what it says it has kept."""
        state = self._state
        member = state.members.admit(event.connection, event.name, event.incarnation)
        if member is None:
            out.append(m.Fail(event.call, Overloaded("all admission words are taken")))
            return False
        state.stats.joins += 1
        if event.writer:
            state.writer = member
        # A new member takes no snapshot below what is published now; one that kept its cache may
        # still use any.
        member.snapshots = (state.published if cold else 0,)
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
            state.revoking.add(member.connection)
            for pull in state.pulls.finish_all():
                self._pages.answer_pull(pull, out)
            if state.rebuild is not None:
                self._empty(state.rebuild, out)
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
            state.audience = None
        if joining is not None:
            assert rebuild is not None
            assert connection is not None
            # Writer and home were lost together: nobody can vouch for a cache or a slot.
            del rebuild.joins[connection]
            self._empty(rebuild, out)
            self._admit(joining[0]._replace(writer=True, held=[]), out, cold=True)
            rebuild.state = ADVANCING
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

    # Memory nodes.

    def attached(self, event: m.Attached, out: Out) -> None:
        """A memory node lends its slabs."""
        state = self._state
        tables = state.tables
        again = tables.detach(event.node, state.members)
        # Later, a slot that was found full is only a slot: nobody could confirm it any more.
        scanning = state.rebuild is not None and state.rebuild.state == SCANNING
        for slab, slot_count, scan in event.slabs:
            tables.attach(event.node, slab, slot_count, scan if scanning else None)
        out.append(m.Note(f"memory node {event.node} attached{' again' if again else ''}"))
        out.append(m.SlabsChanged())

    def detached(self, event: m.Detached, out: Out) -> None:
        """A memory node is gone; its pages come from storage."""
        if self._state.tables.detach(event.node, self._state.members):
            out.append(m.Note(f"memory node {event.node} detached: {event.reason}", warning=True))
            out.append(m.SlabsChanged())

    # The first steps of a home.

    def scanned(self, event: m.Scanned, out: Out) -> None:
        """All slot headers are known."""
        rebuild = self._state.rebuild
        if rebuild is not None and rebuild.state == SCANNING:
            rebuild.state = WAITING
            self._progress(rebuild, out)

    def first_advance(self, event: m.Advance, out: Out) -> None:
        """An advance while the home does not serve yet: the one that ends it."""
        state, rebuild = self._state, self._state.rebuild
        assert rebuild is not None
        writer = state.writer
        if writer is None or writer.connection != event.connection or event.epoch != state.epoch:
            out.append(m.Fail(event.call, state.refusal(event.connection, event.epoch)))
        elif rebuild.advance is not None:
            out.append(m.Fail(event.call, Retry("the first advance is under way: one at a time")))
        else:
            rebuild.advance = event
            self._progress(rebuild, out)

    def confirmed(self, event: m.Confirmed, out: Out) -> None:
        """The writer knows which images are the newest; the other slots are free."""
        state, rebuild = self._state, self._state.rebuild
        writer = state.writer
        if rebuild is None or writer is None or writer.connection != event.connection:
            return
        claims = rebuild.verdict(event.ticket, event.verdicts)
        if claims is None:
            self._expel(writer, f"it confirmed what it was not asked ({event.ticket})", out)
            return
        tables = state.tables
        for (page_id, lsn, address), good in claims:
            if not tables.capacity.has(address):
                continue  # its node was detached meanwhile
            if good:
                tables.install(page_id, lsn, address)
            else:
                tables.free_claims([address])
        self._progress(rebuild, out)

    def _progress(self, rebuild: Rebuild, out: Out) -> None:
        """Go on as far as what has been heard allows."""
        state = self._state
        if rebuild.state == WAITING:
            joins = [join for join, _ in rebuild.joins.values() if join.writer]
            join = max(joins, key=lambda join: join.epoch, default=None)
            if join is None or join.epoch < state.epoch:
                return
            del rebuild.joins[join.connection]
            if not self._admit(join, out, cold=False):
                return
            state.epoch = join.epoch
            rebuild.admitted = set(join.admitted)
            rebuild.writer_joined_us = state.now_us
            rebuild.state = CONFIRMING
            state.tables.free_claims(rebuild.collect(state.tables.capacity))
            for ticket, claims in rebuild.questions():
                pairs = [(page_id, lsn) for page_id, lsn, _ in claims]
                args = (ticket, encode_claims(pairs))
                out.append(m.Push(join.connection, "confirm", args))
        if rebuild.state == CONFIRMING and rebuild.confirmed:
            rebuild.state = ADVANCING
        if rebuild.state == ADVANCING and rebuild.advance is not None:
            missing = rebuild.admitted - {join.name for join, _ in rebuild.joins.values()}
            waited_us = state.now_us - rebuild.writer_joined_us
            if not missing or waited_us >= state.config.rejoin_grace_us:
                self._begin(rebuild, rebuild.advance, out)

    def _begin(self, rebuild: Rebuild, advance: m.Advance, out: Out) -> None:
        """Serve: the first advance goes to the readers that kept their caches, then the rest."""
        state = self._state
        state.rebuild = None
        state.tables.staleness.raise_floor(advance.lsn)
        admissions: Out = []
        for join, _ in rebuild.joins.values():
            if join.writer:
                admissions.append(m.Fail(join.call, Fenced("another node is the writer")))
            else:
                cold = not (join.warm and join.name in rebuild.admitted)
                self._admit(join, admissions, cold=cold)
        self._commits.advance(advance, out)
        # Answered after the invalidations, so with the mark that they lead to.
        out += [
            effect._replace(mark=state.mark) if isinstance(effect, m.Admit) else effect
            for effect in admissions
        ]
        seconds = (state.now_us - rebuild.started_us) / 1e6
        out.append(m.Note(f"home {state.home_epoch} serves after {seconds:.3f} s"))
        for event in rebuild.deferred:
            self._replay(event, out)

    def _empty(self, rebuild: Rebuild, out: Out) -> None:
        """There is no writer that could vouch for a slot: the pool starts empty."""
        for event in rebuild.deferred:
            out.append(m.Fail(event.call, Retry("the writer is gone")))  # type: ignore[union-attr]
        if rebuild.advance is not None:
            out.append(m.Fail(rebuild.advance.call, Retry("the writer is gone")))
        rebuild.forget_writer()
        self._state.tables.empty()

    # Time.

    def tick(self, event: m.Tick, out: Out) -> None:
        """Expel who is late, end what waited too long, tell the mark to those who are behind."""
        state, now_us = self._state, self._state.now_us
        for member in list(state.members):
            waiting = member.unacknowledged
            if waiting and now_us - waiting[0][1] >= state.config.ack_timeout_us:
                self._expel(member, f"no acknowledgement of LSN {waiting[0][0]}", out)
        self._pages.expire_pulls(out)
        if now_us - state.marks_pushed_us >= state.config.mark_interval_us:
            state.marks_pushed_us = now_us
            for member in state.members:
                if member.known_mark < state.mark:
                    member.known_mark = state.mark
                    out.append(m.Push(member.connection, "mark", (state.mark,)))
        rebuild = state.rebuild
        if rebuild is not None:
            for connection, (join, since_us) in list(rebuild.joins.items()):
                if now_us - since_us >= state.config.rebuild_timeout_us:
                    del rebuild.joins[connection]
                    text = f"the pool's home is {rebuild.state}, for too long"
                    out.append(m.Fail(join.call, Retry(text)))
            self._progress(rebuild, out)
