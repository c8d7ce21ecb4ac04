"""Taking a snapshot: the home's published cell, then this node's admission word.

In this order, since the home clears the word of a node that may have missed an invalidation before
it publishes anything newer: whoever sees a newer timestamp sees the cleared word, too. No clock is
trusted. From shared memory this is a function of a microsecond; else one READ of both, which all
callers share that came before it was sent.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from memory_pool.fabric import shared
from memory_pool.fabric.reach import Reach
from memory_pool.fabric.region import Region
from memory_pool.fabric.verbs import OK
from polarless.errors import PolarlessError, Retry
from polarless.kernel.world import SharedMemory
from polarless.wire.memory import (
    CELL_ADMISSION,
    CELL_HOME_EPOCH,
    CELL_KNOWS,
    CELL_MARK,
    CELL_PUBLISHED,
    CELLS_BYTES,
    WORD_BYTES,
)

READ_DEADLINE_S: Final = 2.0


class OwnCells:
    """The home's own cells, as it writes them: each a single 8-byte store."""

    def __init__(self, region: Region, home_epoch: int) -> None:
        self.region = region
        self._words = region.words
        self._words[CELL_HOME_EPOCH] = home_epoch

    def set_word(self, place: int, value: int) -> None:
        """A member's admission word: its incarnation, or 0."""
        self._words[CELL_ADMISSION + place] = value

    def set_mark(self, mark: int) -> None:
        """The mark, for people."""
        self._words[CELL_MARK] = mark

    def publish(self, cts: int) -> None:
        """C6: it only grows."""
        assert self._words[CELL_PUBLISHED] < cts, (self._words[CELL_PUBLISHED], cts)
        self._words[CELL_PUBLISHED] = cts

    def know(self) -> None:
        """What is published is known, 0 included."""
        self._words[CELL_KNOWS] = 1

    def check(self, *, mark: int, published: int, words: dict[int, int]) -> None:
        """The cells show this; ``words`` by place, those that are not 0."""
        assert self._words[CELL_MARK] == mark
        assert self._words[CELL_PUBLISHED] == published
        shown = enumerate(self._words[CELL_ADMISSION:])
        assert {place: word for place, word in shown if word} == words

    def close(self) -> None:
        """The home ends: nobody is a member any more."""
        for word in range(CELL_ADMISSION, len(self._words)):
            self._words[word] = 0
        self.region.release()


class Cells:
    """The cells of one home, for one incarnation of one member."""

    def __init__(
        self,
        memory: SharedMemory | None,
        reach: Reach,
        *,
        shm: str,
        fabric: str,
        rkey: bytes,
        place: int,
        incarnation: int,
    ) -> None:
        self._mapped = None if memory is None else shared.attach(memory, shm, CELLS_BYTES)
        self._reach = reach
        self._fabric = fabric
        reach.pinned.add(fabric)
        self._rkey = rkey
        self._word = CELL_ADMISSION + place
        self._incarnation = incarnation
        self._waiters: list[asyncio.Future[int]] = []
        self._reading = False

    def published(self) -> int | None:
        """The newest commit that may be read here; None where the memory is not shared.

        Raises `Retry` if this node is no member, or nothing is known to be published.
        """
        mapped = self._mapped
        if mapped is None:
            return None
        words = mapped.words
        # In this order: what is published before it is known may be less than an older home's.
        knows = words[CELL_KNOWS]
        published = words[CELL_PUBLISHED]
        return self._judge(knows, published, words[self._word])

    async def fetch(self) -> int:
        """The same by a READ."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        if not self._reading:
            self._read()
        return await future

    def close(self) -> None:
        """Unmap."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def _judge(self, knows: int, published: int, word: int) -> int:
        if word != self._incarnation:
            raise Retry("this node is no member of the pool: it has to join anew")
        if not knows:
            raise Retry("the pool's home has just started: nothing is published yet")
        return published

    def _read(self) -> None:
        waiters, self._waiters = self._waiters, []
        self._reading = True

        def completed(status: int, data: Any) -> None:
            self._reading = False
            # Who came meanwhile may have to see what was published meanwhile: another READ.
            if self._waiters:
                self._read()
            try:
                if status != OK:
                    raise Retry("the published timestamp cannot be read: the home is away")
                words = memoryview(data).cast("Q")
                published = self._judge(words[CELL_KNOWS], words[CELL_PUBLISHED], words[self._word])
            except PolarlessError as error:
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(published)

        length = (self._word + 1) * WORD_BYTES
        self._reach.read(self._fabric, self._rkey, 0, length, completed, deadline_s=READ_DEADLINE_S)
