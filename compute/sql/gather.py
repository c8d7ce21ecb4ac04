"""What a SELECT keeps: sorting, telling apart, cutting off, and chunks for the client.

Everything that is kept is counted, and refused beyond `WORK_BYTES_MAX` with 53200.

A long sort must not hold the loop: entries are sorted in runs of a few thousand as they come, and
the runs are merged a slice at a time while the result is sent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from compute.sql.plan import RowSink
from compute.sql.select import Order, Select
from polarless.errors import Overloaded

WORK_BYTES_MAX: Final = 64 * 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024
SLICE_ROWS: Final = 1000
RUN_ROWS: Final = 4000
# What an entry of a list or dict takes beside the bytes that are counted.
ENTRY_BYTES: Final = 160

_last: Final = itemgetter(-1)


class Work:
    """Counts the bytes that a statement keeps in memory."""

    __slots__ = ("byte_count", "what")

    def __init__(self, what: str) -> None:
        self.byte_count = 0
        self.what = what

    def add(self, byte_count: int) -> None:
        """Raises `Overloaded` beyond the limit."""
        self.byte_count += byte_count
        if self.byte_count > WORK_BYTES_MAX:
            raise Overloaded(
                f"{self.what} needs more than {WORK_BYTES_MAX} bytes of memory",
                hint="Add a WHERE or a LIMIT, or ORDER BY the primary key, which needs no sort.",
            )


class Ordering:
    """What all gatherers of one SELECT have in common: ORDER BY and DISTINCT."""

    __slots__ = ("distinct", "keys", "reverse", "sort_key", "work")

    def __init__(self, found: Select) -> None:
        self.keys = found.order
        self.distinct = found.distinct
        self.sort_key = _sort_key(found.order)
        self.reverse = bool(found.order) and all(order.descending for order in found.order)
        self.work = "DISTINCT" if found.distinct and not found.order else "ORDER BY"


class Gatherer:
    """Takes what `rows_step` appends, and gives the DataRows in their final order and number."""

    __slots__ = (
        "_distinct", "_keep_max", "_kept", "_limit", "_offset", "_order", "_reverse", "_runs",
        "_sort_key", "_work", "count", "seen",
    )  # fmt: skip

    def __init__(self, order: Ordering, limit: int | None, offset: int) -> None:
        self._order = order.keys
        self._distinct = order.distinct
        self._sort_key = order.sort_key
        self._reverse = order.reverse
        self._limit = limit
        self._offset = offset
        # The values that `rows_step` has met, for DISTINCT.
        self.seen: set[Any] = set()
        self._kept: list[Any] = []
        self._runs: list[list[Any]] = []
        self._work = Work(order.work)
        self._keep_max = None if limit is None else limit + offset
        self.count = 0

    def is_full(self) -> bool:
        """Whether no further row can change the result."""
        return not self._order and self._limit is not None and self.count >= self._limit

    def add(self, entries: list[Any]) -> list[Any]:
        """Take entries; returns rows that are ready to be sent."""
        if not self._order:
            if self._distinct:
                self._work.add(2 * sum(map(len, entries)) + ENTRY_BYTES * len(entries))
            return self._cut(entries)
        self._kept += entries
        keep = self._keep_max
        if keep is not None and keep <= RUN_ROWS:
            if len(self._kept) > 2 * keep + SLICE_ROWS:
                self._sort(self._kept)
                del self._kept[keep:]
                self._work.byte_count = sum(len(e[-1]) + ENTRY_BYTES for e in self._kept)
                return []
        elif len(self._kept) >= RUN_ROWS:
            self._sort(self._kept)
            self._runs.append(self._kept)
            self._kept = []
        size = sum(map(len, map(_last, entries)))
        self._work.add(size * (2 if self._distinct else 1) + ENTRY_BYTES * len(entries))
        return []

    def slices(self) -> Iterator[list[Any]]:
        """The rows that had to wait for the last one, a slice at a time."""
        if not self._order:
            return
        self._sort(self._kept)
        merged: Iterable[Any] = self._kept
        if self._runs:
            runs = [*self._runs, self._kept]
            merged = heapq.merge(*runs, key=self._sort_key, reverse=self._reverse)
        entries = iter(merged)
        while part := list(islice(entries, SLICE_ROWS)):
            rows = self._cut(list(map(_last, part)))
            yield rows
            if self._limit is not None and self.count >= self._limit:
                return

    def _sort(self, entries: list[Any]) -> None:
        entries.sort(key=self._sort_key, reverse=self._reverse)

    def _cut(self, rows: list[Any]) -> list[Any]:
        if self._offset:
            skipped = min(self._offset, len(rows))
            self._offset -= skipped
            rows = rows[skipped:]
        if self._limit is not None:
            rows = rows[: self._limit - self.count]
        self.count += len(rows)
        return rows


class _Descending:
    """Compares the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


def _sort_key(order: list[Order]) -> Callable[[Any], Any]:
    """What entries are compared by; all descending is left to ``reverse``."""
    directions = [found.descending for found in order]
    if len(set(directions)) < 2:
        return itemgetter(*range(len(directions))) if directions else itemgetter(0)

    def key(entry: Any) -> Any:
        return tuple(
            _Descending(entry[index]) if descending else entry[index]
            for index, descending in enumerate(directions)
        )

    return key


class Output:
    """Gathers rows into chunks for the sink."""

    __slots__ = ("_byte_count", "_parts", "_sink")

    def __init__(self, sink: RowSink) -> None:
        self._sink = sink
        self._parts: list[bytes] = []
        self._byte_count = 0

    async def add(self, rows: list[bytes]) -> None:
        """Take rows; waits when the client is slow."""
        for start in range(0, len(rows), SLICE_ROWS):
            part = b"".join(rows[start : start + SLICE_ROWS])
            self._parts.append(part)
            self._byte_count += len(part)
            if self._byte_count >= CHUNK_BYTES:
                await self.flush()

    async def flush(self) -> None:
        """Send what is there."""
        if self._parts:
            data, self._parts, self._byte_count = b"".join(self._parts), [], 0
            await self._sink.rows(data)
