"""Every exception of the project; each class says what the caller should do next.

    PolarlessError
    |-- Retry                 try the same call later                        (57P03)
    |   |-- DeadlineExceeded  a named remote wait ran out                    (57014)
    |   |-- ConnectionLost    the peer went away; the call may have happened (08006)
    |   `-- Conflict          run the whole transaction again                (40001)
    |       `-- Deadlock      the same; this one broke a cycle of waits      (40P01)
    |-- Reroute               ask another node                               (25006)
    |-- CallerMistake         fix the call                                   (42601 and others)
    |-- Fenced                stop serving: a higher epoch exists            (57P01)
    |-- Overloaded            a bound in bytes or rows was reached           (53200)
    |-- CorruptData           never retry; a person must look                (XX001)
    |-- CommitUnknown         ask for the verdict before running it again    (08007)
    |-- LocalProtocolError    we broke the protocol: a bug here              (XX000)
    `-- RemoteProtocolError   the peer broke it; its connection is closed    (08P01)

A new class exists only where a caller acts differently. What differs only in its SQLSTATE or text
is an argument: ``CallerMistake("...", sqlstate="42P01", hint="...")``.
"""

from __future__ import annotations


class PolarlessError(Exception):
    """Base of all: ``message`` for people, ``sqlstate`` for drivers, ``hint`` on what to do."""

    sqlstate = "XX000"
    # What a client may want to know besides: where in the statement (characters from 1), in the
    # middle of what, and the names of what is concerned. Set where they are known.
    position: int | None = None
    context: str | None = None
    schema_name: str | None = None
    table_name: str | None = None
    column_name: str | None = None
    constraint_name: str | None = None

    def __init__(
        self,
        message: str,
        *,
        sqlstate: str | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if sqlstate is not None:
            self.sqlstate = sqlstate
        self.hint = hint
        self.detail = detail

    def to_wire(self) -> tuple[str, str, str, str | None, str | None]:
        """The error as plain values: (class name, message, SQLSTATE, hint, detail)."""
        return (type(self).__name__, self.message, self.sqlstate, self.hint, self.detail)


class Retry(PolarlessError):
    """Nothing is wrong with the call; the same call may succeed later."""

    sqlstate = "57P03"


class DeadlineExceeded(Retry):
    """A remote wait ran out of time. The message names the wait and its limit."""

    sqlstate = "57014"


class ConnectionLost(Retry):
    """The peer's connection ended. A call under way may or may not have taken effect."""

    sqlstate = "08006"


class Conflict(Retry):
    """Another transaction won. Run the whole transaction again."""

    sqlstate = "40001"


class Deadlock(Conflict):
    """This transaction was chosen to break a cycle of lock waits. Run it again."""

    sqlstate = "40P01"


class Reroute(PolarlessError):
    """This node may not do that; another one may (a write on a reader)."""

    sqlstate = "25006"


class CallerMistake(PolarlessError):
    """The call itself is wrong: syntax, types, names, constraints. Fix it."""

    sqlstate = "42601"


class Fenced(PolarlessError):
    """A higher epoch exists. Whoever sees this about itself stops serving at once."""

    sqlstate = "57P01"


class Overloaded(PolarlessError):
    """A bound was reached (bytes, rows, connections). The message names the bound."""

    sqlstate = "53200"


class CorruptData(PolarlessError):
    """Bytes do not match their checksum or identity. Never retried."""

    sqlstate = "XX001"


class CommitUnknown(PolarlessError):
    """The node died or was fenced with the commit under way; it may have taken effect."""

    sqlstate = "08007"


class LocalProtocolError(PolarlessError):
    """Our side broke a protocol. Always a bug."""


class RemoteProtocolError(PolarlessError):
    """The peer broke a protocol; its connection is closed and never reused."""

    sqlstate = "08P01"


_BY_NAME: dict[str, type[PolarlessError]] = {
    cls.__name__: cls
    for cls in (
        PolarlessError, Retry, DeadlineExceeded, ConnectionLost, Conflict, Deadlock, Reroute,
        CallerMistake, Fenced, Overloaded, CorruptData, CommitUnknown, LocalProtocolError,
        RemoteProtocolError,
    )
}  # fmt: skip


def from_wire(fields: tuple[str, str, str, str | None, str | None]) -> PolarlessError:
    """The error that `PolarlessError.to_wire` described; unknown names become the base class."""
    name, message, sqlstate, hint, detail = fields
    cls = _BY_NAME.get(name, PolarlessError)
    return cls(message, sqlstate=sqlstate, hint=hint, detail=detail)
