"""The log as files in a folder.

    log/STATE                      the state record
    log/STATE.spare                room for the next one, which is written in place and renamed
    log/LOCK                       held while a process has the log open
    log/00000000000000000000.log   a segment, named by its start LSN in 20 digits

Files only grow at their end. A new segment is written under another name, synced, and renamed, so
that a segment always has its header. What a crash leaves under that other name is removed.

ENOSPC and EDQUOT become `Overloaded`, after the file is back to what it was; every other OSError
goes up as it is.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polarless.errors import CallerMistake, Overloaded

log = logging.getLogger(__name__)

_SUFFIX = ".log"
_NEW = ".new"
_SPARE = "STATE.spare"
# The kernel takes at most 1024 pieces at once.
_PIECES_MAX = 512
_SETTLE_BYTES = 4 * 1024 * 1024


class LogFiles:
    """A `LogDevice` on a local file system. ``folder`` must exist unless ``create`` says so.

    Raises `CallerMistake` if another process has it open.
    """

    def __init__(self, folder: Path, *, create: bool = True, read_only: bool = False) -> None:
        self._folder = folder
        self._read_only = read_only
        self._lock = -1
        self._newest: tuple[int, int, int] | None = None  # start LSN, file descriptor, bytes
        self._readers: dict[int, int] = {}
        if read_only:
            return
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise CallerMistake(
                f"{folder} is open in another process",
                sqlstate="55006",
                hint="Stop that process first; a storage folder has one owner at a time.",
            ) from None

    def segments(self) -> list[tuple[int, int]]:
        paths = self._folder.glob("*" + _SUFFIX)
        return sorted((int(p.stem), p.stat().st_size) for p in paths if p.stem.isdigit())

    def read(self, segment: int, offset: int, byte_count: int) -> bytes:
        fd = self._readers.get(segment)
        if fd is None:
            fd = os.open(self._path(segment), os.O_RDONLY | os.O_CLOEXEC)
            self._readers[segment] = fd
        return os.pread(fd, byte_count, offset)

    def create(self, segment: int, header: bytes) -> None:
        path = self._path(segment)
        temporary = path.with_suffix(_NEW)
        with _room(f"create segment {segment}"):
            try:
                _write_file(temporary, header)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        temporary.rename(path)
        _sync_folder(self._folder)
        self._close_newest()
        self._newest = (segment, self._open_to_append(segment), len(header))

    def append(self, pieces: Sequence[bytes]) -> None:
        start, fd, size = self._to_append()
        try:
            written = 0
            for first in range(0, len(pieces), _PIECES_MAX):
                written += _write_all(fd, pieces[first : first + _PIECES_MAX], size + written)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A part may have been written. If it cannot be taken back the device is broken.
            os.ftruncate(fd, size)
            raise _full(error, f"append to segment {start}") from error
        self._newest = (start, fd, size + written)

    def sync(self) -> None:
        if self._newest is not None:
            os.fdatasync(self._newest[1])

    def settle(self, segment: int, offset: int) -> None:
        path = self._path(segment)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            while offset < size:
                data = os.pread(fd, _SETTLE_BYTES, offset)
                with _room(f"settle segment {segment}"):
                    offset += _write_all(fd, [data], offset)
            os.fsync(fd)
        finally:
            os.close(fd)
        _sync_folder(self._folder)

    def cut(self, segment: int, byte_count: int) -> None:
        if self._newest is not None and self._newest[0] == segment:
            self._close_newest()
        fd = self._open_to_append(segment)
        try:
            os.ftruncate(fd, byte_count)
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, segment: int) -> None:
        self._path(segment).unlink(missing_ok=True)
        fd = self._readers.pop(segment, None)
        if fd is not None:
            os.close(fd)

    def read_state(self) -> bytes | None:
        try:
            return (self._folder / "STATE").read_bytes()
        except FileNotFoundError:
            return None

    def write_state(self, state: bytes) -> None:
        # Not made empty first: then its blocks would be given back, and perhaps not be had again.
        spare = self._folder / _SPARE
        with _room("write the state record"):
            _write_file(spare, state, keep=True)
        spare.replace(self._folder / "STATE")
        _sync_folder(self._folder)

    def reserve_state(self, byte_count: int) -> None:
        spare = self._folder / _SPARE
        try:
            if spare.exists() and spare.stat().st_size >= byte_count:
                return
            _write_file(spare, bytes(byte_count))
        except OSError as error:
            log.debug("no room is kept for the next state record: %s", error)

    def close(self) -> None:
        self._close_newest()
        for fd in self._readers.values():
            os.close(fd)
        self._readers.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:020d}{_SUFFIX}"

    def _open_to_append(self, segment: int) -> int:
        assert not self._read_only
        return os.open(self._path(segment), os.O_WRONLY | os.O_CLOEXEC)

    def _to_append(self) -> tuple[int, int, int]:
        if self._newest is None:
            segment, size = self.segments()[-1]
            self._newest = (segment, self._open_to_append(segment), size)
        return self._newest

    def _close_newest(self) -> None:
        if self._newest is not None:
            os.close(self._newest[1])
            self._newest = None


def _write_all(fd: int, pieces: Sequence[bytes], offset: int) -> int:
    """Write every byte at ``offset``; how many that were. Short writes are gone on with."""
    total = sum(map(len, pieces))
    written = os.pwritev(fd, pieces, offset)
    if written < total:
        rest = memoryview(b"".join(pieces))
        while written < total:
            written += os.pwrite(fd, rest[written:], offset + written)
    return total


def _write_file(path: Path, data: bytes, *, keep: bool = False) -> None:
    """Write and sync a file. ``keep``: on the blocks that it has, if it is there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if keep else os.O_TRUNC)
    fd = os.open(path, flags, 0o600)
    try:
        _write_all(fd, [data], 0)
        if keep:
            os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _room(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _full(error, what) from error


def _full(error: OSError, what: str) -> Overloaded:
    return Overloaded(
        f"the log's disk is full: {what}: {os.strerror(error.errno or 0)}",
        sqlstate="53100",
        hint="Free space; the same append is then accepted.",
    )
