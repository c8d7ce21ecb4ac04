"""A compute node's membership: the ordered channel to the home, and what the home tells over it.

`Channel` joins, keeps the mark, hands messages on in their order, and has the ways to slots and
cells that go with one membership. `memory_pool.client` adds what a member can do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from memory_pool.fabric.cells import Cells
from memory_pool.fabric.reach import Reach
from polarless.errors import ConnectionLost, Fenced, PolarlessError, RemoteProtocolError, Retry
from polarless.kernel.world import World
from polarless.net import rpc
from polarless.wire.memory import decode_claims, decode_nodes

log = logging.getLogger(__name__)

CONNECT_DEADLINE_S: Final = 2.0
# A reader's join waits for the writer's first advance: longer than the home lets it.
JOIN_DEADLINE_S: Final = 12.0
CALL_DEADLINE_S: Final = 2.0
# The home takes the slot of a pull back after 200 ms.
PULL_S: Final = 0.15
PULLED_MAX: Final = 1024

Done = Callable[[Any, PolarlessError | None], None]
Confirm = Callable[[Sequence[bool]], None]


class Joined(NamedTuple):
    """A membership. ``cold``: nothing cached from before may be used."""

    cold: bool
    mark: int


class PoolEvents(Protocol):
    """What the home tells a member. Plain functions, called in the order of the channel."""

    def on_invalidate(self, lsn: int, pages: Sequence[int], mark: int) -> bool:
        """Drop these pages. True: acknowledge now; False: `Channel.ack` comes later."""

    def on_mark(self, mark: int) -> None:
        """The home's mark has risen with nothing to drop."""

    def on_pull(self, page_id: int, ticket: int) -> None:
        """A reader waits for the page: write it back, or refuse the pull. Writer only."""

    def on_confirm(self, as_of: int, claims: list[tuple[int, int]], answer: Confirm) -> None:
        """Per (page id, LSN): whether storage has the page at that very LSN as of ``as_of``.

        Writer only. ``answer`` is called later; or never, if storage cannot be asked.
        """

    def on_slabs(self) -> None:
        """Memory nodes have come or gone."""

    def on_expelled(self) -> None:
        """No member any more: drop the cache, then rejoin. The connection ends next."""

    def on_lost(self, error: PolarlessError) -> None:
        """The connection ended; `Fenced` if that is why."""


class Channel(rpc.Service):
    """One connection to the home at a time. ``mark`` and ``connected`` may be read at any time."""

    def __init__(
        self,
        world: World,
        cluster: bytes,
        node: str,
        address: str,
        *,
        writer: bool,
        epoch: int,
        events: PoolEvents,
        incarnation: int | None = None,
        shared_memory: bool = True,
        latency_s: float = 0.0,
    ) -> None:
        self.mark = 0
        self.home_epoch = 0
        self.connected = False
        self.writer = writer
        self.epoch = epoch
        # The readers that were members at the last completed advance of this writer.
        self.admitted: list[str] = []
        self.reach: Reach | None = None
        self.cells: Cells | None = None
        # Slots that came with a pull: page -> (where to write it, until when).
        self.pulled: dict[int, tuple[Any, float]] = {}
        self.peer: rpc.Peer | None = None
        self._world = world
        self._cluster = cluster
        self.node = node
        self._address = address
        self._events = events
        self._shared_memory = shared_memory
        self._latency_s = latency_s
        self._incarnation = incarnation
        self._lost_because: PolarlessError | None = None

    async def connect(self) -> Joined:
        """Become a member with an empty cache. A reader waits until the writer is there."""
        return await self._join(warm=False, held=[], home_epoch=0)

    async def rejoin(
        self, address: str, home_epoch: int, *, held: Iterable[int] = (), warm: bool = True
    ) -> Joined:
        """Become a member again, of the home at ``address``, having kept the pages ``held``.

        Raises `Retry` if that home is older than ``home_epoch``, or no writer came: try again.
        """
        self._address = address
        return await self._join(warm=warm, held=list(held), home_epoch=home_epoch)

    def close(self) -> None:
        """Leave. ``on_lost`` is not called."""
        self._hang_up()
        self._drop_ways()

    def _drop_ways(self) -> None:
        if self.cells is not None:
            self.cells.close()
            self.cells = None
        if self.reach is not None:
            self.reach.close()
            self.reach = None

    def ack(self, lsn: int) -> None:
        """Acknowledge an invalidation that was held back."""
        self.notify("ack", lsn)

    # For `memory_pool.client`.

    async def call(self, method: str, *args: Any, deadline_s: float = CALL_DEADLINE_S) -> Any:
        """Call the home."""
        if self.peer is None:
            raise ConnectionLost(f"{method}: no connection to the pool's home")
        return await self.peer.call(method, *args, deadline_s=deadline_s)

    def call_nowait(
        self, method: str, args: tuple[Any, ...], done: Done, *, deadline_s: float
    ) -> None:
        """Call the home; ``done`` is called in the order of the channel."""
        if self.peer is None:
            done(None, ConnectionLost(f"{method}: no connection to the pool's home"))
        else:
            self.peer.call_nowait(method, args, done, deadline_s=deadline_s)

    def notify(self, method: str, *args: Any) -> None:
        """Tell the home, if there is a connection."""
        if self.peer is not None:
            self.peer.notify(method, *args)

    def lose(self, error: PolarlessError) -> None:
        """End the connection; ``on_lost`` is called."""
        if self.peer is not None:
            self.peer.close(error)

    def see(self, mark: int) -> None:
        """A message carried the home's mark, and nothing to drop."""
        if mark > self.mark:
            self.mark = mark
            self._events.on_mark(mark)

    # Joining.

    async def _join(self, *, warm: bool, held: list[int], home_epoch: int) -> Joined:
        self._hang_up()
        # A new incarnation each time: keys and words of the one before are worthless.
        incarnation, self._incarnation = self._incarnation, None
        if incarnation is None:
            incarnation = (int.from_bytes(self._world.random.token(8), "little") >> 1) or 1
        peer = await rpc.connect(
            self._world.network,
            self,
            clock=self._world.clock,
            cluster=self._cluster,
            address=self._address,
            hello={"node": self.node, "role": "compute", "incarnation": incarnation},
            deadline_s=CONNECT_DEADLINE_S,
        )
        if peer.fields["home_epoch"] < home_epoch:
            peer.close()
            raise Retry(f"{self._address} is home {peer.fields['home_epoch']}, not {home_epoch}")
        self._hang_up()
        self.peer = peer
        self._lost_because = None
        future: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()

        def done(answer: Any, error: PolarlessError | None) -> None:
            # In the order of the channel, not when the awaiting task gets its turn.
            if error is None and self.peer is peer:
                joined = self._joined(peer, incarnation, answer)
                if not future.done():
                    future.set_result(joined)
            elif not future.done():
                future.set_exception(error or ConnectionLost("join: another one replaced it"))

        args = (self.writer, self.epoch, warm, held, self.admitted)
        peer.call_nowait("join", args, done, deadline_s=JOIN_DEADLINE_S)
        try:
            return await future
        except BaseException:
            # No member, or no longer interested: nobody is told that this connection ends.
            if self.peer is peer:
                self.peer = None
                self.connected = False
            peer.close()
            raise

    def _joined(self, peer: rpc.Peer, incarnation: int, answer: dict[str, Any]) -> Joined:
        """The home has made this node a member."""
        self._drop_ways()
        self.reach = Reach(
            self._world,
            cluster=self._cluster,
            node=self.node,
            incarnation=incarnation,
            shared_memory=self._shared_memory,
            latency_s=self._latency_s,
        )
        self.reach.set_nodes(decode_nodes(answer["nodes"]))
        shm, rkey, fabric = answer["cells"]
        self.cells = Cells(
            self._world.memory if self._shared_memory else None,
            self.reach,
            shm=shm,
            fabric=fabric,
            rkey=rkey,
            place=int(answer["place"]),
            incarnation=incarnation,
        )
        self.home_epoch = int(peer.fields["home_epoch"])
        # Not `see`: whether the cache still counts is in the answer, and not known yet.
        self.mark = max(self.mark, int(answer["mark"]))
        self.connected = True
        return Joined(bool(answer["cold"]), self.mark)

    def _hang_up(self) -> None:
        peer, self.peer = self.peer, None
        self.connected = False
        self.pulled.clear()
        if peer is not None:
            peer.close()

    # rpc.Handler

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        raise RemoteProtocolError(f"the home called {call.method!r}")

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        if peer is not self.peer:
            return
        events = self._events
        if method == "invalidate":
            lsn, pages, mark = args
            acknowledged = events.on_invalidate(lsn, pages, mark)
            self.mark = max(self.mark, mark)
            if acknowledged:
                peer.notify("ack", lsn)
        elif method == "mark":
            self.see(args[0])
        elif method == "pull":
            page_id, ticket, offer = args
            if len(self.pulled) >= PULLED_MAX:
                self.pulled.clear()
            self.pulled[page_id] = (offer, self._world.clock.now() + PULL_S)
            events.on_pull(page_id, ticket)
        elif method == "slabs":
            if self.reach is not None:
                self.reach.set_nodes(decode_nodes(args[0]))
            events.on_slabs()
        elif method == "confirm":
            ticket, as_of, data = args
            events.on_confirm(as_of, decode_claims(data), partial(_confirmed, peer, ticket))
        elif method == "expelled":
            self.connected = False
            self._lost_because = Retry(f"expelled from the pool: {args[0]}")
            events.on_expelled()
        elif method == "fenced":
            self.connected = False
            self._lost_because = Fenced(f"the pool's home is at epoch {args[0]}")
        else:
            raise RemoteProtocolError(f"the home said {method!r}")

    def on_lost(self, peer: rpc.Peer, error: PolarlessError) -> None:
        if peer is not self.peer:
            return
        self.peer = None
        self.connected = False
        self.pulled.clear()
        self._events.on_lost(self._lost_because or error)


def _confirmed(peer: rpc.Peer, ticket: int, verdicts: Sequence[bool]) -> None:
    """To the home that asked, and to no other: a ticket is a number of one home."""
    if peer.closed is None:
        peer.notify("confirmed", ticket, bytes([1 if good else 0 for good in verdicts]))
