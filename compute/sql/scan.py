"""Reading a table's rows batch by batch, in one step or over many turns of the loop.

A `Source` says which rows: a range of keys, some keys, a series, one empty row. A `Cursor` reads it
synchronously; `batches` waits for pages and lets other sessions run in between. Both give lists of
``(key, payload)``, where a series has ``(None, (value,))``, or decoded rows without the keys.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgpack import unpackb

from compute.buffer.fetch import PREFETCH_PAGES, PageMiss
from compute.buffer.waits import Suspend, resumed
from compute.sql.access import Access
from compute.sql.expressions import ParamSlot
from compute.sql.rowcode import compile_function, start_step
from compute.sql.select import Series
from polarless.errors import CallerMistake
from polarless.kernel.keycode import prefix_end

if TYPE_CHECKING:
    from compute.btree.tree import Tree
    from compute.sql.plan import SessionLike
    from compute.txn.transaction import Transaction

Batch = list[tuple[Any, Any]]
# Decoded rows, a sized iterable.
Rows = Any

# Rows that one synchronous step may read: about 3 ms of decoding and encoding.
ROWS_PER_STEP: Final = 1000
SERIES_ROWS: Final = 256
# Entries of an index whose rows are looked for in the cache when one of them is not there.
KEYS_AHEAD: Final = ROWS_PER_STEP // 4


class Source:
    """See the module's docstring. ``bounds(session, P)`` is generated."""

    def __init__(
        self,
        access: Access | None,
        series: Series | None,
        slots: list[ParamSlot],
        *,
        reverse: bool = False,
    ) -> None:
        self.tree: Tree | None = None if access is None else access.table.tree
        self.reverse = reverse
        # The bounds are a list of keys' beginnings: ``column IN (...)`` of an index.
        self.prefixes = False
        self.series = series is not None
        self.by_keys = access is not None and (access.keys is not None or bool(access.point))
        # The index that is walked to find the rows' keys.
        self.index: Tree | None = None
        if access is not None and access.index is not None:
            self.index = access.index.tree
            self.by_keys = False
            self.prefixes = access.keys is not None
        # The bounds are a list of ranges.
        self.ranges = access is not None and bool(access.ranges)
        out = start_step(slots)
        if access is not None:
            if access.point:
                key = access.emit_point(out, empty="return []")
                out.line(f"return [{key}]")
            elif access.keys is not None:
                access.emit_keys(out)
            elif access.ranges:
                access.emit_ranges(out)
            else:
                access.emit_bounds(out)
        elif series is not None:
            parts = [node.emit(out) for node in (series.start, series.stop, series.step)]
            out.line(f"return ({', '.join(parts)})")
        else:
            out.line("return None")
        self.bounds: Callable[[Any, Any], Any] = compile_function("bounds", "session, P", out)

    def cursor(self, session: SessionLike, values: Any) -> Cursor:
        """A fresh position at the beginning."""
        return Cursor(self, session, values)


class Cursor:
    """A position in a source. `next` is synchronous and may raise a `Suspend`; then call again."""

    __slots__ = ("_bounds", "_index", "_keys", "_position", "_ranges", "_source", "done")

    def __init__(self, source: Source, session: SessionLike, values: Any) -> None:
        self._source = source
        self._position: Any = None
        self._keys: list[Any] = []
        self._index = 0
        found = source.bounds(session, values)
        self.done = False
        self._bounds: tuple[Any, ...] = (None, None)
        # Ranges that are still to be walked, the next one last.
        self._ranges: list[tuple[Any, Any]] = []
        if source.by_keys:
            self._keys = found
            self.done = not found
        elif source.prefixes:
            self._ranges = [(key, prefix_end(key)) for key in reversed(found)]
            self.done = not found
        elif source.ranges:
            self._ranges = found[::-1]
            self.done = not found
            if source.index is None and found:
                self._bounds = self._ranges.pop()
        elif source.index is not None:
            self._ranges = [] if found is None else [found]
            self.done = found is None
        elif source.series:
            self.done = any(part is None for part in found)
            if not self.done and found[2] == 0:
                raise CallerMistake("step size cannot equal zero", sqlstate="22023")
            self._bounds, self._position = found, found[0]
        elif source.tree is not None:
            self.done = found is None
            if found is not None:
                self._bounds = found
                low, high = found
                self.done = low is not None and high is not None and low >= high

    def next(self, txn: Transaction) -> Batch:
        """The next batch, perhaps empty; `done` says whether it was the last."""
        source = self._source
        tree = source.tree
        if tree is None:
            return self._series() if source.series else self._single()
        if source.by_keys:
            return self._by_keys(txn, tree)
        if source.index is not None:
            return self._by_index(txn, tree, source.index)
        low, high = self._bounds
        rows, position = txn.batch(tree, low, high, after=self._position, reverse=source.reverse)
        self._move(position)
        return rows

    def _move(self, position: Any) -> None:
        """To where the table's scan goes on; None: to the next range."""
        self._position = position
        if position is None:
            if self._ranges:
                self._bounds = self._ranges.pop()
            else:
                self.done = True

    def next_rows(self, txn: Transaction) -> Rows:
        """The next batch as decoded rows, for those who need no keys."""
        source = self._source
        tree = source.tree
        if tree is None or source.by_keys or source.index is not None:
            return decode([payload for _, payload in self.next(txn)], txn)
        low, high = self._bounds
        found, position = txn.payloads(
            tree, low, high, after=self._position, reverse=source.reverse
        )
        try:
            rows = decode(found, txn)
        except Suspend:
            # Some values are not at hand: as far as they are, or wait for the first.
            return decode([payload for _, payload in self.next(txn)], txn)
        # After what may raise: a Suspend reads the same leaf again.
        self._move(position)
        return rows

    def _single(self) -> Batch:
        self.done = True
        return [(None, ())]

    def _by_keys(self, txn: Transaction, tree: Tree) -> Batch:
        rows: Batch = []
        # The index moves only when the whole batch is there: a Suspend in between reads it again.
        at = self._index
        end = min(at + ROWS_PER_STEP // 4, len(self._keys))
        try:
            for at in range(self._index, end):
                payload = txn.get(tree, self._keys[at])
                if payload is not None:
                    rows.append((self._keys[at], payload))
        except PageMiss as miss:
            miss.also = tree.absent_leaves(self._keys[self._index : end], PREFETCH_PAGES)
            raise
        except Suspend:
            # A large value: those before it count, as not all may fit into memory at once.
            if not rows:
                raise
            end = at
        self._index = end
        self.done = end == len(self._keys)
        return rows

    def _by_index(self, txn: Transaction, tree: Tree, index: Tree) -> Batch:
        """Rows in the order of the index: some entries, then the rows that they name."""
        if self._index == len(self._keys):
            low, high = self._ranges[-1]
            entries, position = txn.batch(
                index, low, high, after=self._position, reverse=self._source.reverse
            )
            self._keys, self._index = [unpackb(entry) for _, entry in entries], 0
            self._position = position
            if position is None:
                self._ranges.pop()
        rows: Batch = []
        end = min(self._index + ROWS_PER_STEP // 4, len(self._keys))
        try:
            for key in self._keys[self._index : end]:
                payload = txn.get(tree, key)
                if payload is not None:
                    rows.append((key, payload))
                self._index += 1
        except Suspend as suspend:
            # What was found so far counts; the rest of the entries comes with the next call.
            if not rows:
                if isinstance(suspend, PageMiss):
                    coming = self._keys[self._index : self._index + KEYS_AHEAD]
                    suspend.also = tree.absent_leaves(coming, PREFETCH_PAGES)
                raise
        self.done = self._index == len(self._keys) and not self._ranges
        return rows

    def _series(self) -> Batch:
        _, stop, step = self._bounds
        start = self._position
        end = start + SERIES_ROWS * step
        last = stop + (1 if step > 0 else -1)
        end = min(end, last) if step > 0 else max(end, last)
        rows: Batch = [(None, (value,)) for value in range(start, end, step)]
        self._position = start + SERIES_ROWS * step
        self.done = self._position > stop if step > 0 else self._position < stop
        return rows


_SHORT_ARRAYS: Final = tuple(bytes((0x90 + count,)) for count in range(16))
_array_head: Final = struct.Struct(">BI").pack


def decode(payloads: list[Any], txn: Transaction) -> Rows:
    """The rows of these payloads. May raise a `Suspend` for one that is not at hand.

    They are read as one msgpack array: a call for each costs twice as much (0.16 us a row).
    """
    count = len(payloads)
    head = _SHORT_ARRAYS[count] if count < 16 else _array_head(0xDD, count)
    try:
        rows: list[Any] = unpackb(head + b"".join(payloads))
    except TypeError:
        large = txn.large
        return LargeRows([p if type(p) is bytes else large(p) for p in payloads])
    return rows


class LargeRows:
    """Rows of which some lie on overflow pages: decoded one at a time, as they may be large."""

    __slots__ = ("_payloads",)

    def __init__(self, payloads: list[bytes]) -> None:
        self._payloads = payloads

    def __len__(self) -> int:
        return len(self._payloads)

    def __iter__(self) -> Iterator[Any]:
        return map(unpackb, self._payloads)


async def batches(
    cursor: Cursor, txn: Transaction, session: SessionLike, *, decoded: bool = False
) -> AsyncIterator[Any]:
    """All batches, waiting for pages and giving others a turn every few milliseconds.

    ``decoded``: as of `Cursor.next_rows`, else of `Cursor.next`.
    """
    sleep = session.engine.clock.sleep
    following = cursor.next_rows if decoded else cursor.next
    rows = 0
    while not cursor.done:
        try:
            batch = following(txn)
        except Suspend as suspend:
            await resumed(suspend)
            continue
        if batch:
            yield batch
        rows += len(batch) + 20
        if rows >= ROWS_PER_STEP:
            rows = 0
            await sleep(0)
