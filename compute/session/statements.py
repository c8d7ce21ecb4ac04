"""Prepared statements, plans bound to formats, and portals: what a session keeps between messages.

A `Ready` is a plan bound to the formats of its parameters and results, with everything that can be
known before it runs: the bytes of its RowDescription, whether it writes, which function carries it
out if it is no query. It is made once per statement and pair of formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from compute.pgwire import backend
from compute.sql.plan import ANY_VERSION, NO_VERSION, Bound, Plan
from polarless.errors import CallerMistake, Overloaded

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

    def forget_plan(self) -> None:
        """The settings under which it was planned have changed."""
        self.plan = copy(self.plan)
        self.plan.catalog_version = NO_VERSION
        self.ready.clear()


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


class Cursor(Portal):
    """A portal that DECLARE made: all its rows, and where FETCH stands.

    ``position`` is 0 before the first row, the row's number on it, one more than there are behind
    the last. ``kept``: it is WITH HOLD, and its transaction has committed.
    """

    __slots__ = ("byte_count", "hold", "kept", "position", "rows", "scroll")

    def __init__(
        self,
        prepared: Prepared,
        ready: Ready,
        rows: list[bytes],
        *,
        scroll: bool | None,
        hold: bool,
    ) -> None:
        super().__init__(prepared, ready, ())
        self.started = True
        self.rows = rows
        self.byte_count = sum(map(len, rows))
        self.position = 0
        self.scroll = scroll
        self.hold = hold
        self.kept = False

    def move(self, direction: str, count: int) -> list[bytes]:
        """Go there; the rows that are passed, and for a single step the row that is reached.

        Raises `CallerMistake` 55000 for a way back that the cursor does not go.
        """
        rows, position, end = self.rows, self.position, len(self.rows) + 1
        if direction == "absolute":
            target = count if count >= 0 else end + count
            self._go(max(0, min(target, end)))
            return rows[self.position - 1 : self.position] if self.position else []
        if direction == "relative" or count == 0:
            step = count if direction == "relative" else 0
            self._go(max(0, min(position + step, end)))
            return rows[self.position - 1 : self.position] if self.position else []
        if direction == "forward":
            self._go(min(position + count, end))
            return rows[position : self.position]
        self._go(max(position - count, 0))
        found = rows[max(self.position, 1) - 1 : max(position - 1, 0)]
        found.reverse()
        return found

    def _go(self, target: int) -> None:
        if target < self.position and self.scroll is False:
            raise CallerMistake(
                "cursor can only scan forward",
                sqlstate="55000",
                hint="Declare it with SCROLL option to enable backward scan.",
            )
        self.position = target

    def take(self, row_count_max: int) -> bytes:
        """See `Portal.take`: an Execute of the protocol reads on."""
        found = self.move("forward", row_count_max)
        if self.position <= len(self.rows):
            return b"".join(found) + backend.PORTAL_SUSPENDED
        return b"".join(found) + backend.command_complete(f"SELECT {len(found)}")


def drop_portals(session: Session, *, committed: bool) -> None:
    """The transaction is over: only cursors WITH HOLD stay, if their transaction has committed."""
    kept: dict[bytes, Portal] = {}
    for name, portal in session.portals.items():
        if isinstance(portal, Cursor) and portal.hold and (committed or portal.kept):
            portal.kept = True
            kept[name] = portal
    session.portals = kept


def kept_bytes(session: Session) -> int:
    """What the session's portals hold of results that were not fetched yet."""
    return sum(
        portal.byte_count if isinstance(portal, Cursor) else len(portal.rest)
        for portal in session.portals.values()
    )


def add_statement(
    session: Session, name: bytes, text: str, oids: tuple[int, ...], plan: Plan
) -> None:
    """Keep a prepared statement. Raises `CallerMistake` 42P05, `Overloaded` 53000."""
    statements, limits = session.statements, session.limits
    old = statements.get(name)
    if name and old is not None:
        raise CallerMistake(
            f'prepared statement "{name.decode("utf-8", "replace")}" already exists',
            sqlstate="42P05",
        )
    byte_count = session.statement_bytes + len(text) - (len(old.text) if old else 0)
    if byte_count > limits.statement_bytes_max or len(statements) >= limits.statements_max:
        raise Overloaded(
            f"this session has too many prepared statements: {len(statements)} of "
            f"{limits.statements_max}, {byte_count} bytes of {limits.statement_bytes_max}",
            sqlstate="53000",
            hint="Close statements that are not used any more (DEALLOCATE), or reuse them.",
        )
    session.statement_bytes = byte_count
    statements[name] = Prepared(text, oids, plan)


def find_statement(session: Session, name: bytes) -> Prepared:
    """A prepared statement. Raises 26000."""
    prepared = session.statements.get(name)
    if prepared is None:
        raise CallerMistake(
            f'prepared statement "{name.decode("utf-8", "replace")}" does not exist'
            if name
            else "unnamed prepared statement does not exist",
            sqlstate="26000",
        )
    return prepared


def refresh(session: Session, prepared: Prepared) -> None:
    """Prepare the statement again if the catalog has changed. May raise a `Suspend`.

    Raises `CallerMistake` 0A000 when its columns would not be what the client was told.
    """
    plan = prepared.plan
    version = plan.catalog_version
    if version == session.engine.catalog_version or version == ANY_VERSION:
        return
    fresh = session.planner.prepare(session, prepared.text, prepared.parameter_oids)
    if fresh is plan:
        return
    if fresh.columns != plan.columns:
        raise other_columns()
    prepared.plan = fresh
    prepared.ready.clear()
    prepared.parameter_count = len(fresh.parameter_oids)


def other_columns() -> CallerMistake:
    """The client was told of columns that are not these."""
    return CallerMistake(
        "cached plan must not change result type",
        sqlstate="0A000",
        hint="Prepare the statement again.",
    )


def forget_statement(session: Session, name: bytes) -> bool:
    """Forget a prepared statement; whether there was one."""
    prepared = session.statements.pop(name, None)
    if prepared is None:
        return False
    session.statement_bytes -= len(prepared.text)
    if session.relay is not None:
        session.relay.changed[name] = None
    return True
