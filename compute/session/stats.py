"""What the SQL server counts."""

from __future__ import annotations

from polarless.kernel.stats import Stats


class ServerStats(Stats):
    """Counters over all sessions since the node started."""

    __slots__ = (
        "cancels",
        "commits",
        "connections_accepted",
        "connections_refused",
        "errors",
        "hot_statements",
        "protocol_errors",
        "rollbacks",
        "statements",
        "suspends",
    )
    cancels: int
    commits: int
    connections_accepted: int
    connections_refused: int
    errors: int
    hot_statements: int
    protocol_errors: int
    rollbacks: int
    statements: int
    suspends: int
