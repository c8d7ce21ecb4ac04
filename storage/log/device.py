"""What the log needs of a disk: segments that only grow at their end, and one small state record.

A device knows nothing of groups, epochs or LSN arithmetic; a segment is named by the LSN it starts
at and holds whatever bytes it was given. An object store can implement this as well as a folder.

`storage.backends` has the implementations; `tests/contracts` has what each of them must do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

# Runs ``work`` elsewhere, then calls ``done(result, error)`` in the loop. One at a time, in order.
Submit = Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None]


class LogDevice(Protocol):
    """Segments and a state record. Every method blocks.

    `Overloaded` with SQLSTATE 53100 means that there is no room, and that not even a part of what
    was to be written is there. OSError means that the device is broken and its state unknown.
    """

    def segments(self) -> list[tuple[int, int]]:
        """(start LSN, bytes) of every segment, ascending."""

    def read(self, segment: int, offset: int, byte_count: int) -> bytes:
        """Bytes of a segment; fewer at its end."""

    def create(self, segment: int, header: bytes) -> None:
        """Start a segment with ``header``; both are durable on return."""

    def append(self, pieces: Sequence[bytes]) -> None:
        """Write to the end of the newest segment, not durable yet."""

    def sync(self) -> None:
        """All that was appended is durable on return. An error means that nobody knows."""

    def settle(self, segment: int, offset: int) -> None:
        """Make a segment durable as it was found, in its place; from ``offset`` on written anew.

        What an earlier process has written and not synced can be read, and lost all the same; and
        what it could not sync the kernel may hold for clean, so that a sync alone does nothing.
        """

    def cut(self, segment: int, byte_count: int) -> None:
        """Shorten a segment; durable on return."""

    def remove(self, segment: int) -> None:
        """Forget a segment."""

    def read_state(self) -> bytes | None:
        """The state record, or None if none was ever written."""

    def reserve_state(self, byte_count: int) -> None:
        """Make room for the next state record, so that a full disk does not refuse it.

        Nothing happens if there is some, or if there is none to be had.
        """

    def write_state(self, state: bytes) -> None:
        """Replace the state record in one step; durable on return."""

    def close(self) -> None:
        """Let go of everything."""
