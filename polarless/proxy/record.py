"""What the proxy remembers of a session, so that it can go on at another node. A core.

* `Cycle`: what the client has sent and what it was answered so far.
* `Memory`: settings and prepared statements, and the cycles of the transaction that is open.

Settings and statements are those at the beginning of the open transaction: what it changed itself
comes back when its cycles are run again.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

from polarless.proxy.messages import parsed_text, text_reads
from polarless.wire.relay import IDLE

# What is kept of one cycle's input; beyond it the cycle cannot be sent again.
CYCLE_BYTES_MAX: Final = 32 * 1024 * 1024
# What is kept of one transaction, and how many cycles; beyond it it cannot be run again.
TRANSACTION_BYTES_MAX: Final = 4 * 1024 * 1024
TRANSACTION_CYCLES_MAX: Final = 2000


class Cycle:
    """One cycle: its input, its answer so far as a length and a checksum."""

    __slots__ = (
        "answered", "backend", "copying", "crc", "data", "ended", "from_lsn", "number", "query",
        "reruns", "size", "skip", "skip_crc", "snapshots", "start_us",
    )  # fmt: skip

    def __init__(self, number: int, data: bytes, *, ended: bool, query: bool) -> None:
        self.number = number
        self.data: list[bytes] | None = [data]
        self.size = len(data)
        self.ended = ended
        # One Query, which a COPY may follow; else messages up to a Sync.
        self.query = query
        self.copying = False
        self.backend: Any = None
        self.from_lsn = 0
        # Forwarded to the client: bytes and their checksum.
        self.answered = 0
        self.crc = 0
        # Bytes that the client has already, of an answer that is made again.
        self.skip = 0
        self.skip_crc = 0
        # How often a node has turned it away.
        self.reruns = 0
        # Of its statements so far; None if the node has not told yet.
        self.snapshots: list[int] | None = None
        self.start_us = 0

    def add(self, data: bytes) -> None:
        """More input."""
        self.size += len(data)
        if self.data is not None:
            if self.size > CYCLE_BYTES_MAX:
                self.data = None
            else:
                self.data.append(data)

    def note(self, payload: bytes) -> None:
        """The client was sent this."""
        self.answered += len(payload)
        self.crc = crc32(payload, self.crc)


class Done:
    """A finished cycle of an open transaction, to be run again."""

    __slots__ = ("answered", "crc", "data", "snapshots", "start_us")

    def __init__(self, cycle: Cycle) -> None:
        assert cycle.data is not None
        self.data = cycle.data[0] if len(cycle.data) == 1 else b"".join(cycle.data)
        self.answered = cycle.answered
        self.crc = cycle.crc
        self.snapshots = cycle.snapshots or []
        self.start_us = cycle.start_us


class Memory:
    """See the module."""

    def __init__(self) -> None:
        self.status = IDLE
        self.settings: dict[str, str] = {}
        # Parse bodies by name.
        self.statements: dict[bytes, bytes] = {}
        # Whether a prepared statement may run on a reader.
        self.reads: dict[bytes, bool] = {}
        # Grows when the settings change, or a statement does.
        self.settings_version = 0
        self.statements_version = 0
        self.transaction: list[Done] = []
        self.transaction_bytes = 0
        # Why the open transaction cannot be run again, if it cannot.
        self.unrepeatable = ""
        # What would be lost with its node, and the session with it.
        self.tied = ""
        # The newest timestamp that it has committed or read, if it does not read strongly; -1: it
        # is not known. And how often that has changed.
        self.seen = 0
        self.seen_version = 0
        self._news: list[dict[str, Any]] = []

    def learn(self, meta: dict[str, Any], cycle: Cycle | None) -> None:
        """Take what a node says of the session."""
        if cycle is not None and meta.get("snapshots") is not None:
            cycle.snapshots = meta["snapshots"]
            cycle.start_us = meta.get("start_us", 0)
        if "seen" in meta and meta["seen"] > self.seen:
            self.seen = meta["seen"]
            self.seen_version += 1
        if "tied" in meta:
            self.tied = meta["tied"]
        if "settings" in meta or "prepared" in meta:
            self._news.append(meta)

    def finished(self, cycle: Cycle, status: int) -> None:
        """The cycle is answered and leaves the session in this state."""
        self.status = status
        if status == IDLE:
            if self.transaction:
                self.forget_transaction()
            if self._news:
                self._apply()
            self.unrepeatable = ""
            return
        if self.unrepeatable:
            return
        self.transaction_bytes += cycle.size
        if (
            cycle.data is None
            or self.transaction_bytes > TRANSACTION_BYTES_MAX
            or len(self.transaction) >= TRANSACTION_CYCLES_MAX
        ):
            self.forget_transaction()
            self.unrepeatable = "it is too long to be run again"
            return
        self.transaction.append(Done(cycle))

    def forget_seen(self) -> None:
        """It may have committed without anybody knowing when: it reads strongly next."""
        self.seen = -1
        self.seen_version += 1

    def forget_transaction(self) -> None:
        """It has ended, or is too long."""
        self.transaction.clear()
        self.transaction_bytes = 0

    def drop_news(self) -> list[dict[str, Any]]:
        """The open transaction is run again, and says it all again. What it had said."""
        news, self._news = self._news, []
        return news

    def keep_prepared(self, news: list[dict[str, Any]]) -> None:
        """Statements outlive a transaction that has failed, its settings do not."""
        for meta in news:
            self._take_prepared(meta)

    def snapshots(self) -> set[int]:
        """Those at which the open transaction read."""
        return {snapshot for done in self.transaction for snapshot in done.snapshots if snapshot}

    def prepared(self, name: bytes, body: bytes) -> None:
        """A statement was prepared."""
        self.statements[name] = body
        self.statements_version += 1
        try:
            self.reads[name] = text_reads(parsed_text(body)[1])
        except ValueError:
            self.reads[name] = False

    def _apply(self) -> None:
        news, self._news = self._news, []
        for meta in news:
            self._take_prepared(meta)
            if "settings" in meta:
                self.settings = meta["settings"]
                self.settings_version += 1

    def _take_prepared(self, meta: dict[str, Any]) -> None:
        if meta.get("cleared"):
            self.statements.clear()
            self.reads.clear()
            self.statements_version += 1
        for name, body in (meta.get("prepared") or {}).items():
            if body is None:
                self.statements.pop(name, None)
                self.reads.pop(name, None)
                self.statements_version += 1
            elif self.statements.get(name) != body:
                self.prepared(name, body)
