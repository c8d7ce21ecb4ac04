"""The other side of ``verbs``: a process with registered memory, and a raw server beside it.

Both listeners run on one uvloop. The raw one knows no keys and no bounds: for a request of fixed
length it writes a fixed answer, which is the least that any protocol of this shape has to do.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Final

from memory_pool.fabric import nic, verbs
from memory_pool.fabric.region import MAY_ATOMIC, MAY_READ, MAY_WRITE, KeyTable, Region
from polarless.net.system import run, system_world

CLUSTER: Final = b"benchmark-verbs!"
NAME: Final = "bench"
RKEY: Final = b"k" * verbs.RKEY_BYTES
REGION_BYTES: Final = 4 * 1024 * 1024
# A raw request: how many bytes follow it, and how many the answer has.
RAW_HEAD: Final = 8


class Raw(asyncio.Protocol):
    """Answers every request with as many bytes as it asks for."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answer = bytes(verbs.LENGTH_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        buffer = self._buffer
        whole = buffer + data if buffer else data
        at, answers = 0, []
        while len(whole) - at >= RAW_HEAD:
            follow = int.from_bytes(whole[at : at + 4], "little")
            wanted = int.from_bytes(whole[at + 4 : at + 8], "little")
            if len(whole) - at < RAW_HEAD + follow:
                break
            at += RAW_HEAD + follow
            answers.append(self._answer[:wanted])
        self._buffer = bytearray(whole[at:])
        if answers:
            self._transport.writelines(answers)


async def serve() -> int:
    """Listen, print both ports, and stay until standard input ends."""
    world = system_world()
    memory = bytearray(REGION_BYTES)
    keys = KeyTable()
    keys.grant(
        RKEY, Region("bench", memoryview(memory)), MAY_READ | MAY_WRITE | MAY_ATOMIC, (NAME, 1)
    )
    fabric = await nic.serve(
        world.network, keys, clock=world.clock, cluster=CLUSTER, node="target", host="127.0.0.1",
        port=0, stats=nic.NicStats(),
    )  # fmt: skip
    raw = await world.network.listen(Raw, "127.0.0.1", 0)
    print(fabric.port, raw.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(run(serve()))
