"""Making room in a tree, and giving it back: records for splits and merges.

Everything here runs inside a commit's synchronous step, after the pages it needs were found to be
in the cache. A `Change` collects the records and applies each of them to the cached frames at once,
through `polarless.kernel.apply`, as storage will.

A full leaf, in this order:

1. prune it: versions that no snapshot in use can see, rows that are gone;
2. split it: the upper half moves to a new page, at the right end only the new row does, so that
   ascending inserts leave full pages behind; the parent gets the new child, and splits first if it
   is full; a full root becomes a branch over two new pages and keeps its id.

A merge appends a page's right neighbour to it when both are small.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

from compute.btree.tree import Tree
from compute.buffer.frames import FrameCache
from polarless.errors import CorruptData, Overloaded
from polarless.kernel import redo
from polarless.kernel.apply import apply
from polarless.kernel.ids import Cts, PageId
from polarless.kernel.page import (
    BRANCH,
    LEAF,
    PAYLOAD_BYTES_MAX,
    Frame,
    Key,
    Version,
    encode,
    key_bytes,
    version_bytes,
)

# Room that a branch must have for one more child.
CHILD_BYTES_MAX: Final = 9
# Two neighbours below this together are merged: a third of a page each way before a new split.
MERGE_BYTES: Final = PAYLOAD_BYTES_MAX * 2 // 3


class Change:
    """The records of one group in the making, applied to the cache as they are made."""

    def __init__(
        self,
        cache: FrameCache,
        *,
        cts: Cts,
        snapshots: Sequence[Cts],
        allocate: Callable[[int], PageId],
        kept_until: Cts = 0,
    ) -> None:
        self.cache = cache
        self.cts = cts
        self.snapshots = snapshots
        self.horizon = snapshots[0]
        # Any snapshot up to this one may still be asked for; 0 if only those above are.
        self.kept_until = kept_until
        self.allocate = allocate
        self.records: list[redo.Record] = []
        self.touched: dict[PageId, Frame] = {}
        self.freed: list[PageId] = []
        # Places of large values that nothing refers to any more: (bytes, first page, pages).
        self.dropped_values: list[tuple[int, PageId, int]] = []

    def add(self, record: redo.Record) -> Frame | None:
        """Apply a record to its cached frame and keep it for the log."""
        page_id = record[1]
        frames = self.cache.frames
        old = frames.get(page_id)
        # LSN 0 for now: the group's end is known only when all its records are.
        lsn = 0 if old is None else old.lsn
        frame = apply(old, record, lsn=lsn, cts=self.cts, horizon=self.horizon)
        self.records.append(record)
        if frame is None:
            self.cache.remove(page_id)
            self.touched.pop(page_id, None)
            self.freed.append(page_id)
            return None
        self.touched[page_id] = frame
        if frame is not old:
            # Installed without eviction: the caller shrinks the cache when the group is done.
            self._install(frame, old)
        else:
            self.cache.reweigh(frame)
        return frame

    def _install(self, frame: Frame, old: Frame | None) -> None:
        frame.lsn = 0 if old is None else old.lsn
        budget, self.cache.budget_bytes = self.cache.budget_bytes, 1 << 62
        try:
            self.cache.install(frame)
        finally:
            self.cache.budget_bytes = budget

    def free_value(self, place: tuple[int, PageId, int]) -> None:
        """Free a large value's pages."""
        _, first, count = place
        for page_id in range(first, first + count):
            self.records.append((redo.FREE, page_id))
            self.freed.append(page_id)


def make_room(change: Change, tree: Tree, key: Key, need_bytes: int) -> Frame:
    """The leaf for ``key`` with at least ``need_bytes`` of room, pruned or split if need be.

    Raises `Overloaded` if one row's versions alone fill a page.
    """
    leaf = tree.leaf(key)
    if fits(leaf, need_bytes):
        return leaf
    prune_leaf(change, leaf)
    while not fits(leaf, need_bytes):
        _split_leaf(change, tree, key, need_bytes)
        leaf = tree.leaf(key)
    return leaf


def fits(frame: Frame, need_bytes: int) -> bool:
    """Whether the page has room; measures it exactly before saying no."""
    if frame.used_bytes + need_bytes <= PAYLOAD_BYTES_MAX:
        return True
    frame.used_bytes = exact_bytes(frame)
    return frame.used_bytes + need_bytes <= PAYLOAD_BYTES_MAX


def exact_bytes(frame: Frame) -> int:
    """The payload's encoded size, with the slack of one list header."""
    if frame.used_bytes > 2 * PAYLOAD_BYTES_MAX:
        return frame.used_bytes
    try:
        return len(encode(frame)) - 64 + 16
    except (CorruptData, ValueError):  # longer than a page, or a chain nested too deep
        return frame.used_bytes


def prune_leaf(change: Change, leaf: Frame) -> bool:
    """Prune a leaf if that frees anything; whether it did."""
    snapshots = change.snapshots
    if change.kept_until:
        snapshots = _with_all_until(leaf, change.kept_until, snapshots)
    before = _places(leaf)
    if not _prunable(leaf, snapshots):
        return False
    change.add((redo.PRUNE, leaf.page_id, tuple(snapshots)))
    if before:
        for place in before - _places(leaf):
            change.free_value(place)
    return True


def _with_all_until(leaf: Frame, until: Cts, snapshots: Sequence[Cts]) -> list[Cts]:
    """The snapshots, and all that tell apart the leaf's versions up to ``until``."""
    found = {0, *snapshots}
    for chain in leaf.rows.values():
        version: Version | None = chain
        while version is not None:
            if version[0] <= until:
                found.add(version[0])
            version = version[2]
    return sorted(found)


def _prunable(leaf: Frame, snapshots: Sequence[Cts]) -> bool:
    """Whether a chain has something below what the newest snapshot sees, or ends in a deletion."""
    horizon = snapshots[0]
    newest = snapshots[-1]
    for chain in leaf.rows.values():
        if chain[2] is None:
            if chain[1] is None and chain[0] <= horizon:
                return True
            continue
        version: Version | None = chain
        while version is not None and version[0] > newest:
            version = version[2]
        if version is not None and (version[2] is not None or version[1] is None):
            return True
    return False


def _places(leaf: Frame) -> set[tuple[int, PageId, int]]:
    """The large values that the leaf's versions refer to."""
    found: set[tuple[int, PageId, int]] = set()
    for chain in leaf.rows.values():
        version: Any = chain
        while version is not None:
            if type(version[1]) is tuple:
                found.add(version[1])
            version = version[2]
    return found


def _split_leaf(change: Change, tree: Tree, key: Key, need_bytes: int) -> None:
    path = tree.path(key)
    leaf = path[-1]
    keys = leaf.keys
    if not keys or keys == [key]:
        raise Overloaded(
            f"row {key!r}: its versions fill a whole page",
            sqlstate="54000",
            hint="Open transactions keep old versions alive; end the oldest ones and try again.",
        )
    if key > keys[-1]:
        at, upper = key, []
    else:
        index = _middle(leaf, key)
        at, upper = keys[index], keys[index:]
    rows = leaf.rows
    _divide(change, tree, path, at, upper, [rows[k] for k in upper])


def _middle(leaf: Frame, key: Key) -> int:
    """Where to cut a leaf: at half of its bytes, never at either end."""
    sizes = [key_bytes(k) + version_bytes(leaf.rows[k]) for k in leaf.keys]
    half = sum(sizes) // 2
    total = 0
    cut = 0
    while total < half:
        total += sizes[cut]
        cut += 1
    if len(sizes) == 1:
        # One large row and a smaller new key: the new row gets the lower page.
        return 0 if key < leaf.keys[0] else 1
    return max(1, min(cut, len(sizes) - 1))


def _divide(
    change: Change, tree: Tree, path: list[Frame], at: Key, upper: list[Key], values: list[Any]
) -> None:
    """Move the upper part of the last page of ``path`` to a new page and tell the parent."""
    page = path[-1]
    kind, high = page.kind, page.high
    if len(path) == 1:
        _grow_root(change, tree, page, at, upper, values)
        return
    _make_child_room(change, tree, path[:-1], at)
    # The parent may have split: find it again.
    parent = _parent_of(tree, page, at)
    new_id = change.allocate(1)
    change.add((redo.FORMAT, new_id, kind, tree.tree_id, at, high, tuple(upper), tuple(values)))
    change.add((redo.CUT, page.page_id, at))
    change.add((redo.INSERT_CHILD, parent.page_id, at, new_id))


def _parent_of(tree: Tree, page: Frame, at: Key) -> Frame:
    path = tree.path(at)
    for index, frame in enumerate(path):
        if frame.page_id == page.page_id:
            return path[index - 1]
    raise AssertionError(f"{page!r} is not on the path of {at!r}")


def _grow_root(
    change: Change, tree: Tree, root: Frame, at: Key, upper: list[Key], values: list[Any]
) -> None:
    left_id = change.allocate(2)
    right_id = left_id + 1
    kind, tree_id = root.kind, tree.tree_id
    if kind == LEAF:
        cut = bisect_left(root.keys, at)
        left_values: list[Any] = [root.rows[k] for k in root.keys[:cut]]
    else:
        cut = bisect_left(root.keys, at)
        left_values = root.children[: cut + 1]
    left_keys = root.keys[:cut]
    change.add(
        (redo.FORMAT, left_id, kind, tree_id, None, at, tuple(left_keys), tuple(left_values))
    )
    change.add((redo.FORMAT, right_id, kind, tree_id, at, None, tuple(upper), tuple(values)))
    change.add((redo.FORMAT, root.page_id, BRANCH, tree_id, None, None, (at,), (left_id, right_id)))


def _make_child_room(change: Change, tree: Tree, path: list[Frame], key: Key) -> None:
    """Split the branch at the end of ``path`` if it has no room for one more separator."""
    branch = path[-1]
    if fits(branch, key_bytes(key) + CHILD_BYTES_MAX):
        return
    # The middle separator moves up; at the right end the last one, for ascending inserts.
    index = len(branch.keys) // 2
    if bisect_right(branch.keys, key) == len(branch.keys) and branch.high is None:
        index = len(branch.keys) - 1
    at = branch.keys[index]
    _divide(change, tree, path, at, branch.keys[index + 1 :], branch.children[index + 1 :])


def merge_right(change: Change, tree: Tree, path: list[Frame]) -> bool:
    """Append the right neighbour of the last page of ``path`` to it if both fit; whether it did.

    The neighbour must have the same parent and be in the cache; otherwise nothing happens.
    """
    if len(path) < 2:
        return False
    page, parent = path[-1], path[-2]
    index = parent.children.index(page.page_id)
    if index + 1 >= len(parent.children):
        return False
    right = change.cache.frames.get(parent.children[index + 1])
    if right is None or right.kind != page.kind:
        return False
    if page.used_bytes + right.used_bytes + key_bytes(parent.keys[index]) > MERGE_BYTES:
        return False
    separator = parent.keys[index]
    values = (
        tuple(right.rows[k] for k in right.keys) if right.kind == LEAF else tuple(right.children)
    )
    change.add((redo.EXTEND, page.page_id, right.high, tuple(right.keys), values, separator))
    change.add((redo.REMOVE_CHILD, parent.page_id, separator))
    change.add((redo.FREE, right.page_id))
    if len(parent.children) == 1 and parent.page_id == tree.root:
        _shrink_root(change, tree, parent, page)
    return True


def _shrink_root(change: Change, tree: Tree, root: Frame, child: Frame) -> None:
    """A root with one child takes the child's place, so the tree loses a level."""
    values = (
        tuple(child.rows[k] for k in child.keys) if child.kind == LEAF else tuple(child.children)
    )
    change.add(
        (redo.FORMAT, root.page_id, child.kind, tree.tree_id, None, None, tuple(child.keys), values)
    )
    change.add((redo.FREE, child.page_id))
