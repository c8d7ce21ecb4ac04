"""polarless.*: what this node knows of itself, its cache, its sessions and the memory pool.

It tells of the node that answers, and of others only what that one knows. The cluster's picture is
control's (`polarless status`).
The same sessions are pg_stat_activity, as PostgreSQL's tools look for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from compute.sql.catalogs.objects import DATABASE_OID, OWNER_OID, Objects
from compute.sql.catalogs.relations import Row, maker

_EPOCH_US: Final = 946_684_800_000_000


@maker("polarless", "nodes")
def nodes(objects: Objects, session: Any) -> Iterable[Row]:
    engine = session.engine
    name = getattr(engine.pool, "node", "this node")
    yield {
        "name": name,
        "role": "rw" if engine.writable else "ro",
        "state": "fenced" if engine.fenced is not None else "serving",
        "this": True,
        "epoch": engine.epoch,
        "mark": engine.pool.mark,
        "published": engine.pool.published(),
        "sessions": len(_sessions(session)),
        "catalog_version": engine.catalog_version,
    }
    # The writer is told with each commit who reads.
    for other in getattr(engine.pool, "admitted", ()):
        if other != name:
            yield {"name": other, "role": "ro", "state": "admitted", "this": False}


@maker("polarless", "cache")
def cache(objects: Objects, session: Any) -> Iterable[Row]:
    engine = session.engine
    found = engine.cache
    values = {
        "bytes": found.used_bytes,
        "budget_bytes": found.budget_bytes,
        "pages": len(found.frames),
        "pinned": len(found.pinned),
        **found.stats.snapshot(),
        **engine.fetcher.stats.snapshot(),
    }
    yield from _values(values)


@maker("polarless", "pool")
def pool(objects: Objects, session: Any) -> Iterable[Row]:
    found = session.engine.pool
    statistics = getattr(found, "statistics", dict)
    values = {
        "connected": int(getattr(found, "connected", True)),
        "home_epoch": getattr(found, "home_epoch", 0),
        **statistics(),
    }
    yield from _values(values)


def _values(values: Mapping[str, Any]) -> Iterable[Row]:
    for name, value in values.items():
        if isinstance(value, (int, float)):
            yield {"name": name, "value": float(value)}


def _sessions(session: Any) -> list[dict[str, Any]]:
    """One record a session; of this one alone where there is no server, in tests."""
    host = getattr(session, "host", None)
    if host is None:
        return [{"pid": session.pid, "user": session.user, "database": session.database}]
    found: list[dict[str, Any]] = host.sessions()
    return found


@maker("polarless", "sessions")
def sessions(objects: Objects, session: Any) -> Iterable[Row]:
    for found in _sessions(session):
        yield {
            "pid": found["pid"],
            "usename": found["user"],
            "datname": found["database"],
            "application_name": found.get("application", ""),
            "state": found.get("state", "active"),
            "wait": found.get("wait"),
            "query": found.get("query", ""),
        }


@maker("pg_catalog", "pg_stat_activity")
def activity(objects: Objects, session: Any) -> Iterable[Row]:
    for found in _sessions(session):
        waits = found.get("wait")
        yield {
            "datid": DATABASE_OID,
            "datname": found["database"],
            "pid": found["pid"],
            "usesysid": OWNER_OID,
            "usename": found["user"],
            "application_name": found.get("application", ""),
            "xact_start": session.now_us - _EPOCH_US if found["pid"] == session.pid else None,
            "wait_event_type": "polarless" if waits else None,
            "wait_event": waits,
            "state": found.get("state", "active"),
            "query": found.get("query", ""),
            "backend_type": "client backend",
        }
