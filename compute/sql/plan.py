"""What the planner hands to a session: a `Plan` for a statement, a `Bound` for its formats.

    text --Planner.prepare--> Plan --bind(parameter formats, result formats)--> Bound --run/rows-->

What a session has to do, by ``Plan.kind``:

======================= ==================================================================
``empty``               nothing: EmptyQueryResponse
``query`` ``write``     run the `Bound` in a transaction, see below
``ddl``                 as ``write``
``begin`` ``commit``    transaction control. ``argument`` of begin, commit and rollback is a
``rollback``            `TransactionOptions`; of the others the savepoint's name. Tags are
``savepoint``           the session's: BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE. After
``release``             `Transaction.rollback_to` for a ROLLBACK TO call `Planner.rolled_back`
``rollback_to``
``set_transaction``     SET TRANSACTION: ``argument`` is a `TransactionOptions`; the tag is SET
``set``                 run the `Bound` (SET, RESET, SHOW): no transaction is needed or begun
``copy_in``             `Bound.copy` gives a `CopyIn`: CopyInResponse, then feed it
``deallocate``          ``argument`` is the name of a prepared statement, or None for all;
``discard``             DEALLOCATE (tag), DISCARD ALL | PLANS | ... in ``argument``
``close``               CLOSE CURSOR: ``argument`` is a portal's name or None for all
``prepare`` ``execute`` the session plans what is inside when its time has come: ``argument`` is
``declare`` ``fetch``   one of `compute.sql.wrapped`'s tuples
``copy_out``            run the query in ``argument`` (`copy_out.CopyOut`): CopyOutResponse, rows
======================= ==================================================================

A **fast** plan has `Bound.run`: synchronous, returns the finished DataRow messages and the
CommandComplete, or raises. A `Suspend` means: take the write set back to the statement's mark,
wait, and run it again from its start. ``run`` returning None means that the result is too large for
one step (nothing was changed): call `Bound.rows` instead.

Other plans have only `Bound.rows`, a coroutine that waits by itself, streams DataRow messages into
the sink and returns the command tag.

A read-only fast plan may be run with ``session.txn`` None outside a transaction: it takes its own
snapshot. `rows` always needs a transaction.

A plan is good for one version of the catalog. Before **each** run, also one that repeats after a
`Suspend`, a session compares ``plan.catalog_version`` with ``engine.catalog_version`` (an int
comparison) and prepares the text again if they differ: a table's tree may have been replaced. A
plan whose version is -1 names no table and never goes stale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from polarless.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from compute.sql.environment import Environment
    from compute.txn.engine import Engine
    from compute.txn.reuse import Reuse
    from compute.txn.transaction import Transaction

ANY_VERSION: Final = -1
# Of a plan that is not good any more.
NO_VERSION: Final = -3

# Format codes of parameters and results. LITERAL is ours: a literal of the text, already a str.
TEXT_FORMAT: Final = 0
BINARY_FORMAT: Final = 1
LITERAL_FORMAT: Final = 2


class Column(NamedTuple):
    """A column of a result, as RowDescription wants it."""

    name: str
    oid: int
    size: int
    typmod: int


class TransactionOptions(NamedTuple):
    """What BEGIN or COMMIT said; None: not said. ``chain``: AND CHAIN."""

    isolation: str | None = None
    read_only: bool | None = None
    chain: bool = False
    deferrable: bool | None = None


class RowSink(Protocol):
    """Where the rows of a long result go."""

    async def rows(self, data: bytes) -> None:
        """Take whole DataRow messages; returns when there is room for more."""


class SettingsLike(Protocol):
    """What plans use of a session's settings."""

    isolation: str
    read_only: bool
    environment: Environment | None
    # Which older snapshots a read may take; None: it reads strongly.
    reuse: Reuse | None

    def show(self, name: str) -> str: ...
    def all(self) -> list[tuple[str, str]]: ...
    def set(self, name: str, value: str | None, *, local: bool = False) -> None: ...
    def reset_all(self) -> None: ...


class SqlState:
    """What the planner keeps in a session: one of these per session, made by the session."""

    __slots__ = ("advisory", "catalog", "environment", "predicted", "sequences", "sleeps_until")

    def __init__(self) -> None:
        # The catalog as this transaction sees it after its own DDL (`planner.OwnCatalog`).
        self.catalog: Any = None
        # The shape of the previous simple query (`shapes.Shape`).
        self.predicted: Any = None
        # What that was planned under.
        self.environment: Environment | None = None
        # The session's advisory locks (`waiting.AdvisoryLocks`), once it has asked for one.
        self.advisory: Any = None
        # What nextval() gave last, by the sequence's tree, the latest at the end.
        self.sequences: dict[int, int] | None = None
        # When the pause of the statement at hand ends.
        self.sleeps_until = 0.0


class SessionLike(Protocol):
    """What plans use of a session."""

    engine: Engine
    txn: Transaction | None
    settings: SettingsLike
    sql: SqlState
    # Start of the transaction in microseconds since 1970: what now() says.
    now_us: int
    user: str
    database: str
    # As in BackendKeyData.
    pid: int

    def notice(self, severity: str, sqlstate: str, message: str) -> None:
        """Tell the client something that is not an error."""

    def random(self, count: int) -> bytes:
        """So many unpredictable bytes."""


class CopyIn(Protocol):
    """A COPY FROM STDIN under way."""

    column_count: int
    # The fields are in binary.
    binary: bool

    async def write(self, data: bytes) -> None:
        """One CopyData's bytes: a row may be cut anywhere. Returns when there is room for more."""

    async def finish(self) -> str:
        """CopyDone: all is in the transaction. Returns the command tag."""

    async def abort(self) -> None:
        """CopyFail, or an error: give up what `write` holds. The transaction has failed."""


Params = Sequence[Any]
Run = Callable[[Any, Params], "bytes | None"]


class Bound:
    """A plan with formats. ``run`` is generated code, an attribute so that a call costs no more."""

    __slots__ = ("plan", "result_formats", "run")

    def __init__(self, plan: Plan, result_formats: tuple[int, ...], run: Run | None) -> None:
        self.plan = plan
        self.result_formats = result_formats
        self.run: Run = run if run is not None else _not_fast

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """Run it step by step; see the module's docstring."""
        raise LocalProtocolError(f"a {self.plan.kind} plan has no rows()")

    def copy(self, session: SessionLike) -> CopyIn:
        """Begin a COPY."""
        raise LocalProtocolError(f"a {self.plan.kind} plan has no copy()")


def _not_fast(session: Any, params: Params) -> bytes | None:
    return None


@dataclass(slots=True)
class Plan:
    """One statement, understood. Kept by text and catalog version, shared by sessions."""

    kind: str
    parameter_oids: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()
    catalog_version: int = ANY_VERSION
    writes: bool = False
    fast: bool = False
    argument: Any = None
    # What SELECT, INSERT, ... is called in messages.
    verb: str = ""
    # Makes a Bound for (parameter formats, result formats), one of each per parameter and column.
    binder: Callable[[Plan, tuple[int, ...], tuple[int, ...]], Bound] | None = None
    bounds: dict[tuple[tuple[int, ...], tuple[int, ...]], Bound] | None = None

    def bind(
        self, param_formats: tuple[int, ...] = (), result_formats: tuple[int, ...] = ()
    ) -> Bound:
        """The plan for these formats, as the Bind message has them: none, one for all, or each."""
        bounds = self.bounds
        if bounds is None:
            bounds = self.bounds = {}
        found = bounds.get((param_formats, result_formats))
        if found is None:
            if len(bounds) >= _BOUNDS_MAX:
                bounds.clear()
            params = _expand(param_formats, len(self.parameter_oids), "parameter")
            results = _expand(result_formats, len(self.columns), "result")
            if self.binder is None:
                found = Bound(self, results, None)
            else:
                found = self.binder(self, params, results)
            bounds[param_formats, result_formats] = found
        return found


_BOUNDS_MAX: Final = 16


def _expand(formats: tuple[int, ...], count: int, what: str) -> tuple[int, ...]:
    if not formats:
        return (TEXT_FORMAT,) * count
    if len(formats) == 1:
        return formats * count
    if len(formats) != count:
        raise RemoteProtocolError(
            f"bind message has {len(formats)} {what} formats but {count} are needed"
        )
    return formats


def command_complete(tag: str) -> bytes:
    """The CommandComplete message."""
    body = tag.encode() + b"\0"
    return b"C" + (len(body) + 4).to_bytes(4, "big") + body
