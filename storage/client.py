"""The door: append to the log, fence it, read pages and log. Others import only this module.

One connection, kept up by itself. While it is down appends wait and are sent again, in order, when
it is back: storage skips what it has. Reads are tried again until their deadline. So a restart of
storage is a pause and nothing else. A full disk is one, too: whoever appended has changed its pages
already and cannot take that back, so the same bytes are tried again until there is room. How long
whoever waits for them is left without an answer is decided above: see ``on_full``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from polarless.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    Overloaded,
    PolarlessError,
    RemoteProtocolError,
)
from polarless.kernel import redo
from polarless.kernel.world import World
from polarless.net import rpc
from polarless.wire import storage as wire
from polarless.wire.storage import LogTail, Newer

__all__ = ["LogTail", "Newer", "StorageClient"]

log = logging.getLogger(__name__)

Done = Callable[[int | None, PolarlessError | None], None]

# Below what one connection may have waiting to be sent (polarless/net/rpc.py).
APPEND_BYTES_MAX: Final = 128 * 1024 * 1024
# Longer appends travel in pieces, so that storage syncs the first while the next is on its way.
PIECE_BYTES: Final = 4 * 1024 * 1024
# An append that is not answered for so long: the connection is taken for dead and made anew.
APPEND_DEADLINE_S: Final = 30.0
FULL_RETRY_S: Final = 1.0
DISK_FULL: Final = "53100"
BACKOFF_FIRST_S: Final = 0.01
BACKOFF_MAX_S: Final = 0.5
CONNECT_DEADLINE_S: Final = 2.0


class _Append:
    """A piece of an append that is not answered; ``done`` only on the last piece of one."""

    __slots__ = ("args", "done", "end", "size")

    def __init__(self, epoch: int, start_lsn: int, groups: bytes, done: Done | None) -> None:
        self.args = (epoch, start_lsn, groups)
        self.size = len(groups)
        self.end = start_lsn + len(groups)
        self.done = done


class StorageClient(rpc.Service):
    """See the module. ``on_state(connected)`` is called at each change.

    ``on_full(error)``: storage's disk is full, and appends wait from now on; ``on_full(None)`` when
    something was appended again.
    """

    def __init__(
        self,
        world: World,
        address: str,
        cluster: bytes,
        node: str,
        *,
        role: str = "compute",
        epoch: int = 0,
        on_state: Callable[[bool], None] | None = None,
        append_bytes_max: int = APPEND_BYTES_MAX,
    ) -> None:
        self.address = address
        self.unanswered_bytes = 0
        self.reconnects = 0
        self.on_full: Callable[[PolarlessError | None], None] | None = None
        # The refusal while the disk is full, also while the next try is under way.
        self.full: PolarlessError | None = None
        self._held_back = False
        self._world = world
        self._cluster = cluster
        self._hello = {"node": node, "role": role, "epoch": epoch}
        self._on_state = on_state
        self._append_bytes_max = append_bytes_max
        self._peer: rpc.Peer | None = None
        self._unanswered: deque[_Append] = deque()
        # Rises whenever everything unanswered is sent again: older errors are void then.
        self._attempt = 0
        self._announced: tuple[int, int] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._last_error: PolarlessError | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._peer is not None

    # Connection.

    async def connect(self, *, deadline_s: float = 10.0) -> None:
        """Connect, and stay connected until `close`. Raises the last error at the deadline."""
        self._reconnect()
        await self._connected(self._world.clock.now() + deadline_s, "connect")

    def set_address(self, address: str) -> None:
        """Storage has moved; the next connection goes there."""
        if address != self.address:
            self.address = address
            if self._peer is not None:
                self._peer.close(ConnectionLost(f"storage has moved to {address}"))

    def close(self) -> None:
        """End; appends under way get `ConnectionLost`."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._peer is not None:
            self._peer.close()
        self._fail_appends(ConnectionLost("the storage client was closed"))
        self._wake()

    def on_lost(self, peer: rpc.Peer, error: PolarlessError) -> None:
        """Connect again, unless closed."""
        if peer is not self._peer:
            return
        self._peer = None
        self._last_error = error
        if self._closed:
            return
        log.info("storage %s: %s", self.address, error)
        if self._on_state is not None:
            self._on_state(False)
        self._reconnect()

    def _reconnect(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_connecting())

    async def _keep_connecting(self) -> None:
        clock, delay_s = self._world.clock, BACKOFF_FIRST_S
        while not self._closed:
            try:
                peer = await rpc.connect(
                    self._world.network, self, clock=clock, cluster=self._cluster,
                    address=self.address, hello=dict(self._hello), deadline_s=CONNECT_DEADLINE_S,
                )  # fmt: skip
            except PolarlessError as error:
                self._last_error = error
                if isinstance(error, RemoteProtocolError):
                    # Another cluster or another version: whoever waits should hear it now.
                    self._wake()
                await clock.sleep(delay_s * self._world.random.uniform(0.5, 1.0))
                delay_s = min(delay_s * 2, BACKOFF_MAX_S)
                continue
            if peer.closed is None:
                self._up(peer)
                return

    def _up(self, peer: rpc.Peer) -> None:
        """A new connection: first everything unanswered, in order, then what is new."""
        self._peer = peer
        self.reconnects += 1
        self._send_all()
        if self._announced is not None and self._peer is not None:
            peer.notify(wire.ANNOUNCE, *self._announced)
        if self._on_state is not None:
            self._on_state(True)
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _release(waiter)

    async def _connected(self, deadline: float, what: str) -> rpc.Peer:
        """The connection, waited for until ``deadline``."""
        while self._peer is None:
            if self._closed:
                raise ConnectionLost(f"{what}: the storage client was closed")
            if isinstance(self._last_error, RemoteProtocolError):
                raise self._last_error
            left = deadline - self._world.clock.now()
            if left <= 0:
                raise DeadlineExceeded(
                    f"{what}: no connection to storage {self.address} ({self._last_error})"
                )
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            timer = self._world.clock.call_later(left, partial(_release, waiter))
            try:
                await waiter
            finally:
                timer.cancel()
        return self._peer

    # Appending.

    def append(self, epoch: int, start_lsn: int, groups: bytes, done: Done) -> None:
        """Append whole groups; ``done(durable LSN, None)`` when they are, in order.

        ``done(None, error)`` means refused: `Fenced`, or a bug. All appends behind it end with the
        same error. A lost connection or a full disk is none: the append waits. Raises `Overloaded`,
        and takes nothing, if too many bytes are unanswered.
        """
        if self._closed:
            raise ConnectionLost("append: the storage client was closed")
        if self.unanswered_bytes + len(groups) > self._append_bytes_max and self._unanswered:
            raise Overloaded(
                f"{self.unanswered_bytes} bytes of appends are unanswered, "
                f"at most {self._append_bytes_max} may be"
            )
        for first, piece in _pieces(groups):
            last = first + len(piece) == len(groups)
            append = _Append(epoch, start_lsn + first, piece, done if last else None)
            self._unanswered.append(append)
            self.unanswered_bytes += append.size
            if self._peer is not None and not self._held_back:
                self._send(append)

    def announce(self, epoch: int, mark: int) -> None:
        """The home has answered the advance up to ``mark``. Said again after a reconnect."""
        self._announced = (epoch, mark)
        if self._peer is not None:
            self._peer.notify(wire.ANNOUNCE, epoch, mark)

    def _send(self, append: _Append) -> None:
        peer = self._peer
        if peer is None:
            return

        attempt = self._attempt

        def answered(durable: Any, error: PolarlessError | None) -> None:
            if error is None:
                self._answered(durable)
            elif peer.closed is not None or attempt != self._attempt:
                # It stays unanswered, and has gone or goes out again.
                return
            elif error.sqlstate == DISK_FULL:
                self._wait_for_room(error)
            elif isinstance(error, DeadlineExceeded):
                peer.close(ConnectionLost(f"storage {self.address} hangs: {error}"))
            elif append in self._unanswered:
                self._fail_appends(error)

        peer.call_nowait(wire.APPEND, append.args, answered, deadline_s=APPEND_DEADLINE_S)

    def _answered(self, durable: int) -> None:
        unanswered = self._unanswered
        while unanswered and unanswered[0].end <= durable:
            append = unanswered.popleft()
            self.unanswered_bytes -= append.size
            if self.full is not None:
                self._has_room()
            if append.done is not None:
                append.done(durable, None)

    def _wait_for_room(self, error: PolarlessError) -> None:
        """Nothing of this append was written, and nothing behind it: send all again, later."""
        self._held_back = True
        self._attempt += 1
        self._world.clock.call_later(FULL_RETRY_S, self._try_again)
        if self.full is None:
            log.error("appends wait: %s", error)
            self.full = error
            if self.on_full is not None:
                self.on_full(error)

    def _try_again(self) -> None:
        if self._held_back and self._peer is not None:
            self._send_all()

    def _has_room(self) -> None:
        log.info("storage %s has room again", self.address)
        self.full = None
        if self.on_full is not None:
            self.on_full(None)

    def _send_all(self) -> None:
        self._held_back = False
        self._attempt += 1
        for append in list(self._unanswered):
            self._send(append)

    def _fail_appends(self, error: PolarlessError) -> None:
        failed, self._unanswered = self._unanswered, deque()
        self.unanswered_bytes = 0
        for append in failed:
            if append.done is not None:
                append.done(None, error)

    # Asking.

    async def fence(self, epoch: int, *, deadline_s: float = 10.0) -> LogTail:
        """Refuse lower epochs for ever; the log's tail. Raises `Fenced` if this one is lower."""
        self._hello["epoch"] = epoch
        tail, cts, next_page, mark, folded = await self._call(
            wire.FENCE, epoch, deadline_s=deadline_s
        )
        return LogTail(tail, cts, next_page, mark, folded, epoch)

    async def tail(self, *, deadline_s: float = 10.0) -> LogTail:
        """Where the log stands."""
        return LogTail(*await self._call(wire.TAIL, deadline_s=deadline_s))

    async def read_page(
        self, page_id: int, as_of: int, *, deadline_s: float = 5.0
    ) -> bytes | Newer | None:
        """The image exactly as of a durable LSN; None if there is no such page then.

        `Newer`: it is too late for that LSN; take a newer mark.
        """
        answer = await self._call(wire.READ_PAGE, page_id, as_of, deadline_s=deadline_s)
        return _page(answer)

    async def read_pages(
        self, page_ids: Sequence[int], as_of: int, *, deadline_s: float = 5.0
    ) -> list[bytes | Newer | None]:
        """`read_page` for several at once, of any number."""
        pages: list[bytes | Newer | None] = []
        for first in range(0, len(page_ids), wire.READ_PAGES_MAX):
            ids = list(page_ids[first : first + wire.READ_PAGES_MAX])
            answers = await self._call(wire.READ_PAGES, ids, as_of, deadline_s=deadline_s)
            pages += [_page(answer) for answer in answers]
        return pages

    async def page_lsns(
        self, page_ids: Sequence[int], as_of: int, *, deadline_s: float = 5.0
    ) -> list[int]:
        """The LSNs that up to `PAGE_LSNS_MAX` pages have as of a durable LSN.

        0: there is no such page then, or it is too late to tell.
        """
        return list(await self._call(wire.PAGE_LSNS, list(page_ids), as_of, deadline_s=deadline_s))

    async def read_log(
        self, from_lsn: int, max_bytes: int = wire.READ_LOG_BYTES_MAX, *, deadline_s: float = 10.0
    ) -> tuple[bytes, int]:
        """Whole durable groups from an LSN on, and the LSN behind them (the same: nothing more).

        At most a megabyte or one group is answered at once: ask until the tail is reached.
        """
        data, after = await self._call(wire.READ_LOG, from_lsn, max_bytes, deadline_s=deadline_s)
        return data, after

    async def verdict(
        self, transaction_id: int, from_lsn: int, *, deadline_s: float = 5.0
    ) -> tuple[str, int, bytes]:
        """(state, LSN, note) of a proxied client's transaction: see `polarless.wire.storage`."""
        answer = await self._call(wire.VERDICT, transaction_id, from_lsn, deadline_s=deadline_s)
        state, lsn, note = answer
        return state, lsn, note

    async def status(self, *, deadline_s: float = 2.0) -> dict[str, Any]:
        """Storage's numbers."""
        return dict(await self._call(wire.STATUS, deadline_s=deadline_s))

    async def _call(self, method: str, *args: Any, deadline_s: float) -> Any:
        """Call; again over a new connection if one is lost, until the deadline."""
        clock = self._world.clock
        deadline = clock.now() + deadline_s
        while True:
            peer = await self._connected(deadline, method)
            left = deadline - clock.now()
            if left <= 0:
                raise DeadlineExceeded(f"{method}: storage {self.address} did not answer in time")
            try:
                return await peer.call(method, *args, deadline_s=left)
            except PolarlessError:
                if self._closed or peer.closed is None:
                    raise


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _page(answer: Sequence[Any]) -> bytes | Newer | None:
    kind = answer[0]
    if kind == wire.PAGE:
        image: bytes = answer[1]
        return image
    return Newer(answer[1]) if kind == wire.NEWER else None


def _pieces(groups: bytes) -> list[tuple[int, bytes]]:
    """(offset, whole groups) of about `PIECE_BYTES` each."""
    if len(groups) <= PIECE_BYTES:
        return [(0, groups)]
    pieces: list[tuple[int, bytes]] = []
    first = offset = 0
    while offset < len(groups):
        found = redo.read_header(groups, offset)
        if found is None:
            raise LocalProtocolError(f"append: no group at byte {offset} of {len(groups)}")
        if offset > first and offset + found[1] - first > PIECE_BYTES:
            pieces.append((first, groups[first:offset]))
            first = offset
        offset += found[1]
    pieces.append((first, groups[first:]))
    return pieces
