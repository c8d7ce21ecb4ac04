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
`rejoin` is answered at once; it says by itself who was a member at its last completed advance, and
sends one `advance` up to everything durable with the pages of all unanswered ones. The same holds
after a mere loss of the writer's connection. Then the home serves; pages that it found in slots
count once the writer has answered `on_confirm` for them with what storage says.

If the writer was lost together with the home, one of the waiting readers calls `fence` *while* its
`rejoin` waits: it becomes the writer, its `rejoin` returns cold, and so does everybody else's.

**Failure of a memory node.** Its pages are absent (a breaker skips it), writes to it fail; neither
is an error to the caller.

Errors: `ConnectionLost` and other `Retry`, `Fenced` when a higher epoch exists, `DeadlineExceeded`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from memory_pool.channel import CALL_DEADLINE_S, Channel, Done, Joined, PoolEvents
from memory_pool.fabric import reach as _reach
from polarless.errors import Fenced, PolarlessError, Retry
from polarless.wire.memory import ABSENT, Place, slot_contents

__all__ = ["Joined", "Place", "PoolClient", "PoolEvents", "Registered"]

# An advance waits for acknowledgements, at most as long as it takes to expel who does not answer.
ADVANCE_DEADLINE_S: Final = 10.0
FENCE_DEADLINE_S: Final = 5.0
WRITE_DEADLINE_S: Final = 1.0
# A slot that changed between the home's answer and the read: ask again so often, then storage.
READ_ATTEMPTS: Final = 3


class Registered(NamedTuple):
    """An answer to `PoolClient.register`: this node is a holder of the page.

    ``image`` is the verified page as of ``mark``; None: read it from storage as of the mark.
    """

    image: bytes | None
    lsn: int
    mark: int
    place: Place | None = None


RegisterDone = Callable[[Registered | None, PolarlessError | None], None]


class PoolClient(Channel):
    """One compute node's view of the pool. Joining and leaving are `Channel`'s."""

    # Snapshots.

    def published(self) -> int | None:
        """The newest commit that may be read here; None if it must be fetched over the fabric.

        Raises `Retry` while this node is no member, or nothing is known to be published.
        """
        cells = self.cells
        if cells is None:
            raise Retry("not a member of the pool yet")
        return cells.published()

    async def fetch_published(self) -> int:
        """The same by one READ, which all callers that came before it was sent share."""
        if self.cells is None or not self.connected:
            raise Retry("not a member of the pool")
        return await self.cells.fetch()

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

    async def register_many(
        self, page_ids: Sequence[int], scan: bool = False, *, deadline_s: float
    ) -> list[Registered]:
        """`register` for a prefetch, with one call: what is stale counts as absent."""
        future: asyncio.Future[list[Registered]] = asyncio.get_running_loop().create_future()
        found: dict[int, Registered] = {}

        def answered(answers: Any, error: PolarlessError | None) -> None:
            if error is not None:
                if not future.done():
                    future.set_exception(error)
                return
            for page_id, answer in zip(page_ids, answers):
                one = _Registration(self, page_id, partial(read, page_id), scan, deadline)
                one.attempts = READ_ATTEMPTS
                one.answered(answer, None)

        def read(page_id: int, one: Registered | None, error: PolarlessError | None) -> None:
            assert one is not None, error
            found[page_id] = one
            if len(found) == len(page_ids) and not future.done():
                future.set_result([found[page_id] for page_id in page_ids])

        if not page_ids:
            return []
        assert len(set(page_ids)) == len(page_ids), page_ids
        deadline = self._world.clock.now() + deadline_s
        args = (list(page_ids), scan)
        self.call_nowait("register_many", args, answered, deadline_s=deadline_s)
        return await future

    def locate(self, page_ids: Sequence[int], found: Callable[[int, Place], None]) -> None:
        """Ask where pages lie that may be needed soon; ``found(page id, place)`` for those that do.

        It is called in the order of the channel. From then on this node is told of their changes,
        as after `release`.
        """

        def answered(answer: Any, error: PolarlessError | None) -> None:
            if error is not None:
                return
            answers, mark = answer
            self.see(mark)
            for page_id, one in zip(page_ids, answers, strict=True):
                if one is not None:
                    _, node, slab, slot, generation, lsn, _ = one
                    found(page_id, Place(node, slab, slot, generation, lsn))

        self.call_nowait("locate", (list(page_ids),), answered, deadline_s=CALL_DEADLINE_S)

    def is_mapped(self, place: Place) -> bool:
        """Whether the memory of that place is shared with this process."""
        return self.reach is not None and self.reach.is_mapped(place)

    def read_now(self, page_id: int, place: Place) -> bytes | None:
        """The verified image at a place that was answered before, in this very call.

        None: its memory is not shared with this process, or the slot has another use by now.
        """
        reach = self.reach
        return None if reach is None else reach.read_mapped(page_id, place)

    async def read_place(self, page_id: int, place: Place, *, deadline_s: float) -> bytes | None:
        """The same, by a verb where the memory is not shared."""
        reach = self.reach
        if reach is None:
            return None
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def done(outcome: int, image: bytes | None) -> None:
            if not future.done():
                future.set_result(image if outcome == _reach.FOUND else None)

        node, slab, slot, generation, _ = place
        reach.read_slot(node, slab, slot, page_id, generation, done, deadline_s=deadline_s)
        return await future

    def release(self, page_ids: Iterable[int]) -> None:
        """No copies of these pages any more, but still a holder: changes are told as before.

        Where the image lay may be read again until the next message that names the page. The home
        may give the slot to another page meanwhile.
        """
        self.notify("release", list(page_ids))

    def unregister(self, page_ids: Iterable[int]) -> None:
        """No longer a holder of these pages."""
        self.notify("unregister", list(page_ids))

    async def write_back(
        self,
        page_id: int,
        image: bytes,
        lsn: int,
        as_of: Callable[[], int],
        scan: bool = False,
    ) -> Place | None:
        """Put an image into the pool; where it lies if it is now the pool's valid one.

        ``as_of()``, asked when the promise is sent, is the LSN as of which the image is the newest:
        for a reader the mark it was read at, for the writer the last advance it has sent, *if* no
        such advance changed the page since the image was made (else anything above all LSNs).
        """
        offer, until = self.pulled.pop(page_id, (None, 0.0))
        if offer is None or until < self._world.clock.now():
            offer = await self.call("offer", page_id, lsn, scan)
        reach = self.reach
        if offer is None or reach is None:
            return None
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
            if not kept:
                self.notify("drop_offer", page_id, node, slab, slot, generation)
        if not kept:
            return None
        args = (page_id, node, slab, slot, generation, lsn, as_of())
        valid = await self.call("validate", *args)
        return Place(node, slab, slot, generation, lsn) if valid else None

    def refuse_pull(self, page_id: int, ticket: int) -> None:
        """The writer has no durable image of the page: its readers turn to storage at once."""
        self.pulled.pop(page_id, None)
        self.notify("pull_refused", page_id, ticket)

    # Commits and marks.

    def advance(self, epoch: int, lsn: int, cts: int, pages: Sequence[int], done: Done) -> None:
        """Everything up to ``lsn`` is durable, ``pages`` have changed, ``cts`` may be seen.

        ``done((reader names, snapshots to keep), None)`` once every reader has dropped the pages.
        The snapshots are ascending, the last is the floor of all later ones; empty: no reader.
        An advance that fails otherwise than by `Fenced` ends the connection: rejoin.
        """

        def answered(result: Any, error: PolarlessError | None) -> None:
            if error is None:
                self.admitted = list(result[0])
                self.see(lsn)
                done(result, None)
                return
            done(None, error)
            if not isinstance(error, Fenced):
                # Its pages may never be invalidated, and later advances do not name them: nothing
                # may follow on this channel. The next one begins with an advance over everything.
                self.lose(error)

        args = (epoch, lsn, cts, list(pages))
        self.call_nowait("advance", args, answered, deadline_s=ADVANCE_DEADLINE_S)

    def report(self, snapshots: Sequence[int]) -> None:
        """The snapshots in use here, ascending; the last is the floor of all later ones."""
        self.notify("report", list(snapshots))

    async def refresh_mark(self) -> int:
        """Ask the home for its mark."""
        mark = await self.call("mark")
        self.see(int(mark))
        return self.mark

    async def fence(self, epoch: int) -> dict[str, Any]:
        """Become the writer under ``epoch``: no older one changes the pool from here on.

        Answers ``mark``, ``published`` and ``cold`` (the home has just started: nothing cached
        anywhere counts). Raises `Fenced` if a higher epoch exists.
        """
        answer: dict[str, Any] = await self.call("fence", epoch, deadline_s=FENCE_DEADLINE_S)
        self.writer = True
        self.epoch = epoch
        return answer

    async def status(self) -> dict[str, Any]:
        """The home's numbers."""
        answer: dict[str, Any] = await self.call("status")
        return answer

    def statistics(self) -> dict[str, int]:
        """This node's own reads and writes of slots."""
        return {} if self.reach is None else self.reach.stats.snapshot()


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
        self.attempts += 1
        left_s = self.deadline - client._world.clock.now()
        args = (self.page_id, self.scan)
        client.call_nowait("register", args, self.answered, deadline_s=left_s)

    def answered(self, answer: Any, error: PolarlessError | None) -> None:
        client = self.client
        if error is not None:
            self.done(None, error)
            return
        self.mark = mark = answer[-1]
        client.see(mark)
        reach = client.reach
        if answer[0] == ABSENT or reach is None:
            self.done(Registered(None, 0, mark), None)
            return
        _, node, slab, slot, generation, lsn, _ = answer
        left_s = self.deadline - client._world.clock.now()

        def read(outcome: int, image: bytes | None) -> None:
            if outcome == _reach.FOUND:
                place = Place(node, slab, slot, generation, lsn)
                self.done(Registered(image, lsn, mark, place), None)
            elif outcome == _reach.CHANGED and self.attempts < READ_ATTEMPTS:
                self.ask()
            else:
                self.done(Registered(None, 0, mark), None)

        reach.read_slot(node, slab, slot, self.page_id, generation, read, deadline_s=left_s)
