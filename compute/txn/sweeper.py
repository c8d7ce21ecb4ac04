"""Background work of the writer: prune leaves, merge small ones, free the pages of dropped trees.

Each step is one short synchronous change and one group in the log; `sweep` is called by the node a
few times a second with a budget of leaves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgpack

from compute.btree.split import Change, merge_right, prune_leaf
from compute.btree.tree import Tree
from compute.buffer.fetch import PageMiss
from compute.buffer.waits import Suspend, resumed
from compute.txn.commit import log_change
from compute.txn.versions import visible
from polarless.errors import PolarlessError
from polarless.kernel import redo
from polarless.kernel.ids import PageId
from polarless.kernel.page import BRANCH, LEAF, Frame

if TYPE_CHECKING:
    from compute.txn.engine import Engine

log = logging.getLogger(__name__)

PAGES_PER_STEP: Final = 64
SMALL_BYTES: Final = 4096


def sweep(engine: Engine, leaf_count: int) -> int:
    """Prune and merge up to so many leaves that had deletions; how many were looked at."""
    done = 0
    for page_id in list(engine.sweepable)[:leaf_count]:
        tree = engine.sweepable.pop(page_id)
        leaf = engine.cache.frames.get(page_id)
        done += 1
        if leaf is None or leaf.kind != LEAF:
            continue
        change = engine.change()
        prune_leaf(change, leaf)
        if any(version[1] is None for version in leaf.rows.values()):
            # Some snapshot still needs what was deleted: come back later.
            engine.sweepable[page_id] = tree
        elif leaf.used_bytes < SMALL_BYTES:
            _merge(change, tree, leaf)
        if change.records:
            log_change(engine, change)
    return done


def _merge(change: Change, tree: Tree, leaf: Frame) -> None:
    """Merge a small leaf with its right neighbour, or into its left one."""
    key = leaf.low if leaf.low is not None else (leaf.keys[0] if leaf.keys else None)
    try:
        if key is None:
            path = _leftmost(tree)
        else:
            path = tree.path(key)
        if path[-1] is not leaf or len(path) < 2 or merge_right(change, tree, path):
            return
        parent = path[-2]
        index = parent.children.index(leaf.page_id)
        if index == 0:
            return
        left = change.cache.frames.get(parent.children[index - 1])
        if left is not None and left.kind == LEAF:
            merge_right(change, tree, [*path[:-1], left])
    except PageMiss:
        # Not worth fetching a page for.
        return


def _leftmost(tree: Tree) -> list[Frame]:
    path: list[Frame] = []
    frame = tree.leaf_for_scan(None)
    page_id: PageId = tree.root
    while True:
        found = tree._frames[page_id]
        path.append(found)
        if found is frame:
            return path
        page_id = found.children[0]


async def free_dropped(engine: Engine) -> int:
    """Free the trees whose drop every snapshot has passed; how many."""
    horizon = engine.keep[0]
    due: list[Tree] = []
    position = None
    while True:
        try:
            frame, keys, position = engine.dropped_tree.rows_in(position, None, None)
        except PageMiss as miss:
            await resumed(miss)
            continue
        for tree_id in keys:
            version = frame.rows[tree_id]
            payload = visible(version, horizon)
            if payload is not None and version[1] is not None:
                due.append(engine.tree(tree_id, msgpack.unpackb(payload), int_keys=False))
        if position is None:
            break
    for tree in due:
        await free_tree(engine, tree)
        if not engine.writable:
            break
        await _forget_dropped(engine, tree.tree_id)
    return len(due)


async def _forget_dropped(engine: Engine, tree_id: int) -> None:
    while True:
        txn = engine.begin()
        txn.put(engine.dropped_tree, tree_id, None)
        try:
            engine.commit(txn, lambda lsn, error: None)
            break
        except Suspend as wait:
            engine.rollback(txn)
            try:
                await resumed(wait)
            except PolarlessError as error:
                log.info("tree %s stays named as dropped for now: %s", tree_id, error)
                return
    log.info("tree %s was dropped; its pages are freed", tree_id)


async def free_tree(engine: Engine, tree: Tree) -> None:
    """Free every page of a tree that nobody can reach any more, a few at a time.

    Children go before parents, so that a crash half-way leaves a tree that can still be walked.
    """
    try:
        await _free_below(engine, tree, tree.root)
    except PolarlessError as error:
        log.warning("%r: freeing its pages stopped (%s); the sweeper tries again", tree, error)


async def _free_below(engine: Engine, tree: Tree, root: PageId) -> None:
    order: list[PageId] = []
    large: list[tuple[int, PageId, int]] = []
    stack = [root]
    while stack:
        page_id = stack.pop()
        frame = engine.cache.frames.get(page_id)
        if frame is None:
            try:
                await resumed(PageMiss(engine.fetcher, page_id, scan=True))
            except PolarlessError:
                if page_id == root:
                    return
                raise
            frame = engine.cache.frames.get(page_id)
            if frame is None:
                # Freed already by an earlier, interrupted pass.
                continue
        order.append(page_id)
        if frame.kind == BRANCH:
            stack.extend(frame.children)
        else:
            large.extend(version[1] for version in frame.rows.values() if type(version[1]) is tuple)
    order.reverse()
    for start in range(0, len(order), PAGES_PER_STEP):
        if not engine.writable:
            return
        change = engine.change()
        for page_id in order[start : start + PAGES_PER_STEP]:
            engine.cache.remove(page_id)
            change.records.append((redo.FREE, page_id))
            change.freed.append(page_id)
        log_change(engine, change)
        await engine.clock.sleep(0)
    for place in large:
        change = engine.change()
        change.free_value(place)
        log_change(engine, change)
        await engine.clock.sleep(0)
