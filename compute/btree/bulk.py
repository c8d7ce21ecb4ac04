"""Building a tree bottom-up from rows in key order.

Leaves are filled to `FILL`, logged in groups of `PAGES_PER_GROUP` and installed in the cache as
they are finished; nothing reaches them until the root is logged at the end and the transaction's
catalog rows name it. So the groups carry no cts, and the rows carry cts 0: whoever can reach the
tree sees them. Memory is bounded by one group and the branch pages' separators.

    rows --> leaf, leaf, leaf, ...       each logged once full
             separators --> branch, ...  built when all leaves are there
             the last level --> the root, at the page id it always had
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from compute.btree.split import Change
from compute.btree.tree import Tree
from compute.buffer.frames import FrameCache
from polarless.errors import CallerMistake
from polarless.kernel import redo
from polarless.kernel.ids import PageId
from polarless.kernel.page import BASE_BYTES, BRANCH, LEAF, OVERFLOW, PAYLOAD_BYTES_MAX, Key
from polarless.kernel.page import key_bytes as bound_of

# Room left for updates: a new version next to the old one, until the old one is pruned.
FILL: Final = 0.90
PAGES_PER_GROUP: Final = 16
LARGE_VALUE_BYTES: Final = 2000


class BulkTarget(Protocol):
    """Where the pages go."""

    cache: FrameCache

    def allocate(self, page_count: int, /) -> PageId:
        """The first of so many fresh page ids."""

    async def log(self, change: Change) -> None:
        """Log the change's records; may wait for durability."""


class BulkLoader:
    """Feed it rows in strictly ascending key order, then `finish`."""

    def __init__(self, tree: Tree, target: BulkTarget) -> None:
        self.tree = tree
        self.row_count = 0
        self._target = target
        self._limit = int((PAYLOAD_BYTES_MAX - BASE_BYTES - 64) * FILL)
        self._keys: list[Key] = []
        self._versions: list[Any] = []
        self._used = 0
        self._last: Key = None
        # (low fence, page id) of each finished page of the level being built.
        self._level: list[tuple[Key, PageId]] = []
        self._low: Key = None
        self._change: Change | None = None
        self._pages = 0
        self._finished = False

    async def add(self, rows: Sequence[tuple[Key, bytes]]) -> None:
        """Append rows. Raises `CallerMistake` 23505 if a key does not ascend."""
        keys, versions = self._keys, self._versions
        used, limit, last = self._used, self._limit, self._last
        int_keys = self.tree.int_keys
        for key, payload in rows:
            if last is not None and key <= last:
                self._refuse(key, last)
            size = len(payload) + (9 if int_keys else len(key) + 5) + 8
            if len(payload) > LARGE_VALUE_BYTES:
                place = self._large(payload)
                size = 60
            else:
                place = payload  # type: ignore[assignment]
            if used + size > limit and keys:
                self._leaf(high=key)
                keys, versions, used = self._keys, self._versions, 0
                if self._pages >= PAGES_PER_GROUP:
                    self._last, self._used = last, 0
                    await self._flush()
            keys.append(key)
            versions.append((0, place, None))
            used += size
            last = key
        self._used, self._last = used, last
        self.row_count += len(rows)

    async def finish(self) -> None:
        """Log the last leaf and the branches; the root gets its content."""
        if self._finished:
            return
        self._finished = True
        if not self._level:
            self._format(self.tree.root, LEAF, None, None, self._keys, self._versions)
            await self._flush()
            return
        self._leaf(high=None)
        level, self._level = self._level, []
        while not await self._branches(level):
            level, self._level = self._level, []
        await self._flush()

    def _refuse(self, key: Key, last: Key) -> None:
        if key == last:
            raise CallerMistake(
                "duplicate key value in the loaded rows", sqlstate="23505", detail=f"Key {key!r}."
            )
        raise CallerMistake(f"rows out of key order: {key!r} after {last!r}", sqlstate="XX000")

    def _leaf(self, *, high: Key) -> None:
        page_id = self._target.allocate(1)
        self._format(page_id, LEAF, self._low, high, self._keys, self._versions)
        self._level.append((self._low, page_id))
        self._low = high
        self._keys, self._versions = [], []

    async def _branches(self, level: list[tuple[Key, PageId]]) -> bool:
        """Build one level of branches over ``level``; True when it was the root."""
        start = 0
        while start < len(level):
            used = BASE_BYTES + 64
            end = start
            while end < len(level):
                size = 9 + bound_of(level[end][0])
                if used + size > self._limit and end > start + 1:
                    break
                used += size
                end += 1
            whole = start == 0 and end == len(level)
            page_id = self.tree.root if whole else self._target.allocate(1)
            low = level[start][0]
            high = level[end][0] if end < len(level) else None
            keys = [entry[0] for entry in level[start + 1 : end]]
            children = [entry[1] for entry in level[start:end]]
            self._format(page_id, BRANCH, low, high, keys, children)
            if whole:
                return True
            self._level.append((low, page_id))
            start = end
            if self._pages >= PAGES_PER_GROUP:
                await self._flush()
        return False

    def _large(self, payload: bytes) -> tuple[int, PageId, int]:
        count = -(-len(payload) // PAYLOAD_BYTES_MAX)
        first = self._target.allocate(count)
        records = self._begin().records
        for index in range(count):
            piece = payload[index * PAYLOAD_BYTES_MAX : (index + 1) * PAYLOAD_BYTES_MAX]
            records.append(
                (redo.FORMAT, first + index, OVERFLOW, self.tree.tree_id, None, None, (), piece)
            )
        self._pages += count
        return (len(payload), first, count)

    def _begin(self) -> Change:
        if self._change is None:
            target = self._target
            self._change = Change(target.cache, cts=0, snapshots=(0,), allocate=target.allocate)
        return self._change

    def _format(
        self, page_id: PageId, kind: int, low: Key, high: Key, keys: list[Key], values: list[Any]
    ) -> None:
        record = (redo.FORMAT, page_id, kind, self.tree.tree_id, low, high, keys, values)
        self._begin().add(record)
        self._pages += 1

    async def _flush(self) -> None:
        change, self._change = self._change, None
        self._pages = 0
        if change is not None and change.records:
            await self._target.log(change)
