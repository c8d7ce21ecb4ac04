"""Pages in LMDB: key = page id, 8 bytes big-endian; value = image. The state is under its own key.

One write transaction at a time, in the folding thread, durable when its commit returns: LMDB syncs
data, then the page that makes them current. Until then readers in the loop see the state before it.
A reader's transaction lasts for one look-up, so that the map can grow between two of them.

The map is address space, not disk: the file grows as pages come. It starts large and doubles when
it is full.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from polarless.errors import CorruptData, Overloaded

MAP_BYTES = 16 * 1024**3
_STATE_KEY = b"state"


class PageLmdb:
    """A `PageStore` in an LMDB environment in ``folder``.

    ``read_only`` neither creates nor changes anything; then there must be one already. (But a file
    that was cut gets its length back, see `_lengthen`.)
    Raises `CorruptData` if the file is no environment, or as soon as damage shows.
    """

    def __init__(
        self, folder: Path, *, map_bytes: int = MAP_BYTES, read_only: bool = False
    ) -> None:
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        self._transaction: Any = None
        self._map_is_full = False
        try:
            self._env = lmdb.open(
                str(folder),
                map_size=_map_bytes(folder, map_bytes),
                subdir=True,
                readonly=read_only,
                create=not read_only,
                # A stopped node's file is looked at without even its lock file being touched.
                lock=not read_only,
                max_readers=16,
                sync=True,
                metasync=True,
                mode=0o600,
            )
        except lmdb.Error as error:
            raise CorruptData(f"pages in {folder}: {error}") from error
        try:
            _lengthen(folder / "data.mdb", self._env)
        except BaseException:
            self._env.close()
            raise

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether there is anything to open."""
        return (folder / "data.mdb").exists()

    def read(self, page_id: int) -> bytes | None:
        try:
            with self._env.begin(buffers=True) as transaction:
                value = transaction.get(page_id.to_bytes(8, "big"))
                return None if value is None else bytes(value)
        except lmdb.Error as error:
            raise CorruptData(f"page {page_id}: the page store is damaged: {error}") from error

    def heads(self, page_ids: Sequence[int], byte_count: int) -> list[bytes | None]:
        heads: list[bytes | None] = []
        page_id = 0
        try:
            with self._env.begin(buffers=True) as transaction:
                for page_id in page_ids:
                    value = transaction.get(page_id.to_bytes(8, "big"))
                    heads.append(None if value is None else bytes(value[:byte_count]))
        except lmdb.Error as error:
            raise CorruptData(f"page {page_id}: the page store is damaged: {error}") from error
        return heads

    def read_state(self) -> bytes | None:
        try:
            with self._env.begin() as transaction:
                state: bytes | None = transaction.get(_STATE_KEY)
                return state
        except lmdb.Error as error:
            raise CorruptData(f"the page store's state is damaged: {error}") from error

    def stage(self, pages: Sequence[tuple[int, bytes | None]]) -> None:
        with _mapped(self):
            if self._transaction is None:
                self._transaction = self._env.begin(write=True)
            put, delete = self._transaction.put, self._transaction.delete
            for page_id, image in pages:
                key = page_id.to_bytes(8, "big")
                if image is None:
                    delete(key)
                else:
                    put(key, image)

    def commit(self, state: bytes) -> None:
        with _mapped(self):
            if self._transaction is None:
                self._transaction = self._env.begin(write=True)
            self._transaction.put(_STATE_KEY, state)
            transaction, self._transaction = self._transaction, None
            transaction.commit()

    def abort(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort()

    def grow(self) -> bool:
        assert self._transaction is None
        # On a full disk a larger map would be no help.
        if not self._map_is_full:
            return False
        self._map_is_full = False
        size = self._env.info()["map_size"]
        if size >= 1 << 46:
            return False
        self._env.set_mapsize(size * 2)
        return True

    def check_usable(self) -> None:
        """Raises OSError if LMDB will do nothing more in this process.

        It does so once the page that makes others current could not be written.
        """
        try:
            with self._env.begin():
                pass
        except lmdb.PanicError as error:
            raise OSError(errno.EIO, f"the page store has given up: {error}") from error

    def page_ids(self) -> Iterator[int]:
        try:
            with self._env.begin() as transaction, transaction.cursor() as cursor:
                for key in cursor.iternext(keys=True, values=False):
                    if len(key) == 8:
                        yield int.from_bytes(key, "big")
        except lmdb.Error as error:
            raise CorruptData(f"the page store is damaged: {error}") from error

    def statistics(self) -> dict[str, int]:
        info, stat = self._env.info(), self._env.stat()
        return {
            "page_store_pages": max(0, stat["entries"] - 1),
            "page_store_bytes": (info["last_pgno"] + 1) * stat["psize"],
            "page_store_map_bytes": info["map_size"],
        }

    def close(self) -> None:
        self.abort()
        self._env.close()


@contextmanager
def _mapped(store: PageLmdb) -> Iterator[None]:
    """LMDB's errors as ours; the transaction under way is dropped."""
    try:
        yield
    except lmdb.MapFullError as error:
        store.abort()
        store._map_is_full = True
        raise Overloaded("the page store's map is full", sqlstate="53100") from error
    except lmdb.DiskError as error:
        store.abort()
        store.check_usable()
        raise Overloaded(f"the page store's disk is full: {error}", sqlstate="53100") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        store.abort()
        raise CorruptData(f"the page store is damaged: {error}") from error
    except BaseException:
        store.abort()
        raise


def _lengthen(path: Path, env: Any) -> None:
    """Give a file the length that its pages need.

    Reading mapped memory behind the end of a file ends the process with SIGBUS and without a word.
    What was cut away then reads as zeros, which are neither a page of LMDB's nor an image with a
    right checksum. LMDB itself leaves a file shorter when the last pages it has used are free
    again, so that a short file is no sign of damage. `posix_fallocate` neither shortens nor writes.
    """
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if os.stat(path).st_size >= needed:
        return
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, needed - 1, 1)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Overloaded(f"{path}: no room to open it: {error}", sqlstate="53100") from error
        raise CorruptData(f"{path} is shorter than its {needed} bytes: {error}") from error


def _map_bytes(folder: Path, at_least: int) -> int:
    """Twice what the file has, so that a store that grew does not have to grow first thing."""
    try:
        size = os.stat(folder / "data.mdb").st_size
    except FileNotFoundError:
        size = 0
    needed = at_least
    while needed < 2 * size:
        needed *= 2
    return needed
