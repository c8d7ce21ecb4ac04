"""The socket's side of a session: what is buffered, in both directions, and its bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from compute.pgwire.framing import FrameReader
from polarless.errors import Overloaded, PolarlessError

if TYPE_CHECKING:
    from compute.session.host import Host
    from compute.session.waits import Wait


class Link(asyncio.Protocol):
    """A connection's input that was not handled yet, and its output that was not written yet.

    ``out`` is gathered and written at once: one write per connection and wake-up is what makes
    small statements cheap. While ``writes_paused`` the client does not read its answers, and the
    session handles nothing.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.limits = host.limits
        self.clock = host.clock
        self.wait: Wait | None = None
        self.reader = FrameReader()
        self.out: list[bytes] = []
        # A RowDescription, sent before the first row of the statement at hand.
        self.head = b""
        self.transport: asyncio.Transport | None = None
        self.closing = False
        self.writes_paused = False
        self.reads_paused = False
        # What this connection adds to ``host.partial_bytes``.
        self.partial_bytes = 0
        self._writable: asyncio.Future[None] | None = None

    def process(self) -> None:
        """Handle what has come. `Session` does."""
        raise NotImplementedError

    def die(self, error: PolarlessError) -> None:
        """Say why, and close. `Session` does."""
        raise NotImplementedError

    # Output.

    def write(self, data: bytes) -> None:
        """Write now, behind what has been answered so far."""
        if self.out:
            self.out.append(data)
            self.flush()
        else:
            self.transport.write(data)  # type: ignore[union-attr]

    def flush(self) -> None:
        """Write what has been answered so far."""
        out = self.out
        if out:
            self.out = []
            if self.transport is not None and not self.closing:
                self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def emit_head(self) -> None:
        """The RowDescription, if it was not sent yet."""
        if self.head:
            self.out.append(self.head)
            self.head = b""

    def close_transport(self) -> None:
        """Close when what was written has been read, or a little later."""
        transport = self.transport
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                self.clock.call_later(self.limits.farewell_s, transport.abort)

    def pause_writing(self) -> None:
        self.writes_paused = True

    def resume_writing(self) -> None:
        self.writes_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        if self.wait is None and not self.closing:
            self.clock.call_soon(self.process)

    async def writable(self) -> None:
        """Return when the client has read enough, or is gone."""
        if self.writes_paused and not self.closing:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    # Input.

    def pause_reading(self) -> None:
        """Take no more input for now. `process` and COPY resume it."""
        if not self.reads_paused and self.transport is not None:
            self.reads_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take input again."""
        if self.reads_paused and self.transport is not None:
            self.reads_paused = False
            if not self.closing:
                self.transport.resume_reading()

    def account(self) -> None:
        """Keep the sum of what sessions hold of messages that are not whole below its bound."""
        held = self.reader.buffered
        self.host.partial_bytes += held - self.partial_bytes
        self.partial_bytes = held
        limit = self.limits.partial_bytes_max
        if self.host.partial_bytes > limit and self.reader.wanted > held:
            self.die(
                Overloaded(
                    f"messages that are still arriving exceed {limit} bytes",
                    hint="Send large values in several statements, or load with COPY.",
                )
            )

    def drop_input(self) -> None:
        """Nothing more will be handled."""
        self.host.partial_bytes -= self.partial_bytes
        self.partial_bytes = 0
        self.reader = FrameReader()
