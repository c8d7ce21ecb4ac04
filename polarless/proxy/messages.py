"""Where a client's messages end, and what may run on a reader. A core.

A *cycle* is what the client sends before it waits for ReadyForQuery: one Query, one FunctionCall,
or everything up to a Sync.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from polarless.errors import RemoteProtocolError

QUERY: Final = 0x51
SYNC: Final = 0x53
FUNCTION: Final = 0x46
BIND: Final = 0x42
PARSE: Final = 0x50
EXECUTE: Final = 0x45
TERMINATE: Final = 0x58
COPY_DATA: Final = 0x64
COPY_DONE: Final = 0x63
COPY_FAIL: Final = 0x66
COPY_KINDS: Final = frozenset({COPY_DATA, COPY_DONE, COPY_FAIL})
_KINDS: Final = frozenset(b"QPBEDCSHXdcfFp")
MESSAGE_BYTES_MAX: Final = 128 * 1024 * 1024
_ENDS: Final = frozenset({QUERY, SYNC, FUNCTION})
_NOTED: Final = _ENDS | {COPY_DONE, COPY_FAIL}

_READS = re.compile(rb"\s*(?:select|with|values|table)\b", re.IGNORECASE)
# Words that may mean a write, a lock, or something that only the writer's session knows. One of
# them in a string costs a trip to the writer, no more.
_WRITER_ONLY = re.compile(
    rb"\b(?:insert|update|delete|merge|into|share|nextval|currval|lastval|setval|set_config|"
    rb"current_setting|pg_is_in_recovery|pg_sleep\w*|pg_cancel\w*|pg_terminate\w*|pg_notify|"
    rb"pg_\w*advisory\w*|pg_prepared_statements|pg_cursors|pg_settings|pg_stat\w*|pg_backend_pid|"
    rb"txid\w*|pg_current\w*|polarless)\b",
    re.IGNORECASE,
)


_END = re.compile(
    rb"\s*(?:commit|end|rollback|abort)(?:\s+(?:work|transaction))?[\s;]*", re.IGNORECASE
)


class Scanner:
    """Follows one client's stream. ``ended``: the bytes taken last are the end of a cycle.

    ``first`` is the kind of the cycle's first message and ``executes`` counts its Executes.
    """

    __slots__ = ("_header", "_kind", "_left", "ended", "executes", "first", "last_copy")

    def __init__(self) -> None:
        self._header = b""
        self._left = 0
        self._kind = 0
        self.begin()

    def begin(self) -> None:
        """A cycle begins with the next byte."""
        self.ended = False
        self.first = 0
        self.executes = 0
        # Whether CopyDone or CopyFail came: a Sync behind it ends the cycle.
        self.last_copy = False

    @property
    def queried(self) -> bool:
        """Whether it was a Query that ended the cycle: a COPY's rows may follow."""
        return self.ended and self._kind == QUERY

    @property
    def whole(self) -> bool:
        """Whether the last message taken is complete."""
        return not self._left and not self._header

    def take(self, data: bytes, position: int) -> int:
        """Read to the end of the cycle or of ``data``; the position reached.

        Raises `RemoteProtocolError` for what cannot be a message.
        """
        end = len(data)
        if self._left:
            step = min(self._left, end - position)
            position += step
            self._left -= step
            if self._left:
                return position
            if self._finished():
                return position
        if self._header:
            position = self._finish_header(data, position)
            if self._left or self._header or self.ended:
                return position if self.ended or position == end else self.take(data, position)
        while end - position >= 5:
            kind = data[position]
            length = int.from_bytes(data[position + 1 : position + 5], "big")
            if kind not in _KINDS or not 4 <= length <= MESSAGE_BYTES_MAX:
                raise RemoteProtocolError(f"invalid message of type {kind}, length {length}")
            if not self.first:
                self.first = kind
            stop = position + 1 + length
            self._kind = kind
            if stop > end:
                self._left = stop - end
                return end
            position = stop
            if kind == EXECUTE:
                self.executes += 1
            elif kind in _NOTED and self._finished():
                return position
        if position < end:
            self._header = data[position:end]
        return end

    def _finish_header(self, data: bytes, position: int) -> int:
        need = 5 - len(self._header)
        header = self._header + data[position : position + need]
        if len(header) < 5:
            self._header = header
            return len(data)
        kind, length = header[0], int.from_bytes(header[1:5], "big")
        if kind not in _KINDS or not 4 <= length <= MESSAGE_BYTES_MAX:
            raise RemoteProtocolError(f"invalid message of type {kind}, length {length}")
        self._header = b""
        self._kind = kind
        if not self.first:
            self.first = kind
        position += need
        self._left = length - 4
        step = min(self._left, len(data) - position)
        self._left -= step
        position += step
        if not self._left:
            self._finished()
        return position

    def _finished(self) -> bool:
        """A message is complete; whether the cycle is."""
        kind = self._kind
        if kind == EXECUTE:
            self.executes += 1
        elif kind in (COPY_DONE, COPY_FAIL):
            self.last_copy = True
        self.ended = kind in _ENDS
        return self.ended


def text_reads(text: bytes) -> bool:
    """Whether a statement looks like one that a reader can run."""
    return _READS.match(text) is not None and _WRITER_ONLY.search(text) is None


def parsed_text(body: bytes) -> tuple[bytes, bytes]:
    """Name and text of a Parse message's body."""
    end = body.index(b"\0")
    return body[:end], body[end + 1 : body.index(b"\0", end + 1)]


def is_read(cycle: bytes, scanner: Scanner, reads: Mapping[bytes, bool]) -> bool:
    """Whether a whole cycle is one statement that a reader may run.

    ``reads`` says it of prepared statements by name.
    """
    first = scanner.first
    if first == BIND:
        if scanner.executes != 1:
            return False
        start = cycle.find(b"\0", 5) + 1
        return reads.get(cycle[start : cycle.find(b"\0", start)], False)
    if first == QUERY:
        text = cycle[5:-1]
        semicolon = text.find(b";")
        if semicolon >= 0 and text[semicolon:].strip(b"; \t\r\n"):
            return False
        return text_reads(text)
    if first == PARSE and scanner.executes == 1:
        length = int.from_bytes(cycle[1:5], "big")
        try:
            _, text = parsed_text(cycle[5 : 1 + length])
        except ValueError:
            return False
        # A second Parse in the same cycle would be of another statement.
        return text_reads(text) and cycle.find(b"P", 1 + length, 2 + length) < 0
    return False


def ends_transaction(cycle: bytes, statements: Mapping[bytes, bytes]) -> bool:
    """Whether a whole cycle is one COMMIT or ROLLBACK."""
    if cycle[:1] == b"Q":
        return _END.fullmatch(cycle[5:].rstrip(b"\0")) is not None
    parsed = parses(cycle)
    if cycle[:1] == b"B":
        start = cycle.find(b"\0", 5) + 1
        name = cycle[start : cycle.find(b"\0", start)]
        parsed = {name: statements.get(name, b"")}
    texts = [parsed_text(body)[1] for body in parsed.values() if body.count(b"\0") > 1]
    return len(texts) == 1 and _END.fullmatch(texts[0]) is not None


def parses(cycle: bytes) -> dict[bytes, bytes]:
    """The bodies of a cycle's Parse messages by their statement's name."""
    found: dict[bytes, bytes] = {}
    position = 0
    while len(cycle) - position >= 5:
        length = int.from_bytes(cycle[position + 1 : position + 5], "big")
        body = cycle[position + 5 : position + 1 + length]
        if cycle[position] == PARSE and b"\0" in body:
            found[parsed_text(body)[0]] = body
        position += 1 + length
    return found


def first_error(answer: bytes) -> str:
    """The message of the first ErrorResponse in a node's answer, or an empty string."""
    position = 0
    while len(answer) - position >= 5:
        length = int.from_bytes(answer[position + 1 : position + 5], "big")
        if answer[position] == 0x45:
            for part in answer[position + 5 : position + 1 + length].split(b"\0"):
                if part[:1] == b"M":
                    return part[1:].decode("utf-8", "replace")
        position += 1 + length
    return ""


def message(kind: int, body: bytes) -> bytes:
    """One message's bytes."""
    return bytes((kind,)) + (len(body) + 4).to_bytes(4, "big") + body


SYNC_MESSAGE: Final = message(SYNC, b"")
