"""What a compute node is at the moment, as a table of transitions.

starting --> ro --> promoting --> rw --> fenced
    |                   |                  ^
    +------> rw         +------------------+
    any of them may be fenced; a fenced node serves nothing and its process ends.
"""

from __future__ import annotations

from typing import Final

from polarless.errors import LocalProtocolError

STARTING: Final = "starting"
RO: Final = "ro"
PROMOTING: Final = "promoting"
RW: Final = "rw"
FENCED: Final = "fenced"

# TRANSITIONS[state][event] -> state; an event that is not listed is a bug.
TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    STARTING: {"join_reader": RO, "join_writer": RW, "fence": FENCED},
    RO: {"promote": PROMOTING, "fence": FENCED},
    PROMOTING: {"caught_up": RW, "give_up": RO, "fence": FENCED},
    RW: {"fence": FENCED},
    FENCED: {"fence": FENCED},
}


class Role:
    """One node's state; ``state`` is a key of `TRANSITIONS`."""

    def __init__(self) -> None:
        self.state = STARTING

    def on(self, event: str) -> str:
        """Take a transition and return the new state. Raises `LocalProtocolError`."""
        try:
            self.state = TRANSITIONS[self.state][event]
        except KeyError:
            raise LocalProtocolError(f"role {self.state} has no event {event}") from None
        return self.state
