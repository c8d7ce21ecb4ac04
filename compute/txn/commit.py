"""The commit's synchronous step: check, build the group, apply it, release the locks, queue it.

0. While storage is behind, or its disk full, it waits here, where it can still be given up.
1. Every page it will touch is looked up first; a missing one is raised as a `PageMiss` before
   anything has changed, and the commit is called again when it has come.
2. From there on nothing can wait or fail but for our own mistakes: the records are made and applied
   to the frames one by one, the group is encoded, its end is the LSN of all touched frames.
3. Row locks go *before* the group is durable. Whoever builds on this commit has a later place in
   the log and can never become durable without it, so a hot row is not limited by the disk's speed.
   Table locks (DDL) stay until the commit is acknowledged: until then other sessions plan with the
   old catalog.

Values above `INLINE_BYTES_MAX` go to overflow pages in the same group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgpack

from compute.btree.split import Change, make_room, prune_leaf
from compute.btree.tree import Tree
from compute.buffer.fetch import PageMiss
from compute.buffer.waits import WaitFor
from compute.txn.log_writer import Entry
from compute.txn.transaction import SERIALIZABLE, Transaction
from polarless.errors import Conflict, PolarlessError
from polarless.kernel import redo
from polarless.kernel.apply import put
from polarless.kernel.ids import CATALOG_TREE, Cts, Lsn, PageId
from polarless.kernel.page import (
    LEAF,
    OVERFLOW,
    PAYLOAD_BYTES_MAX,
    Frame,
    Key,
    key_bytes,
    version_bytes,
)

if TYPE_CHECKING:
    from compute.txn.engine import Engine

# At least eight rows fit a page, so that a leaf can always be split.
INLINE_BYTES_MAX: Final = 2000
# A leaf whose chains have grown by so many versions is pruned; one that could not be pruned below
# the limit makes writers wait: chains are nested in the page's encoding, at most 511 deep.
CHAIN_PRUNE: Final = 64
CHAIN_MAX: Final = 224
OVERFLOW_PIECE_BYTES: Final = PAYLOAD_BYTES_MAX

Done = Callable[[Lsn | None, PolarlessError | None], None]


def commit(engine: Engine, txn: Transaction, done: Done) -> None:
    """See the module's docstring; called by `Engine.commit`."""
    writer = engine.log
    assert writer is not None
    if writer.is_behind:
        writer.wait_for_room()
    trees = txn.trees
    try:
        for tree_id, own in txn.writes.items():
            leaf_of = trees[tree_id].leaf
            for key, payload in own.items():
                leaf = leaf_of(key)
                need = 64 if payload is None else 64 + len(payload)
                if leaf.chained >= CHAIN_MAX or leaf.used_bytes + need > PAYLOAD_BYTES_MAX:
                    _check_chain(engine, leaf, key, min(need, 64 + INLINE_BYTES_MAX))
    except PageMiss:
        _gather(engine, txn)
    if txn.isolation == SERIALIZABLE:
        _validate(txn)

    cts = engine.next_cts
    engine.next_cts = cts + 1
    txn.cts = cts
    if not txn.transaction_id:
        engine.next_transaction += 1
        txn.transaction_id = engine.next_transaction
    change = engine.change(cts)
    values: list[tuple[PageId, bytes]] = []
    for tree, logged in txn.new_trees.values():
        if not logged:
            change.add((redo.FORMAT, tree.root, LEAF, tree.tree_id, None, None, (), ()))
    for tree_id, own in txn.writes.items():
        _write_tree(engine, change, trees[tree_id], own, values)
    for place in change.dropped_values:
        change.free_value(place)

    start = writer.tail
    group = redo.encode_group(
        change.records,
        epoch=writer.epoch,
        start_lsn=start,
        cts=cts,
        transaction_id=txn.transaction_id,
        horizon=change.horizon,
        next_page=engine.next_page,
        note=txn.note,
    )
    end = start + len(group)
    pages = _seal(engine, change, end)
    for first_page, value in values:
        engine.fetcher.values.put(first_page, value, end)

    catalog = CATALOG_TREE in txn.writes
    if catalog:
        engine.catalog_changed()
    ddl = catalog or bool(txn.tables)

    def settle() -> None:
        engine.catalog_changed()
        engine.locks.release(txn)
        for action in txn.on_commit:
            action()

    if not ddl:
        engine._end(txn)
    else:
        txn.ended = True
        if txn.pinned is not None:
            engine.unpin(txn.pinned)
            txn.pinned = None
    writer.queue(group, Entry(end, cts, pages, done, settle if ddl or txn.on_commit else None))
    for tree, _ in txn.new_trees.values():
        engine.cache.unpin(tree.root)
    if txn.page_pins:
        unpin_pages(engine, txn)


def _check_chain(engine: Engine, leaf: Frame, key: Key, need_bytes: int) -> None:
    """A row's versions must fit a page and stay within `CHAIN_MAX`; prune them, or wait.

    A hot row gets versions faster than snapshots move on when readers are slow to report. The wait
    ends with the next advance, which brings newer snapshots. As every client may be waiting for
    this row, that advance is asked for.
    """

    def good() -> bool:
        chain = leaf.rows.get(key)
        return leaf.chained < CHAIN_MAX and (
            chain is None or version_bytes(chain) + need_bytes + 256 < PAYLOAD_BYTES_MAX
        )

    if good():
        return
    change = engine.change()
    prune_leaf(change, leaf)
    if change.records:
        log_change(engine, change)
    if not good() and engine.needs_room():
        _check_chain(engine, leaf, key, need_bytes)
    elif not good():
        assert engine.log is not None
        engine.log.advance_again()
        raise WaitFor(engine.progress, f"old versions of row {key!r}")


def _gather(engine: Engine, txn: Transaction) -> None:
    """Pin the leaves that are here and raise one `PageMiss` for those that are not.

    Without pins a commit that touches more pages than the cache holds would chase its own tail.
    """
    cache = engine.cache
    missing: dict[PageId, None] = {}
    for tree_id, own in txn.writes.items():
        tree = txn.trees[tree_id]
        for key in own:
            try:
                page_id = tree.leaf(key).page_id
            except PageMiss as miss:
                page_id = miss.page_id
                missing[page_id] = None
            if page_id not in txn.page_pins:
                txn.page_pins.add(page_id)
                cache.pin(page_id)
    if missing:
        first, *others = missing
        raise PageMiss(engine.fetcher, first, also=others)


def unpin_pages(engine: Engine, txn: Transaction) -> None:
    """The commit is applied or given up: its pages may leave the cache again."""
    for page_id in txn.page_pins:
        engine.cache.unpin(page_id)
    txn.page_pins.clear()


def _write_tree(
    engine: Engine,
    change: Change,
    tree: Tree,
    own: dict[Key, bytes | None],
    values: list[tuple[PageId, bytes]],
) -> None:
    """Put one tree's share of the write set."""
    cts, horizon = change.cts, change.horizon
    records = change.records
    touched = change.touched
    for key, data in own.items():
        payload: Any = data
        if data is not None and len(data) > INLINE_BYTES_MAX:
            payload = _write_value(change, tree, data, values)
        leaf = tree.leaf(key)
        older = leaf.rows.get(key)
        if older is None:
            if payload is None:
                continue
        elif older[0] <= horizon and older[2] is not None:
            _drop_values(change, older[2])
        need = 40 if type(payload) is not bytes else 15 + len(payload)
        if older is None:
            need += key_bytes(key) + 1
        if leaf.chained >= CHAIN_PRUNE:
            prune_leaf(change, leaf)
        if leaf.used_bytes + need > PAYLOAD_BYTES_MAX:
            leaf = make_room(change, tree, key, need)
        put(leaf, key, payload, cts, horizon)
        page_id = leaf.page_id
        records.append((redo.PUT, page_id, key, payload))
        touched[page_id] = leaf
        if payload is None:
            engine.sweepable[page_id] = tree


def _drop_values(change: Change, version: Any) -> None:
    """Large values that only the cut-off part of a chain refers to."""
    while version is not None:
        if type(version[1]) is tuple:
            change.dropped_values.append(version[1])
        version = version[2]


def _write_value(
    change: Change, tree: Tree, data: bytes, values: list[tuple[PageId, bytes]]
) -> tuple[int, PageId, int]:
    """Log a large value's pages; its place is what the row's version carries."""
    count = -(-len(data) // OVERFLOW_PIECE_BYTES)
    first = change.allocate(count)
    for index in range(count):
        piece = data[index * OVERFLOW_PIECE_BYTES : (index + 1) * OVERFLOW_PIECE_BYTES]
        change.records.append(
            (redo.FORMAT, first + index, OVERFLOW, tree.tree_id, None, None, (), piece)
        )
    values.append((first, data))
    return (len(data), first, count)


def _seal(engine: Engine, change: Change, end: Lsn) -> list[PageId]:
    """Stamp the touched frames with the group's end; the pages whose copies are old now."""
    for frame in change.touched.values():
        frame.lsn = end
        frame.dirty = True
    pages = [*change.touched, *change.freed]
    if engine.on_applied is not None:
        engine.on_applied(pages, end)
    cache = engine.cache
    if cache.used_bytes > cache.budget_bytes:
        cache.shrink()
    return pages


def _validate(txn: Transaction) -> None:
    """SERIALIZABLE: nothing that was read may have changed since the snapshot."""
    snapshot = txn.snapshot
    for tree, low, high, point in txn.reads:
        if point:
            version = tree.find(low)
            changed = version is not None and version[0] > snapshot
        else:
            changed = _range_changed(tree, low, high, snapshot)
        if changed:
            raise Conflict(
                "could not serialize access due to read/write dependencies among transactions",
                hint="Run the whole transaction again.",
            )


def _range_changed(tree: Tree, low: Key, high: Key, snapshot: Cts) -> bool:
    position: Key = None
    while True:
        frame, keys, position = tree.rows_in(position, low, high)
        if frame.lsn and any(frame.rows[key][0] > snapshot for key in keys):
            return True
        if position is None:
            return False


# Groups that commit nothing.


def log_change(engine: Engine, change: Change, done: Done | None = None) -> Lsn:
    """Log what a `Change` did outside any transaction (pruning, merging, freeing)."""
    writer = engine.log
    assert writer is not None
    start = writer.tail
    group = redo.encode_group(
        change.records,
        epoch=writer.epoch,
        start_lsn=start,
        cts=0,
        transaction_id=0,
        horizon=change.horizon,
        next_page=engine.next_page,
    )
    end = start + len(group)
    pages = _seal(engine, change, end)
    writer.queue(group, Entry(end, 0, pages, done))
    return end


# DDL.


def new_tree(engine: Engine, txn: Transaction, *, int_keys: bool) -> Tree:
    """An empty root in the cache, pinned, logged by the commit."""
    root = engine.allocate(1)
    frame = Frame(root, LEAF, root, used_bytes=64)
    engine.cache.pin(root)
    engine.cache.install(frame)
    tree = engine.tree(root, root, int_keys=int_keys)
    txn.new_trees[root] = (tree, False)
    return tree


def drop_tree(txn: Transaction, dropped: Tree, tree: Tree) -> None:
    """Note the tree for the sweeper; its pages go when no snapshot is older than this commit."""
    txn.put(dropped, tree.tree_id, msgpack.packb(tree.root))


def discard(engine: Engine, txn: Transaction) -> list[Tree]:
    """Forget the trees that a rolled-back transaction made; those with pages in the log remain to
    be freed."""
    logged_trees = []
    for tree, logged in txn.new_trees.values():
        engine.cache.unpin(tree.root)
        if not logged:
            engine.cache.remove(tree.root)
        else:
            logged_trees.append(tree)
    txn.new_trees.clear()
    return logged_trees
