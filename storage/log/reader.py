"""Reads groups back, by LSN, from whatever segments are kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from polarless.errors import CallerMistake, CorruptData
from polarless.kernel import redo
from storage.log import segment
from storage.log.device import LogDevice

CHUNK_BYTES: int = 1024 * 1024


class LogReader:
    """A view of a `LogDevice`; ``segments`` is the writer's list of start LSNs, which it shares."""

    def __init__(self, device: LogDevice, segments: list[int]) -> None:
        self._device = device
        self._segments = segments

    @property
    def first(self) -> int:
        """The first LSN that is kept."""
        return self._segments[0]

    def bytes_at(self, lsn: int, byte_count: int) -> bytes:
        """Bytes from an LSN on; fewer at the end of its segment."""
        index = bisect_right(self._segments, lsn) - 1
        if index < 0:
            raise CallerMistake(
                f"log position {lsn} is no longer kept; the first is {self.first}",
                hint="Start from the pages instead: they are folded beyond that position.",
            )
        start = self._segments[index]
        return self._device.read(start, segment.HEADER_BYTES + lsn - start, byte_count)

    def read(self, from_lsn: int, max_bytes: int, durable: int) -> tuple[bytes, int]:
        """Whole groups from ``from_lsn`` on and the LSN behind them; one at least if there is one.

        At most ``max_bytes`` unless one group alone is longer. Raises `CallerMistake` for a
        position that is not kept or not durable, `CorruptData` for damage.
        """
        if from_lsn > durable:
            raise CallerMistake(f"log position {from_lsn} is behind the durable end {durable}")
        if from_lsn == durable:
            return b"", durable
        data = self.bytes_at(from_lsn, min(max_bytes, durable - from_lsn))
        if len(data) < redo.HEADER_BYTES:
            data = self.bytes_at(from_lsn, redo.HEADER_BYTES)
        found = redo.read_header(data)
        if found is None or found[0].start_lsn != from_lsn:
            raise CorruptData(f"log position {from_lsn}: no group starts here")
        if found[1] > len(data):
            data = self.bytes_at(from_lsn, found[1])
        walk = segment.Walk(from_lsn)
        if walk.feed(memoryview(data)) < 0 or walk.end == from_lsn:
            raise CorruptData(f"log position {walk.end}: the group here is damaged")
        return data[: walk.end - from_lsn], walk.end

    def chunks(self, from_lsn: int, to_lsn: int) -> Iterator[tuple[int, bytes]]:
        """All groups between two positions: (LSN, whole groups), about a megabyte at a time."""
        position = from_lsn
        while position < to_lsn:
            data, after = self.read(position, CHUNK_BYTES, to_lsn)
            yield position, data
            position = after
