"""The only way a page changes: pure functions from a frame and a record to a changed frame.

The writer applies each record to its own frame when it commits; storage applies the same record to
the same page when it folds. Both end with frames that encode to the same bytes. So nothing here may
depend on anything but its arguments: no clock, no randomness, no state of a node.

What each op does stands at its function. `apply` is the dispatcher for whole records; the writer
calls `put` directly, since that is what nearly every record of a transaction is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any

from polarless.errors import CorruptData
from polarless.kernel import redo
from polarless.kernel.page import (
    BRANCH,
    LEAF,
    OVERFLOW,
    Frame,
    Key,
    Version,
    key_bytes,
    measure,
    version_bytes_min,
)


def put(frame: Frame, key: Key, payload: Any, cts: int, horizon: int) -> None:
    """Add a version on top of the key's chain; cut what no snapshot at or above ``horizon`` sees.

    The newest version at or below the horizon must stay: a snapshot at the horizon reads it.
    """
    rows = frame.rows
    older = rows.get(key)
    if older is None:
        insort(frame.keys, key)
        frame.used_bytes += key_bytes(key) + 1
    elif older[0] > horizon:
        frame.chained += 1
    elif older[2] is not None:
        frame.used_bytes -= version_bytes_min(older[2])
        older = (older[0], older[1], None)
    rows[key] = (cts, payload, older)
    frame.used_bytes += 15 + len(payload) if type(payload) is bytes else 40


def format_page(frame: Frame, record: redo.Record) -> None:
    """Give a page its whole content, whatever it was before."""
    _, _, kind, tree_id, low, high, keys, values = record
    frame.kind = kind
    frame.tree_id = tree_id
    frame.low, frame.high = low, high
    frame.keys = list(keys)
    frame.rows = {}
    frame.children = []
    frame.blob = b""
    if kind == LEAF:
        frame.rows = dict(zip(keys, values, strict=True))
    elif kind == BRANCH:
        frame.children = list(values)
    elif kind == OVERFLOW:
        frame.blob = bytes(values)
    else:
        raise CorruptData(f"page {frame.page_id}: record formats it as unknown kind {kind}")
    frame.used_bytes = measure(frame)


def cut(frame: Frame, at: Key) -> None:
    """Drop everything from key ``at`` on and make it the high fence: a split's lower half."""
    index = bisect_left(frame.keys, at)
    if frame.kind == LEAF:
        rows = frame.rows
        for key in frame.keys[index:]:
            del rows[key]
    else:
        # The child right of the separator goes with the upper half, and so does the separator.
        del frame.children[index + 1 :]
    del frame.keys[index:]
    frame.high = at
    frame.used_bytes = measure(frame)


def insert_child(frame: Frame, key: Key, child: int) -> None:
    """Put ``child`` into a branch; it holds the keys from ``key`` on."""
    index = bisect_right(frame.keys, key)
    frame.keys.insert(index, key)
    frame.children.insert(index + 1, child)
    frame.used_bytes += key_bytes(key) + 9


def remove_child(frame: Frame, key: Key) -> None:
    """Take the separator ``key`` and the child to its right out of a branch."""
    index = bisect_left(frame.keys, key)
    if index >= len(frame.keys) or frame.keys[index] != key:
        raise CorruptData(f"page {frame.page_id}: no separator {key!r} to remove")
    del frame.keys[index]
    del frame.children[index + 1]
    frame.used_bytes = measure(frame)


def pruned(version: Version, snapshots: Sequence[int]) -> Version | None:
    """The chain with only what the snapshots can see; None if nothing at all.

    ``snapshots`` ascends. Its first entry is the horizon, its last the newest snapshot in use or to
    come: whatever is newer than the last one stays.
    """
    kept: list[Version] = []
    node: Version | None = version
    last = len(snapshots)
    while node is not None:
        cts = node[0]
        # The snapshots that see this version: those at or above its cts and below the newer one's.
        first = bisect_left(snapshots, cts)
        if first < last or cts > snapshots[-1]:
            kept.append(node)
            last = min(last, first)
        node = node[2]
    # A deletion at the end of the chain hides nothing; nobody needs it unless it is still to come.
    while kept and kept[-1][1] is None and kept[-1][0] <= snapshots[0]:
        kept.pop()
    result: Version | None = None
    for cts, payload, _ in reversed(kept):
        result = (cts, payload, result)
    return result


def chain_length(version: Version | None) -> int:
    """How many versions a chain has."""
    count = 0
    while version is not None:
        count += 1
        version = version[2]
    return count


def prune(frame: Frame, snapshots: Sequence[int]) -> None:
    """Prune every chain of a leaf and drop the keys that nothing can see."""
    rows = frame.rows
    gone = False
    longest = 0
    for key in frame.keys:
        version = rows[key]
        if version[2] is None and version[1] is not None:
            continue
        shorter = pruned(version, snapshots)
        if shorter is None:
            del rows[key]
            gone = True
        else:
            rows[key] = shorter
            longest = max(longest, chain_length(shorter))
    frame.chained = longest
    if gone:
        frame.keys = [key for key in frame.keys if key in rows]
    frame.used_bytes = measure(frame)


def extend(frame: Frame, high: Key, keys: Sequence[Key], values: Sequence[Any], sep: Key) -> None:
    """Append the content of the right neighbour (a merge); ``sep`` is its low fence."""
    if frame.kind == LEAF:
        frame.keys.extend(keys)
        frame.rows.update(zip(keys, values, strict=True))
    else:
        frame.keys.append(sep)
        frame.keys.extend(keys)
        frame.children.extend(values)
    frame.high = high
    frame.used_bytes = measure(frame)


def apply(
    frame: Frame | None, record: redo.Record, *, lsn: int, cts: int, horizon: int
) -> Frame | None:
    """Apply one record; None stands for a page that does not exist, before or after.

    Raises `CorruptData` if the record does not fit the page: then log and page have parted ways.
    """
    op = record[0]
    if op == redo.FORMAT:
        # A fresh frame: whoever still holds the page's former frame keeps it unchanged.
        frame = Frame(record[1], record[2], record[3])
        format_page(frame, record)
    elif frame is None:
        name = redo.OP_NAMES.get(op, op)
        raise CorruptData(f"record {name} for page {record[1]}, which does not exist (LSN {lsn})")
    elif op == redo.PUT:
        put(frame, record[2], record[3], cts, horizon)
    elif op == redo.CUT:
        cut(frame, record[2])
    elif op == redo.INSERT_CHILD:
        insert_child(frame, record[2], record[3])
    elif op == redo.REMOVE_CHILD:
        remove_child(frame, record[2])
    elif op == redo.PRUNE:
        prune(frame, record[2])
    elif op == redo.EXTEND:
        extend(frame, record[2], record[3], record[4], record[5])
    elif op == redo.FREE:
        return None
    else:
        raise CorruptData(f"unknown redo op {op} for page {record[1]} (LSN {lsn})")
    frame.lsn = lsn
    return frame
