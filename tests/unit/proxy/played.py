"""A proxy without a socket: the test is its clients and its compute nodes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from polarless.kernel.world import World
from polarless.proxy.link import Link, _Connection
from polarless.proxy.messages import message
from polarless.proxy.service import Proxy
from polarless.proxy.session import Session
from polarless.wire import relay as wire
from tests.fakes import LoopClock

READY = {
    wire.IDLE: b"Z\0\0\0\5I", wire.IN_TRANSACTION: b"Z\0\0\0\5T", wire.FAILED: b"Z\0\0\0\5E"
}  # fmt: skip
STARTUP = (
    (8 + len(b"user\0u\0\0")).to_bytes(4, "big") + (3 << 16).to_bytes(4, "big") + b"user\0u\0\0"
)
RANDOM_TOKEN = b"\7"


def query(text: str) -> bytes:
    return message(0x51, text.encode() + b"\0")


def complete(tag: str) -> bytes:
    return message(0x43, tag.encode() + b"\0")


class _Random:
    def token(self, byte_count: int) -> bytes:
        return RANDOM_TOKEN * byte_count

    def uniform(self, low: float, high: float) -> float:
        return low


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written


class Node:
    """One compute node, as its link to the proxy."""

    def __init__(self, proxy: Proxy, name: str) -> None:
        self.name = name
        self.link = proxy.links[name] = Link(proxy, name, "nowhere:1")
        self.transport = _Transport()
        self.connection = _Connection(self.link)
        self.connection.connection_made(self.transport)
        self.transport.take()
        # What the proxy has told each session, by its number here, and which came last.
        self.buffer = wire.FrameBuffer()

    def hello(self, *, epoch: int, writable: bool) -> None:
        fields = {"node": self.name, "epoch": epoch, "writable": writable, "lsn": 0}
        self.tell(wire.HELLO, 0, 0, wire.pack(fields))

    def tell(
        self, kind: int, session: int, cycle: int, payload: bytes = b"", flag: int = 0
    ) -> None:
        self.connection.data_received(
            wire.HEADER.pack(len(payload), session, cycle, kind, flag) + payload
        )

    async def heard(self) -> list[wire.Frame]:
        """The frames that the proxy has sent since the last time."""
        for _ in range(20):
            await asyncio.sleep(0)
        return list(self.buffer.take(self.transport.take()))

    def answer(self, frame: wire.Frame, *parts: bytes, state: int = wire.IDLE) -> None:
        """The whole answer to a cycle."""
        self.tell(wire.DATA, frame.session, frame.cycle, b"".join(parts) + READY[state], state)

    def die(self) -> None:
        self.connection.connection_lost(None)


class Client:
    """One client that was greeted by the writer."""

    def __init__(self, proxy: Proxy) -> None:
        self.session = Session(proxy)
        self.transport = _Transport()
        self.session.connection_made(self.transport)

    @classmethod
    async def greeted(cls, proxy: Proxy, writer: Node) -> Client:
        client = cls(proxy)
        client.session.data_received(STARTUP)
        (opened,) = await writer.heard()
        assert opened.kind == wire.OPEN
        writer.answer(opened)
        assert client.told() == READY[wire.IDLE]
        return client

    def say(self, data: bytes) -> None:
        self.session.data_received(data)

    def told(self) -> bytes:
        return self.transport.take()


def make_proxy() -> Proxy:
    """A proxy that listens nowhere."""
    world = World(
        network=cast("Any", None), clock=cast("Any", LoopClock()), random=_Random(),
        disk=cast("Any", None), memory=cast("Any", None),
    )  # fmt: skip
    return Proxy(world, {"node": "proxy-1", "cluster": "00"})
