"""Walk a whole tree and say what is wrong with it. Used by tests and under POLARLESS_VERIFY=1.

Checked: every page belongs to the tree and is reached once; keys ascend and lie within the fences;
a child's fences are exactly what its parent promises; all leaves have one depth; versions descend
in cts; a leaf's keys and rows agree; every page fits its 16 KiB.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final, NamedTuple

from compute.btree.tree import Tree
from compute.buffer.fetch import PageMiss
from compute.buffer.waits import resumed
from polarless.errors import CorruptData
from polarless.kernel.page import BRANCH, LEAF, Frame, Key, Version, encode

# A page takes some 100 microseconds.
PAGES_A_TURN: Final = 16


class TreeReport(NamedTuple):
    """What a clean tree looks like."""

    depth: int
    leaf_pages: int
    branch_pages: int
    keys: int
    versions: int


async def check(tree: Tree, give_way: Callable[[], Awaitable[None]] | None = None) -> TreeReport:
    """Walk the tree, fetching what is not in the cache. Raises `CorruptData` naming the page.

    The tree must not change meanwhile: a parent's promises are compared with children that may be
    fetched later. ``give_way`` is awaited after every few pages.
    """
    seen: set[int] = set()
    depths: set[int] = set()
    leaves = branches = keys = versions = 0
    stack: list[tuple[int, Key, Key, int]] = [(tree.root, None, None, 1)]
    while stack:
        page_id, low, high, depth = stack.pop()
        if page_id in seen:
            raise CorruptData(f"{tree!r}: page {page_id} is reached twice")
        seen.add(page_id)
        if give_way is not None and len(seen) % PAGES_A_TURN == 0:
            await give_way()
        frame = tree._frames.get(page_id)
        while frame is None:
            await resumed(PageMiss(tree._fetcher, page_id, scan=True))
            frame = tree._frames.get(page_id)
        _check_page(tree, frame, low, high)
        if frame.kind == LEAF:
            depths.add(depth)
            leaves += 1
            keys += len(frame.keys)
            versions += sum(_chain(frame, key) for key in frame.keys)
            continue
        branches += 1
        bounds = [low, *frame.keys, high]
        for index, child in enumerate(frame.children):
            stack.append((child, bounds[index], bounds[index + 1], depth + 1))
    if len(depths) != 1:
        raise CorruptData(f"{tree!r}: leaves at different depths {sorted(depths)}")
    return TreeReport(depths.pop(), leaves, branches, keys, versions)


def _check_page(tree: Tree, frame: Frame, low: Key, high: Key) -> None:
    where = f"{tree!r}, {frame!r}"
    if frame.tree_id != tree.tree_id:
        raise CorruptData(f"{where}: belongs to another tree")
    if (frame.low, frame.high) != (low, high):
        raise CorruptData(f"{where}: its parent promises [{low!r}, {high!r})")
    keys = frame.keys
    if any(a >= b for a, b in pairwise(keys)):
        raise CorruptData(f"{where}: keys do not ascend")
    if keys and ((low is not None and keys[0] < low) or (high is not None and keys[-1] >= high)):
        raise CorruptData(f"{where}: a key lies outside the fences")
    if frame.kind == LEAF:
        if len(keys) != len(frame.rows) or any(key not in frame.rows for key in keys):
            raise CorruptData(f"{where}: keys and rows disagree")
    elif frame.kind == BRANCH:
        if len(frame.children) != len(keys) + 1:
            raise CorruptData(f"{where}: {len(keys)} separators, {len(frame.children)} children")
    else:
        raise CorruptData(f"{where}: not a tree page")
    encode(frame)


def _chain(frame: Frame, key: Key) -> int:
    count = 0
    newer = None
    version: Version | None = frame.rows[key]
    while version is not None:
        if newer is not None and version[0] >= newer:
            raise CorruptData(f"{frame!r}: versions of {key!r} do not descend")
        newer = version[0]
        count += 1
        version = version[2]
    return count
