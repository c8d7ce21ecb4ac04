"""The storage process: the log and the pages behind one port.

    append --> (held while folding lags) --> log --> durable --> answer --> pending --> folding
    read_page ------------------------------------------------> stored page + pending records

Start: examine the log, read-only; check that log and pages belong together; only then cut a torn
tail and write. Take up what is above the folded LSN again, then serve.

Back-pressure: pending records are bounded by ``pending_bytes_max``. Beyond it appends wait in
arrival order, with a log line and a counter, until folding has caught up. Folding waits for the
mark, and the mark for the writer's advance over what is durable already, so this always ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from polarless.config import StorageConfig
from polarless.errors import (
    CorruptData,
    Fenced,
    LocalProtocolError,
    PolarlessError,
    RemoteProtocolError,
)
from polarless.kernel.world import Listener, World
from polarless.net import rpc
from polarless.wire import storage as wire
from storage.log.chunk import Chunk
from storage.log.device import LogDevice
from storage.log.device import Submit as LogSubmit
from storage.log.reader import LogReader
from storage.log.recovery import Examined, examine, prepare
from storage.log.writer import LogWriter
from storage.pages.folded import Folded, decode_folded
from storage.pages.folding import Folding
from storage.pages.materialize import Pages
from storage.pages.pending import Pending
from storage.pages.store import PageStore
from storage.pages.store import Submit as PageSubmit

log = logging.getLogger(__name__)

# One step of decoding: well under a millisecond.
INGEST_BYTES = 128 * 1024


class StorageNode(rpc.Service):
    """Built over a device and a store; `start` opens them, `serve` listens.

    ``broken`` is set, to the exit code, when the process has to end by itself.
    """

    def __init__(
        self,
        world: World,
        config: StorageConfig,
        *,
        cluster: bytes,
        device: LogDevice,
        store: PageStore,
        submit_log: LogSubmit,
        submit_pages: PageSubmit,
    ) -> None:
        self._world = world
        self._config = config
        self._cluster = cluster
        self._device = device
        self._store = store
        self._submit_log = submit_log
        self._submit_pages = submit_pages
        self.state = "starting"
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._held: deque[rpc.Call] = deque()
        self._holding = False
        self.appends_held = 0
        self.torn_bytes = 0
        self.connections_lost = 0
        # Reads of what is durable and not decoded yet.
        self._early: list[rpc.Call] = []
        self._ingest_due = False
        self._folding_task: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._peers: set[rpc.Peer] = set()
        self._methods: dict[str, Callable[[rpc.Call], None]] = {
            wire.APPEND: self._append,
            wire.FENCE: self._fence,
            wire.READ_PAGE: self._read_page,
            wire.READ_PAGES: self._read_pages,
            wire.READ_LOG: self._read_log,
            wire.TAIL: lambda call: call.answer(self._tail()),
            wire.STATUS: lambda call: call.answer(self.status()),
            wire.PING: self._ping,
            wire.STOP: self._stop,
        }

    # Life.

    async def start(self, examined: Examined, folded: Folded) -> None:
        """Make the log ready and take up what is not folded. `check_together` came before."""
        config = self._config
        prepare(self._device, self._cluster, examined)
        self.torn_bytes = examined.torn_bytes
        segments = examined.segments
        self.reader = LogReader(self._device, segments)
        self.chunk = Chunk(
            epoch=examined.epoch,
            tail=examined.tail,
            cts=max(examined.cts, folded.cts),
            next_page=max(examined.next_page, folded.next_page),
            mark=folded.mark,
            read=self.reader.bytes_at,
        )
        self.writer = LogWriter(
            self._device,
            self._submit_log,
            self.chunk,
            cluster=self._cluster,
            segments=segments,
            segment_bytes=config.segment_bytes,
            on_durable=self._on_durable,
            on_broken=self._on_broken,
        )
        self.pending = Pending(folded.lsn, folded.cts, folded.next_page)
        self.pages = Pages(self._store, self.pending, cache_bytes_max=config.cache_bytes_max)
        self.folding = Folding(
            self.pages,
            self._submit_pages,
            self._world.clock,
            cluster=self._cluster,
            mark=self.chunk.mark,
            start_bytes=config.fold_start_bytes,
            urgent_bytes=config.pending_bytes_max * 3 // 4,
            pages_max=config.fold_pages_max,
            idle_s=config.fold_idle_s,
            on_folded=self._on_folded,
            on_broken=self._on_broken,
        )
        await self._take_up()
        self._folding_task = asyncio.get_running_loop().create_task(self.folding.run())
        self.state = "serving"

    async def _take_up(self) -> None:
        """Decode the log above the folded LSN; fold on the way if it is more than memory may hold.

        Up to the last known mark if that suffices, else beyond it: see `storage.pages.folding`.
        """
        pending, tail = self.pending, self.chunk.durable
        for position, data in self.reader.chunks(pending.folded, tail):
            pending.feed(position, data)
            while pending.step(INGEST_BYTES):
                pass
            while pending.bytes > self._config.pending_bytes_max:
                forced = self.folding.limit <= pending.folded
                limit = pending.ingested if forced else self.folding.limit
                if not await self.folding.round(limit, forced=forced):
                    raise self.folding.failed or LocalProtocolError("folding made no progress")
        log.info(
            "log from %d to %d, epoch %d, folded to %d, %d groups taken up",
            self.reader.first, tail, self.chunk.epoch, pending.folded, pending.groups,
        )  # fmt: skip

    async def serve(self, host: str, port: int) -> int:
        """Listen; the port."""
        self._listener = await rpc.serve(
            self._world.network, self, clock=self._world.clock, cluster=self._cluster,
            host=host, port=port,
        )  # fmt: skip
        return self._listener.port

    async def stop(self) -> None:
        """Accept nothing more, make durable what was accepted, end folding, write the seal."""
        self.state = "stopping"
        if self._listener is not None:
            self._listener.close()
        self._held.clear()
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[None] = loop.create_future()
        self.writer.when_idle(lambda: idle.set_result(None))
        await idle
        self.folding.stop()
        if self._folding_task is not None:
            await self._folding_task
        sealed: asyncio.Future[None] = loop.create_future()
        self.writer.seal(lambda _: sealed.set_result(None))
        await sealed
        for peer in list(self._peers):
            peer.close()

    # Serving.

    def on_hello(self, peer: rpc.Peer, fields: dict[str, Any]) -> dict[str, Any]:
        role = fields.get("role")
        if role not in wire.ROLES:
            raise RemoteProtocolError(f"role {role!r} is not one of {sorted(wire.ROLES)}")
        self._peers.add(peer)
        return {"epoch": self.chunk.epoch, "tail": self.chunk.durable}

    def on_lost(self, peer: rpc.Peer, error: PolarlessError) -> None:
        self._peers.discard(peer)
        self.connections_lost += 1

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        method = self._methods.get(call.method)
        if method is None:
            raise RemoteProtocolError(f"method {call.method!r} is not served here")
        method(call)

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        if method != wire.ANNOUNCE or peer.fields.get("role") != "compute":
            raise RemoteProtocolError(f"notification {method!r} is not expected here")
        epoch, mark = _ints(args, 2)
        if self.chunk.announce(epoch, mark):
            self.folding.mark = self.chunk.mark
            self.folding.poke()

    def _append(self, call: rpc.Call) -> None:
        _allow(call, "compute")
        if len(call.args) != 3 or type(call.args[2]) is not bytes:
            raise RemoteProtocolError("append takes (epoch, start LSN, groups)")
        _ints(call.args[:2], 2)
        if self.state != "serving":
            # No answer: the writer sends it again to whoever serves next.
            return
        if self._held or self._over_bound():
            # Fenced ones need not wait to hear it.
            self.chunk.check_epoch(call.args[0])
            self._hold(call)
            return
        epoch, start_lsn, groups = call.args
        self.writer.append(epoch, start_lsn, groups, call)

    def _over_bound(self) -> bool:
        waiting = self.pending.bytes + self.chunk.queued_bytes
        return waiting > self._config.pending_bytes_max

    def _hold(self, call: rpc.Call) -> None:
        self._held.append(call)
        self.appends_held += 1
        if not self._holding:
            self._holding = True
            log.warning(
                "back-pressure: appends wait, %d bytes of records are not folded "
                "(folded %d, mark %d, durable %d)",
                self.pending.bytes, self.pending.folded, self.chunk.mark, self.chunk.durable,
            )  # fmt: skip

    def _release(self) -> None:
        while self._held and not self._over_bound():
            call = self._held.popleft()
            try:
                epoch, start_lsn, groups = call.args
                self.writer.append(epoch, start_lsn, groups, call)
            except PolarlessError as error:
                call.fail(error)
        if self._holding and not self._held:
            self._holding = False
            log.info("back-pressure: over, folded to %d", self.pending.folded)

    def _fence(self, call: rpc.Call) -> None:
        _allow(call, "compute", "control")
        (epoch,) = _ints(call.args, 1)

        def done(error: PolarlessError | None) -> None:
            if error is not None:
                call.fail(error)
            else:
                log.info("fenced by epoch %d at %d", epoch, self.chunk.durable)
                call.answer(self._tail()[:5])

        self.writer.fence(epoch, done)
        held, self._held = self._held, deque()
        for waiting in held:
            if waiting.args[0] >= epoch:
                self._held.append(waiting)
            else:
                waiting.fail(Fenced(f"epoch {waiting.args[0]} is over: fenced by epoch {epoch}"))

    def _read_page(self, call: rpc.Call) -> None:
        page_id, as_of = _ints(call.args, 2)
        if self._readable(call, as_of):
            call.answer(self.pages.read(page_id, as_of))

    def _read_pages(self, call: rpc.Call) -> None:
        if len(call.args) != 2 or not isinstance(call.args[0], tuple):
            raise RemoteProtocolError("read_pages takes ([page ids], as of)")
        ids, as_of = call.args
        if len(ids) > wire.READ_PAGES_MAX:
            raise RemoteProtocolError(f"{len(ids)} pages at once, at most {wire.READ_PAGES_MAX}")
        _ints(ids, len(ids))
        _ints((as_of,), 1)
        if self._readable(call, as_of):
            call.answer([self.pages.read(page_id, as_of) for page_id in ids])

    def _readable(self, call: rpc.Call, as_of: int) -> bool:
        """Whether records up to ``as_of`` are decoded; if not yet, the call is kept for then."""
        if as_of > self.chunk.durable:
            raise LocalProtocolError(
                f"{call.method}: as of {as_of}, but the log is durable to {self.chunk.durable}"
            )
        if as_of <= self.pending.ingested:
            return True
        self._early.append(call)
        return False

    def _read_log(self, call: rpc.Call) -> None:
        from_lsn, max_bytes = _ints(call.args, 2)
        call.answer(
            self.reader.read(
                from_lsn, min(max(max_bytes, 1), wire.READ_LOG_BYTES_MAX), self.chunk.durable
            )
        )

    def _tail(self) -> wire.LogTail:
        chunk = self.chunk
        return wire.LogTail(
            chunk.durable, chunk.cts, chunk.next_page, chunk.mark, self.pending.folded, chunk.epoch
        )

    def _ping(self, call: rpc.Call) -> None:
        call.answer({"state": self.state, "role": "storage", "epoch": self.chunk.epoch})

    def _stop(self, call: rpc.Call) -> None:
        _allow(call, "control")
        call.answer()
        self.end(0)

    def end(self, code: int) -> None:
        """Ask the process to end with this exit code."""
        if not self.ended.done():
            self.ended.set_result(code)

    def status(self) -> dict[str, Any]:
        """Numbers for people and tests; LSNs and bytes."""
        chunk, pending = self.chunk, self.pending
        return {
            "state": self.state,
            "epoch": chunk.epoch,
            "tail": chunk.accepted,
            "durable": chunk.durable,
            "mark": chunk.mark,
            "folded": pending.folded,
            "cts": chunk.cts,
            "next_page": chunk.next_page,
            "first": self.reader.first,
            "segments": len(self.writer.segments),
            "pending_bytes": pending.bytes,
            "pending_pages": len(pending.pages),
            "pending_groups": pending.groups,
            "cache_bytes": self.pages.cache_bytes,
            "torn_bytes": self.torn_bytes,
            "appends_held": self.appends_held,
            "holding": len(self._held),
            "connections": len(self._peers),
            "folding": str(self.folding.failed) if self.folding.failed else "ok",
            **self.writer.stats.snapshot(),
            **self.folding.stats.snapshot(),
            **self.pages.stats.snapshot(),
            **self._store.statistics(),
        }

    # From below.

    def _on_durable(self, start_lsn: int, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.pending.feed(start_lsn, piece)
            start_lsn += len(piece)
        if not self._ingest_due:
            self._ingest()

    def _ingest(self) -> None:
        self._ingest_due = False
        try:
            more = self.pending.step(INGEST_BYTES)
        except PolarlessError as error:
            # The group was checked when it came; what it says is beyond this node.
            log.error("records cannot be decoded: %s", error)
            self.end(1)
            return
        if more:
            self._ingest_due = True
            self._world.clock.call_soon(self._ingest)
        if self._early:
            early, self._early = self._early, []
            for call in early:
                try:
                    self._methods[call.method](call)
                except PolarlessError as error:
                    call.fail(error)
        self.folding.poke()

    def _on_folded(self) -> None:
        keep = self.chunk.durable - self._config.retention_bytes
        self.writer.remove_below(min(self.pending.folded, keep))
        if self._held:
            self._release()

    def _on_broken(self, error: BaseException) -> None:
        log.critical("storage ends: a write to its disk failed: %r", error)
        self.end(4)


def open_checked(
    device: LogDevice, store_state: bytes | None, cluster: bytes, *, accept_loss_at: int | None
) -> tuple[Examined, Folded]:
    """Examine log and pages together without changing either. Raises `CorruptData`."""
    folded = decode_folded(store_state, cluster)
    examined = examine(
        device, cluster, known_lsn=max(folded.lsn, folded.mark), accept_loss_at=accept_loss_at
    )
    if examined.segments and examined.segments[0] > folded.lsn:
        raise CorruptData(
            f"pages are folded to {folded.lsn}, but the log is kept only from "
            f"{examined.segments[0]} on"
        )
    return examined, folded


def _ints(args: tuple[Any, ...], count: int) -> tuple[int, ...]:
    if len(args) != count or any(type(arg) is not int or arg < 0 for arg in args):
        raise RemoteProtocolError(f"expected {count} non-negative integers")
    return args


def _allow(call: rpc.Call, *roles: str) -> None:
    role = call.peer.fields.get("role")
    if role not in roles:
        raise RemoteProtocolError(f"role {role!r} may not call {call.method}")
