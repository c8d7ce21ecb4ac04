"""A compute node's place in the pool: what the home says, and staying a member.

`Member` is the receiving end of the channel. On a reader it hands invalidations to the cache; on
the writer it answers pulls, and asks storage about slots that a new home found. When the connection
ends it joins again, at the address it last heard of, with growing pauses, until control names
another home or the node is fenced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from typing import Any, Final

from compute.buffer.coherence import ReaderEvents
from compute.buffer.writeback import Writeback
from compute.txn.engine import Engine
from memory_pool.client import Joined, PoolClient
from polarless.errors import Fenced, PolarlessError
from polarless.kernel.world import World
from polarless.wire.storage import PAGE_LSNS_MAX

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 0.5
# The home asks again after 5 s.
CONFIRM_DEADLINE_S: Final = 4.0


class Member:
    """Implements `memory_pool.client.PoolEvents`."""

    def __init__(
        self, world: World, spawn: Callable[[Coroutine[Any, Any, None]], None], address: str
    ) -> None:
        self.address = address
        self.home_epoch = 0
        self.expulsions = 0
        self.rejoins = 0
        self.pool: PoolClient
        self.engine: Engine
        self.reader: ReaderEvents
        self.writeback: Writeback
        self.on_fenced: Callable[[PolarlessError], None] = lambda error: None
        self.on_joined: Callable[[], None] = lambda: None
        self._world = world
        self._spawn = spawn
        self._writer = False
        self._joining = False
        self._again = False
        # Set when it is worth trying at once: control has named a home.
        self._named = asyncio.Event()
        self._cold = False
        self._joined_address = ""

    def become_writer(self) -> None:
        """From here on nobody invalidates this node's pages."""
        self._writer = True

    async def join(self) -> Joined:
        """The first membership; tries until it holds or the node is fenced."""
        pause_s = RETRY_FIRST_S
        self._joining = True
        while True:
            self.pool._address = self.address
            try:
                joined = await self.pool.connect()
            except Fenced:
                raise
            except PolarlessError as error:
                log.info("joining the pool at %s: %s", self.address, error)
                await self._world.clock.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            self._joining = False
            self.reader.mark = joined.mark
            return joined

    def new_home(self, address: str, home_epoch: int) -> None:
        """Control names the home. Joins it unless this node is a member of it already."""
        self.address = address
        self.home_epoch = max(self.home_epoch, home_epoch)
        if self.pool.connected and self.pool.home_epoch >= home_epoch:
            return
        self._named.set()
        self._rejoin()

    def _rejoin(self) -> None:
        self.engine.fetcher.restart_all()
        if self.engine.log is not None:
            self.engine.log.home_lost()
        if self._joining:
            self._again = True
            return
        self._joining = True
        self._spawn(self._keep_joining())

    async def _keep_joining(self) -> None:
        pause_s = RETRY_FIRST_S
        while self.engine.fenced is None:
            self._again = False
            self._named.clear()
            warm = not self._cold
            held = list(self.engine.cache.frames) if warm else []
            try:
                joined = await self.pool.rejoin(self.address, self.home_epoch, held=held, warm=warm)
            except Fenced as error:
                self.on_fenced(error)
                return
            except PolarlessError as error:
                log.info("rejoining the pool at %s: %s", self.address, error)
                if not self._again:
                    await self._pause(pause_s)
                    pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            self._joining = False
            self._joined(joined)
            return

    async def _pause(self, pause_s: float) -> None:
        """Until it is worth trying again: a while, or as soon as control names a home."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._named.wait(), pause_s)

    def _joined(self, joined: Joined) -> None:
        self.rejoins += 1
        engine = self.engine
        log.info(
            "member of home %s at mark %s, %s", self.pool.home_epoch, joined.mark,
            "cold" if joined.cold else "warm",
        )  # fmt: skip
        if self._writer:
            assert engine.log is not None
            engine.log.home_back(self._advanced)
            return
        if joined.cold:
            self._start_cold()
        self._cold = False
        self.reader.mark = max(self.reader.mark, joined.mark)
        self.on_joined()
        engine.forget_published()
        engine.fetcher.member.wake(None)
        engine.admitted()

    def _start_cold(self) -> None:
        """Nothing cached counts, and nobody kept old versions for this node's snapshots."""
        self.reader.drop_all()
        self.engine.memberships += 1

    def _advanced(self, error: PolarlessError | None) -> None:
        if error is None:
            self.engine.fetcher.member.wake(None)
            self.engine.admitted()
        elif isinstance(error, Fenced):
            self.on_fenced(error)
        else:
            log.warning("the first advance at home %s: %s", self.pool.home_epoch, error)

    # PoolEvents

    def on_invalidate(self, lsn: int, pages: Sequence[int], mark: int) -> bool:
        if self._writer:
            # Sent before this node was promoted: its frames were brought up to date since.
            return True
        return self.reader.invalidate(lsn, pages, mark)

    def on_mark(self, mark: int) -> None:
        if not self._writer:
            self.reader.advance_mark(mark)

    def on_pull(self, page_id: int, ticket: int) -> None:
        if not self._writer or not self.writeback.pull(page_id):
            self.pool.refuse_pull(page_id, ticket)

    def on_confirm(
        self, as_of: int, claims: list[tuple[int, int]], answer: Callable[[Sequence[bool]], None]
    ) -> None:
        self._spawn(self._confirm(as_of, claims, answer))

    async def _confirm(
        self, as_of: int, claims: list[tuple[int, int]], answer: Callable[[Sequence[bool]], None]
    ) -> None:
        """Ask storage. Without an answer the home asks again by itself."""
        page_ids = [page_id for page_id, _ in claims]
        parts = [
            self.engine.store.page_lsns(
                page_ids[first : first + PAGE_LSNS_MAX], as_of, deadline_s=CONFIRM_DEADLINE_S
            )
            for first in range(0, len(page_ids), PAGE_LSNS_MAX)
        ]
        try:
            lsns = list(chain.from_iterable(await asyncio.gather(*parts)))
        except PolarlessError as error:
            log.info("storage was not asked about %d slots of the pool: %s", len(claims), error)
            return
        answer([0 != lsn == now for (_, lsn), now in zip(claims, lsns, strict=True)])

    def on_slabs(self) -> None:
        pass

    def on_expelled(self) -> None:
        if self._writer:
            return
        self.expulsions += 1
        log.warning("expelled from the pool; the cache starts cold")
        self._cold = True
        self._start_cold()

    def on_lost(self, error: PolarlessError) -> None:
        if isinstance(error, Fenced):
            self.on_fenced(error)
            return
        log.info("the connection to the home ended: %s", error)
        self._rejoin()
