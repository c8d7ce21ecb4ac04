"""How compute uses the pool: the only module of this package that others import.

    pool = PoolClient(world, cluster, "ro1", home, writer=False, epoch=epoch, events=events)
    await pool.connect()                        # a member, with an empty cache
    found = await pool.register(7, deadline_s=1)  # a holder first, then the page
    snapshot = pool.published()                 # newest commit that may be read here

**One ordered channel.** Everything the home says comes in order, and carries its mark. `mark` rises
before an answer is delivered and before `PoolEvents.on_mark` is called; with an invalidation it
rises only after `PoolEvents.on_invalidate` has dropped the pages.

**Membership.** `published` reads the cell and then this node's admission word. When it raises
`Retry`, this node is no member (or the home does not know yet what is published): it must not serve
from its cache. After `on_expelled` the cache is dropped and `rejoin` called. The cell is good also
while the connection is down: whoever publishes again clears this word first.

**Loss of the home.** ``on_lost`` is called, `connected` is False, calls fail with `ConnectionLost`.
When control names the new home::

    joined = await pool.rejoin(address, home_epoch, held=cached page ids)
    if joined.cold: drop the cache

A reader waits in `rejoin` until the writer has joined and made its first advance, whose
invalidation may come *before* the answer; the cache must be in place to take it. A writer's
`rejoin` is answered at once; it says by itself who was a member at its last completed advance,
answers `on_confirm`, and then sends one `advance` up to everything durable with the pages of all
unanswered ones. The same holds after a mere loss of the writer's connection. If the writer was lost together with the home,
one of the waiting readers calls `fence` *while* its `rejoin` waits: it becomes the writer, its
`rejoin` returns cold, and so does everybody else's.

**Failure of a memory node.** Its pages are absent (a breaker skips it), writes to it fail; neither
is an error to the caller.

Errors: `ConnectionLost` and other `Retry`, `Fenced` when a higher epoch exists, `DeadlineExceeded`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from memory_pool.fabric import reach as _reach
from memory_pool.fabric import shared
from memory_pool.fabric.reach import Reach
from memory_pool.fabric.shared import SharedSlab
from memory_pool.fabric.verbs import OK
from polarless.errors import ConnectionLost, Fenced, PolarlessError, RemoteProtocolError, Retry
from polarless.kernel.world import World
from polarless.net import rpc
from polarless.wire.memory import (
    ABSENT,
    CELL_ADMISSION,
    CELL_PUBLISHED,
    CELLS_BYTES,
    WORD_BYTES,
    decode_claims,
    decode_nodes,
    slot_contents,
)

log = logging.getLogger(__name__)

CONNECT_DEADLINE_S: Final = 2.0
# A reader's join waits for the writer's first advance: longer than the home lets it.
JOIN_DEADLINE_S: Final = 12.0
# An advance waits for acknowledgements, at most as long as it takes to expel who does not answer.
ADVANCE_DEADLINE_S: Final = 10.0
CALL_DEADLINE_S: Final = 2.0
FENCE_DEADLINE_S: Final = 5.0
WRITE_DEADLINE_S: Final = 1.0
# A slot that changed between the home's answer and the read: ask again so often, then storage.
READ_ATTEMPTS: Final = 3

Done = Callable[[Any, PolarlessError | None], None]
RegisterDone = Callable[["Registered | None", PolarlessError | None], None]


class Registered(NamedTuple):
    """An answer to `PoolClient.register`: this node is a holder of the page.

    ``image`` is the verified page as of ``mark``; None: read it from storage as of the mark.
    """

    image: bytes | None
    lsn: int
    mark: int


class Joined(NamedTuple):
    """An answer to `PoolClient.rejoin`. ``cold``: nothing cached from before may be used."""

    cold: bool
    mark: int


class PoolEvents(Protocol):
    """What the home tells a member. Plain functions, called in the order of the channel."""

    def on_invalidate(self, lsn: int, pages: Sequence[int], mark: int) -> bool:
        """Drop these pages. True: acknowledge now; False: `PoolClient.ack` comes later."""

    def on_mark(self, mark: int) -> None:
        """The home's mark has risen with nothing to drop."""

    def on_pull(self, page_id: int, ticket: int) -> None:
        """A reader waits for the page: `write_back` it, or `refuse_pull`. Writer only."""

    def on_confirm(self, claims: list[tuple[int, int]]) -> Sequence[bool]:
        """Per (page id, LSN): whether the page is cached at that very LSN, durably. Writer only."""

    def on_slabs(self) -> None:
        """Memory nodes have come or gone."""

    def on_expelled(self) -> None:
        """No member any more: drop the cache, then `rejoin`. The connection ends next."""

    def on_lost(self, error: PolarlessError) -> None:
        """The connection ended; `Fenced` if that is why."""


class PoolClient(rpc.Service):
    """One compute node's membership in the pool."""

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
    ) -> None:
        self.mark = 0
        self.home_epoch = 0
        self.connected = False
        self.writer = writer
        self.epoch = epoch
        # The readers that were members at the last completed advance of this writer.
        self.admitted: list[str] = []
        self._world = world
        self._cluster = cluster
        self._node = node
        self._address = address
        self._events = events
        self._shared_memory = shared_memory
        self._incarnation = incarnation or 0
        self._peer: rpc.Peer | None = None
        self._lost_because: PolarlessError | None = None
        self._expelled = False
        self._reach: Reach | None = None
        # The cells: mapped, or (fabric address, rkey) to read them with.
        self._cells: SharedSlab | None = None
        self._cells_remote: tuple[str, bytes] | None = None
        self._word = 0
        self._snapshot_waiters: list[asyncio.Future[int]] = []
        self._snapshot_reading = False

    # Membership.

    async def connect(self) -> Joined:
        """Become a member with an empty cache. A reader waits until the writer is there."""
        return await self._join(warm=False, held=[])

    async def rejoin(
        self, address: str, home_epoch: int, *, held: Iterable[int] = (), warm: bool = True
    ) -> Joined:
        """Become a member again, of the home at ``address``, having kept the pages ``held``.

        Raises `Retry` if that home is older than ``home_epoch`` or no writer came; try again.
        """
        self._address = address
        return await self._join(warm=warm, held=list(held), home_epoch=home_epoch)

    async def _join(self, *, warm: bool, held: list[int], home_epoch: int = 0) -> Joined:
        if self._peer is not None:
            former, self._peer = self._peer, None
            former.close()
        # A new incarnation each time: keys and words of the one before are worthless.
        if self._reach is not None or not self._incarnation:
            self._incarnation = int.from_bytes(self._world.random.token(8), "little") >> 1 or 1
        peer = await rpc.connect(
            self._world.network,
            self,
            clock=self._world.clock,
            cluster=self._cluster,
            address=self._address,
            hello={"node": self._node, "role": "compute", "incarnation": self._incarnation},
            deadline_s=CONNECT_DEADLINE_S,
        )
        if peer.fields["home_epoch"] < home_epoch:
            peer.close()
            raise Retry(f"{self._address} is home {peer.fields['home_epoch']}, not {home_epoch}")
        self._peer = peer
        self._lost_because = None
        future: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()

        def done(answer: Any, error: PolarlessError | None) -> None:
            # In the order of the channel, not when the awaiting task gets its turn.
            if error is None and self._peer is peer:
                joined = self._joined(peer, answer)
                if not future.done():
                    future.set_result(joined)
            elif not future.done():
                future.set_exception(error or ConnectionLost("join: replaced by another join"))

        args = (self.writer, self.epoch, warm, held, self.admitted)
        peer.call_nowait("join", args, done, deadline_s=JOIN_DEADLINE_S)
        try:
            return await future
        except BaseException:
            # No member, or no longer interested: nobody is told that this connection ends.
            if self._peer is peer:
                self._peer = None
            peer.close()
            raise

    def _joined(self, peer: rpc.Peer, answer: dict[str, Any]) -> Joined:
        """The home has made this node a member."""
        self._drop_reach()
        self._reach = Reach(
            self._world,
            cluster=self._cluster,
            node=self._node,
            incarnation=self._incarnation,
            shared_memory=self._shared_memory,
        )
        self._reach.set_nodes(decode_nodes(answer["nodes"]))
        shm, rkey, fabric = answer["cells"]
        if self._shared_memory:
            self._cells = shared.attach(self._world.memory, shm, CELLS_BYTES)
        self._cells_remote = (fabric, rkey)
        self._word = CELL_ADMISSION + int(answer["place"])
        self.home_epoch = int(peer.fields["home_epoch"])
        self.mark = max(self.mark, int(answer["mark"]))
        self._expelled = False
        self.connected = True
        return Joined(bool(answer["cold"]), self.mark)

    def close(self) -> None:
        """Leave. ``on_lost`` is not called."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()
        self.connected = False
        self._drop_reach()

    def _drop_reach(self) -> None:
        if self._cells is not None:
            self._cells.close()
            self._cells = None
        if self._reach is not None:
            self._reach.close()

    # Snapshots.

    def published(self) -> int | None:
        """The newest commit that may be read here; None if it must be fetched over the fabric.

        Raises `Retry` while this node is no member, or nothing is known to be published.
        """
        cells = self._cells
        if cells is None:
            if self._cells_remote is None:
                raise Retry("not a member of the pool yet")
            return None
        # In this order: the home clears the word before it publishes what we may have missed.
        words = cells.words
        published = words[CELL_PUBLISHED]
        if words[self._word] != self._incarnation:
            raise Retry("this node is no member of the pool: it must join anew")
        if not published:
            raise Retry("the pool's home has just started: nothing is published yet")
        return published

    async def fetch_published(self) -> int:
        """The same by one READ, which all callers that came before it was sent share."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._snapshot_waiters.append(future)
        if not self._snapshot_reading:
            self._read_snapshot()
        return await future

    def _read_snapshot(self) -> None:
        waiters, self._snapshot_waiters = self._snapshot_waiters, []
        reach, remote = self._reach, self._cells_remote
        if reach is None or remote is None or not self.connected:
            _settle(waiters, None, Retry("not a member of the pool"))
            return
        self._snapshot_reading = True
        word, incarnation = self._word, self._incarnation

        def completed(status: int, data: Any) -> None:
            self._snapshot_reading = False
            # Who came meanwhile may need what was published meanwhile.
            if self._snapshot_waiters:
                self._read_snapshot()
            if status != OK:
                _settle(waiters, None, Retry("the published timestamp could not be read"))
                return
            words = memoryview(data).cast("Q")
            if words[word] != incarnation:
                _settle(waiters, None, Retry("this node is no member of the pool"))
            elif not words[CELL_PUBLISHED]:
                _settle(waiters, None, Retry("nothing is published yet"))
            else:
                _settle(waiters, words[CELL_PUBLISHED], None)

        fabric, rkey = remote
        length = (word + 1) * WORD_BYTES
        reach.read(fabric, rkey, 0, length, completed, deadline_s=CALL_DEADLINE_S)

    # Pages.

    def register_nowait(
        self, page_id: int, done: RegisterDone, *, scan: bool = False, deadline_s: float
    ) -> None:
        """Become a holder, then read the pool's image; ``done`` is called exactly once.

        In shared memory ``done`` is called in the order of the channel.
        """
        _Registration(self, page_id, done, scan, self._world.clock.now() + deadline_s).ask()

    async def register(self, page_id: int, scan: bool = False, *, deadline_s: float) -> Registered:
        """Become a holder of the page, then read the pool's image if there is a valid one."""
        future: asyncio.Future[Registered] = asyncio.get_running_loop().create_future()

        def done(found: Registered | None, error: PolarlessError | None) -> None:
            if future.done():
                return
            if found is not None:
                future.set_result(found)
            else:
                assert error is not None
                future.set_exception(error)

        self.register_nowait(page_id, done, scan=scan, deadline_s=deadline_s)
        return await future

    def unregister(self, page_ids: Iterable[int]) -> None:
        """No longer a holder of these pages."""
        if self._peer is not None:
            self._peer.notify("unregister", list(page_ids))

    async def write_back(
        self,
        page_id: int,
        image: bytes,
        lsn: int,
        as_of: Callable[[], int],
        scan: bool = False,
    ) -> bool:
        """Put an image into the pool; whether it is now the pool's valid one.

        ``as_of()``, asked when the promise is sent, is the LSN as of which the image is the newest:
        for a reader the mark it was read at, for the writer the last advance it has sent, *if* no
        such advance changed the page since the image was made (else anything above all LSNs).
        """
        offer = await self._call("offer", page_id, lsn, scan)
        reach = self._reach
        if offer is None or reach is None:
            return False
        node, slab, slot, generation = offer
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        contents = slot_contents(page_id, lsn, generation, image)
        kept = False
        try:
            reach.write_slot(
                node, slab, slot, generation, contents,
                lambda good: None if written.done() else written.set_result(good),
                deadline_s=WRITE_DEADLINE_S,
            )  # fmt: skip
            kept = await written
        finally:
            if not kept and self._peer is not None:
                self._peer.notify("drop_offer", page_id, node, slab, slot, generation)
        if not kept:
            return False
        return bool(
            await self._call("validate", page_id, node, slab, slot, generation, lsn, as_of())
        )

    def refuse_pull(self, page_id: int, ticket: int) -> None:
        """The writer has no durable image of the page: its readers turn to storage at once."""
        if self._peer is not None:
            self._peer.notify("pull_refused", page_id, ticket)

    # Commits and marks.

    def advance(self, epoch: int, lsn: int, cts: int, pages: Sequence[int], done: Done) -> None:
        """Everything up to ``lsn`` is durable, ``pages`` have changed, ``cts`` may be seen.

        ``done((reader names, snapshots to keep), None)`` once every reader has dropped the pages.
        The snapshots are ascending, the last is the floor of all later ones; empty: no reader.
        """
        peer = self._peer
        if peer is None:
            done(None, ConnectionLost("advance: no connection to the pool's home"))
            return

        def answered(result: Any, error: PolarlessError | None) -> None:
            if error is None:
                self.admitted = list(result[0])
                self._see(lsn)
            done(result, error)

        args = (epoch, lsn, cts, list(pages))
        peer.call_nowait("advance", args, answered, deadline_s=ADVANCE_DEADLINE_S)

    def ack(self, lsn: int) -> None:
        """Acknowledge an invalidation that was held back."""
        if self._peer is not None:
            self._peer.notify("ack", lsn)

    def report(self, snapshots: Sequence[int]) -> None:
        """The snapshots in use here, ascending; the last is the floor of all later ones."""
        if self._peer is not None:
            self._peer.notify("report", list(snapshots))

    async def refresh_mark(self) -> int:
        """Ask the home for its mark."""
        mark = await self._call("mark")
        self._see(int(mark))
        return self.mark

    async def fence(self, epoch: int) -> dict[str, Any]:
        """Become the writer under ``epoch``: no older one changes the pool from here on.

        Answers ``mark``, ``published`` and ``cold`` (the home has just started: the pool is
        empty, nothing cached anywhere counts). Raises `Fenced` if a higher epoch exists.
        """
        peer = self._peer
        if peer is None:
            raise ConnectionLost("fence: no connection to the pool's home")
        answer: dict[str, Any] = await peer.call("fence", epoch, deadline_s=FENCE_DEADLINE_S)
        self.writer = True
        self.epoch = epoch
        return answer

    async def status(self) -> dict[str, Any]:
        """The home's numbers."""
        answer: dict[str, Any] = await self._call("status")
        return answer

    def statistics(self) -> dict[str, int]:
        """This node's own reads and writes of slots."""
        return {} if self._reach is None else self._reach.stats.snapshot()

    # Inside.

    async def _call(self, method: str, *args: Any) -> Any:
        if self._peer is None:
            raise ConnectionLost(f"{method}: no connection to the pool's home")
        return await self._peer.call(method, *args, deadline_s=CALL_DEADLINE_S)

    def _see(self, mark: int) -> None:
        """A message carried the home's mark, and nothing to drop."""
        if mark > self.mark:
            self.mark = mark
            self._events.on_mark(mark)

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        raise RemoteProtocolError(f"the home called {call.method!r}")

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        if peer is not self._peer:
            return
        events = self._events
        if method == "invalidate":
            lsn, pages, mark = args
            acknowledged = events.on_invalidate(lsn, pages, mark)
            self.mark = max(self.mark, mark)
            if acknowledged:
                peer.notify("ack", lsn)
        elif method == "mark":
            self._see(args[0])
        elif method == "pull":
            events.on_pull(*args)
        elif method == "slabs":
            if self._reach is not None:
                self._reach.set_nodes(decode_nodes(args[0]))
            events.on_slabs()
        elif method == "confirm":
            ticket, data = args
            verdicts = events.on_confirm(decode_claims(data))
            peer.notify("confirmed", ticket, bytes([1 if good else 0 for good in verdicts]))
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
        if peer is not self._peer:
            return
        self._peer = None
        self.connected = False
        self._events.on_lost(self._lost_because or error)


class _Registration:
    """One `register` under way: ask the home, read the slot, ask again if it has changed."""

    __slots__ = ("attempts", "client", "deadline", "done", "mark", "page_id", "scan")

    def __init__(
        self, client: PoolClient, page_id: int, done: RegisterDone, scan: bool, deadline: float
    ) -> None:
        self.client = client
        self.page_id = page_id
        self.done = done
        self.scan = scan
        self.deadline = deadline
        self.attempts = 0
        self.mark = 0

    def ask(self) -> None:
        client = self.client
        peer = client._peer
        if peer is None:
            self.done(None, ConnectionLost("register: no connection to the pool's home"))
            return
        self.attempts += 1
        left_s = self.deadline - client._world.clock.now()
        peer.call_nowait("register", (self.page_id, self.scan), self.answered, deadline_s=left_s)

    def answered(self, answer: Any, error: PolarlessError | None) -> None:
        client = self.client
        if error is not None:
            self.done(None, error)
            return
        self.mark = mark = answer[-1]
        client._see(mark)
        reach = client._reach
        if answer[0] == ABSENT or reach is None:
            self.done(Registered(None, 0, mark), None)
            return
        _, node, slab, slot, generation, lsn, _ = answer
        left_s = self.deadline - client._world.clock.now()

        def read(outcome: int, image: bytes | None) -> None:
            if outcome == _reach.FOUND:
                self.done(Registered(image, lsn, mark), None)
            elif outcome == _reach.CHANGED and self.attempts < READ_ATTEMPTS:
                self.ask()
            else:
                self.done(Registered(None, 0, mark), None)

        reach.read_slot(node, slab, slot, self.page_id, generation, read, deadline_s=left_s)


def _settle(
    waiters: list[asyncio.Future[int]], value: int | None, error: PolarlessError | None
) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is not None:
            waiter.set_exception(error)
        else:
            assert value is not None
            waiter.set_result(value)
