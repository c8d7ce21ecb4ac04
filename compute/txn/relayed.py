"""A transaction of a client behind a proxy: it can be run again elsewhere, as of the same times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from compute.txn.transaction import READ_COMMITTED, Transaction
from polarless.errors import Conflict
from polarless.kernel.ids import Cts

if TYPE_CHECKING:
    from compute.txn.engine import Engine


class Recorder(Protocol):
    """Knows at which snapshot a statement ran the first time."""

    def replay_at(self) -> Cts:
        """The snapshot of the statement that begins, 0 if it has not run before."""


class RelayedTransaction(Transaction):
    """See the module."""

    __slots__ = ("recorder",)

    def __init__(
        self, engine: Engine, isolation: str, *, read_only: bool, recorder: Recorder
    ) -> None:
        super().__init__(engine, isolation, read_only=read_only)
        self.recorder = recorder

    def start_statement(self) -> None:
        """Take a snapshot, or the one that this statement had the first time."""
        snapshot = self.recorder.replay_at()
        if not snapshot:
            super().start_statement()
        elif self.isolation == READ_COMMITTED or self.pinned is None:
            if self.pinned is not None:
                self.engine.unpin(self.pinned)
                self.pinned = None
            keep = self.engine.keep
            if self.engine.kept_until < snapshot < keep[-1] and snapshot not in keep:
                raise Conflict(
                    "the snapshot of a statement that is run again is gone",
                    hint="Run the whole transaction again.",
                )
            self.snapshot = snapshot
            self.pin()
