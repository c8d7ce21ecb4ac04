"""Cuts a client's byte stream into messages, within bounds.

::

    byte   type            one letter, see FRONTEND_TYPES
    u32    length          big-endian, counts itself and the body
    bytes  body

Promises, for any bytes in any portions:

* The same messages come out however the stream was cut.
* A length is checked as soon as its five bytes are there, before anything waits for the rest:
  `LARGE_BYTES_MAX` for the four types that carry statements, values or rows, `SMALL_BYTES_MAX` for
  all others. An unknown type or a length out of bounds raises `RemoteProtocolError`; the stream has
  no meaning after that and the connection must be closed.
* Appending is linear in the bytes that arrive, even for one message in a thousand portions.

A whole message that arrives alone is never copied into a buffer of its own first.
"""

from __future__ import annotations

from typing import Final

from polarless.errors import RemoteProtocolError

LARGE_BYTES_MAX: Final = 128 * 1024 * 1024
# PostgreSQL's limit for messages that have no reason to be long.
SMALL_BYTES_MAX: Final = 10_000

LARGE_TYPES: Final = frozenset(b"QPBd")
FRONTEND_TYPES: Final = frozenset(b"QPBEDCSHXdcfF")

Message = tuple[int, bytes]


class FrameReader:
    """The bytes of one connection that are not taken yet. `buffered` says how many."""

    __slots__ = ("_data", "_position", "_wanted")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._position = 0
        # Total bytes from the position that the message at hand needs; 0 = not known yet.
        self._wanted = 0

    @property
    def buffered(self) -> int:
        """Bytes that were fed and not taken."""
        return len(self._data) - self._position

    @property
    def wanted(self) -> int:
        """Size of the message at hand as far as it is known, to bound what a session may hold."""
        return self._wanted

    def feed(self, data: bytes) -> None:
        """Add what arrived."""
        if self._position == len(self._data):
            self._data = data
            self._position = 0
            return
        kept = self._data
        if type(kept) is not bytearray:
            kept = bytearray(kept[self._position :])
            self._position = 0
        elif self._position > 65536:
            del kept[: self._position]
            self._position = 0
        kept += data
        self._data = kept

    def next(self) -> Message | None:
        """The next whole message as (type, body), or None. Raises `RemoteProtocolError`."""
        data, position = self._data, self._position
        available = len(data) - position
        if available < 5:
            return None
        if not self._wanted:
            self._wanted = 1 + checked_length(
                data[position], int.from_bytes(data[position + 1 : position + 5], "big")
            )
        wanted = self._wanted
        if available < wanted:
            return None
        end = position + wanted
        body = bytes(data[position + 5 : end])
        self._wanted = 0
        if end == len(data):
            self._data = b""
            self._position = 0
        else:
            self._position = end
        return data[position], body

    def is_only_sync(self) -> bool:
        """Whether all that is left is one Sync."""
        return self.buffered == 5 and self._data[self._position] == 0x53

    def take_copy_data(self, bytes_max: int) -> bytes:
        """The joined bodies of the CopyData messages that come next, about ``bytes_max`` of them.

        A client sends one message a row; taking them one by one would cost more than the rows.
        """
        data, position = self._data, self._position
        end = len(data)
        bodies: list[bytes | bytearray] = []
        byte_count = 0
        while end - position >= 5 and data[position] == 0x64 and byte_count < bytes_max:
            length = int.from_bytes(data[position + 1 : position + 5], "big")
            if length < 4 or length > LARGE_BYTES_MAX or position + 1 + length > end:
                break  # `next` says what is wrong with it, or waits for the rest
            bodies.append(data[position + 5 : position + 1 + length])
            byte_count += length - 4
            position += 1 + length
        if bodies:
            self._wanted = 0
            self._position = position
        return b"".join(bodies)


def checked_length(kind: int, length: int) -> int:
    """``length`` if a message of this type may have it. Raises `RemoteProtocolError`."""
    if kind not in FRONTEND_TYPES:
        raise RemoteProtocolError(f"invalid frontend message type {kind}")
    if length < 4 or length > (LARGE_BYTES_MAX if kind in LARGE_TYPES else SMALL_BYTES_MAX):
        raise RemoteProtocolError(f"invalid length {length} of message type {chr(kind)!r}")
    return length
