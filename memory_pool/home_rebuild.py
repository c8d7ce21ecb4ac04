"""How a home that has just started comes to serve; the states are those of `directory.rebuild`."""

from __future__ import annotations

from collections.abc import Callable

from memory_pool.directory import messages as m
from memory_pool.directory.rebuild import ADVANCING, SCANNING, WAITING, Rebuild
from memory_pool.home_commits import Commits
from memory_pool.home_state import HomeState, Out
from polarless.errors import Fenced, Retry


class Rebuilding:
    """Steps before the home serves, and the coming and going of memory nodes.

    ``replay`` runs an event that was deferred, ``admit`` makes a node a member.
    """

    admit: Callable[..., bool]

    def __init__(
        self, state: HomeState, commits: Commits, replay: Callable[[m.Event, Out], None]
    ) -> None:
        self._state = state
        self._commits = commits
        self._replay = replay

    # Memory nodes.

    def attached(self, event: m.Attached, out: Out) -> None:
        """A memory node lends its slabs."""
        state = self._state
        tables = state.tables
        again = tables.detach(event.node, state.members)
        # Claims are chosen once, when all nodes are there. Who comes later starts empty.
        scanning = state.rebuild is not None and state.rebuild.state == SCANNING
        for slab, slot_count, scan in event.slabs:
            tables.attach(event.node, slab, slot_count, scan if scanning else None)
        if event.lent is not None:
            tables.capacity.lend(event.node, event.lent)
        out.append(m.Note(f"memory node {event.node} attached{' again' if again else ''}"))
        out.append(m.SlabsChanged())

    def detached(self, event: m.Detached, out: Out) -> None:
        """A memory node is gone; its pages come from storage."""
        if self._state.tables.detach(event.node, self._state.members):
            out.append(m.Note(f"memory node {event.node} detached: {event.reason}", warning=True))
            out.append(m.SlabsChanged())

    def lend(self, event: m.Lend, out: Out) -> None:
        """A memory node lends more or fewer slots from now on."""
        capacity = self._state.tables.capacity
        before = capacity.lent(event.node)
        capacity.lend(event.node, event.slots)
        text = f"memory node {event.node} lends {capacity.lent(event.node)} slots, before {before}"
        out.append(m.Note(text))

    # The first steps.

    def join(self, rebuild: Rebuild, event: m.Joined, out: Out) -> None:
        """A node waits to become a member."""
        for connection, (other, _) in list(rebuild.joins.items()):
            if other.name == event.name:
                del rebuild.joins[connection]
                out.append(m.Fail(other.call, Retry(f"{other.name} joined again")))
        rebuild.joins[event.connection] = (event, self._state.now_us)
        self._progress(rebuild, out)

    def take_over(self, rebuild: Rebuild, join: m.Joined, out: Out) -> None:
        """Writer and home were lost together: a reader is the writer now.

        Nobody can vouch for a cache: everybody starts cold. Slots are another matter, storage
        will judge them.
        """
        del rebuild.joins[join.connection]
        self.writer_lost(rebuild, out)
        self.admit(join._replace(writer=True, held=[]), out, cold=True)
        rebuild.state = ADVANCING

    def scanned(self, event: m.Scanned, out: Out) -> None:
        """All slot headers are known."""
        rebuild = self._state.rebuild
        if rebuild is not None and rebuild.state == SCANNING:
            rebuild.state = WAITING
            tables = self._state.tables
            tables.free_claims(tables.claims.collect(tables.capacity))
            self._progress(rebuild, out)

    def first_advance(self, event: m.Advance, out: Out) -> None:
        """An advance while the home does not serve yet: the one that ends it."""
        state, rebuild = self._state, self._state.rebuild
        assert rebuild is not None
        writer = state.writer
        if writer is None or writer.connection != event.connection or event.epoch != state.epoch:
            out.append(m.Fail(event.call, state.refusal(event.connection, event.epoch)))
        else:
            # More may follow before the first is processed. None may be lost: its pages would never
            # be invalidated. They are bounded by what the writer's clients wait for.
            rebuild.advances.append(event)
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
            if not self.admit(join, out, cold=False):
                return
            state.epoch = join.epoch
            rebuild.admitted = set(join.admitted)
            rebuild.writer_joined_us = state.now_us
            rebuild.state = ADVANCING
        if rebuild.state == ADVANCING and rebuild.advances:
            missing = rebuild.admitted - {join.name for join, _ in rebuild.joins.values()}
            waited_us = state.now_us - rebuild.writer_joined_us
            if not missing or waited_us >= state.config.rejoin_grace_us:
                self._begin(rebuild, out)

    def _begin(self, rebuild: Rebuild, out: Out) -> None:
        """Serve: the first advance goes to the readers that kept their caches, then the rest."""
        state = self._state
        first, *following = rebuild.advances
        state.rebuild = None
        state.tables.staleness.raise_floor(first.lsn)
        admissions: Out = []
        for join, _ in rebuild.joins.values():
            if join.writer:
                admissions.append(m.Fail(join.call, Fenced("another node is the writer")))
            else:
                cold = not (join.warm and join.name in rebuild.admitted)
                self.admit(join, admissions, cold=cold, floor=first.cts)
        self._commits.advance(first, out)
        # Answered after the invalidations, so with the mark that they lead to.
        out += [
            effect._replace(mark=state.mark) if isinstance(effect, m.Admit) else effect
            for effect in admissions
        ]
        seconds = (state.now_us - rebuild.started_us) / 1e6
        out.append(m.Note(f"home {state.home_epoch} serves after {seconds:.3f} s"))
        for event in (*following, *rebuild.deferred):
            self._replay(event, out)

    def writer_lost(self, rebuild: Rebuild, out: Out) -> None:
        """The writer is gone before its first advance: nothing it said or asked counts."""
        for event in (*rebuild.advances, *rebuild.deferred):
            out.append(m.Fail(event.call, Retry("the writer is gone")))
        rebuild.forget_writer()

    def tick(self, rebuild: Rebuild, out: Out) -> None:
        """End the joins that waited too long; the grace of the first advance may be over."""
        state = self._state
        for connection, (join, since_us) in list(rebuild.joins.items()):
            if state.now_us - since_us >= state.config.rebuild_timeout_us:
                del rebuild.joins[connection]
                text = f"the pool's home is {rebuild.state}, for too long"
                out.append(m.Fail(join.call, Retry(text)))
        self._progress(rebuild, out)
