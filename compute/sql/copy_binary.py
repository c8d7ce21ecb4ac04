"""COPY FROM STDIN in PostgreSQL's binary format: bytes cut anywhere in, rows of raw fields out.

::

    bytes  "PGCOPY\\n\\xff\\r\\n\\0"      u32 flags (16 and above: refused)
    u32    length of a header extension, which is skipped
    rows   u16 number of fields, each u32 length (0xffffffff: NULL) and its bytes
    u16    0xffff, the end
"""

from __future__ import annotations

from typing import Final

from polarless.errors import CallerMistake

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(SIGNATURE) + 8
EXTENSION_BYTES_MAX: Final = 65536


def _bad(what: str) -> CallerMistake:
    return CallerMistake(what, sqlstate="22P04")


class BinaryRows:
    """Bytes that have come and make no whole row yet."""

    __slots__ = ("_data", "_row_bytes_max", "_started", "ended")

    def __init__(self, row_bytes_max: int) -> None:
        self._data = b""
        self._started = False
        self._row_bytes_max = row_bytes_max
        self.ended = False

    def feed(self, data: bytes) -> list[list[bytes | None]]:
        """The rows that are whole now. Raises `CallerMistake` 22P04, 54000."""
        if self.ended:
            return []
        data = self._data + data if self._data else data
        position = 0
        if not self._started:
            begin = self._header(data)
            if begin is None:
                self._data = data
                return []
            self._started, position = True, begin
        rows: list[list[bytes | None]] = []
        while (found := self._row(data, position)) is not None:
            row, position = found
            if row is None:
                self.ended = True
                break
            rows.append(row)
        self._data = b"" if self.ended else data[position:]
        if len(self._data) > self._row_bytes_max:
            raise CallerMistake(
                f"a row of COPY exceeds {self._row_bytes_max} bytes", sqlstate="54000"
            )
        return rows

    def finish(self) -> None:
        """There is no more. Raises 22P04 if something is missing."""
        if not self._started:
            raise _bad("COPY file signature not recognized")
        if self._data:
            raise _bad("unexpected EOF in COPY data")

    def _header(self, data: bytes) -> int | None:
        if not SIGNATURE.startswith(data[: len(SIGNATURE)]):
            raise _bad("COPY file signature not recognized")
        if len(data) < _HEADER_BYTES:
            return None
        flags = int.from_bytes(data[11:15], "big")
        if flags & (1 << 16):
            raise _bad("invalid COPY file header (WITH OIDS)")
        if flags >> 17:
            raise _bad("unrecognized critical flags in COPY file header")
        extension = int.from_bytes(data[15:19], "big")
        if extension > EXTENSION_BYTES_MAX:
            raise _bad("invalid COPY file header (wrong length)")
        begin = _HEADER_BYTES + extension
        return begin if len(data) >= begin else None

    def _row(self, data: bytes, position: int) -> tuple[list[bytes | None] | None, int] | None:
        end = len(data)
        if position + 2 > end:
            return None
        count = int.from_bytes(data[position : position + 2], "big")
        position += 2
        if count == 0xFFFF:
            return None, position
        row: list[bytes | None] = []
        for _ in range(count):
            if position + 4 > end:
                return None
            size = int.from_bytes(data[position : position + 4], "big")
            position += 4
            if size == 0xFFFFFFFF:
                row.append(None)
                continue
            if size > self._row_bytes_max:
                raise _bad("unexpected field size in COPY data")
            if position + size > end:
                return None
            row.append(data[position : position + size])
            position += size
        return row, position
