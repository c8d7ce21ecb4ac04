"""A client of the simulated cluster: PostgreSQL's simple protocol over the simulated network."""

from __future__ import annotations

import asyncio
from typing import Any


class SimError(Exception):
    """What the server answered. ``args``: (SQLSTATE, message)."""


class SimClient(asyncio.Protocol):
    """`connect`, then one `query` at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._rows: list[tuple[str | None, ...]] = []
        self._error: SimError | None = None
        self._answer: asyncio.Future[None] | None = None
        self._lost: Exception | None = None

    @classmethod
    async def connect(cls, network: Any, address: str) -> SimClient:
        """A session that is ready. Raises OSError, `SimError`."""
        port = int(address.rpartition(":")[2])
        client = cls()
        await network.connect(lambda: client, "127.0.0.1", port)
        body = (3 << 16).to_bytes(4, "big") + b"user\0sim\0database\0sim\0\0"
        await client._ask((len(body) + 4).to_bytes(4, "big") + body)
        return client

    async def query(self, text: str) -> list[tuple[str | None, ...]]:
        """The rows. Raises `SimError`, ConnectionError."""
        body = text.encode() + b"\0"
        await self._ask(b"Q" + (len(body) + 4).to_bytes(4, "big") + body)
        return self._rows

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    async def _ask(self, data: bytes) -> None:
        if self._lost is not None or self._transport is None:
            raise ConnectionError("the connection is lost")
        self._rows, self._error = [], None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        await self._answer
        if self._error is not None:
            raise self._error

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = ConnectionError("the connection is lost")
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._error or self._lost)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 5:
            length = int.from_bytes(self._data[1:5], "big")
            if len(self._data) < 1 + length:
                return
            kind, body = self._data[:1], self._data[5 : 1 + length]
            self._data = self._data[1 + length :]
            if kind == b"D":
                self._rows.append(_row(body))
            elif kind == b"E":
                fields = {part[:1]: part[1:].decode() for part in body.split(b"\0") if part}
                self._error = SimError(fields.get(b"C", "?"), fields.get(b"M", "?"))
            elif kind == b"Z" and self._answer is not None and not self._answer.done():
                self._answer.set_result(None)


def _row(body: bytes) -> tuple[str | None, ...]:
    count = int.from_bytes(body[:2], "big")
    position = 2
    values: list[str | None] = []
    for _ in range(count):
        length = int.from_bytes(body[position : position + 4], "big", signed=True)
        position += 4
        if length < 0:
            values.append(None)
        else:
            values.append(body[position : position + length].decode())
            position += length
    return tuple(values)
