"""Which older timestamp a session's reads may take: `session` and `bounded` consistency.

A strong read takes the newest published timestamp, which lies in the home's memory. Where that is
not shared it is one READ over the network for each statement, and none at all while the home is
away. A session that asks for less takes one that its reader has read anyway:

    bounded   at most ``age_s`` old
    session   the same, and no older than the session's own last commit and what it has read before

An older timestamp is as consistent as any: a reader's cache is one state of the database (C1), and
the versions that it needs are kept, as a node takes none that is older than the bound which it
has reported last (`Engine.recent`). Only a reader does so: statements that write read strongly.
"""

from __future__ import annotations

from typing import Final

from polarless.kernel.ids import Cts

# What a session has seen is not known: its next read is strong.
UNKNOWN: Final = -1


class Reuse:
    """What one session may be given. ``seen``: its commits and reads are no later, or `UNKNOWN`."""

    __slots__ = ("age_s", "is_session", "seen")

    def __init__(self) -> None:
        self.age_s = 0.0
        self.is_session = False
        self.seen: Cts = 0

    def may_take(self, cts: Cts, age_s: float) -> bool:
        """Whether a read may use a timestamp that was the newest so many seconds ago."""
        if age_s > self.age_s:
            return False
        return not self.is_session or 0 <= self.seen <= cts

    def note(self, cts: Cts, *, is_strong: bool = False) -> None:
        """The session has committed or read this. A strong read has seen everything before it."""
        if cts > self.seen and (is_strong or self.seen != UNKNOWN):
            self.seen = cts

    def hear(self, cts: Cts) -> None:
        """The session's proxy knows of this from elsewhere."""
        self.seen = UNKNOWN if cts == UNKNOWN else max(self.seen, cts)
