"""The real world: asyncio's sockets, the machine's clock, randomness, files and shared memory.

Only a ``__main__`` (and the client library) builds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import random
import resource
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from polarless.kernel.world import SharedRegion, Timer, World
from polarless.net.lag import watch_process

if TYPE_CHECKING:
    from polarless.kernel.world import ProtocolFactory


class SystemClock:
    """The running loop's clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], object]) -> object:
        return asyncio.get_running_loop().call_soon(callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class SystemRandom:
    """Unpredictable bytes, and floats for jitter."""

    def token(self, byte_count: int) -> bytes:
        return secrets.token_bytes(byte_count)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


class _Listener:
    def __init__(self, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self.port = port

    def close(self) -> None:
        self._server.close()


class SystemNetwork:
    """TCP with TCP_NODELAY (uvloop and asyncio set it)."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, inherited_fd: int | None = None
    ) -> _Listener:
        loop = asyncio.get_running_loop()
        if inherited_fd is not None:
            # A duplicate: closing the listener must not close what another process may ask for.
            sock = socket.socket(fileno=os.dup(inherited_fd))
            sock.setblocking(False)
        else:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.setblocking(False)
        server = await loop.create_server(factory, sock=sock, backlog=1024)
        return _Listener(server, sock.getsockname()[1])

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await asyncio.get_running_loop().create_connection(factory, host, port)


class SystemDisk:
    """Small files on the local file system."""

    def read(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write_atomic(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        temporary = f"{path}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class _Region:
    def __init__(self, name: str, fd: int, byte_count: int, *, owner: bool) -> None:
        self.name = name
        self._owner = owner
        access = mmap.ACCESS_WRITE if owner else mmap.ACCESS_READ
        try:
            self._map = mmap.mmap(fd, byte_count, access=access)
        finally:
            os.close(fd)
        self.buffer = memoryview(self._map)

    def give_back(self, start: int, end: int) -> None:
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = end if end == len(self.buffer) else end // mmap.PAGESIZE * mmap.PAGESIZE
        if first >= last:
            self.buffer[start:end] = bytes(end - start)
            return
        self.buffer[start:first] = bytes(first - start)
        self.buffer[last:end] = bytes(end - last)
        self._map.madvise(mmap.MADV_REMOVE, first, last - first)

    def used_end(self) -> int:
        # The file's last piece with data, by halving: whoever reads a hole puts memory there.
        fd = os.open(_path(self.name), os.O_RDONLY)
        try:
            low, high = 0, len(self.buffer)
            while low < high:
                middle = (low + high) // 2
                try:
                    low = os.lseek(fd, middle, os.SEEK_DATA) + 1
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    high = middle
            return min(len(self.buffer), -(-low // mmap.PAGESIZE) * mmap.PAGESIZE)
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._owner:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_path(self.name))
        self.buffer.release()
        # Views that were cut from the buffer keep the mapping until they go; that is harmless.
        with contextlib.suppress(BufferError):
            self._map.close()


def _path(name: str) -> str:
    return f"/dev/shm/{name}"


class SystemSharedMemory:
    """Files in /dev/shm: the same thing as shm_open, and no resource tracker that unlinks them."""

    def create(self, name: str, byte_count: int) -> SharedRegion:
        fd = os.open(_path(name), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, byte_count)
        return _Region(name, fd, byte_count, owner=True)

    def attach(self, name: str) -> SharedRegion:
        fd = os.open(_path(name), os.O_RDONLY)
        return _Region(name, fd, os.fstat(fd).st_size, owner=False)


def system_world() -> World:
    """The real `World`."""
    return World(
        network=SystemNetwork(),
        clock=SystemClock(),
        random=SystemRandom(),
        disk=SystemDisk(),
        memory=SystemSharedMemory(),
    )


# Enough for every bound on connections; a node that is allowed less takes fewer clients.
DESCRIPTORS_WANTED: Final = 65_536


def raise_descriptor_limit() -> int:
    """Ask for as many open files as a node may need; how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = DESCRIPTORS_WANTED
    wanted = min(hard, DESCRIPTORS_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a node's main coroutine on uvloop; its result is the exit code."""
    import uvloop

    async def watched() -> int:
        watch_process(SystemClock())
        return await main

    raise_descriptor_limit()
    return uvloop.run(watched())
