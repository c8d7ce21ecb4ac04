"""Which transactions of proxied clients are in the log, and what they were to be answered.

A proxy that lost its writer with a commit under way asks for the verdict, after the new writer has
fenced the log: a transaction that is not here by then will never be. The newest ones are kept, by
number and by bytes of their notes; ``since`` is the LSN from which on nothing was forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from polarless.kernel import redo

TRANSACTIONS_MAX: Final = 1 << 17
NOTES_BYTES_MAX: Final = 16 * 1024 * 1024

# (state, end LSN, note); states are those of `polarless.wire.storage`.
Verdict = tuple[str, int, bytes]


class Verdicts:
    """The newest transactions that carry a proxy's id."""

    def __init__(self, since: int) -> None:
        self.since = since
        self._found: dict[int, tuple[int, bytes]] = {}
        self._order: deque[int] = deque()
        self._note_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, header: redo.GroupHeader, note: bytes) -> None:
        """Take a group's transaction; groups come in LSN order."""
        self._found[header.transaction_id] = (header.end_lsn, note)
        self._order.append(header.transaction_id)
        self._note_bytes += len(note)
        while len(self._order) > TRANSACTIONS_MAX or self._note_bytes > NOTES_BYTES_MAX:
            lsn, old = self._found.pop(self._order.popleft())
            self._note_bytes -= len(old)
            self.since = lsn

    def index(self, data: bytes) -> None:
        """Take whole, checked groups, one behind the other."""
        offset = 0
        while (found := redo.read_header(data, offset)) is not None:
            header, total = found
            offset += total
            if header.transaction_id >= redo.PROXIED:
                self.add(header, data[offset - header.note_bytes : offset])

    def ask(self, transaction_id: int, from_lsn: int) -> Verdict:
        """What became of a transaction that began when the log was durable to ``from_lsn``."""
        found = self._found.get(transaction_id)
        if found is not None:
            return ("committed", *found)
        return ("absent" if from_lsn >= self.since else "unknown", 0, b"")
