"""The compute nodes that are admitted: what each has yet to acknowledge, which snapshots it uses.

A member has a place, a small number: that of its admission word and of its bit in the references.
A place is used again by another member; the word holds the member's incarnation, so nobody takes
another's for its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from polarless.wire.memory import MEMBERS_MAX

# A reader with more distinct snapshots in use than this is treated as if all lay at its oldest.
SNAPSHOTS_MAX = 1024


class Member:
    """One admitted node. ``unacknowledged`` has (LSN, sent at) of invalidations, oldest first."""

    __slots__ = (
        "connection", "incarnation", "known_mark", "name", "offers", "place", "snapshots",
        "unacknowledged",
    )  # fmt: skip

    def __init__(self, connection: int, name: str, incarnation: int, place: int) -> None:
        self.connection = connection
        self.name = name
        self.incarnation = incarnation
        self.place = place
        self.known_mark = 0
        # Address of an offered slot -> since when, in microseconds; oldest first.
        self.offers: dict[int, int] = {}
        # The last entry is the floor of all snapshots that the node may still take.
        self.snapshots: tuple[int, ...] = (0,)
        self.unacknowledged: deque[tuple[int, int]] = deque()

    def acknowledge(self, lsn: int) -> bool:
        """Strike out the invalidation at ``lsn``; False if none was waited for."""
        waiting = self.unacknowledged
        if waiting and waiting[0][0] == lsn:
            waiting.popleft()
            return True
        for entry in waiting:
            if entry[0] == lsn:
                waiting.remove(entry)
                return True
        return False


class Members:
    """Admitted members by connection."""

    def __init__(self) -> None:
        self._by_connection: dict[int, Member] = {}
        self._by_place: dict[int, Member] = {}
        self._free = list(range(MEMBERS_MAX - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._by_connection)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_connection.values())

    def get(self, connection: int) -> Member | None:
        """The member that speaks on this connection, if it is admitted."""
        return self._by_connection.get(connection)

    def at(self, place: int) -> Member:
        """The member at a place."""
        return self._by_place[place]

    def named(self, name: str) -> Member | None:
        """The member of that node."""
        return next((m for m in self._by_connection.values() if m.name == name), None)

    def admit(self, connection: int, name: str, incarnation: int) -> Member | None:
        """A new member, or None if all places are taken."""
        assert connection not in self._by_connection
        if not self._free:
            return None
        member = Member(connection, name, incarnation, self._free.pop())
        self._by_connection[connection] = member
        self._by_place[member.place] = member
        return member

    def remove(self, member: Member) -> None:
        """The member is admitted no more; its place may be given away."""
        del self._by_connection[member.connection]
        del self._by_place[member.place]
        self._free.append(member.place)

    def oldest_unacknowledged(self) -> int | None:
        """The lowest LSN that some member has yet to acknowledge."""
        oldest: int | None = None
        for member in self._by_connection.values():
            waiting = member.unacknowledged
            if waiting and (oldest is None or waiting[0][0] < oldest):
                oldest = waiting[0][0]
        return oldest


def report(snapshots: list[int]) -> tuple[int, ...]:
    """A member's report in the form that is kept: ascending, the floor last, bounded.

    Raises ValueError if it is empty or not ascending.
    """
    if not snapshots:
        raise ValueError("a report has at least the floor")
    if any(a > b for a, b in pairwise(snapshots)):
        raise ValueError("snapshots must be ascending")
    if len(snapshots) > SNAPSHOTS_MAX:
        return (snapshots[0],)
    return tuple(snapshots)


def merge_reports(reports: list[tuple[int, ...]]) -> list[int]:
    """What must be kept for all of them: single snapshots, then the lowest floor.

    Empty if nobody reported: then no reader limits what is pruned.
    """
    if not reports:
        return []
    floor = min(one[-1] for one in reports)
    single = {snapshot for one in reports for snapshot in one[:-1] if snapshot < floor}
    return [*sorted(single), floor]
