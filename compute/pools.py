"""What compute needs of the two pools, as small Protocols.

Only `compute.node` knows the services' doors (`storage.client`, `memory_pool.client`), which
satisfy these Protocols; tests and the simulator hand in their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from polarless.errors import PolarlessError
from polarless.kernel.ids import Cts, Epoch, Lsn, PageId
from polarless.wire.memory import Place

Done = Callable[[Any, PolarlessError | None], None]


class Newer(Protocol):
    """Storage has folded beyond the position asked for; ``lsn`` is where it stands."""

    lsn: Lsn


class LogStore(Protocol):
    """The durable log and the pages folded from it."""

    def append(self, epoch: Epoch, start_lsn: Lsn, groups: bytes, done: Done) -> None:
        """Append whole groups; ``done(durable LSN, error)``. Answers come in order."""

    def announce(self, epoch: Epoch, mark: Lsn) -> None:
        """Every reader has seen the invalidations up to ``mark``: folding may go that far."""

    async def read_page(self, page_id: PageId, as_of: Lsn, *, deadline_s: float) -> Any:
        """The page's image exactly as of ``as_of``; a `Newer`; or None if there is no such page."""

    async def read_pages(
        self, page_ids: Sequence[PageId], as_of: Lsn, *, deadline_s: float
    ) -> list[Any]:
        """`read_page` for several."""

    async def page_lsns(
        self, page_ids: Sequence[PageId], as_of: Lsn, *, deadline_s: float
    ) -> list[Lsn]:
        """The LSN that each page has as of ``as_of``; 0 if there is none, or storage cannot say."""

    async def read_log(self, from_lsn: Lsn, max_bytes: int) -> tuple[bytes, Lsn]:
        """Whole groups from a position on, and the position after them."""

    async def verdict(self, transaction_id: int, from_lsn: Lsn) -> tuple[str, Lsn, bytes]:
        """What became of a proxied client's transaction: (state, LSN, its note)."""

    async def fence(self, epoch: Epoch) -> Any:
        """Refuse lower epochs for ever; the log's tail: ``tail cts next_page mark folded``."""


class Registered(Protocol):
    """An answer to `MemoryPool.register`: the image if the pool has a valid one."""

    @property
    def image(self) -> bytes | None:
        """The verified page, or None: read it from storage."""

    @property
    def lsn(self) -> Lsn:
        """The image's LSN."""

    @property
    def mark(self) -> Lsn:
        """The position that the image is the page as of."""

    @property
    def place(self) -> Place | None:
        """Where the image lies."""


class MemoryPool(Protocol):
    """The shared page cache."""

    @property
    def mark(self) -> Lsn:
        """The newest position that this node's channel has brought."""

    def published(self) -> Cts | None:
        """The published timestamp from shared memory; None when it must be fetched.

        Raises `Retry` when this node is not admitted.
        """

    async def fetch_published(self) -> Cts:
        """The published timestamp by a one-sided READ."""

    async def register(
        self, page_id: PageId, scan: bool = False, *, deadline_s: float
    ) -> Registered:
        """Become a holder of the page, then read the pool's copy of it if there is a valid one."""

    def locate(self, page_ids: Sequence[PageId], found: Callable[[PageId, Place], None]) -> None:
        """Ask where pages lie that may be needed soon; this node is told of their changes."""

    def is_mapped(self, place: Place) -> bool:
        """Whether the memory of that place is shared with this process."""

    def read_now(self, page_id: PageId, place: Place) -> bytes | None:
        """The verified image at a place, if the slot still has it and its memory is shared."""

    async def read_place(self, page_id: PageId, place: Place, *, deadline_s: float) -> bytes | None:
        """The verified image at a place, or None: ask the home."""

    def release(self, page_ids: Sequence[PageId]) -> None:
        """The copies are gone; this node still wants to be told of changes."""

    def unregister(self, page_ids: Sequence[PageId]) -> None:
        """No longer a holder."""

    async def write_back(
        self,
        page_id: PageId,
        image: bytes,
        lsn: Lsn,
        as_of: Callable[[], Lsn],
        scan: bool = False,
    ) -> Place | None:
        """Offer an image to the pool; ``as_of()`` is asked when the promise is sent.

        Where it lies as the pool's valid one, or None.
        """

    def advance(
        self, epoch: Epoch, lsn: Lsn, cts: Cts, pages: Sequence[PageId], done: Done
    ) -> None:
        """Everything up to ``lsn`` is durable and changed ``pages``; ``cts`` may be published."""

    def report(self, snapshots: Sequence[Cts]) -> None:
        """The snapshots in use here; the last one bounds all later ones from below."""

    async def refresh_mark(self) -> Lsn:
        """Ask the home for its mark."""

    def ack(self, lsn: Lsn) -> None:
        """Answer an invalidation that was held back."""

    async def fence(self, epoch: Epoch) -> Any:
        """Become the writer under a new epoch."""


class Unregister(Protocol):
    """Part of `MemoryPool` that the cache needs."""

    def __call__(self, page_ids: Iterable[PageId]) -> None: ...
