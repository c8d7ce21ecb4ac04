"""Where the answers came from: what the tiers counted while a load ran.

A compute node does not count page lookups that its own cache answers, as that would be felt on the
hot path. So the local share is per statement: of a hundred statements, how many needed no page from
elsewhere. A read of the pool's shared memory counts as the round trip that it is between machines.
"""

from __future__ import annotations

from typing import Any, Self

from polarless.local import LocalCluster


class Counters:
    """What some compute nodes counted since this was made."""

    def __init__(self, cluster: LocalCluster, *names: str) -> None:
        self._cluster = cluster
        self._names = names
        self._before = self._read()

    @classmethod
    def of_role(cls, cluster: LocalCluster, role: str) -> Self:
        """All nodes of a role."""
        return cls(cluster, *(node.name for node in cluster.nodes() if node.role == role))

    def _read(self) -> list[dict[str, Any]]:
        return [self._cluster.control.node(name) for name in self._names]

    def notes(self) -> dict[str, float]:
        """Hit ratios and remote round trips per statement since the start, for a row's notes."""
        sums: dict[str, int] = {}
        for before, after in zip(self._before, self._read(), strict=True):
            for section in ("fetch", "pool", "server", "log"):
                old = before.get(section, {})
                for key, value in after.get(section, {}).items():
                    if isinstance(value, int):
                        name = f"{section}.{key}"
                        sums[name] = sums.get(name, 0) + value - old.get(key, 0)
        return tiers(sums)


def tiers(counted: dict[str, int]) -> dict[str, float]:
    """The ratios that follow from counts by "section.name"."""
    get = counted.get
    # A statement that waited for a page is counted again when it goes on.
    statements = max(1, get("server.statements", 0) - get("server.suspends", 0))
    hits, misses = get("fetch.pool_hits", 0), get("fetch.pool_misses", 0)
    reads = hits + get("fetch.storage_reads", 0)
    trips = misses + get("pool.read_verbs", 0) + get("pool.read_shared", 0)
    trips += get("fetch.storage_reads", 0)
    trips += get("log.appends", 0) + get("log.advances", 0)
    return {
        "statements": get("server.statements", 0) - get("server.suspends", 0),
        "served locally": round(max(0.0, 1 - (reads / statements)), 4),
        "pool hits": round(hits / (hits + misses), 4) if hits + misses else 1.0,
        "round trips per statement": round(trips / statements, 4),
    }
