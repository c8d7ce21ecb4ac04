"""Every number that can be turned, with its unit in the name and its reason beside the default.

Plain frozen records: a `__main__` builds them from flags or from a file that control wrote, and
hands them down. Nothing here reads the environment.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

HOST: Final = "127.0.0.1"
# PostgreSQL's own port is likely taken on a developer's machine; this one is what the README shows.
PORT_PREFERRED: Final = 5433


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What ``polarless up`` is told: the shape of a cluster."""

    # The port of the URL. 0 means 5433 if that is free, else any; it is kept over restarts.
    port: int = 0
    # Two readers: one may take over and reads still go somewhere.
    ro_count: int = 2
    # Two at least, so that the home has somewhere to go.
    memory_node_count: int = 2
    # Where clients connect. 0: they connect to the writer itself, and notice a failover.
    proxy_count: int = 1
    # All memory nodes together. Holds pgbench's scale 10 with room to spare.
    pool_mb: int = 256
    # Decoded frames of one compute node.
    cache_mb: int = 400
    # All compute is released when there was no client for so long. 0: never.
    idle_timeout_s: float = 0.0
    # Off: computes read the pool through verbs, as they would from another host.
    shared_memory: bool = True
    # Added to every verb, as a model of a slower network; for measuring, without shared memory.
    remote_latency_us: int = 0
    # Off: a statement waits for each page in turn. For measuring what it is worth.
    prefetch: bool = True
    # Costly checks in every node; tests only.
    verify: bool = False

    def __post_init__(self) -> None:
        checks = (
            (0 <= self.port <= 65535, f"port must be 0 to 65535, not {self.port}"),
            (0 <= self.ro_count <= 32, f"ro must be 0 to 32, not {self.ro_count}"),
            (
                2 <= self.memory_node_count <= 32,
                f"memory nodes must be 2 to 32, not {self.memory_node_count}",
            ),
            (0 <= self.proxy_count <= 8, f"proxies must be 0 to 8, not {self.proxy_count}"),
            (
                self.idle_timeout_s == 0 or (self.idle_timeout_s >= 1 and self.proxy_count > 0),
                "the idle time-out must be a second at least, and needs a proxy",
            ),
            (
                0 <= self.remote_latency_us <= 100_000,
                f"remote latency must be 0 to 100000 us, not {self.remote_latency_us}",
            ),
            (
                self.remote_latency_us == 0 or not self.shared_memory,
                "remote latency is added to verbs: it needs shared memory to be off",
            ),
            (self.pool_mb >= 4, f"the pool must have at least 4 MiB, not {self.pool_mb}"),
            (self.cache_mb >= 4, f"a cache must have at least 4 MiB, not {self.cache_mb}"),
        )
        for holds, text in checks:
            if not holds:
                raise ValueError(text)

    @property
    def memory_node_mb(self) -> int:
        """What one memory node lends."""
        return max(1, self.pool_mb // self.memory_node_count)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for `parse_cluster`."""
        return asdict(self)


def parse_cluster(values: dict[str, Any]) -> ClusterConfig:
    """The record that `ClusterConfig.to_json` described. Raises ValueError for unknown keys."""
    known = {field.name for field in fields(ClusterConfig)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ValueError(f"unknown settings: {', '.join(unknown)}")
    return ClusterConfig(**values)


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """How control watches and restarts."""

    # A hung writer costs its clients at most hung_after_s and one of these.
    ping_interval_s: float = 0.1
    # Longer than any pause of a healthy loop (5 ms) by far; shorter than a client's patience.
    hung_after_s: float = 1.5
    # It adapts to how long answers have taken lately, on a machine that is overloaded; up to this.
    hung_after_max_s: float = 4.0
    # A hung process that nobody can take over from is killed and started again after this.
    kill_hung_after_s: float = 5.0
    # An old writer that was replaced and does not wake up: the cluster needs its place.
    kill_fenced_after_s: float = 10.0
    # An old writer that woke up is asked to leave, and killed after this.
    fenced_grace_s: float = 2.0
    # Interpreter start and imports take half a second; a cold cache of the disk many times that.
    start_timeout_s: float = 20.0
    # The new writer reads the log behind the home's mark: milliseconds. Longer is a failure.
    promote_timeout_s: float = 10.0
    home_timeout_s: float = 12.0
    # First restart at once, then doubling up to the limit.
    backoff_first_s: float = 0.2
    backoff_max_s: float = 5.0
    # After this many quick ends in a row the node counts as failed; tries go on, rarely.
    failures_max: int = 8
    backoff_failed_s: float = 30.0
    # Served this long: it can start, whatever ended it, and earlier ends are forgotten.
    healthy_after_s: float = 0.5
    # A clean stop: buffers are small, so seconds are plenty. Then SIGKILL.
    stop_grace_s: float = 8.0
    # A new control waits this long for the answers of the nodes that it found running.
    settle_timeout_s: float = 2.0
    # Decisions shown in status; the file behind it holds more.
    events_kept: int = 200
    events_file_bytes_max: int = 1024 * 1024
    log_file_bytes_max: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The storage process."""

    # Small enough that dropping one frees space soon, large enough that files stay few.
    segment_bytes: int = 64 * 1024 * 1024
    # Log kept below the folded LSN, for tools and for reading what happened.
    retention_bytes: int = 64 * 1024 * 1024
    # Decoded records not folded yet, in estimated memory. Beyond it appends wait. It also bounds
    # the log that a start has to take up again: about 100,000 small commits, a second's work.
    pending_bytes_max: int = 128 * 1024 * 1024
    # Folding begins here: a page that collected several records is written once for all of them.
    fold_start_bytes: int = 32 * 1024 * 1024
    # Pages of one round of folding; only at its end are records dropped.
    fold_pages_max: int = 16384
    # Nothing arrived for so long: fold what there is.
    fold_idle_s: float = 0.5
    # Images of pages with pending records, so that a hot page is not built for each read.
    cache_bytes_max: int = 32 * 1024 * 1024


def parse_storage(values: dict[str, Any]) -> StorageConfig:
    """The record with ``values`` in place of the defaults. Raises ValueError for unknown keys."""
    known = {field.name for field in fields(StorageConfig)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ValueError(f"unknown storage settings: {', '.join(unknown)}")
    return StorageConfig(**values)
