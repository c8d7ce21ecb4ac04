"""What a session needs of the server it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from compute.session.limits import Limits
    from compute.session.session import Session
    from compute.session.stats import ServerStats
    from compute.sql.plan import Bound, Plan
    from compute.txn.engine import Engine
    from polarless.kernel.world import Clock


class Planner(Protocol):
    """From text to plans; `compute.sql.planner.Planner` is it."""

    def prepare(self, session: Any, text: str, param_oids: Sequence[int]) -> Plan:
        """The plan of one statement. Raises a `Suspend`, or what is wrong with the text."""

    def prepare_simple(self, session: Any, text: str) -> tuple[Bound, Sequence[Any]]:
        """The plan of one statement bound to text formats, and the values of its literals."""

    def split(self, text: str) -> list[str]:
        """The statements of a script, without the empty ones."""

    def random(self, count: int) -> bytes:
        """So many unpredictable bytes."""

    def rolled_back(self, session: Any) -> None:
        """The session goes back to a savepoint: what was planned since may be void."""


class Host(Protocol):
    """The server, as its sessions see it."""

    engine: Engine
    planner: Planner
    limits: Limits
    stats: ServerStats
    clock: Clock
    # Bytes that sessions hold of messages that are not whole yet.
    partial_bytes: int

    def forget(self, session: Session) -> None:
        """The session is over."""
