"""Prepared statements, plans bound to formats, and portals: what a session keeps between messages.

A `Ready` is a plan bound to the formats of its parameters and results, with everything that can be
known before it runs: the bytes of its RowDescription, whether it writes, which function carries it
out if it is no query. It is made once per statement and pair of formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from compute.pgwire import backend
from compute.sql.plan import Bound, Plan

if TYPE_CHECKING:
    from compute.session.session import Session

# Called with the answer's bytes: rows that were not sent yet and the CommandComplete.
Then = Callable[["Session", bytes], None]
Control = Callable[["Session", "Ready", Then], None]

# What a failed transaction may do.
EXITS: Final = frozenset({"commit", "rollback", "rollback_to", "empty"})


class Ready:
    """A plan, bound to formats."""

    __slots__ = (
        "bound", "control", "description", "exits", "fast", "hot", "parameter_formats", "plan",
        "result_formats", "run", "version", "writes",
    )  # fmt: skip

    def __init__(
        self,
        bound: Bound,
        parameter_formats: tuple[int, ...],
        result_formats: tuple[int, ...],
        controls: dict[str, Control],
    ) -> None:
        plan = self.plan = bound.plan
        self.bound = bound
        # As the client gave them, to bind again when the catalog has changed.
        self.parameter_formats = parameter_formats
        self.result_formats = result_formats
        self.version: int = plan.catalog_version
        self.writes: bool = plan.writes
        self.control: Control | None = controls.get(plan.kind)
        self.fast: bool = plan.fast and self.control is None
        self.run = bound.run
        # A failed transaction takes only these.
        self.exits = plan.kind in EXITS
        self.description = backend.row_description(plan.columns, result_formats)
        # May take the short way through `compute.session.hot`.
        self.hot = self.fast or plan.kind in ("begin", "commit", "rollback")


class Prepared:
    """A statement that was parsed under a name. ``ready`` is by the bytes of its two formats."""

    __slots__ = ("parameter_count", "parameter_oids", "plan", "ready", "text")

    def __init__(self, text: str, parameter_oids: tuple[int, ...], plan: Plan) -> None:
        self.text = text
        # As the client gave them, to prepare the text again when the catalog has changed.
        self.parameter_oids = parameter_oids
        self.plan = plan
        self.parameter_count = len(plan.parameter_oids)
        self.ready: dict[Any, Ready] = {}


class Portal:
    """A statement with its values. A portal that is fetched in portions keeps the rows not sent."""

    __slots__ = ("done", "parameters", "prepared", "ready", "rest", "started")

    def __init__(
        self, prepared: Prepared, ready: Ready, parameters: Sequence[bytes | None]
    ) -> None:
        self.prepared = prepared
        self.ready = ready
        self.parameters = parameters
        self.started = False
        self.done = False
        # DataRows not sent yet, then the CommandComplete.
        self.rest = b""

    def take(self, row_count_max: int) -> bytes:
        """The next rows, and PortalSuspended or the CommandComplete behind them."""
        count, end = backend.split_rows(self.rest, row_count_max)
        rows, self.rest = self.rest[:end], self.rest[end:]
        if count == row_count_max and self.rest[:1] == b"D":
            return rows + backend.PORTAL_SUSPENDED
        self.done = True
        tag, self.rest = self.rest, b""
        if tag.startswith(b"C") and tag[5:12] == b"SELECT ":
            # A tag counts the rows of its own Execute.
            tag = backend.command_complete(f"SELECT {count}")
        return rows + tag


def forget_statement(session: Session, name: bytes) -> bool:
    """Forget a prepared statement; whether there was one."""
    prepared = session.statements.pop(name, None)
    if prepared is None:
        return False
    session.statement_bytes -= len(prepared.text)
    if session.relay is not None:
        session.relay.changed[name] = None
    return True
