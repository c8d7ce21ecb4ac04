"""What happens to the home (events) and what it decides (effects), as plain values.

``connection`` numbers one connection of one compute node and is never used twice. ``call`` stands
for a call that waits for its answer; the core hands it back and never looks inside.

Effects are carried out in order, in one step, before the next event. In that order lies the
protocol: a cleared admission word comes before the publication it must precede.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from memory_pool.slots import Scan
from polarless.errors import PolarlessError

# --------------------------------------------------------------------------------------- events


class Attached(NamedTuple):
    """A memory node lends slabs: (slab, slots, what its headers say or None if it is new)."""

    node: str
    slabs: list[tuple[int, int, Scan | None]]
    # It lends the first so many slots; None: all of them.
    lent: int | None = None


class Detached(NamedTuple):
    """A memory node is gone, or did not answer."""

    node: str
    reason: str


class Lend(NamedTuple):
    """A memory node is to lend its first so many slots and no others."""

    node: str
    slots: int


class Scanned(NamedTuple):
    """All memory nodes that a new home was told of have been attached, or have failed."""


class Joined(NamedTuple):
    """A compute node wants to be a member.

    ``warm``: it kept the pages of ``held`` over the loss of a home. ``admitted``, from a writer:
    the readers that were members at the last advance it knows to be complete.
    """

    connection: int
    call: Any
    name: str
    incarnation: int
    writer: bool
    epoch: int
    warm: bool
    held: list[int]
    admitted: list[str]


class Lost(NamedTuple):
    """A compute node's connection ended."""

    connection: int


class Register(NamedTuple):
    """`page_register` (the paper's section 1.3): the caller is about to read the page."""

    connection: int
    call: Any
    page_id: int
    scan: bool


class RegisterMany(NamedTuple):
    """The same for a prefetch; stale pages are not pulled."""

    connection: int
    call: Any
    pages: list[int]
    scan: bool


class Locate(NamedTuple):
    """The caller may read these pages soon: where they are, and it is told of changes."""

    connection: int
    call: Any
    pages: list[int]


class Release(NamedTuple):
    """The caller has dropped its copies, and still knows where the images lie."""

    connection: int
    pages: list[int]


class Unregister(NamedTuple):
    """The caller has dropped its copies."""

    connection: int
    pages: list[int]


class Offered(NamedTuple):
    """A compute node has an image that the pool may take."""

    connection: int
    call: Any
    page_id: int
    lsn: int
    scan: bool


class Validate(NamedTuple):
    """The image is written; it is the newest as of ``as_of``."""

    connection: int
    call: Any
    page_id: int
    node: str
    slab: int
    slot: int
    generation: int
    lsn: int
    as_of: int


class DropOffer(NamedTuple):
    """The image was not written, or may not have been."""

    connection: int
    page_id: int
    node: str
    slab: int
    slot: int
    generation: int


class PullRefused(NamedTuple):
    """The writer does not have the page, or not as something durable."""

    connection: int
    page_id: int
    ticket: int


class Advance(NamedTuple):
    """Everything up to ``lsn`` is durable; ``pages`` have changed. ``cts`` 0 publishes nothing."""

    connection: int
    call: Any
    epoch: int
    lsn: int
    cts: int
    pages: list[int]


class Ack(NamedTuple):
    """A reader has dropped the pages of the invalidation at ``lsn``."""

    connection: int
    lsn: int


class Report(NamedTuple):
    """A reader's snapshots in use, ascending; the last is the floor of future ones."""

    connection: int
    snapshots: list[int]


class Fence(NamedTuple):
    """Lower epochs are refused from now on; a compute node that asks becomes the writer."""

    connection: int | None
    call: Any
    epoch: int


class Revoked(NamedTuple):
    """The keys of that connection work on no attached memory node any more."""

    connection: int


class Confirmed(NamedTuple):
    """Storage's verdict on the claims of one `confirm`, one byte each; the writer brought it."""

    connection: int
    ticket: int
    verdicts: bytes


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    Attached | Detached | Lend | Scanned | Joined | Lost | Register | RegisterMany | Locate
    | Release | Unregister | Offered | Validate | DropOffer | PullRefused | Advance | Ack | Report
    | Fence | Revoked | Confirmed | Tick
)  # fmt: skip


def check(event: Event) -> None:
    """Refuse what a peer must not have said: ValueError. Only types and ranges are looked at.

    The tables keep 64-bit words, and their keys are ints: a core that has begun a step must not
    fail at its third page.
    """
    for name, value in zip(event._fields, event):
        if name in _INT_FIELDS:
            if type(value) is not int or not 0 <= value < _INT_END:
                raise ValueError(f"{name} is no number in range")
        elif name in _INT_LISTS:
            if type(value) not in (list, tuple) or not set(map(type, value)) <= _INT_TYPE:
                raise ValueError(f"{name} is not a list of numbers")
            if value and not (min(value) >= 0 and max(value) < _INT_END):
                raise ValueError(f"{name} has a number out of range")
        elif name == "admitted" and not all(isinstance(one, str) for one in value):
            raise ValueError("admitted is not a list of names")
        elif name == "verdicts" and type(value) is not bytes:
            raise ValueError("verdicts are not bytes")


_INT_END = 1 << 63
_INT_TYPE = {int}
_INT_LISTS = {"pages", "held", "snapshots"}
_INT_FIELDS = {
    "as_of", "cts", "epoch", "generation", "incarnation", "lsn", "page_id", "slab", "slot",
    "ticket",
}  # fmt: skip

# -------------------------------------------------------------------------------------- effects


class Answer(NamedTuple):
    """Answer a call."""

    call: Any
    result: Any


class Fail(NamedTuple):
    """Answer a call with an error."""

    call: Any
    error: PolarlessError


class Push(NamedTuple):
    """Send a message to a compute node, in order with its answers."""

    connection: int
    method: str
    args: tuple[Any, ...]


class Admit(NamedTuple):
    """Answer a join. ``cold``: the node must drop whatever it has cached."""

    call: Any
    connection: int
    place: int
    cold: bool
    mark: int


class SetWord(NamedTuple):
    """Write an admission word."""

    place: int
    value: int


class SetMark(NamedTuple):
    """Write the mark's cell."""

    mark: int


class Publish(NamedTuple):
    """Write the published cell."""

    cts: int


class Know(NamedTuple):
    """The published cell shows what is published from now on: the first advance is complete."""


class Revoke(NamedTuple):
    """Revoke a connection's keys on every memory node, then say `Revoked`.

    A node that does not confirm in time is detached first.
    """

    connection: int


class Close(NamedTuple):
    """Close a connection, after what was pushed to it."""

    connection: int
    reason: str


class SlabsChanged(NamedTuple):
    """Tell every member which memory nodes there are."""


class Shrunk(NamedTuple):
    """What the node does not lend any more is empty: its memory can go back to the host."""

    node: str
    slots: int


class Note(NamedTuple):
    """Something a person may want to know: into the log and the list of recent events."""

    text: str
    warning: bool = False


Effect = (
    Answer | Fail | Push | Admit | SetWord | SetMark | Publish | Know | Revoke | Close
    | SlabsChanged | Shrunk | Note
)  # fmt: skip
