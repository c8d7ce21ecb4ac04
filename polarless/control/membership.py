"""Who is in the cluster, in which role, and how each process is.

A member is a name (``compute-1``, ``memory-2``, ``storage``) that keeps its kind for ever, while
its role and its process change. Its state::

                 ready              promote              promoted
    starting ------------> serving ---------> promoting ----------> serving
        ^                   ^    | silent                 refused
        | start     answers |    v
        |                   +-- hung --superseded--> fenced      the writer that was replaced
        |                                              |         while it hung; it may wake up
      ended <----------- the process ended, in any state

``down`` is what `status` shows when no process is there and none is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from polarless.errors import LocalProtocolError
from polarless.wire.control import COMPUTE, HOME, KINDS, MEMORY, PROXY, RO, RW, STORAGE

STARTING: Final = "starting"
SERVING: Final = "serving"
PROMOTING: Final = "promoting"
HUNG: Final = "hung"
FENCED: Final = "fenced"
STOPPING: Final = "stopping"
ENDED: Final = "ended"

# TRANSITIONS[state][event] -> state; an event that is not listed is a bug.
TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    STARTING: {"ready": SERVING, "ended": ENDED, "stop": STOPPING},
    SERVING: {
        "promote": PROMOTING,
        "silent": HUNG,
        "stop": STOPPING,
        "supersede": FENCED,
        "ended": ENDED,
    },
    PROMOTING: {
        "promoted": SERVING,
        "refused": SERVING,
        "silent": HUNG,
        "supersede": FENCED,
        "ended": ENDED,
    },
    HUNG: {"answers": SERVING, "supersede": FENCED, "stop": STOPPING, "ended": ENDED},
    FENCED: {"ended": ENDED, "stop": FENCED},
    STOPPING: {"supersede": FENCED, "ended": ENDED, "stop": STOPPING},
    ENDED: {"start": STARTING},
}


@dataclass(slots=True)
class Member:
    """One node. ``fields`` is what it answered to the last ping."""

    name: str
    role: str
    state: str = ENDED
    pid: int = 0
    address: str = ""
    sql: str = ""
    epoch: int = 0
    # The home epoch that it was last told about.
    home_epoch: int = 0
    answered_at: float = 0.0
    # The longest time between two answers lately; it fades.
    gap_s: float = 0.0
    # When it entered its state.
    since: float = 0.0
    # Quick ends in a row, and when to start it again.
    failures: int = 0
    start_at: float = 0.0
    reason: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return KINDS[self.role]

    @property
    def is_live(self) -> bool:
        """Whether it answers, as far as is known."""
        return self.state in (SERVING, PROMOTING)

    @property
    def has_process(self) -> bool:
        return self.state != ENDED

    @property
    def mark(self) -> int:
        mark = self.fields.get("mark", 0)
        return mark if isinstance(mark, int) else 0

    @property
    def warmth(self) -> int:
        """Bytes in its cache."""
        cached = self.fields.get("cached", 0)
        return cached if isinstance(cached, int) else 0

    def on(self, event: str, now: float) -> None:
        """Take a transition. Raises `LocalProtocolError` for one that is not in the table."""
        try:
            state = TRANSITIONS[self.state][event]
        except KeyError:
            raise LocalProtocolError(f"{self.name}: {self.state} has no event {event}") from None
        if state != self.state:
            self.since = now
        self.state = state


class Membership:
    """All members by name, in the order in which they are started."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def add(self, name: str, role: str) -> Member:
        """A new member without a process."""
        assert name not in self.members, name
        member = self.members[name] = Member(name, role)
        return member

    @property
    def url_kind(self) -> str:
        """Who accepts on the URL's socket: the proxies, or the writer if there are none."""
        return PROXY if self.of_kind(PROXY) else COMPUTE

    def of_kind(self, kind: str) -> list[Member]:
        return [member for member in self.members.values() if member.kind == kind]

    def of_role(self, role: str) -> list[Member]:
        return [member for member in self.members.values() if member.role == role]

    def storage(self) -> Member:
        return self.of_role(STORAGE)[0]

    def home(self) -> Member | None:
        """The memory node that is the home; at most one has the role."""
        found = self.of_role(HOME)
        assert len(found) <= 1, f"two homes: {[member.name for member in found]}"
        return found[0] if found else None

    def writer(self) -> Member | None:
        """The RW; at most one has the role (a superseded one is no longer it)."""
        found = self.of_role(RW)
        assert len(found) <= 1, f"two writers: {[member.name for member in found]}"
        return found[0] if found else None

    def best_reader(self, avoid: frozenset[str] = frozenset()) -> Member | None:
        """The reader to promote: the highest mark, then the warmest cache, then by name."""
        readers = [
            member
            for member in self.of_role(RO)
            if member.state == SERVING and member.name not in avoid
        ]
        return min(readers, key=lambda m: (-m.mark, -m.warmth, m.name), default=None)

    def best_memory(self) -> Member | None:
        """The memory node to become the home."""
        return next((m for m in self.of_role(MEMORY) if m.state == SERVING), None)


def initial_members(
    *, compute_count: int, memory_node_count: int, proxy_count: int = 0
) -> Membership:
    """The members of a new cluster, none of them started."""
    membership = Membership()
    membership.add("storage", STORAGE)
    for number in range(1, memory_node_count + 1):
        membership.add(f"memory-{number}", HOME if number == 1 else MEMORY)
    for number in range(1, compute_count + 1):
        membership.add(f"compute-{number}", RW if number == 1 else RO)
    for number in range(1, proxy_count + 1):
        membership.add(f"proxy-{number}", PROXY)
    assert all(
        member.kind in (STORAGE, MEMORY, COMPUTE, PROXY) for member in membership.members.values()
    )
    return membership
