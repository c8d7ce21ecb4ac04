"""The storage process's port: who may call what, and the calls as `storage.engine` takes them.

The node ends by itself (``ended``) when its disk fails, or when control says ``stop``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from polarless.errors import PolarlessError, RemoteProtocolError
from polarless.kernel.world import Listener, World
from polarless.net import lag, rpc
from polarless.wire import storage as wire
from storage.engine import Engine


class StorageNode(rpc.Service):
    """Serves an engine, which ``attach`` hands in once it has started."""

    def __init__(self, world: World, *, cluster: bytes) -> None:
        self.state = "starting"
        # The exit code, when the process has to end.
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.connections_lost = 0
        self._world = world
        self._cluster = cluster
        self._listener: Listener | None = None
        self._peers: set[rpc.Peer] = set()
        self._methods: dict[str, Callable[[rpc.Call], None]] = {
            wire.APPEND: self._append,
            wire.FENCE: self._fence,
            wire.READ_PAGE: self._read_page,
            wire.READ_PAGES: self._read_pages,
            wire.PAGE_LSNS: self._page_lsns,
            wire.READ_LOG: self._read_log,
            wire.VERDICT: self._verdict,
            wire.TAIL: lambda call: call.answer(self.engine.tail()),
            wire.STATUS: lambda call: call.answer(self.status()),
            wire.PING: self._ping,
            wire.STOP: self._stop,
        }

    async def serve(self, engine: Engine, host: str, port: int) -> int:
        """Listen; the port."""
        self.engine = engine
        self._listener = await rpc.serve(
            self._world.network, self, clock=self._world.clock, cluster=self._cluster,
            host=host, port=port,
        )  # fmt: skip
        self.state = "serving"
        return self._listener.port

    async def stop(self) -> None:
        """Accept nothing more, make durable what was accepted, close."""
        self.state = "stopping"
        if self._listener is not None:
            self._listener.close()
        await self.engine.stop()
        for peer in list(self._peers):
            peer.close()

    def end(self, code: int) -> None:
        """Ask the process to end with this exit code."""
        if not self.ended.done():
            self.ended.set_result(code)

    def status(self) -> dict[str, Any]:
        """See `polarless.wire.storage`."""
        counted = self.engine.status()
        return {
            "state": self.state, "connections": len(self._peers), **lag.status(), **counted,
        }  # fmt: skip

    # Serving.

    def on_hello(self, peer: rpc.Peer, fields: dict[str, Any]) -> dict[str, Any]:
        role = fields.get("role")
        if role not in wire.ROLES:
            raise RemoteProtocolError(f"role {role!r} is not one of {sorted(wire.ROLES)}")
        self._peers.add(peer)
        tail = self.engine.tail()
        return {"epoch": tail.epoch, "tail": tail.tail}

    def on_lost(self, peer: rpc.Peer, error: PolarlessError) -> None:
        self._peers.discard(peer)
        self.connections_lost += 1
        self.engine.forget(lambda reply: isinstance(reply, rpc.Call) and reply.peer is peer)

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        method = self._methods.get(call.method)
        if method is None:
            raise RemoteProtocolError(f"method {call.method!r} is not served here")
        method(call)

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        if method != wire.ANNOUNCE or peer.fields.get("role") != "compute":
            raise RemoteProtocolError(f"notification {method!r} is not expected here")
        epoch, mark = _ints(args, 2)
        self.engine.announce(epoch, mark)

    def _append(self, call: rpc.Call) -> None:
        _allow(call, "compute")
        if len(call.args) != 3 or type(call.args[2]) is not bytes:
            raise RemoteProtocolError("append takes (epoch, start LSN, groups)")
        epoch, start_lsn = _ints(call.args[:2], 2)
        # While stopping there is no answer: the writer sends it again to whoever serves next.
        if self.state == "serving":
            self.engine.append(epoch, start_lsn, call.args[2], call)

    def _fence(self, call: rpc.Call) -> None:
        _allow(call, "compute", "control")
        (epoch,) = _ints(call.args, 1)

        def done(error: PolarlessError | None) -> None:
            if error is not None:
                call.fail(error)
            else:
                call.answer(self.engine.tail()[:5])

        self.engine.fence(epoch, done)

    def _read_page(self, call: rpc.Call) -> None:
        page_id, as_of = _ints(call.args, 2)
        self._read(call, as_of, lambda: self.engine.read_page(page_id, as_of))

    def _read_pages(self, call: rpc.Call) -> None:
        if len(call.args) != 2 or not isinstance(call.args[0], tuple):
            raise RemoteProtocolError("read_pages takes ([page ids], as of)")
        ids = call.args[0]
        (as_of,) = _ints(call.args[1:], 1)
        if len(ids) > wire.READ_PAGES_MAX:
            raise RemoteProtocolError(f"{len(ids)} pages at once, at most {wire.READ_PAGES_MAX}")
        _ints(ids, len(ids))
        read = self.engine.read_page
        self._read(call, as_of, lambda: [read(page_id, as_of) for page_id in ids])

    def _page_lsns(self, call: rpc.Call) -> None:
        if len(call.args) != 2 or not isinstance(call.args[0], tuple):
            raise RemoteProtocolError("page_lsns takes ([page ids], as of)")
        ids = call.args[0]
        (as_of,) = _ints(call.args[1:], 1)
        if len(ids) > wire.PAGE_LSNS_MAX:
            raise RemoteProtocolError(f"{len(ids)} pages at once, at most {wire.PAGE_LSNS_MAX}")
        _ints(ids, len(ids))
        self._read(call, as_of, lambda: self.engine.page_lsns(ids, as_of))

    def _read(self, call: rpc.Call, as_of: int, read: Callable[[], Any]) -> None:
        def answer() -> None:
            try:
                call.answer(read())
            except PolarlessError as error:
                call.fail(error)

        self.engine.when_ingested(as_of, answer)

    def _read_log(self, call: rpc.Call) -> None:
        from_lsn, max_bytes = _ints(call.args, 2)
        call.answer(self.engine.read_log(from_lsn, max_bytes))

    def _verdict(self, call: rpc.Call) -> None:
        _allow(call, "compute")
        transaction_id, from_lsn = _ints(call.args, 2)
        tail = self.engine.chunk.durable
        self._read(call, tail, lambda: self.engine.verdict(transaction_id, from_lsn))

    def _ping(self, call: rpc.Call) -> None:
        epoch = self.engine.chunk.epoch
        call.answer({"state": self.state, "role": "storage", "epoch": epoch})

    def _stop(self, call: rpc.Call) -> None:
        _allow(call, "control")
        call.answer()
        self.end(0)


def _ints(args: tuple[Any, ...], count: int) -> tuple[int, ...]:
    if len(args) != count or any(type(arg) is not int or arg < 0 for arg in args):
        raise RemoteProtocolError(f"expected {count} non-negative integers")
    return args


def _allow(call: rpc.Call, *roles: str) -> None:
    role = call.peer.fields.get("role")
    if role not in roles:
        raise RemoteProtocolError(f"role {role!r} may not call {call.method}")
