"""Log and pages in memory, with the faults that a disk has.

What was written and not synced is lost in a `crash`, or partly there: ``torn_bytes`` of it. A sync
can fail, an append can find the disk full or stop half-way. All of this on demand, so that a test
is one line of faults.

`Steps` runs what a thread would run, when it is told to.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from polarless.errors import Overloaded

Done = Callable[[Any, BaseException | None], None]


@dataclass(slots=True)
class Faults:
    """What goes wrong next. A fault happens once and is then forgotten, except ``room_bytes``."""

    # The next sync (or commit) fails with EIO.
    sync: bool = False
    # Bytes that can still be written before the disk is full; None is no limit.
    room_bytes: int | None = None
    # The next append writes so many bytes and then fails with EIO.
    torn_write: int | None = None

    def take_room(self, byte_count: int) -> None:
        """Use up room. Raises `Overloaded` if there is not enough."""
        if self.room_bytes is None:
            return
        if byte_count > self.room_bytes:
            raise Overloaded("the disk in memory is full", sqlstate="53100")
        self.room_bytes -= byte_count

    def sync_or_fail(self) -> None:
        """Raises OSError if a failing sync is due."""
        if self.sync:
            self.sync = False
            raise OSError(errno.EIO, "sync failed on purpose")


class MemoryLog:
    """A `LogDevice` in memory. ``contents`` may be changed by a test that damages it."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.contents: dict[int, bytearray] = {}
        self.state: bytes | None = None
        self.closed = False
        self.syncs = 0
        # Segment -> how many of its bytes would survive a crash.
        self._durable: dict[int, int] = {}
        self._spare_bytes = 0

    def segments(self) -> list[tuple[int, int]]:
        return sorted((start, len(data)) for start, data in self.contents.items())

    def read(self, segment: int, offset: int, byte_count: int) -> bytes:
        return bytes(self.contents[segment][offset : offset + byte_count])

    def create(self, segment: int, header: bytes) -> None:
        self.faults.take_room(len(header))
        self.faults.sync_or_fail()
        self.contents[segment] = bytearray(header)
        self._durable[segment] = len(header)

    def append(self, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        self.faults.take_room(len(data))
        newest = self.contents[max(self.contents)]
        torn, self.faults.torn_write = self.faults.torn_write, None
        if torn is not None:
            newest += data[:torn]
            raise OSError(errno.EIO, "write torn on purpose")
        newest += data

    def sync(self) -> None:
        self.faults.sync_or_fail()
        self.syncs += 1
        if self.contents:
            newest = max(self.contents)
            self._durable[newest] = len(self.contents[newest])

    def settle(self, segment: int, offset: int) -> None:
        self.faults.sync_or_fail()
        self._durable[segment] = len(self.contents[segment])

    def cut(self, segment: int, byte_count: int) -> None:
        del self.contents[segment][byte_count:]
        self._durable[segment] = byte_count

    def remove(self, segment: int) -> None:
        self.contents.pop(segment, None)
        self._durable.pop(segment, None)

    def read_state(self) -> bytes | None:
        return self.state

    def reserve_state(self, byte_count: int) -> None:
        with contextlib.suppress(Overloaded):
            if self._spare_bytes < byte_count:
                self.faults.take_room(byte_count)
                self._spare_bytes = byte_count

    def write_state(self, state: bytes) -> None:
        if self._spare_bytes < len(state):
            self.faults.take_room(len(state))
        self._spare_bytes = 0
        self.faults.sync_or_fail()
        self.state = state

    def close(self) -> None:
        self.closed = True

    def crash(self, *, torn_bytes: int = 0) -> MemoryLog:
        """What is there after the process stopped, with ``torn_bytes`` of what was not synced.

        These can be read, and are not durable: the next crash may take them.
        """
        after = MemoryLog(Faults(room_bytes=self.faults.room_bytes))
        after.state, after._spare_bytes = self.state, self._spare_bytes
        for start, data in self.contents.items():
            kept = min(len(data), self._durable[start] + torn_bytes)
            after.contents[start] = bytearray(data[:kept])
            after._durable[start] = min(kept, self._durable[start])
        return after


class MemoryPages:
    """A `PageStore` in memory."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.pages: dict[int, bytes] = {}
        self.state: bytes | None = None
        self.commits = 0
        self.closed = False
        self._staged: dict[int, bytes | None] = {}

    def read(self, page_id: int) -> bytes | None:
        return self.pages.get(page_id)

    def heads(self, page_ids: Sequence[int], byte_count: int) -> list[bytes | None]:
        images = [self.pages.get(page_id) for page_id in page_ids]
        return [None if image is None else image[:byte_count] for image in images]

    def read_state(self) -> bytes | None:
        return self.state

    def stage(self, pages: Sequence[tuple[int, bytes | None]]) -> None:
        try:
            self.faults.take_room(sum(len(image or b"") for _, image in pages))
        except Overloaded:
            self.abort()
            raise
        self._staged.update(pages)

    def commit(self, state: bytes) -> None:
        staged, self._staged = self._staged, {}
        self.faults.sync_or_fail()
        for page_id, image in staged.items():
            if image is None:
                self.pages.pop(page_id, None)
            else:
                self.pages[page_id] = image
        self.state = state
        self.commits += 1

    def abort(self) -> None:
        self._staged = {}

    def grow(self) -> bool:
        return False

    def page_ids(self) -> Iterator[int]:
        yield from sorted(self.pages)

    def statistics(self) -> dict[str, int]:
        return {
            "page_store_pages": len(self.pages),
            "page_store_bytes": sum(map(len, self.pages.values())),
            "page_store_map_bytes": 0,
        }

    def close(self) -> None:
        self.abort()
        self.closed = True

    def crash(self) -> MemoryPages:
        """What is there after the machine stopped."""
        after = MemoryPages(Faults(room_bytes=self.faults.room_bytes))
        after.pages, after.state = dict(self.pages), self.state
        return after


class Steps:
    """Takes work as a thread does and runs it when told; ``by_itself`` in the loop's next turn."""

    def __init__(self, by_itself: Callable[[Callable[[], object]], object] | None = None) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Done]] = deque()
        self._by_itself = by_itself

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Keep it for `step`."""
        self.jobs.append((work, done))
        if self._by_itself is not None:
            self._by_itself(self.step)

    def step(self) -> bool:
        """Run the oldest job and report it; False if there was none."""
        if not self.jobs:
            return False
        work, done = self.jobs.popleft()
        result: Any = None
        failure: BaseException | None = None
        try:
            result = work()
        except Exception as error:
            failure = error
        done(result, failure)
        return True

    def drain(self) -> None:
        """Run jobs until none is left, those that reports submit included."""
        while self.step():
            pass
