"""Control's line to one node's process: waits for its READY, connects, pings, calls.

It lives as long as the process and tells what it sees as events. A connection that breaks is opened
again while the process lives: that a process has ended is said by its pidfd alone, and that it
hangs by its silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from polarless.config import ControlConfig
from polarless.control.decisions import Event, Pong, Ready, Wanted
from polarless.errors import ConnectionLost, DeadlineExceeded, PolarlessError
from polarless.kernel.world import World
from polarless.net import rpc
from polarless.net.datadir import DataDirectory
from polarless.net.processes import ProcessId
from polarless.wire.control import CONTROL, parse_ready

log = logging.getLogger(__name__)

READY_POLL_S: Final = 0.015
RECONNECT_S: Final = 0.05


class Link(rpc.Service):
    """One process. ``ready`` holds what its READY line said."""

    def __init__(
        self,
        name: str,
        process: ProcessId,
        address: str,
        *,
        world: World,
        data: DataDirectory,
        cluster: bytes,
        config: ControlConfig,
        emit: Callable[[Event], None],
    ) -> None:
        self.name = name
        self.process = process
        self.address = address
        self.ready: dict[str, Any] = {}
        self._closed = False
        self._world = world
        self._data = data
        self._cluster = cluster
        self._config = config
        self._emit = emit
        self._peer: rpc.Peer | None = None

    async def run(self) -> None:
        """Serve until `close`."""
        clock = self._world.clock
        while not self.is_closed() and not self.ready:
            found = parse_ready(self._data.text(f"run/{self.name}.ready"))
            if found is None:
                await clock.sleep(READY_POLL_S)
                continue
            self.ready = {"": True, **found}
            self.address = str(found.get("address", self.address))
        first = True
        while not self.is_closed():
            try:
                peer = await self._connected()
                fields = await peer.call("ping", deadline_s=self._config.hung_after_s)
            except DeadlineExceeded:
                continue
            except PolarlessError as error:
                log.debug("%s: no ping: %s", self.name, error)
                await clock.sleep(RECONNECT_S)
                continue
            if self.is_closed():
                return
            self._emit((Ready if first else Pong)(self.name, dict(fields)))
            first = False
            await clock.sleep(self._config.ping_interval_s)

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        """Call the node. Raises what it answers, `ConnectionLost` or `DeadlineExceeded`."""
        peer = await self._connected()
        return await peer.call(method, *args, deadline_s=deadline_s)

    def is_closed(self) -> bool:
        """Whether `close` was called, be it while something waited."""
        return self._closed

    def close(self) -> None:
        """The process has ended, or control ends."""
        self._closed = True
        if self._peer is not None:
            self._peer.close()

    async def _connected(self) -> rpc.Peer:
        if self.is_closed():
            raise ConnectionLost(f"{self.name}: its process has ended")
        if self._peer is not None and self._peer.closed is None:
            return self._peer
        peer = await rpc.connect(
            self._world.network,
            self,
            clock=self._world.clock,
            cluster=self._cluster,
            address=self.address,
            hello={"node": CONTROL, "role": CONTROL, "epoch": 0},
        )
        peer.name = self.name
        # Two may have connected at once; one is enough.
        if self._peer is not None and self._peer.closed is None:
            peer.close()
            return self._peer
        self._peer = peer
        if self.is_closed():
            peer.close()
        return peer

    def on_notify(self, peer: rpc.Peer, method: str, args: tuple[Any, ...]) -> None:
        """A proxy says that a client waits for compute; else control asks for what it needs."""
        if method == "wanted":
            self._emit(Wanted(self.name))
