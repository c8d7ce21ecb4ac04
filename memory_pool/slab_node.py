"""Registered memory that a node lends. No page logic at all: that is the point.

Slabs in shared memory, a fabric port, and an agent that obeys one home: the one with the highest
home epoch it has ever heard of. The home's end of the line is `memory_pool.links`.

    home -> node   hello(role "home", home epoch) -> fabric address, slabs
                   grant(name, incarnation)       -> rkeys by slab
                   revoke(name, incarnation)         these rkeys open nothing any more
                   scan(slab)                     -> which slots hold which image
                   lend(slots)                       the first so many slots are used, and no others

Slabs are larger than what is lent at first, which costs addresses and no memory: the host puts
memory behind a slot when it is written, and gets it back when the slot is not lent any more. So the
pool grows and shrinks without a new region, key or mapping anywhere.

When a new home says hello, every key that an older one granted is revoked first: a write-back that
was on its way under the old home cannot touch what the new one finds by `scan`.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np

from memory_pool.fabric import nic, shared
from memory_pool.fabric.nic import NicStats
from memory_pool.fabric.region import MAY_READ, MAY_WRITE_GUARDED, Holder, KeyTable, Region
from memory_pool.fabric.verbs import RKEY_BYTES
from memory_pool.slots import SCAN_DTYPE, Scan
from polarless.errors import Fenced, Overloaded, RemoteProtocolError
from polarless.kernel.world import Listener, SharedRegion, World
from polarless.net import rpc
from polarless.wire.memory import (
    SLOT_BYTES,
    SLOT_GENERATION,
    SLOT_LSN,
    SLOT_PAGE,
    SLOT_SEQUENCE,
    SLOT_WORDS,
)

log = logging.getLogger(__name__)

# The size of one slab, unless that makes too many: each is a mapping in every compute node.
SLAB_BYTES: Final = 64 * 1024 * 1024
SLABS_MAX: Final = 16


class SlabNode:
    """The slabs of this process. `start` creates them, `close` removes them from the host."""

    def __init__(self, world: World, *, cluster: bytes, node: str) -> None:
        self.node = node
        self.keys = KeyTable()
        self.stats = NicStats()
        self.fabric = ""
        self.home_epoch = 0
        self._world = world
        self._cluster = cluster
        self._regions: list[SharedRegion] = []
        # slab -> (registered memory, slots)
        self._slabs: dict[int, tuple[Region, int]] = {}
        self._mapped: dict[int, SharedRegion] = {}
        # The first so many slots of all slabs are lent.
        self.lent = 0
        self._granted: dict[Holder, dict[int, bytes]] = {}
        self._home: rpc.Peer | None = None
        self._listener: Listener | None = None

    async def start(self, host: str, *, byte_count: int, reserve_bytes: int = 0) -> None:
        """Create slabs, lend ``byte_count`` bytes of them and open the fabric port.

        ``reserve_bytes`` is how much may be lent one day, if that is more.
        """
        shared.check_room(byte_count)
        self.lent = byte_count // SLOT_BYTES
        slots = max(byte_count, reserve_bytes) // SLOT_BYTES
        per_slab = max(SLAB_BYTES // SLOT_BYTES, -(-slots // SLABS_MAX))
        for slab in range((slots + per_slab - 1) // per_slab):
            count = min(per_slab, slots - slab * per_slab)
            self._slabs[slab] = (self.create_region(f"slab{slab}", count * SLOT_BYTES), count)
            self._mapped[slab] = self._regions[-1]
        self._listener = await nic.serve(
            self._world.network,
            self.keys,
            clock=self._world.clock,
            cluster=self._cluster,
            node=self.node,
            host=host,
            port=0,
            stats=self.stats,
        )
        self.fabric = f"{host}:{self._listener.port}"

    def create_region(self, suffix: str, byte_count: int) -> Region:
        """Shared memory of this process, removed by `close`. The name tells whose it is."""
        token = self._world.random.token(6).hex()
        name = f"polarless-{self._cluster.hex()[:8]}-{self.node}-{token}-{suffix}"
        mapped, region = shared.create(self._world.memory, name, byte_count)
        self._regions.append(mapped)
        return region

    def close(self) -> None:
        """Stop serving and remove the shared memory."""
        if self._listener is not None:
            self._listener.close()
        for region, _ in self._slabs.values():
            region.release()
        for mapped in self._regions:
            mapped.close()
        self._regions.clear()
        self._slabs.clear()
        self._mapped.clear()

    # The agent, obeying the home.

    def on_home(self, peer: rpc.Peer, home_epoch: int) -> dict[str, Any]:
        """A home says hello. Raises `Fenced` for one that has been replaced."""
        if home_epoch < self.home_epoch:
            raise Fenced(f"home epoch {home_epoch} is over: {self.home_epoch} has been here")
        if home_epoch > self.home_epoch:
            self.home_epoch = home_epoch
            revoked = self.keys.revoke_all()
            self._granted.clear()
            log.info(
                "%s: home epoch %d takes over, %d keys revoked", self.node, home_epoch, revoked
            )
        former, self._home = self._home, peer
        if former is not None:
            former.close()
        slabs = [(slab, region.name, slots) for slab, (region, slots) in self._slabs.items()]
        return {"node": self.node, "fabric": self.fabric, "slabs": slabs, "lent": self.lent}

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        """Obey the home's call."""
        if peer is not self._home:
            raise Fenced("another home has taken over")
        if call.method == "grant":
            name, incarnation = call.args
            call.answer(list(self._grant((str(name), int(incarnation))).items()))
        elif call.method == "revoke":
            name, incarnation = call.args
            holder = (str(name), int(incarnation))
            self._granted.pop(holder, None)
            call.answer(self.keys.revoke(holder))
        elif call.method == "lend":
            self._lend(int(call.args[0]))
            call.answer()
        elif call.method == "scan":
            call.answer(self._scan(int(call.args[0])).tobytes())
        else:
            raise RemoteProtocolError(f"an agent has no method {call.method!r}")

    def _grant(self, holder: Holder) -> dict[int, bytes]:
        """Keys to all slabs: a slot's generation guards every write that they allow."""
        granted = self._granted.get(holder)
        if granted is None:
            granted = self._granted[holder] = {}
            for slab, (region, _) in self._slabs.items():
                rkey = granted[slab] = self._world.random.token(RKEY_BYTES)
                self.keys.grant(rkey, region, MAY_READ | MAY_WRITE_GUARDED, holder)
        return granted

    def _lend(self, slots: int) -> None:
        """Give the memory behind the slots that are not lent any more back, or look for room."""
        reserved = sum(count for _, count in self._slabs.values())
        if not 0 <= slots <= reserved:
            raise Overloaded(
                f"{self.node} can lend {reserved} slots, not {slots}",
                hint="`polarless restart --rolling memory` makes room for four times the pool.",
            )
        if slots > self.lent:
            shared.check_room((slots - self.lent) * SLOT_BYTES)
        first = 0
        for slab, (_, count) in self._slabs.items():
            start, end = max(slots, first), min(self.lent, first + count)
            if start < end:
                # Whole slots, headers too: a home that starts finds nothing there.
                self._mapped[slab].give_back(
                    (start - first) * SLOT_BYTES, (end - first) * SLOT_BYTES
                )
            first += count
        self.lent = slots

    def _scan(self, slab: int) -> Scan:
        """The slots whose header says that they hold a whole image."""
        if slab not in self._slabs:
            raise RemoteProtocolError(f"{self.node} has no slab {slab}")
        region, slots = self._slabs[slab]
        # To look at a slot that is not lent would put memory behind it.
        lent = max(0, min(slots, self.lent - sum(self._slabs[s][1] for s in range(slab))))
        lent = min(lent, -(-self._mapped[slab].used_end() // SLOT_BYTES))
        words = np.frombuffer(region.words, np.uint64).reshape(slots, SLOT_WORDS)[:lent]
        used = np.nonzero((words[:, SLOT_PAGE] != 0) & (words[:, SLOT_SEQUENCE] % 2 == 0))[0]
        scan = np.zeros(len(used), SCAN_DTYPE)
        scan["slot"] = used
        scan["page_id"] = words[used, SLOT_PAGE]
        scan["lsn"] = words[used, SLOT_LSN]
        scan["generation"] = words[used, SLOT_GENERATION]
        return scan
