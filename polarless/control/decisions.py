"""What goes into the failover core and what comes out: plain records.

Events say what happened, effects say what to do. The service turns one into the other and decides
nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# ------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Begin:
    """A new cluster starts; or a control that was gone is back and some nodes run already."""

    adopted: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """A node answered its first ping."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pong:
    """A node answered a later ping."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A node's process ended. ``code`` as `subprocess` has it; None if nobody knows."""

    name: str
    code: int | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went on. ``paused_s`` is how long control itself was not running meanwhile."""

    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Promoted:
    """A reader is the writer now."""

    name: str
    epoch: int
    steps: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PromoteRefused:
    """It could not be done. ``seen_epoch`` is storage's, if the epoch was too low."""

    name: str
    epoch: int
    error: str
    seen_epoch: int = 0


@dataclass(frozen=True, slots=True)
class HomeTaken:
    """A memory node is the home now."""

    name: str
    home_epoch: int
    steps: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HomeRefused:
    """It could not be done."""

    name: str
    home_epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class Told:
    """A call of the given kind ("home", "attach") was answered, or failed."""

    name: str
    kind: str
    home_epoch: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Lent:
    """A memory node lends so much to the pool; or it does not, and why."""

    name: str
    memory_mb: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """Storage holds this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SwitchAsked:
    """Somebody wants another writer, a named one or any."""

    target: str | None = None


@dataclass(frozen=True, slots=True)
class ScaleAsked:
    """So many readers, memory nodes, or MiB of the pool are wanted; None: as before."""

    ro: int | None = None
    memory_nodes: int | None = None
    pool_mb: int | None = None


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """Everybody, or those of a role, are to be restarted in turn."""

    role: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A client waits at a proxy, and there is no compute."""

    name: str


@dataclass(frozen=True, slots=True)
class SleepAsked:
    """All compute is to be released now."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The cluster is to be stopped: nothing is restarted from now on."""


Event = (
    Begin | Ready | Pong | Ended | Tick | Promoted | PromoteRefused | HomeTaken | HomeRefused
    | Told | EpochSeen | SwitchAsked | StopAsked | ScaleAsked | RestartAsked | Wanted | SleepAsked
    | Lent
)  # fmt: skip

# ------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Save:
    """Write the epochs down before anything that follows is done."""

    epoch: int
    home_epoch: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start the process of a member in its role."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL."""

    name: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask a proxy to replace its process, with its clients."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the node to end in good order."""

    name: str


@dataclass(frozen=True, slots=True)
class TellFenced:
    """Tell an old writer that it is one."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Promote:
    """Make a reader the writer."""

    name: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class TakeHome:
    """Make a memory node the home. ``previous`` is dead: its words are cleared first."""

    name: str
    home_epoch: int
    previous: str | None


@dataclass(frozen=True, slots=True)
class TellHome:
    """Tell a compute node where the home is."""

    name: str
    home_epoch: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Tell the home of a memory node."""

    name: str
    home_epoch: int


@dataclass(frozen=True, slots=True)
class Detach:
    """Tell the home that a memory node is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class Lend:
    """Have the home use so much memory of a memory node; `Lent` follows."""

    name: str
    memory_mb: int


@dataclass(frozen=True, slots=True)
class LearnEpoch:
    """Ask storage for its epoch; `EpochSeen` follows."""


@dataclass(frozen=True, slots=True)
class Record:
    """A decision, or something that happened, for `status` and the events file."""

    event: str
    node: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


Effect = (
    Save | Start | Kill | Stop | TellFenced | Promote | TakeHome | TellHome | Attach | Detach
    | LearnEpoch | Lend | Renew | Record
)  # fmt: skip
