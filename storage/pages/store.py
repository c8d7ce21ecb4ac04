"""What folding needs of a place for pages: one transaction at a time, and reads beside it.

The state record travels in the same transaction as the pages: whoever reads one state finds exactly
the pages that belong to it. `storage.backends` has the implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

# Runs ``work`` elsewhere, then calls ``done(result, error)`` in the loop. One at a time, in order.
Submit = Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None]


class PageStore(Protocol):
    """Images by page id. `stage`, `commit` and `abort` belong to one thread, reads to another.

    `Overloaded` with SQLSTATE 53100 means no room: what was staged is dropped, the rest stands.
    """

    def read(self, page_id: int) -> bytes | None:
        """The committed image, or None."""

    def heads(self, page_ids: Sequence[int], byte_count: int) -> list[bytes | None]:
        """The first bytes of the committed images, None for each that is not there; one state."""

    def read_state(self) -> bytes | None:
        """The committed state record, or None if there was never a commit."""

    def stage(self, pages: Sequence[tuple[int, bytes | None]]) -> None:
        """Put images (None: remove the page) into the transaction under way, or begin one."""

    def commit(self, state: bytes) -> None:
        """Make what was staged and ``state`` durable in one step."""

    def abort(self) -> None:
        """Drop what was staged."""

    def grow(self) -> bool:
        """Make room after `Overloaded`, between transactions and reads; False if it cannot."""

    def page_ids(self) -> Iterator[int]:
        """All page ids, ascending: for tools."""

    def statistics(self) -> dict[str, int]:
        """Numbers for the status."""

    def close(self) -> None:
        """Let go of everything."""


Images = Iterable[tuple[int, bytes | None]]
