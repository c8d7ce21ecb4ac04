"""Records that are durable and not folded yet, by page.

    durable groups --feed--> raw --step--> pages[page id] = [(group, record), ...] in LSN order
                                 \\-------> groups in LSN order: what a fold may take

Decoding a group costs more than taking it, so groups wait raw and are decoded in steps of bounded
size, after their appends were answered. ``ingested`` is the LSN up to which pages are complete.

``bytes`` estimates the memory that all of this takes; the owner holds appends back by it.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any, Final

import msgpack

from polarless.errors import CorruptData
from polarless.kernel import redo
from storage.pages.verdicts import Verdicts

# Groups above this are decoded record by record, over several steps.
LARGE_BYTES: Final = 128 * 1024
# Objects, list slots and dict entries of one decoded record beside its bytes; measured.
RECORD_BYTES: Final = 220
GROUP_BYTES: Final = 140

# (end LSN, cts, horizon) of a group, shared by its records.
Origin = tuple[int, int, int]
Entry = tuple[Origin, redo.Record]

_unpack = msgpack.unpackb


class Plan:
    """What one fold takes: all groups up to ``lsn``; ``cts`` and ``next_page`` are those there."""

    __slots__ = ("bytes", "cts", "groups", "lsn", "next_page", "page_ids", "pages")

    def __init__(self, lsn: int, cts: int, next_page: int) -> None:
        self.lsn = lsn
        self.cts = cts
        self.next_page = next_page
        self.groups = 0
        self.page_ids = 0
        self.bytes = 0
        self.pages: set[int] = set()


class _Large:
    """A large group that is half decoded."""

    def __init__(self, header: redo.GroupHeader, body: memoryview, total: int) -> None:
        self.header = header
        self.total = total
        self.body = body
        self.fed = 0
        self.count = -1
        self.pages: list[int] = []
        self.unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=2 * redo.BODY_BYTES_MAX)


class Pending:
    """See the module. ``folded`` is the LSN below which nothing is kept."""

    def __init__(self, folded: int, cts: int, next_page: int) -> None:
        self.folded = folded
        self.folded_cts = cts
        self.folded_next_page = next_page
        self.ingested = folded
        self.fed = folded
        self.bytes = 0
        self.records = 0
        self.pages: dict[int, list[Entry]] = {}
        self.verdicts = Verdicts(folded)
        self._raw: deque[bytes] = deque()
        self._offset = 0
        self._large: _Large | None = None
        # One entry for each group, in LSN order. Arrays: hundreds of thousands of tuples would
        # hold the loop for tens of milliseconds when they are freed, and the collector too.
        self._ends = array("Q")
        self._cts = array("Q")
        self._next_pages = array("Q")
        self._sizes = array("Q")
        self._page_counts = array("L")
        # The page ids of all groups, one group behind the other.
        self._page_ids = array("Q")

    def feed(self, start_lsn: int, data: bytes) -> None:
        """Take whole, checked groups that continue at ``start_lsn``."""
        assert start_lsn == self.fed, (start_lsn, self.fed)
        if data:
            self._raw.append(data)
            self.fed += len(data)
            self.bytes += len(data)

    def step(self, byte_count: int) -> bool:
        """Decode about that many bytes; whether more wait. Raises `CorruptData`."""
        while self._raw and byte_count > 0:
            if self._large is not None:
                byte_count -= self._step_large(self._large)
                continue
            data = self._raw[0]
            found = redo.read_header(data, self._offset)
            if found is None:
                raise CorruptData(f"log position {self.ingested}: no group here")
            header, total = found
            note_at = self._offset + total - header.note_bytes
            body = memoryview(data)[self._offset + redo.HEADER_BYTES : note_at]
            if header.transaction_id >= redo.PROXIED:
                self.verdicts.add(header, bytes(data[note_at : self._offset + total]))
            if total > LARGE_BYTES:
                self._large = _Large(header, body, total)
                continue
            try:
                records = _unpack(body, use_list=False)
            except (ValueError, msgpack.UnpackException) as error:
                raise _undecodable(header, error) from error
            origin = (header.end_lsn, header.cts, header.horizon)
            pages = self.pages
            for record in records:
                page_id = record[1]
                entries = pages.get(page_id)
                if entries is None:
                    pages[page_id] = [(origin, record)]
                else:
                    entries.append((origin, record))
            self._finish(header, total, [record[1] for record in records])
            byte_count -= total
        return bool(self._raw)

    def plan(self) -> Plan:
        """A plan of nothing; `extend_plan` adds to it."""
        return Plan(self.folded, self.folded_cts, self.folded_next_page)

    def extend_plan(self, plan: Plan, limit_lsn: int, *, pages_max: int, groups_max: int) -> bool:
        """Add up to ``groups_max`` groups to a plan; whether more would fit.

        The plan ends at a group's end at or below ``limit_lsn``, and takes one group at least.
        """
        index, first = plan.groups, plan.page_ids
        stop = min(len(self._ends), index + groups_max)
        ends, cts = self._ends, self._cts
        while index < stop:
            if ends[index] > limit_lsn or len(plan.pages) >= pages_max:
                return False
            behind = first + self._page_counts[index]
            plan.pages.update(self._page_ids[first:behind])
            plan.lsn = ends[index]
            if cts[index] > plan.cts:
                plan.cts = cts[index]
            plan.next_page = self._next_pages[index]
            plan.bytes += self._sizes[index]
            index += 1
            plan.groups, plan.page_ids = index, behind
            first = behind
        return index < len(ends)

    def folded_to(self, plan: Plan) -> None:
        """The plan is stored. Its records are passed over from now on; `drop` frees them."""
        self.folded, self.folded_cts = plan.lsn, plan.cts
        self.folded_next_page = plan.next_page
        self.bytes -= plan.bytes
        for column in (self._ends, self._cts, self._next_pages, self._sizes, self._page_counts):
            del column[: plan.groups]
        del self._page_ids[: plan.page_ids]

    def drop(self, page_id: int) -> int:
        """Free a page's records that are folded; the LSN of the last one, 0 if there was none."""
        entries = self.pages.get(page_id)
        if entries is None:
            return 0
        folded, count = self.folded, 0
        for entry in entries:
            if entry[0][0] > folded:
                break
            count += 1
        if not count:
            return 0
        last = entries[count - 1][0][0]
        self.records -= count
        if count == len(entries):
            del self.pages[page_id]
        else:
            del entries[:count]
        return last

    def entries(self, page_id: int) -> list[Entry]:
        """The page's records above the folded LSN, oldest first."""
        entries = self.pages.get(page_id)
        if entries is None:
            return []
        if entries[0][0][0] > self.folded:
            return entries
        return [entry for entry in entries if entry[0][0] > self.folded]

    def passed_over(self, page_id: int) -> int:
        """The LSN of the page's last record that is folded and not dropped yet; 0 if none is."""
        folded, last = self.folded, 0
        for entry in self.pages.get(page_id, ()):
            if entry[0][0] > folded:
                break
            last = entry[0][0]
        return last

    @property
    def groups(self) -> int:
        """How many groups wait."""
        return len(self._ends)

    def _finish(self, header: redo.GroupHeader, total: int, pages: list[int]) -> None:
        size = total + GROUP_BYTES + RECORD_BYTES * len(pages)
        self.bytes += size - total
        self.records += len(pages)
        self._ends.append(header.end_lsn)
        self._cts.append(header.cts)
        self._next_pages.append(header.next_page)
        self._sizes.append(size)
        self._page_counts.append(len(pages))
        self._page_ids.extend(pages)
        self.ingested = header.end_lsn
        self._offset += total
        if self._offset >= len(self._raw[0]):
            self._raw.popleft()
            self._offset = 0

    def _step_large(self, large: _Large) -> int:
        """Decode a part of a large group; the bytes of that part."""
        header, body = large.header, large.body
        piece = body[large.fed : large.fed + LARGE_BYTES]
        large.fed += len(piece)
        unpacker: Any = large.unpacker
        unpacker.feed(piece)
        origin = (header.end_lsn, header.cts, header.horizon)
        try:
            if large.count < 0:
                large.count = unpacker.read_array_header()
            while len(large.pages) < large.count:
                record = unpacker.unpack()
                self.pages.setdefault(record[1], []).append((origin, record))
                large.pages.append(record[1])
        except msgpack.OutOfData:
            if large.fed >= len(body):
                raise _undecodable(header, "its list of records is cut") from None
        except (ValueError, msgpack.UnpackException) as error:
            raise _undecodable(header, error) from error
        if large.fed >= len(body):
            self._large = None
            self._finish(header, large.total, large.pages)
        return len(piece)


def _undecodable(header: redo.GroupHeader, why: object) -> CorruptData:
    return CorruptData(f"log position {header.start_lsn}: the group cannot be decoded: {why}")
