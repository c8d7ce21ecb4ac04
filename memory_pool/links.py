"""The home's lines to the memory nodes: slabs to lend, keys to grant and to revoke.

A node that does not do as it is told in time is no part of the pool: its line is dropped, and tried
again until control takes the node away. So when `revoke` returns, the keys of a fenced writer open
nothing on any node that the home still counts on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import numpy as np

from memory_pool.fabric.region import Holder
from memory_pool.slots import SCAN_DTYPE, Scan
from polarless.errors import Fenced, PolarlessError, Retry
from polarless.kernel.world import World
from polarless.net import rpc
from polarless.wire.memory import PoolNode, Slab, encode_nodes

log = logging.getLogger(__name__)

# A failover waits for this one: a node that does not answer is detached instead.
REVOKE_DEADLINE_S: Final = 0.3
# A join waits for this one. A node is not given up because its machine is busy for a while.
GRANT_DEADLINE_S: Final = 2.0
CONNECT_DEADLINE_S: Final = 2.0
SCAN_DEADLINE_S: Final = 5.0
LEND_DEADLINE_S: Final = 2.0
# Slots whose memory a node gives back in one call, so that its verbs do not wait.
LEND_STEP: Final = 512
# A node that cannot be reached is tried again after this.
RETRY_S: Final = 0.5


class SlabLink(rpc.Service):
    """The home's connection to one memory node's agent."""

    def __init__(self, node: str, on_lost: Callable[[SlabLink, PolarlessError], None]) -> None:
        self.node = node
        self.fabric = ""
        # (slab, name of its shared memory, slots)
        self.slabs: list[tuple[int, str, int]] = []
        # It lends the first so many slots of all.
        self.lent = 0
        self._on_lost = on_lost
        self._peer: rpc.Peer | None = None

    async def connect(
        self, world: World, *, cluster: bytes, address: str, home_epoch: int, home: str
    ) -> None:
        """Raises `ConnectionLost`, `DeadlineExceeded`, or `Fenced` if a newer home was there."""
        self._peer = await rpc.connect(
            world.network,
            self,
            clock=world.clock,
            cluster=cluster,
            address=address,
            hello={"node": home, "role": "home", "home_epoch": home_epoch},
            deadline_s=CONNECT_DEADLINE_S,
        )
        fields = self._peer.fields
        self.fabric = str(fields["fabric"])
        self.slabs = [(int(slab), str(shm), int(slots)) for slab, shm, slots in fields["slabs"]]
        self.lent = int(fields["lent"])

    async def grant(self, holder: Holder) -> dict[int, bytes]:
        """Keys to all slabs."""
        assert self._peer is not None
        keys = await self._peer.call("grant", *holder, deadline_s=GRANT_DEADLINE_S)
        return {int(slab): bytes(rkey) for slab, rkey in keys}

    async def revoke(self, holder: Holder) -> None:
        """The holder's keys open nothing any more once this returns."""
        assert self._peer is not None
        await self._peer.call("revoke", *holder, deadline_s=REVOKE_DEADLINE_S)

    async def lend(self, slots: int) -> None:
        """Lend the first so many slots, and give the memory of the others back.

        Raises `Overloaded` if the host has no room for more.
        """
        assert self._peer is not None
        while slots < self.lent:
            step = max(slots, self.lent - LEND_STEP)
            await self._peer.call("lend", step, deadline_s=LEND_DEADLINE_S)
            self.lent = step
        if slots > self.lent:
            await self._peer.call("lend", slots, deadline_s=LEND_DEADLINE_S)
            self.lent = slots

    async def scan(self, slab: int) -> Scan:
        """Which slots of the slab hold which image."""
        assert self._peer is not None
        data = await self._peer.call("scan", slab, deadline_s=SCAN_DEADLINE_S)
        return np.frombuffer(data, SCAN_DTYPE)

    def close(self) -> None:
        """Hang up. `on_lost` is not called."""
        self._on_lost = lambda link, error: None
        if self._peer is not None:
            self._peer.close()

    def on_lost(self, peer: rpc.Peer, error: PolarlessError) -> None:
        self._on_lost(self, error)


class Borrower(Protocol):
    """Who is given keys. ``keys`` are its rkeys by node and slab, kept by `Links`."""

    holder: Holder
    keys: dict[str, dict[int, bytes]]


class LinkEvents(Protocol):
    """What the owner of `Links` is told."""

    def on_attached(self, node: str, slabs: list[tuple[int, int, Scan | None]], lent: int) -> None:
        """A node lends the first ``lent`` slots of (slab, slots, what its headers say).

        All borrowers have keys there.
        """

    def on_detached(self, node: str, reason: str) -> None:
        """A node lends no more."""

    def on_fenced(self, reason: str) -> None:
        """A newer home has been at one of the nodes."""

    def borrowers(self) -> Iterable[Borrower]:
        """Everybody who has, or is about to get, keys."""


class Links:
    """One line a memory node."""

    def __init__(
        self,
        world: World,
        *,
        cluster: bytes,
        home: str,
        home_epoch: int,
        tasks: asyncio.TaskGroup,
        events: LinkEvents,
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._home = home
        self._home_epoch = home_epoch
        self._tasks = tasks
        self._events = events
        # Where each node's agent is, and the lines that work.
        self._addresses: dict[str, str] = {}
        self._links: dict[str, SlabLink] = {}
        self._attaching: set[str] = set()
        self._complained: set[str] = set()
        self._closed = False

    async def attach(self, node: str, address: str, *, scan: bool) -> None:
        """Use a memory node from now on. One that is used already stays as it is."""
        if self._addresses.get(node) == address and (
            node in self._links or node in self._attaching
        ):
            return
        self._drop(node, "it has a new address")
        self._addresses[node] = address
        await self._attach(node, address, scan=scan)

    def detach(self, node: str, reason: str) -> None:
        """Use it no more."""
        self._addresses.pop(node, None)
        self._drop(node, reason)

    async def grant(self, borrower: Borrower) -> None:
        """Keys on all nodes."""
        await asyncio.gather(*(self._grant(link, borrower) for link in self._links.values()))

    async def lend(self, node: str, slots: int) -> None:
        """A node lends so many slots. Raises `Overloaded`, or `Retry` if it is not attached."""
        link = self._links.get(node)
        if link is None:
            raise Retry(f"{node} is not attached")
        await link.lend(slots)

    async def revoke(self, holder: Holder) -> None:
        """When it returns, the holder's keys open nothing on any attached node."""
        links = list(self._links.values())
        await asyncio.gather(*(self._revoke(link, holder) for link in links))

    def nodes_for(self, borrower: Borrower) -> dict[str, Any]:
        """The memory nodes as the borrower may use them, for the wire."""
        nodes = {}
        for name, link in self._links.items():
            keys = borrower.keys.get(name, {})
            slabs = {
                slab: Slab(slab, shm, keys[slab], slots)
                for slab, shm, slots in link.slabs
                if slab in keys
            }
            nodes[name] = PoolNode(link.fabric, slabs)
        return encode_nodes(nodes)

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        for link in self._links.values():
            link.close()

    async def _attach(self, node: str, address: str, *, scan: bool) -> None:
        self._attaching.add(node)
        link = SlabLink(node, self._lost)
        scans: list[Scan | None] = []
        try:
            await link.connect(
                self._world,
                cluster=self._cluster,
                address=address,
                home_epoch=self._home_epoch,
                home=self._home,
            )
            for slab, _, _ in link.slabs:
                scans.append(await link.scan(slab) if scan else None)
        except Fenced as error:
            link.close()
            self._events.on_fenced(str(error))
            return
        except PolarlessError as error:
            link.close()
            if node not in self._complained:
                self._complained.add(node)
                log.warning("memory node %s cannot be attached for now: %s", node, error)
            self._retry(node)
            return
        finally:
            self._attaching.discard(node)
        if self._closed or self._addresses.get(node) != address or node in self._links:
            link.close()
            return
        # From here on a join that starts asks this link, too.
        self._links[node] = link
        await asyncio.gather(*(self._grant(link, one) for one in self._events.borrowers()))
        if self._links.get(node) is link:
            self._complained.discard(node)
            slabs = [(slab, slots, scan) for (slab, _, slots), scan in zip(link.slabs, scans)]
            self._events.on_attached(node, slabs, link.lent)

    def _retry(self, node: str) -> None:
        async def again() -> None:
            await self._world.clock.sleep(RETRY_S)
            address = self._addresses.get(node)
            busy = node in self._links or node in self._attaching
            if address is not None and not busy and not self._closed:
                await self._attach(node, address, scan=False)

        if not self._closed:
            self._tasks.create_task(again())

    def _lost(self, link: SlabLink, error: PolarlessError) -> None:
        self._bad(link, str(error))

    def _bad(self, link: SlabLink, reason: str) -> None:
        """A line that does not work: the node is detached, and tried again."""
        if self._links.get(link.node) is link:
            self._drop(link.node, reason)
            self._retry(link.node)

    def _drop(self, node: str, reason: str) -> None:
        link = self._links.pop(node, None)
        if link is None:
            return
        link.close()
        for borrower in self._events.borrowers():
            borrower.keys.pop(node, None)
        self._events.on_detached(node, reason)

    async def _grant(self, link: SlabLink, borrower: Borrower) -> None:
        try:
            borrower.keys[link.node] = await link.grant(borrower.holder)
        except PolarlessError as error:
            self._bad(link, f"keys not granted: {error}")

    async def _revoke(self, link: SlabLink, holder: Holder) -> None:
        try:
            await link.revoke(holder)
        except PolarlessError as error:
            self._bad(link, f"keys not revoked: {error}")
