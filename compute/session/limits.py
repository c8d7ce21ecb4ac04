"""The numbers of the SQL server that somebody may want to turn, with the reason for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one node's SQL server. What goes beyond one gets an error that names it."""

    # Sessions past their startup. PostgreSQL's default is 100; an idle one costs 6 KiB here.
    connections_max: int = 11_000
    # Connections that have not said who they are: a flood of them must not keep others out.
    unauthenticated_max: int = 200
    startup_timeout_s: float = 10.0
    # Prepared statements and portals of one session. asyncpg keeps 100, drivers that leak keep all.
    statements_max: int = 10_000
    portals_max: int = 10_000
    # Bytes of statement text that one session's prepared statements may hold.
    statement_bytes_max: int = 32 * 1024 * 1024
    # A result that a portal keeps because the client fetches it in portions.
    portal_bytes_max: int = 64 * 1024 * 1024
    # What a waiting session takes from its socket before it stops reading.
    input_bytes_max: int = 256 * 1024
    # Parts of large messages that have not arrived whole, over all sessions.
    partial_bytes_max: int = 512 * 1024 * 1024
    # Output that a session gathers before it is written.
    output_bytes_max: int = 256 * 1024
    # Output that the client does not read: the session stops working above this.
    unread_bytes_max: int = 1024 * 1024
    # Messages that one session handles before others have a turn: about 2 ms of small statements.
    messages_per_turn: int = 200
    # COPY: what is parsed in one step, and what may wait to be parsed.
    copy_step_bytes: int = 64 * 1024
    copy_waiting_bytes_max: int = 1024 * 1024
    # How long a session that was told to go may take to read why.
    farewell_s: float = 2.0
