"""Appends that wait for folding, and the connections that they came over."""

from __future__ import annotations

from typing import Any, cast

import pytest

from polarless.config import StorageConfig
from polarless.errors import ConnectionLost
from polarless.net import rpc
from polarless.wire import storage as wire
from storage.backends.memory import MemoryLog, MemoryPages, Steps
from storage.engine import Engine
from storage.log import recovery
from storage.node import StorageNode
from storage.pages.folded import Folded
from tests.fakes import LoopClock
from tests.unit.storage.test_log import CLUSTER, Log, group


@pytest.mark.allow_log("back-pressure: appends wait")
async def test_a_lost_connection_takes_its_waiting_appends_along() -> None:
    log = Log(MemoryLog())
    log.fence(1)
    steps = Steps()
    engine = Engine(
        LoopClock(), StorageConfig(pending_bytes_max=0), cluster=CLUSTER, device=log.device,
        store=MemoryPages(), submit_log=steps.submit, submit_pages=steps.submit,
        examined=recovery.examine(log.device, CLUSTER), folded=Folded(),
        on_broken=lambda code: None,
    )  # fmt: skip
    node = StorageNode(cast(Any, None), cluster=CLUSTER)
    node.engine, node.state = engine, "serving"
    first = group(0, 1)
    second = group(len(first), 2)

    def connected() -> rpc.Peer:
        peer = rpc.Peer(node, clock=LoopClock(), cluster=CLUSTER, accepting=True)
        peer.fields = {"role": "compute"}
        for call_id, args in enumerate([(1, 0, first), (1, len(first), second)]):
            node.on_call(peer, rpc.Call(peer, call_id, wire.APPEND, args, 0))
        return peer

    lost = connected()
    # Nothing of the first is folded, so the second waits.
    assert engine.status()["holding"] == 1
    node.on_lost(lost, ConnectionLost("gone"))
    assert engine.status()["holding"] == 0
    connected()
    # Both came again, and only the newer connection's wait.
    assert engine.status()["holding"] == 2
