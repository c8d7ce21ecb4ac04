"""A proxy starts anew without its clients noticing: the process replaces itself by ``exec``.

The sockets of the clients stay open across it. What the proxy knows of each session goes through a
file without a name: who the client is, what it has sent and was answered, settings, prepared
statements, the transaction that is open. The nodes see the proxy's connections end and new ones
come, so each session goes on as it does when its node was lost (`polarless.proxy.recovery`).

What cannot be brought is a TLS connection, whose keys only the old process knows, and one whose
client does not read: those are closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from polarless.proxy.record import Cycle, Done

if TYPE_CHECKING:
    from polarless.proxy.session import Session

# How long a client may take to read what was written for it.
DRAIN_S: Final = 1.0
DRAIN_STEP_S: Final = 0.005

_CYCLE: Final = (
    "number", "data", "size", "ended", "query", "copying", "from_lsn", "answered", "crc", "reruns",
    "snapshots", "start_us",
)  # fmt: skip
_DONE: Final = ("data", "answered", "crc", "snapshots", "start_us")
_SESSION: Final = (
    "pid", "key", "base", "packet", "parameters", "greeted", "last_number", "peer", "_inbox",
    "_startup", "_swallowing",
)  # fmt: skip
_MEMORY: Final = (
    "status", "settings", "statements", "reads", "settings_version", "statements_version",
    "transaction_bytes", "unrepeatable", "tied", "_news",
)  # fmt: skip
_SCANNER: Final = ("_header", "_kind", "_left", "ended", "executes", "first", "last_copy")


class LostPlace:
    """Stands for the part of a session that was on a node and is gone with the connection."""


LOST_PLACE: Final = LostPlace()


def _values(of: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _set(on: object, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(on, name, value)


def export_session(session: Session) -> bytes:
    """All that another process needs to go on with the client."""
    cycle, memory = session.cycle, session.memory
    under_way = None
    if cycle is not None:
        under_way = {**_values(cycle, _CYCLE), "sent": cycle.backend is not None}
    packed: bytes = msgpack.packb(
        {
            "session": _values(session, _SESSION),
            "memory": _values(memory, _MEMORY),
            "transaction": [_values(done, _DONE) for done in memory.transaction],
            "scanner": _values(session.scanner, _SCANNER),
            "cycle": under_way,
        }
    )
    return packed


def import_session(session: Session, packed: bytes) -> None:
    """Make a new session what the exported one was."""
    fields = msgpack.unpackb(packed, strict_map_key=False, use_list=True)
    # What its client sends is kept until `Session.go_on`.
    session.is_brought = session.recovering = True
    _set(session, fields["session"])
    _set(session.memory, fields["memory"])
    for values in fields["transaction"]:
        done = Done.__new__(Done)
        _set(done, values)
        session.memory.transaction.append(done)
    _set(session.scanner, fields["scanner"])
    values = fields["cycle"]
    if values is not None:
        sent = values.pop("sent")
        cycle = Cycle(values["number"], b"", ended=values["ended"], query=values["query"])
        _set(cycle, values)
        cycle.backend = LOST_PLACE if sent else None
        session.cycle = cycle
