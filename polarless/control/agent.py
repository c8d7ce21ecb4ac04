"""How a node obeys control: the few calls that every node answers on its own port.

A node's `rpc.Service` asks `serves(peer)` and hands such a connection's calls to its `Agent`::

    self.agent = Agent(ping=self.ping, status=self.status, stop=self.stop,
                       methods={"promote": self.promote})

    def on_call(self, peer, call):
        if serves(peer):
            self.agent.on_call(call)
            return
        ...

``ping() -> {"state", "role", "epoch", ...}`` is answered ten times a second and must be cheap: an
answer that takes longer than 1.5 s means that the node hangs. ``state`` is "serving" or what the
node is doing instead ("promoting", "rebuilding"); compute adds "mark" and "home_epoch", a memory
node "home_epoch". ``methods`` get the `Call` and answer it at once or later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polarless.errors import RemoteProtocolError
from polarless.net.descriptors import SharedListener, share_listener
from polarless.net.rpc import Call, Peer
from polarless.wire.control import CONTROL

__all__ = ["Agent", "SharedListener", "serves", "share_listener"]


def serves(peer: Peer) -> bool:
    """Whether the other side of this connection is control."""
    return peer.fields.get("role") == CONTROL


class Agent:
    """Answers control."""

    def __init__(
        self,
        *,
        ping: Callable[[], dict[str, Any]],
        status: Callable[[], dict[str, Any]],
        stop: Callable[[], object],
        methods: Mapping[str, Callable[[Call], object]] | None = None,
    ) -> None:
        self._ping = ping
        self._status = status
        self._stop = stop
        self._methods = dict(methods or {})

    def on_call(self, call: Call) -> None:
        """Serve a call of control. Raises `RemoteProtocolError` for one that is unknown."""
        if call.method == "ping":
            call.answer(self._ping())
        elif call.method == "status":
            call.answer(self._status())
        elif call.method == "stop":
            # Answered first: the connection is gone soon.
            call.answer()
            self._stop()
        elif call.method in self._methods:
            self._methods[call.method](call)
        else:
            raise RemoteProtocolError(f"this node has no method {call.method!r} for control")
