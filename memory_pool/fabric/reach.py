"""How a compute node reaches the slots of all memory nodes: by shared memory or by verbs.

`Reach` knows the memory nodes from what the home last said. Reading prefers a mapping of the slab's
shared memory, which answers at once; where there is none it is one READ. Writing is always a WRITE,
guarded by the slot's generation.

Every connection has a breaker: after a failure its node is skipped (a page then comes from storage)
until the home names its nodes anew, or a pause is over that doubles from failure to failure; where
the cells are it does not double.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from memory_pool.fabric import queue_pair, shared
from memory_pool.fabric.queue_pair import BUSY, LOST, QueuePair
from memory_pool.fabric.shared import SharedSlab
from memory_pool.fabric.verbs import OK
from polarless.errors import PolarlessError
from polarless.kernel.stats import Stats
from polarless.kernel.world import World
from polarless.wire.memory import SLOT_BYTES, SLOT_GENERATION, Place, PoolNode

log = logging.getLogger(__name__)

CONNECT_DEADLINE_S: Final = 1.0
# Operations that may wait for a connection to be made.
WAITING_MAX: Final = 1024
PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 10.0

# What became of a read.
FOUND: Final = 0
CHANGED: Final = 1  # another page, generation, or a torn image: ask the home again
UNREACHABLE: Final = 2  # the node does not answer: storage has the page

ReadDone = Callable[[int, bytes | None], None]


class ReachStats(Stats):
    """Slots read and written; ``changed`` reads had to ask the home again."""

    __slots__ = ("changed", "read_shared", "read_verbs", "unreachable", "writes", "writes_failed")

    changed: int
    read_shared: int
    read_verbs: int
    unreachable: int
    writes: int
    writes_failed: int


class _Line:
    """The connection to one fabric address, with its breaker."""

    __slots__ = ("closed_until", "connecting", "pair", "pause_s", "waiting")

    def __init__(self) -> None:
        self.pair: QueuePair | None = None
        self.connecting = False
        self.closed_until = 0.0
        self.pause_s = PAUSE_S
        self.waiting: list[Callable[[QueuePair | None], None]] = []


class Reach:
    """One compute node's way to all slots, for one incarnation of its membership."""

    def __init__(
        self,
        world: World,
        *,
        cluster: bytes,
        node: str,
        incarnation: int,
        shared_memory: bool,
        latency_s: float = 0.0,
    ) -> None:
        self.stats = ReachStats()
        # Fabric addresses to keep a connection to, whether or not a slab is there.
        self.pinned: set[str] = set()
        self._world = world
        self._cluster = cluster
        self._node = node
        self._incarnation = incarnation
        self._shared_memory = shared_memory
        self._latency_s = latency_s
        self._nodes: dict[str, PoolNode] = {}
        # By the region's name, since another process of the same node has other regions.
        self._mapped: dict[str, SharedSlab | None] = {}
        # (node, slab) -> mapping: what a read looks up.
        self._slabs: dict[tuple[str, int], SharedSlab] = {}
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def set_nodes(self, nodes: dict[str, PoolNode]) -> None:
        """The home says which nodes there are; what went away is unmapped, breakers close."""
        self._nodes = nodes
        mapped: dict[str, SharedSlab | None] = {}
        self._slabs = {}
        for name, node in nodes.items():
            for slab in node.slabs.values():
                if not self._shared_memory:
                    break
                known = self._mapped.pop(slab.shm, None)
                found = known or shared.attach(
                    self._world.memory, slab.shm, slab.slots * SLOT_BYTES
                )
                mapped[slab.shm] = found
                if found is not None:
                    self._slabs[name, slab.slab] = found
        for gone in self._mapped.values():
            if gone is not None:
                gone.close()
        self._mapped = mapped
        wanted = self.pinned | {node.fabric for node in nodes.values()}
        for fabric in self._lines.keys() - wanted:
            line = self._lines.pop(fabric)
            if line.pair is not None:
                line.pair.close()
        for line in self._lines.values():
            line.closed_until = 0.0
            line.pause_s = PAUSE_S

    def close(self) -> None:
        """Unmap and hang up."""
        for mapped in self._mapped.values():
            if mapped is not None:
                mapped.close()
        self._mapped, self._slabs, self._nodes = {}, {}, {}
        for task in self._tasks:
            task.cancel()
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.pair is not None:
                line.pair.close()
            for waiting in line.waiting:
                waiting(None)

    def read_slot(
        self,
        node: str,
        slab: int,
        slot: int,
        page_id: int,
        generation: int,
        done: ReadDone,
        *,
        deadline_s: float,
    ) -> None:
        """``done(FOUND, verified image)`` or why not; at once where the memory is shared."""
        stats = self.stats
        mapped = self._slabs.get((node, slab))
        if mapped is not None:
            image = shared.read_slot(mapped, slot, page_id, generation)
            if image is None:
                stats.changed += 1
                done(CHANGED, None)
            else:
                stats.read_shared += 1
                done(FOUND, image)
            return
        known = self._nodes.get(node)
        if known is None or slab not in known.slabs:
            stats.unreachable += 1
            done(UNREACHABLE, None)
            return

        def completed(status: int, data: Any) -> None:
            image = shared.check_slot(data, page_id, generation) if status == OK else None
            if image is not None:
                stats.read_verbs += 1
                done(FOUND, image)
            elif status == OK:
                stats.changed += 1
                done(CHANGED, None)
            else:
                stats.unreachable += 1
                done(UNREACHABLE, None)

        self.read(
            known.fabric, known.slabs[slab].rkey, slot * SLOT_BYTES, SLOT_BYTES, completed,
            deadline_s=deadline_s,
        )  # fmt: skip

    def is_mapped(self, place: Place) -> bool:
        """Whether the memory of that place is shared."""
        return (place.node, place.slab) in self._slabs

    def read_mapped(self, page_id: int, place: Place) -> bytes | None:
        """The verified image at a place whose memory is shared and which it has not left."""
        mapped = self._slabs.get((place.node, place.slab))
        if mapped is None:
            return None
        image = shared.read_slot(mapped, place.slot, page_id, place.generation)
        if image is None:
            self.stats.changed += 1
        else:
            self.stats.read_shared += 1
        return image

    def write_slot(
        self,
        node: str,
        slab: int,
        slot: int,
        generation: int,
        contents: bytes,
        done: Callable[[bool], None],
        *,
        deadline_s: float,
    ) -> None:
        """``done(True)`` once the slot holds ``contents``. False: it may or may not.

        Never tried twice: the caller gives the slot back, and its generation is over.
        """
        stats = self.stats

        def completed(status: int, _: Any) -> None:
            if status == OK:
                stats.writes += 1
            else:
                stats.writes_failed += 1
                log.debug("slot not written: %s", queue_pair.STATUS_NAMES[status])
            done(status == OK)

        known = self._nodes.get(node)
        if known is None or slab not in known.slabs:
            completed(LOST, None)
            return
        rkey = known.slabs[slab].rkey

        def ready(pair: QueuePair | None) -> None:
            if pair is None:
                completed(LOST, None)
            else:
                pair.write(
                    rkey, slot * SLOT_BYTES, contents, completed,
                    guard=(SLOT_GENERATION, generation), deadline_s=deadline_s,
                )  # fmt: skip

        self._with_pair(known.fabric, ready)

    def read(
        self,
        fabric: str,
        rkey: bytes,
        offset: int,
        length: int,
        done: queue_pair.Done,
        *,
        deadline_s: float,
    ) -> None:
        """READ any registered memory; ``done(status, data)``."""

        def ready(pair: QueuePair | None) -> None:
            if pair is None:
                done(LOST, None)
            else:
                pair.read(rkey, offset, length, done, deadline_s=deadline_s)

        self._with_pair(fabric, ready)

    def _with_pair(self, fabric: str, ready: Callable[[QueuePair | None], None]) -> None:
        """``ready(pair)`` now or when there is a connection; ``ready(None)`` if there is none."""
        line = self._lines.get(fabric)
        if line is None:
            line = self._lines[fabric] = _Line()
        pair = line.pair
        if pair is not None:
            if not pair.closed:
                ready(pair)
                return
            line.pair = None
            self._open_breaker(fabric, line)
        if line.connecting and len(line.waiting) < WAITING_MAX:
            line.waiting.append(ready)
        elif line.connecting or self._world.clock.now() < line.closed_until:
            ready(None)
        else:
            line.connecting = True
            line.waiting.append(ready)
            task = asyncio.get_running_loop().create_task(self._connect(fabric, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, fabric: str, line: _Line) -> None:
        try:
            pair = await queue_pair.connect(
                self._world.network,
                clock=self._world.clock,
                cluster=self._cluster,
                name=self._node,
                incarnation=self._incarnation,
                address=fabric,
                deadline_s=CONNECT_DEADLINE_S,
                latency_s=self._latency_s,
            )
        except PolarlessError as error:
            log.info("memory node at %s is skipped for now: %s", fabric, error)
            self._open_breaker(fabric, line)
        else:
            line.pair = pair
            line.pause_s = PAUSE_S
            if self._lines.get(fabric) is not line:
                pair.close()
        finally:
            line.connecting = False
            waiting, line.waiting = line.waiting, []
            for ready in waiting:
                ready(line.pair)

    def _open_breaker(self, fabric: str, line: _Line) -> None:
        line.closed_until = self._world.clock.now() + line.pause_s
        # Pages that are skipped come from storage; cells are nowhere else.
        if fabric not in self.pinned:
            line.pause_s = min(line.pause_s * 2, PAUSE_MAX_S)


__all__ = ["BUSY", "CHANGED", "FOUND", "UNREACHABLE", "Reach"]
