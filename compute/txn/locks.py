"""Row locks and table locks of the writer.

One exclusive mode per row, granted in the order of asking. A cycle of waits is found when it
closes, by walking from owner to what that owner waits for; whoever would close it gets `Deadlock`.

Rows are locked by (tree id, key). The hot path, a free lock, is one dict look-up and one store.
A table lock (DDL) is exclusive against all row locks in that tree: it waits until no other
transaction has one, and new ones wait for it. Readers never lock (they have snapshots).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from compute.buffer.waits import Suspend
from polarless.errors import Deadlock, PolarlessError
from polarless.kernel.ids import TreeId
from polarless.kernel.page import Key

Resume = Callable[[PolarlessError | None], None]


class Owner:
    """What the table knows of a transaction: its locks and what it waits for."""

    __slots__ = ("locks", "tables", "waits_for")

    def __init__(self) -> None:
        # (tree's dict, key, tree id) for each row lock held.
        self.locks: list[tuple[dict[Key, Owner], Key, TreeId]] = []
        self.tables: list[TreeId] = []
        self.waits_for: LockWait | None = None


class LockWait(Suspend):
    """A lock is taken. Subscribing enters the queue and may raise `Deadlock`."""

    def __init__(self, table: LockTable, owner: Owner, tree_id: TreeId, key: Any) -> None:
        super().__init__(key)
        self.table = table
        self.owner = owner
        self.tree_id = tree_id
        self.key = key
        self.resume: Resume | None = None

    @property
    def reason(self) -> str:  # type: ignore[override]
        """Shown beside the session."""
        what = "the table" if self.key is _TABLE else f"row {self.key!r}"
        return f"lock on {what} of tree {self.tree_id}"

    def subscribe(self, resume: Resume) -> None:
        self.resume = resume
        self.owner.waits_for = self
        self.table.enqueue(self)

    def cancel(self) -> None:
        self.table.leave(self)


# Stands for the whole table where a key is expected.
_TABLE: Any = type("WholeTable", (), {"__repr__": lambda self: "whole table"})()


class LockTable:
    """All locks of a node."""

    def __init__(self) -> None:
        self.rows: dict[TreeId, dict[Key, Owner]] = {}
        # Trees under an exclusive table lock; nearly always empty, and the hot path asks only that.
        self.exclusive: dict[TreeId, Owner] = {}
        self._queues: dict[tuple[TreeId, Any], deque[LockWait]] = {}
        self.deadlocks = 0
        self.waits = 0

    def acquire(self, owner: Owner, tree_id: TreeId, key: Key) -> None:
        """Lock a row. Raises `LockWait` (then call again) or `Deadlock`."""
        if (
            self.exclusive
            and self.exclusive.get(tree_id, owner) is not owner
            # Whoever was here first finishes first: the table's lock is waiting for its rows.
            and not any(held[2] == tree_id for held in owner.locks)
        ):
            self._wait(owner, tree_id, _TABLE)
        rows = self.rows.get(tree_id)
        if rows is None:
            rows = self.rows[tree_id] = {}
        holder = rows.get(key)
        if holder is None:
            rows[key] = owner
            owner.locks.append((rows, key, tree_id))
        elif holder is not owner:
            self._wait(owner, tree_id, key)

    def acquire_table(self, owner: Owner, tree_id: TreeId) -> None:
        """Lock a whole tree against writers. Raises `LockWait` or `Deadlock`."""
        holder = self.exclusive.get(tree_id)
        if holder is None:
            self.exclusive[tree_id] = owner
            owner.tables.append(tree_id)
        elif holder is not owner:
            self._wait(owner, tree_id, _TABLE)
        # New row locks wait from here on; those that exist must go first.
        for key, other in self.rows.get(tree_id, {}).items():
            if other is not owner:
                self._wait(owner, tree_id, key)

    def release(self, owner: Owner) -> None:
        """Give up everything the transaction holds and wake who is next."""
        locks, owner.locks = owner.locks, []
        for rows, key, _ in locks:
            if rows.get(key) is owner:
                del rows[key]
        tables, owner.tables = owner.tables, []
        for tree_id in tables:
            del self.exclusive[tree_id]
        if not self._queues:
            return
        for tree_id in tables:
            self._wake(tree_id, _TABLE)
        for _, key, tree_id in locks:
            self._wake(tree_id, key)

    def enqueue(self, wait: LockWait) -> None:
        """Enter the queue; called by `LockWait.subscribe`."""
        self.waits += 1
        self._queues.setdefault((wait.tree_id, wait.key), deque()).append(wait)

    def leave(self, wait: LockWait) -> None:
        """A waiter gave up."""
        if wait.owner.waits_for is wait:
            wait.owner.waits_for = None
        queue = self._queues.get((wait.tree_id, wait.key))
        if queue is not None and wait in queue:
            queue.remove(wait)
            if not queue:
                del self._queues[wait.tree_id, wait.key]

    def _holder(self, tree_id: TreeId, key: Any) -> Owner | None:
        if key is _TABLE:
            return self.exclusive.get(tree_id)
        return self.rows.get(tree_id, {}).get(key)

    def _wait(self, owner: Owner, tree_id: TreeId, key: Any) -> None:
        holder = self._holder(tree_id, key)
        seen = 0
        while holder is not None:
            if holder is owner:
                self.deadlocks += 1
                raise Deadlock(
                    "deadlock detected",
                    detail=f"Waiting for {LockWait(self, owner, tree_id, key).reason} closes a "
                    f"cycle of {seen + 1} transactions.",
                    hint="Run the transaction again; lock rows in one order to avoid this.",
                )
            waits_for = holder.waits_for
            if waits_for is None:
                break
            holder = self._holder(waits_for.tree_id, waits_for.key)
            seen += 1
        raise LockWait(self, owner, tree_id, key)

    def _wake(self, tree_id: TreeId, key: Any) -> None:
        queue = self._queues.get((tree_id, key))
        if queue is None:
            return
        if key is _TABLE:
            del self._queues[tree_id, key]
            for wait in queue:
                self._grant(wait)
            return
        rows = self.rows[tree_id]
        while queue:
            wait = queue.popleft()
            if wait.tree_id not in wait.owner.tables:
                # Handed over before anybody else can ask: first come, first served.
                rows[key] = wait.owner
                wait.owner.locks.append((rows, key, tree_id))
                self._grant(wait)
                break
            # It wants the whole table and only waited for this row's owner to end: it looks again.
            self._grant(wait)
        if not queue:
            del self._queues[tree_id, key]

    def _grant(self, wait: LockWait) -> None:
        if wait.owner.waits_for is wait:
            wait.owner.waits_for = None
        if wait.resume is not None:
            wait.resume(None)
