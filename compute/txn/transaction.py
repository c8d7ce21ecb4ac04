"""One transaction: its snapshot, its private write set, its locks.

Writes are buffered in ``writes``, by tree and key, until the commit; reads merge them in. A
statement that fails or must wait takes its part of the write set back with `rollback_to`, so it can
run again from its start. Locks stay until the transaction ends.

READ COMMITTED takes a snapshot per statement; REPEATABLE READ and SERIALIZABLE one at the first
statement, and a row that changed since is a `Conflict` (first updater wins). SERIALIZABLE adds the
read set, validated by the commit: points by key, ranges by their bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sortedcontainers import SortedList

from compute.btree.tree import Tree
from compute.buffer.waits import Suspend, WaitFor
from compute.txn.locks import Owner
from compute.txn.versions import visible
from polarless.errors import CallerMistake, Conflict, Overloaded, Reroute
from polarless.kernel.ids import Cts, PageId, TreeId
from polarless.kernel.page import Frame, Key

if TYPE_CHECKING:
    from compute.txn.engine import Engine
    from compute.txn.reuse import Reuse

READ_COMMITTED: Final = "read committed"
REPEATABLE_READ: Final = "repeatable read"
SERIALIZABLE: Final = "serializable"

_MISSING: Any = object()


class Transaction(Owner):
    """See the module's docstring. Made by `Engine.begin`."""

    __slots__ = (
        "_journal",
        "cts",
        "depends",
        "ended",
        "engine",
        "isolation",
        "membership",
        "new_trees",
        "note",
        "on_commit",
        "on_rollback",
        "page_pins",
        "pinned",
        "read_only",
        "reads",
        "reuse",
        "snapshot",
        "sorted_keys",
        "transaction_id",
        "trees",
        "write_bytes",
        "writes",
    )  # fmt: skip

    def __init__(self, engine: Engine, isolation: str, *, read_only: bool) -> None:
        super().__init__()
        self.engine = engine
        self.isolation = isolation
        self.read_only = read_only
        self.snapshot: Cts = 0
        self.pinned: Cts | None = None
        # The membership under which the snapshot was pinned.
        self.membership = 0
        # Own keys in order, for trees that were scanned after many writes: see `_merged`.
        self.sorted_keys: dict[TreeId, SortedList] = {}
        # Its commit's timestamp, once it is applied.
        self.cts: Cts = 0
        # Which older snapshots will do.
        self.reuse: Reuse | None = None
        self.transaction_id = 0
        # What the group carries for whoever asks for the verdict of a proxied client.
        self.note = b""
        self.writes: dict[TreeId, dict[Key, bytes | None]] = {}
        self.trees: dict[TreeId, Tree] = {}
        self.write_bytes = 0
        # The newest commit above a snapshot that it has looked at to change it: rows made of that
        # are not shown before it is published (C3).
        self.depends: Cts = 0
        self.ended = False
        # Roots of trees made in this transaction: tree id -> (tree, was its content logged).
        self.new_trees: dict[TreeId, tuple[Tree, bool]] = {}
        self.on_commit: list[Callable[[], None]] = []
        self.on_rollback: list[Callable[[], None]] = []
        # Pages that a commit under way keeps in the cache.
        self.page_pins: set[PageId] = set()
        # What SERIALIZABLE read: (tree, low, high), high None for a single key.
        self.reads: list[tuple[Tree, Key, Key, bool]] = []
        # (writes of the tree, key, what was there before): undone from the end.
        self._journal: list[tuple[dict[Key, bytes | None], Key, Any]] = []

    @property
    def has_writes(self) -> bool:
        """Whether the commit will write anything."""
        return bool(self.writes or self.new_trees)

    def start_statement(self) -> None:
        """Take the snapshot that the statement reads at. May raise a `Suspend`."""
        if self.isolation == READ_COMMITTED:
            if self.pinned is not None:
                self.engine.unpin(self.pinned)
                self.pinned = None
            self.snapshot = self.engine.snapshot(self.reuse)
        elif self.pinned is None:
            self.snapshot = self.engine.snapshot(self.reuse)
            self.pin()
        elif self.membership != self.engine.memberships:
            self._snapshot_lost()

    def _snapshot_lost(self) -> None:
        """This node was out of the pool: nobody kept the versions of its old snapshots."""
        raise Conflict(
            "the snapshot is gone: this node was out of the memory pool meanwhile",
            hint="Run the whole transaction again.",
        )

    def pin(self) -> None:
        """Keep the versions of this snapshot alive beyond this synchronous step."""
        if self.pinned is None:
            self.engine.pin(self.snapshot)
            self.pinned = self.snapshot
            self.membership = self.engine.memberships

    # Reading.

    def get(self, tree: Tree, key: Key) -> bytes | None:
        """The row as this statement sees it, own writes first. May raise a `Suspend`."""
        if self.writes:
            own = self.writes.get(tree.tree_id)
            if own is not None:
                payload = own.get(key, _MISSING)
                if payload is not _MISSING:
                    return payload  # type: ignore[no-any-return]
        if self.isolation == SERIALIZABLE:
            self.reads.append((tree, key, key, True))
        payload = visible(tree.find(key), self.snapshot)
        if type(payload) is tuple:
            return self.large(payload)
        return payload  # type: ignore[no-any-return]

    def large(self, place: tuple[int, PageId, int]) -> bytes:
        """A value that lies on overflow pages. May raise a `Suspend`."""
        self.pin()
        return self.engine.fetcher.large(place[1], place[2], place[0])

    def batch(
        self,
        tree: Tree,
        low: Key = None,
        high: Key = None,
        *,
        after: Key | None = None,
        reverse: bool = False,
    ) -> tuple[list[tuple[Key, bytes]], Key | None]:
        """One leaf's worth of visible rows in ``[low, high)``, and where to go on (None: the end).

        ``after`` is the position that the previous call returned. May raise a `Suspend`; then call
        again with the same arguments. A leaf's values may be more than there is memory for: at one
        that is not at hand the batch ends, and the next one begins there.
        """
        frame, keys, rest = self._leaf(tree, low, high, after, reverse)
        rows = frame.rows
        snapshot = self.snapshot
        result: list[tuple[Key, bytes]] = []
        done: Key = None
        for key in keys:
            version: Any = rows[key]
            while version is not None and version[0] > snapshot:
                version = version[2]
            if version is not None and version[1] is not None:
                payload = version[1]
                if type(payload) is not bytes:
                    try:
                        payload = self.large(payload)
                    except Suspend:
                        if not result:
                            raise
                        rest = done if reverse else key
                        if reverse:
                            low = rest
                        else:
                            high = rest
                        break
                result.append((key, payload))
            done = key
        own = self.writes.get(tree.tree_id) if self.writes else None
        if own:
            result = self._merged(
                tree.tree_id, result, own, frame.low, frame.high, low, high, after, reverse
            )
        return result, rest

    def payloads(
        self,
        tree: Tree,
        low: Key = None,
        high: Key = None,
        *,
        after: Key | None = None,
        reverse: bool = False,
    ) -> tuple[list[Any], Key | None]:
        """As `batch` without the keys; a value on overflow pages is still its place, a tuple."""
        if self.writes and tree.tree_id in self.writes:
            rows, rest = self.batch(tree, low, high, after=after, reverse=reverse)
            return [payload for _, payload in rows], rest
        frame, keys, rest = self._leaf(tree, low, high, after, reverse)
        versions = frame.rows
        snapshot = self.snapshot
        result: list[Any] = []
        append = result.append
        for key in keys:
            version: Any = versions[key]
            while version[0] > snapshot:
                version = version[2]
                if version is None:
                    break
            else:
                payload = version[1]
                if payload is not None:
                    append(payload)
        return result, rest

    def _leaf(
        self, tree: Tree, low: Key, high: Key, after: Key, reverse: bool
    ) -> tuple[Frame, list[Key], Key]:
        """The leaf at a scan's position, its keys within the range, and where to go on."""
        self.pin()
        if self.membership != self.engine.memberships:
            self._snapshot_lost()
        if self.isolation == SERIALIZABLE and after is None:
            self.reads.append((tree, low, high, False))
        return tree.rows_in(after, low, high, reverse=reverse)

    def _merged(
        self,
        tree_id: TreeId,
        rows: list[tuple[Key, bytes]],
        own: dict[Key, bytes | None],
        leaf_low: Key,
        leaf_high: Key,
        low: Key,
        high: Key,
        after: Key,
        reverse: bool,
    ) -> list[tuple[Key, bytes]]:
        """The leaf's rows with this transaction's own writes put in or taken out."""
        if not reverse and after is not None:
            low = after
        if reverse and after is not None:
            high = after
        lows = [bound for bound in (leaf_low, low) if bound is not None]
        highs = [bound for bound in (leaf_high, high) if bound is not None]
        start = max(lows) if lows else None
        end = min(highs) if highs else None
        keys = self.sorted_keys.get(tree_id)
        if keys is None:
            keys = self.sorted_keys[tree_id] = SortedList(own)
        mine = {key: own[key] for key in keys.irange(start, end, inclusive=(True, False))}
        if not mine:
            return rows
        merged: dict[Key, bytes | None] = dict(rows)
        merged.update(mine)
        return sorted(
            ((key, payload) for key, payload in merged.items() if payload is not None),
            key=lambda row: row[0],
            reverse=reverse,
        )

    # Writing.

    def lock_and_get(self, tree: Tree, key: Key) -> bytes | None:
        """Lock the row and return its newest version, own writes first.

        May raise a `Suspend`, `Deadlock`, `Conflict` (REPEATABLE READ and above) or `Reroute`.
        """
        engine = self.engine
        if self.read_only or not engine.writable:
            self._refuse_write()
        tree_id = tree.tree_id
        engine.locks.acquire(self, tree_id, key)
        own = self.writes.get(tree_id)
        if own is not None:
            payload = own.get(key, _MISSING)
            if payload is not _MISSING:
                return payload  # type: ignore[no-any-return]
        version = tree.find(key)
        if version is None:
            return None
        if version[0] > self.snapshot:
            if self.isolation != READ_COMMITTED:
                raise Conflict(
                    "could not serialize access due to concurrent update",
                    hint="Run the whole transaction again.",
                )
            if version[0] > self.depends:
                self.depends = version[0]
        payload = version[1]
        if type(payload) is tuple:
            return self.large(payload)
        return payload  # type: ignore[no-any-return]

    def insert(self, tree: Tree, key: Key, payload: bytes) -> bool:
        """Lock the key and buffer a new row; False if there is one already."""
        if self.lock_and_get(tree, key) is not None:
            return False
        self.put(tree, key, payload)
        return True

    def put(self, tree: Tree, key: Key, payload: bytes | None) -> None:
        """Buffer a row (None deletes it). The key must be locked by this transaction.

        Raises `Overloaded` when the write set is full, `CallerMistake` when the row is too large.
        """
        tree_id = tree.tree_id
        own = self.writes.get(tree_id)
        if own is None:
            own = self.writes[tree_id] = {}
            self.trees[tree_id] = tree
        before = own.get(key, _MISSING)
        self._journal.append((own, key, before))
        own[key] = payload
        if self.sorted_keys and before is _MISSING and tree_id in self.sorted_keys:
            self.sorted_keys[tree_id].add(key)
        size = 64 + (len(payload) if payload is not None else 0)
        self.write_bytes += size
        if self.write_bytes > self.engine.write_set_bytes_max or size > _ROW_BYTES_MAX + 64:
            self._toolarge(size)

    def lock_table(self, tree: Tree, *, exclusive: bool = True) -> None:
        """Lock a whole tree against other writers until this transaction is acknowledged."""
        if self.read_only or not self.engine.writable:
            self._refuse_write()
        if exclusive:
            self.engine.locks.acquire_table(self, tree.tree_id)

    def _refuse_write(self) -> None:
        if self.engine.writable:
            raise CallerMistake(
                "cannot write in a read-only transaction",
                sqlstate="25006",
                hint="Begin the transaction without READ ONLY.",
            )
        raise Reroute(
            "cannot write on a reader (RO) node",
            hint="Connect to the cluster's URL (`polarless status` shows it): it leads to the "
            "writer (RW).",
        )

    def _toolarge(self, size: int) -> None:
        limit = self.engine.write_set_bytes_max
        if size > _ROW_BYTES_MAX + 64:
            raise CallerMistake(
                f"row of {size - 64} bytes exceeds the limit of {_ROW_BYTES_MAX}",
                sqlstate="54000",
                hint="Split the value over several rows.",
            )
        raise Overloaded(
            f"the transaction's writes exceed {limit} bytes",
            hint="Commit in smaller steps, or load with COPY into a table that is created or "
            "truncated in the same transaction.",
        )

    def unpublished(self) -> WaitFor | None:
        """What to wait for before rows may be shown, if they may be of a commit that can be lost.

        Locks go before a commit is durable, so this transaction may have changed rows of one that
        is not. Its own commit comes later in the log; its answers must not come earlier.
        """
        writer = self.engine.log
        if writer is None or self.depends <= writer.published:
            return None
        return WaitFor(self.engine.progress, "the commit of rows that it has changed")

    # Savepoints and statements.

    def savepoint(self) -> int:
        """A position in the write set."""
        return len(self._journal)

    def rollback_to(self, mark: int) -> None:
        """Take the write set back to a position."""
        journal = self._journal
        self.sorted_keys.clear()
        while len(journal) > mark:
            own, key, before = journal.pop()
            payload = own[key]
            self.write_bytes -= 64 + (len(payload) if payload is not None else 0)
            if before is _MISSING:
                del own[key]
            else:
                own[key] = before
        if mark == 0:
            self.writes.clear()
            self.trees.clear()


# A row's encoded bytes: 16 MiB of value and what describes it.
_ROW_BYTES_MAX: Final = 16 * 1024 * 1024 + 4096
