"""One node's database engine: cache, trees, snapshots, locks, commits.

The same object serves as a reader and, after a promotion, as the writer; `writable` says which. A
session needs nothing else of a node.

Snapshots in use are counted in ``pins``; ``keep`` is what the writer may not prune: every pinned
snapshot of any node, ascending, and at the end the bound below which no later snapshot will lie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from compute.btree.bulk import BulkLoader
from compute.btree.split import Change
from compute.btree.tree import Tree
from compute.buffer.fetch import Fetcher
from compute.buffer.frames import FrameCache
from compute.buffer.waits import Resume, Suspend, Waiters, WaitFor, resumed
from compute.pools import LogStore, MemoryPool
from compute.txn import commit as commits
from compute.txn.locks import LockTable
from compute.txn.log_writer import LogWriter
from compute.txn.relayed import Recorder, RelayedTransaction
from compute.txn.reuse import Reuse
from compute.txn.sweeper import free_tree
from compute.txn.transaction import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE, Transaction
from polarless.errors import CallerMistake, Fenced, PolarlessError, Reroute, Retry
from polarless.kernel.ids import (
    CATALOG_ROOT,
    CATALOG_TREE,
    DROPPED_ROOT,
    DROPPED_TREE,
    FIRST_FREE_PAGE,
    Cts,
    Epoch,
    Lsn,
    PageId,
)
from polarless.kernel.world import Clock, Timer
from polarless.wire.relay import UNKNOWN

log = logging.getLogger(__name__)

WRITE_SET_BYTES_MAX: Final = 32 * 1024 * 1024
ADMISSION_TIMEOUT_S: Final = 15.0
# After a READ of the published timestamp that failed.
FETCH_AGAIN_S: Final = 0.05
# A proxy hears of a new writer at once, and opens a connection to it if it had none.
KEEP_ALL_S: Final = 2.0
# How long storage may not hear of an advance: a message for each batch costs both processes.
ANNOUNCE_S: Final = 0.01
# A hot row whose versions fill its page is not made to wait for longer than this.
KEEP_ALL_MIN_S: Final = 0.2
# A bulk load waits while more than this is queued or under way to the log.
BULK_BYTES_IN_FLIGHT_MAX: Final = 8 * 1024 * 1024
ISOLATIONS: Final = {
    "read uncommitted": READ_COMMITTED,
    READ_COMMITTED: READ_COMMITTED,
    REPEATABLE_READ: REPEATABLE_READ,
    SERIALIZABLE: SERIALIZABLE,
}

Done = Callable[[Lsn | None, PolarlessError | None], None]


class SnapshotWait(Suspend):
    """The published timestamp must be fetched over the network."""

    reason = "published timestamp"

    def __init__(self, engine: Engine) -> None:
        super().__init__(self.reason)
        self._engine = engine
        self._resume: Resume | None = None

    def subscribe(self, resume: Resume) -> None:
        self._resume = resume
        self._engine.fetch_snapshot(self._woken)

    def cancel(self) -> None:
        self._resume = None

    def _woken(self, error: PolarlessError | None) -> None:
        if self._resume is not None:
            self._resume(error)


class Engine:
    """See the module's docstring. ``spawn`` runs a coroutine as a task of the node."""

    def __init__(
        self,
        clock: Clock,
        cache: FrameCache,
        fetcher: Fetcher,
        pool: MemoryPool,
        store: LogStore,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        write_set_bytes_max: int = WRITE_SET_BYTES_MAX,
    ) -> None:
        self.clock = clock
        self.cache = cache
        self.fetcher = fetcher
        self.pool = pool
        self.store = store
        self.spawn = spawn
        self.write_set_bytes_max = write_set_bytes_max
        self.locks = LockTable()
        # How often this node became a member with an empty cache: older snapshots are void.
        self.memberships = 0
        self.writable = False
        self._announcing = False
        self.epoch: Epoch = 0
        self.fenced: PolarlessError | None = None
        self.catalog_version = 1
        self.log: LogWriter | None = None
        self.next_cts: Cts = 0
        self.next_page: PageId = FIRST_FREE_PAGE
        self.next_transaction = 0
        self.pins: dict[Cts, int] = {}
        self.remote_pins: tuple[Cts, ...] = ()
        self.keep: tuple[Cts, ...] = (0,)
        # For a while after a promotion every snapshot up to this one can still be read: proxies
        # bring transactions that had them. 0: only those in ``keep``.
        self.kept_until: Cts = 0
        self._writing_since = 0.0
        # Leaves where something was deleted or superseded: the sweeper's work list.
        self.sweepable: dict[PageId, Tree] = {}
        self.admission = Waiters()
        self._give_up: Timer | None = None
        self._again: Timer | None = None
        # Woken by each answered advance: snapshots have moved on.
        self.progress = Waiters()
        # Told of each applied group: (page ids, end LSN). The write-back listens.
        self.on_applied: Callable[[list[PageId], Lsn], None] | None = None
        # The newest published timestamp that this node has read, and when that READ began. None is
        # reported to the home as the bound for later snapshots that is newer than this.
        self.recent: Cts = 0
        self.recent_at = 0.0
        # Statements that took it.
        self.snapshots_reused = 0
        self._fresh: Cts | None = None
        self._next_fetch = Waiters()
        self._fetching = False
        self.catalog_tree = self.tree(CATALOG_TREE, CATALOG_ROOT, int_keys=False)
        self.dropped_tree = self.tree(DROPPED_TREE, DROPPED_ROOT, int_keys=True)

    # Trees.

    def tree(self, tree_id: int, root: PageId, *, int_keys: bool) -> Tree:
        """The tree with this root; cheap."""
        return Tree(self.fetcher, tree_id, root, int_keys=int_keys)

    def allocate(self, page_count: int) -> PageId:
        """The first of so many fresh page ids."""
        first = self.next_page
        self.next_page = first + page_count
        return first

    def new_tree(self, txn: Transaction, *, int_keys: bool) -> Tree:
        """An empty tree that exists when the transaction commits."""
        if not self.writable:
            raise Reroute("cannot create a table on a reader (RO) node")
        return commits.new_tree(self, txn, int_keys=int_keys)

    def drop_tree(self, txn: Transaction, tree: Tree) -> None:
        """Free the tree's pages once no snapshot is older than the commit."""
        commits.drop_tree(txn, self.dropped_tree, tree)

    def bulk_loader(self, txn: Transaction, tree: Tree) -> BulkLoader:
        """A loader for a tree that is new and empty in this transaction."""
        made = txn.new_trees.get(tree.tree_id)
        if made is None or made[1] or txn.writes.get(tree.tree_id):
            raise CallerMistake(f"{tree!r} is not new and empty in this transaction")
        txn.new_trees[tree.tree_id] = (tree, True)
        return BulkLoader(tree, _BulkTarget(self))

    # Snapshots.

    def snapshot(self, reuse: Reuse | None = None) -> Cts:
        """The newest published timestamp. Raises a `Suspend` when it is not at hand.

        In TCP mode the value is fetched; the statement that waited runs again inside the callback
        and finds it in ``_fresh``. It is not kept for longer: until it is pinned nobody keeps its
        versions. With ``reuse`` it may be an older one, if that saves waiting.
        """
        published = self._fresh
        if published is None:
            try:
                published = self.pool.published()
            except Retry as reason:
                if reuse is not None and self._may_reuse(reuse):
                    return self.recent
                if self.fenced is not None:
                    raise self.fenced from None
                raise self._not_admitted(reason) from None
        if published is None:
            if reuse is not None and self._may_reuse(reuse):
                return self.recent
            raise SnapshotWait(self)
        if reuse is not None:
            reuse.note(published, is_strong=True)
        return published

    def _may_reuse(self, reuse: Reuse) -> bool:
        """Whether a statement may take ``recent``; it is noted then."""
        if self.writable or not self.recent or self.fenced is not None:
            return False
        if not reuse.may_take(self.recent, self.clock.now() - self.recent_at):
            return False
        self.snapshots_reused += 1
        reuse.note(self.recent)
        return True

    def note_published(self, cts: Cts, read_at: float) -> None:
        """This was published when a READ of it began, at ``read_at``."""
        if cts >= self.recent:
            self.recent, self.recent_at = cts, max(read_at, self.recent_at)

    def forget_published(self) -> None:
        """This node has a new membership: nobody keeps old versions for it yet."""
        self.recent = 0

    def _not_admitted(self, reason: PolarlessError) -> WaitFor:
        """Wait until this node is a member of the pool again, but not for ever."""
        if self._give_up is None:

            def give_up() -> None:
                self._give_up = None
                self.admission.wake(
                    Retry(
                        f"this node is not admitted by the home: {reason}",
                        hint="The memory pool is being rebuilt or out of reach; try again.",
                    )
                )

            self._give_up = self.clock.call_later(ADMISSION_TIMEOUT_S, give_up)
        return WaitFor(self.admission, "admission by the home")

    def admitted(self, error: PolarlessError | None = None) -> None:
        """This node is a member: statements that waited run again, or end with ``error``."""
        self._end_give_up()
        self.admission.wake(error)

    def _end_give_up(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None

    def _fetch_again(self) -> None:
        """A READ may fail while this node stays a member: then nobody else tells those who wait."""
        if self._again is None:

            def again() -> None:
                self._again = None
                self.admission.wake(None)

            self._again = self.clock.call_later(FETCH_AGAIN_S, again)

    def fetch_snapshot(self, resume: Resume) -> None:
        """Call back with ``_fresh`` set to a timestamp whose READ begins after this call.

        A READ that is under way may have been served before the caller's statement arrived, and
        would miss a commit acknowledged since; so the caller joins the next one.
        """
        self._next_fetch.callbacks.append(resume)
        if not self._fetching:
            self._fetching = True
            self.spawn(self._fetch_snapshots())

    async def _fetch_snapshots(self) -> None:
        while self._next_fetch.callbacks:
            batch, self._next_fetch = self._next_fetch, Waiters()
            error: PolarlessError | None = None
            begun = self.clock.now()
            try:
                self._fresh = await self.pool.fetch_published()
                self.note_published(self._fresh, begun)
            except Retry as reason:
                # The home is away: these statements run again when this node is a member again.
                self._fresh = None
                if self.fenced is None:
                    for resume in batch.callbacks:
                        self._not_admitted(reason).subscribe(resume)
                    self._fetch_again()
                    continue
                error = self.fenced
            except PolarlessError as caught:
                self._fresh, error = None, caught
            else:
                self._end_give_up()
            try:
                batch.wake(error)
            finally:
                self._fresh = None
        self._fetching = False

    def pin(self, snapshot: Cts) -> None:
        """Count a snapshot as in use beyond one synchronous step."""
        self.pins[snapshot] = self.pins.get(snapshot, 0) + 1

    def unpin(self, snapshot: Cts) -> None:
        """Count it no more."""
        count = self.pins[snapshot] - 1
        if count:
            self.pins[snapshot] = count
        else:
            del self.pins[snapshot]

    def pinned_snapshots(self, floor: Cts) -> list[Cts]:
        """This node's snapshots in use and the bound for later ones, ascending."""
        return [*sorted(pin for pin in self.pins if pin < floor), floor]

    def refresh_keep(self) -> None:
        """Compute ``keep`` anew; called when an advance was answered."""
        assert self.log is not None
        own = self.pinned_snapshots(self.log.published)
        if self.remote_pins:
            floor = min(own[-1], self.remote_pins[-1])
            merged = {pin for pin in (*own, *self.remote_pins) if pin < floor}
            own = [*sorted(merged), floor]
        self.keep = (0, *own) if self.kept_until else tuple(own)

    def change(self, cts: Cts = 0) -> Change:
        """A group of records in the making."""
        return Change(
            self.cache, cts=cts, snapshots=self.keep, allocate=self.allocate,
            kept_until=self.kept_until,
        )  # fmt: skip

    def _prune_again(self) -> None:
        """The proxies have had their time: writers of hot rows wait for what can be pruned now."""
        self.kept_until = 0
        if self.fenced is None:
            self.refresh_keep()
            self.progress.wake(None)

    def needs_room(self) -> bool:
        """A row has too many versions: whether those from before the promotion may go now."""
        if not self.kept_until or self.clock.now() - self._writing_since < KEEP_ALL_MIN_S:
            return False
        self.kept_until = 0
        self.refresh_keep()
        return True

    # Transactions.

    def begin(
        self,
        isolation: str = READ_COMMITTED,
        *,
        read_only: bool = False,
        recorder: Recorder | None = None,
        reuse: Reuse | None = None,
    ) -> Transaction:
        """A new transaction; its snapshot comes with `Transaction.start_statement`."""
        level = ISOLATIONS.get(isolation)
        if level is None:
            raise CallerMistake(f"unknown isolation level {isolation!r}", sqlstate="22023")
        if recorder is not None:
            txn: Transaction = RelayedTransaction(
                self, level, read_only=read_only, recorder=recorder
            )
        else:
            txn = Transaction(self, level, read_only=read_only)
        txn.reuse = reuse
        return txn

    def commit(self, txn: Transaction, done: Done) -> None:
        """Commit; ``done(lsn, error)`` when it is acknowledged (at once if nothing was written).

        Raises a `Suspend` (call again), or the error that makes the commit impossible; the caller
        then calls `rollback`.
        """
        if not txn.writes and not txn.new_trees:
            self._end(txn)
            done(None, None)
            return
        if not self.writable or self.log is None:
            raise self.fenced or Reroute("this node is not the writer any more")
        commits.commit(self, txn, done)

    def rollback(self, txn: Transaction) -> None:
        """Drop the write set and give up the locks."""
        if txn.ended:
            return
        for tree in commits.discard(self, txn):
            if self.writable:
                self.spawn(free_tree(self, tree))
        txn.rollback_to(0)
        for action in txn.on_rollback:
            action()
        self._end(txn)

    async def verdict(self, transaction_id: int, from_lsn: Lsn) -> tuple[str, Lsn, bytes]:
        """What became of a proxied client's transaction: see `polarless.wire.storage`.

        What this node has queued itself is durable first. Raises `Fenced` and what storage raises.
        """
        writer = self.log
        if writer is not None:
            tail = writer.tail
            while writer.durable < tail and writer.stopped is None:
                if writer.is_overdue:
                    return UNKNOWN, 0, b""
                waiters = Waiters()
                writer.when_drained(partial(waiters.wake, None))
                await resumed(WaitFor(waiters, "the log's durability, for a verdict"))
        if self.fenced is not None:
            raise self.fenced
        return await self.store.verdict(transaction_id, from_lsn)

    def _end(self, txn: Transaction) -> None:
        txn.ended = True
        if txn.page_pins:
            commits.unpin_pages(self, txn)
        if txn.pinned is not None:
            self.unpin(txn.pinned)
            txn.pinned = None
        if txn.locks or txn.tables:
            self.locks.release(txn)

    # Roles.

    def start_writing(
        self,
        *,
        epoch: Epoch,
        tail: Lsn,
        cts: Cts,
        next_page: PageId,
        on_fenced: Callable[..., None],
    ) -> None:
        """Become the writer: everything up to ``tail`` is durable, advanced and published."""
        self.epoch = epoch
        self.next_cts = cts + 1
        self.next_page = max(next_page, FIRST_FREE_PAGE)
        self.next_transaction = epoch << 40

        def fenced(error: PolarlessError) -> None:
            self.fence(error)
            on_fenced(error)

        self.log = LogWriter(
            self.store,
            self.pool,
            self.clock,
            epoch=epoch,
            tail=tail,
            cts=cts,
            on_fenced=fenced,
            on_advanced=self._advanced,
            on_durable=self._durable,
        )
        self.cache.evictable_lsn = tail
        self.fetcher.values.durable_lsn = tail
        self.fetcher.hold = None
        self.fetcher.release = None
        writer = self.log
        self.fetcher.mark = lambda: writer.advanced
        self.kept_until = cts
        self._writing_since = self.clock.now()
        self.clock.call_later(KEEP_ALL_S, self._prune_again)
        self.refresh_keep()
        self.writable = True

    def fence(self, error: PolarlessError) -> None:
        """A higher epoch exists: serve nothing any more."""
        if self.fenced is not None:
            return
        self.fenced = error if isinstance(error, Fenced) else Fenced(f"fenced: {error}")
        self.writable = False
        if self.log is not None:
            self.log.stop(self.fenced)
        self.admitted(self.fenced)
        self.progress.wake(self.fenced)

    def disk_full(self, error: PolarlessError | None) -> None:
        """Storage has no room for what this node has queued (None: it has some again)."""
        if self.log is not None:
            self.log.disk_full(error)

    @property
    def can_log(self) -> bool:
        """Whether background work may add to the log: not while it waits for room."""
        return self.writable and self.log is not None and not self.log.is_behind

    def catalog_changed(self) -> None:
        """Plans made with the catalog so far are out of date."""
        self.catalog_version += 1

    def _durable(self, lsn: Lsn) -> None:
        self.fetcher.values.durable_lsn = lsn

    def _advanced(self, lsn: Lsn, cts: Cts, result: Any) -> None:
        """An advance was answered with (admitted readers, their snapshots)."""
        self.cache.evictable_lsn = lsn
        snapshots = result[1] if result else None
        self.remote_pins = tuple(snapshots) if snapshots else ()
        self.refresh_keep()
        if not self._announcing:
            self._announcing = True
            self.clock.call_later(ANNOUNCE_S, self._announce)
        if self.progress.callbacks:
            self.progress.wake(None)

    def _announce(self) -> None:
        """Tell storage how far it may fold. Nobody waits for that, so not after each batch."""
        self._announcing = False
        if self.fenced is None and self.log is not None:
            self.store.announce(self.epoch, self.log.advanced)


class _BulkTarget:
    """Where a `BulkLoader` puts its pages: the cache and the log of this node."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.cache = engine.cache

    def allocate(self, page_count: int, /) -> PageId:
        """Fresh page ids."""
        return self._engine.allocate(page_count)

    async def log(self, change: Change) -> None:
        """Log finished pages; waits while too much is not durable yet."""
        engine = self._engine
        if engine.log is None or not engine.writable:
            raise engine.fenced or Reroute("this node is not the writer any more")
        commits.log_change(engine, change)
        while engine.log.waiting_bytes > BULK_BYTES_IN_FLIGHT_MAX and engine.log.stopped is None:
            if engine.log.is_overdue:
                engine.log.wait_for_room()
            waiters = Waiters()
            engine.log.when_drained(partial(waiters.wake, None))
            await resumed(WaitFor(waiters, "bulk load: the log's durability"))
        if engine.log.stopped is not None:
            raise engine.log.stopped
