"""``verbs``: what our one-sided operations cost, beside the least that any such thing costs.

Over TCP: READ and WRITE of 8 bytes and of a page, one and sixteen in flight, against a raw protocol
that sends the same number of bytes each way between two processes on the same loops and checks
nothing. In shared memory: reading a page out of a slot, against copying as many bytes and taking
their CRC. Values are operations per second; a ratio of 1 is the limit itself.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import uvloop

from bench import verbs_target
from bench.shapes import Result, Row, Tell
from memory_pool.fabric import queue_pair, shared
from memory_pool.fabric.queue_pair import QueuePair
from memory_pool.fabric.verbs import OK, READ, WRITE
from polarless.errors import PolarlessError
from polarless.kernel.page import OVERFLOW, PAGE_BYTES, PAYLOAD_BYTES_MAX, Frame, encode
from polarless.net.system import system_world
from polarless.wire.memory import SLOT_BYTES, slot_contents

# (name, operation, bytes, in flight)
CASES: Final = tuple(
    (f"{name} {label} depth {depth}", op, size, depth)
    for op, name in ((READ, "READ"), (WRITE, "WRITE"))
    for size, label in ((8, "8 B"), (PAGE_BYTES, "16 KiB"))
    for depth in (1, 16)
)
DEADLINE_S: Final = 5.0


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    pairs = int(options.get("pairs") or (1 if quick else 5))
    seconds = float(options.get("seconds") or (0.3 if quick else 2))
    target = subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.verbs_target"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert target.stdout is not None
        ports = [int(port) for port in target.stdout.readline().split()]
        rows = uvloop.run(_over_tcp(ports, pairs, seconds, tell))
    finally:
        target.communicate(timeout=10)
    tell("shared memory", 0.9)
    rows.append(_in_shared_memory(pairs, seconds))
    return Result("verbs", rows, {"pairs": pairs, "seconds": seconds})


async def _over_tcp(ports: list[int], pairs: int, seconds: float, tell: Tell) -> list[Row]:
    world = system_world()
    pair = await queue_pair.connect(
        world.network, clock=world.clock, cluster=verbs_target.CLUSTER, name=verbs_target.NAME,
        incarnation=1, address=f"127.0.0.1:{ports[0]}", deadline_s=DEADLINE_S,
    )  # fmt: skip
    _, raw = await asyncio.get_running_loop().create_connection(RawClient, "127.0.0.1", ports[1])
    rows = []
    for index, (name, op, size, depth) in enumerate(CASES):
        tell(name, 0.9 * index / len(CASES))
        row = Row(name, "operations/s")
        for number in range(pairs):
            kinds: list[tuple[list[float], Callable[[Callable[[], None]], None]]] = [
                (row.ours, _verb(pair, op, size)),
                (row.theirs, raw.sender(op, size)),
            ]
            for values, post in kinds if number % 2 == 0 else kinds[::-1]:
                values.append(await _rate(post, depth, seconds))
        rows.append(row)
    pair.close()
    return rows


def _verb(pair: QueuePair, op: int, size: int) -> Callable[[Callable[[], None]], None]:
    data = bytes(size)

    def post(then: Callable[[], None]) -> None:
        def done(status: int, _: Any) -> None:
            if status != OK:
                raise PolarlessError(f"verb failed: {queue_pair.STATUS_NAMES[status]}")
            then()

        if op == READ:
            pair.read(verbs_target.RKEY, 0, size, done, deadline_s=DEADLINE_S)
        else:
            pair.write(verbs_target.RKEY, 0, data, done, deadline_s=DEADLINE_S)

    return post


class RawClient(asyncio.Protocol):
    """Counts the bytes of answers; they come in the order of the requests."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: list[Callable[[], None]] = []
        self._received = 0
        self._answer_bytes = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        count, self._received = divmod(self._received, self._answer_bytes)
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        for then in ready:
            then()

    def sender(self, op: int, size: int) -> Callable[[Callable[[], None]], None]:
        """Posts requests with as many bytes each way as the verb has, its headers included."""
        follow = 64 - verbs_target.RAW_HEAD + (size if op == WRITE else 0)
        answer = 24 + (size if op == READ else 0)
        request = follow.to_bytes(4, "little") + answer.to_bytes(4, "little") + bytes(follow)
        self._answer_bytes = answer

        def post(then: Callable[[], None]) -> None:
            assert self._transport is not None
            self._waiting.append(then)
            self._transport.write(request)

        return post


async def _rate(post: Callable[[Callable[[], None]], None], depth: int, seconds: float) -> float:
    """Operations per second with ``depth`` of them in flight all the time."""
    ended = asyncio.get_running_loop().create_future()
    count = in_flight = 0
    began = time.perf_counter()
    end = began + seconds

    def again() -> None:
        nonlocal count, in_flight
        count += 1
        if time.perf_counter() < end:
            post(again)
        else:
            in_flight -= 1
            if not in_flight and not ended.done():
                ended.set_result(None)

    for _ in range(depth):
        in_flight += 1
        post(again)
    await asyncio.wait_for(ended, seconds + DEADLINE_S)
    return round(count / (time.perf_counter() - began), 1)


def _in_shared_memory(pairs: int, seconds: float) -> Row:
    row = Row("READ 16 KiB shared memory", "operations/s", notes={"against": "memcpy and CRC"})
    memory = system_world().memory
    assert memory is not None
    page_id, slots = 7, 64
    name = f"polarless-bench-{time.monotonic_ns()}"
    owner = memory.create(name, slots * SLOT_BYTES)
    slab = shared.attach(memory, name, slots * SLOT_BYTES)
    assert slab is not None
    try:
        image = encode(Frame(page_id, OVERFLOW, 1, blob=bytes(PAYLOAD_BYTES_MAX)))
        for slot in range(slots):
            contents = slot_contents(page_id, 1, 2, image)
            owner.buffer[slot * SLOT_BYTES : slot * SLOT_BYTES + len(contents)] = contents
        buffer, length = slab.buffer, len(image)

        def ours(slot: int) -> None:
            if shared.read_slot(slab, slot, page_id, 2) is None:
                raise PolarlessError("the slot does not verify")

        def theirs(slot: int) -> None:
            zlib.crc32(bytes(buffer[slot * SLOT_BYTES : slot * SLOT_BYTES + length]))

        for number in range(pairs):
            kinds = [(row.ours, ours), (row.theirs, theirs)]
            for values, one in kinds if number % 2 == 0 else kinds[::-1]:
                values.append(_calls(one, slots, seconds))
    finally:
        slab.close()
        owner.close()
    return row


def _calls(one: Callable[[int], None], slots: int, seconds: float) -> float:
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for slot in range(slots):
            one(slot)
        count += slots
    return round(count / (time.perf_counter() - began), 1)
