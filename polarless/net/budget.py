"""A bound in bytes over all connections that a port has accepted, so that no peer can fill a node.

What counts, for each connection in an `Account`:

    arriving    a frame of more than `SMALL_BYTES` that is not complete yet: its whole length
    unanswered  calls that are being served: the length of their frames
    unread      what the peer has not read, from the moment its write buffer is full

* A large frame waits, unread, until its whole length has room; in the order of asking. So two
  frames never hold half of the room each and wait for the other. Whoever waits for longer than
  `ROOM_WAIT_S` is refused.
* A small frame (a ping, a fence, an announcement) never waits: what would make room may be in it.
  `SMALL_RESERVE_BYTES` are kept for those; beyond it they are refused.
* One connection may hold ``each_bytes_max``. Nothing legitimate comes near it.
* A peer that has not said hello holds less than 5 KiB, and at most ``silent_max`` such are kept:
  the one that has been silent for longest goes. So half-open connections keep nobody out.

Beside this a connection holds what one read from its socket has brought, at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from polarless.errors import Overloaded

MIB: Final = 1024 * 1024
# Three writers' worth: one that serves, one that is being fenced, one that takes over.
TOTAL_BYTES_MAX: Final = 512 * MIB
# A writer's unanswered appends (storage/client.py), and some more.
EACH_BYTES_MAX: Final = 160 * MIB
SMALL_BYTES: Final = 4096
SMALL_RESERVE_BYTES: Final = 16 * MIB
CONNECTIONS_MAX: Final = 1024
SILENT_MAX: Final = 64
ROOM_WAIT_S: Final = 10.0

Refuse = Callable[[Overloaded], None]


class Budget:
    """The room of one port. ``held_bytes`` is what its connections hold now."""

    def __init__(
        self,
        total_bytes_max: int = TOTAL_BYTES_MAX,
        *,
        each_bytes_max: int = EACH_BYTES_MAX,
        connections_max: int = CONNECTIONS_MAX,
        silent_max: int = SILENT_MAX,
    ) -> None:
        self.total_bytes_max = total_bytes_max
        self.each_bytes_max = each_bytes_max
        self.held_bytes = 0
        self.connections = 0
        self._connections_max = connections_max
        self._silent_max = silent_max
        # Accounts whose large frame waits for room, and how much it needs.
        self._waiting: deque[tuple[Account, int]] = deque()
        self._silent: dict[Account, None] = {}

    def open(self, refuse: Refuse, granted: Callable[[], None]) -> Account:
        """An account for a new connection. Raises `Overloaded` if there are too many.

        ``refuse(error)`` closes the connection; ``granted()``: the frame that waited has room.
        """
        if self.connections >= self._connections_max:
            raise Overloaded(f"there are {self._connections_max} connections to this port already")
        self.connections += 1
        account = Account(self, refuse, granted)
        self._silent[account] = None
        if len(self._silent) > self._silent_max:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.refuse(
                Overloaded(f"more than {self._silent_max} connections have not said hello")
            )
        return account

    def too_much(self, asked: int) -> Overloaded:
        """The error for whoever would go beyond the total."""
        return Overloaded(
            f"no room for {asked} bytes: all connections to this port hold {self.held_bytes}, "
            f"at most {self.total_bytes_max} are allowed",
            hint="Some peer sends faster than it is served, or does not read its answers.",
        )

    def _take(self, account: Account, byte_count: int) -> bool:
        if not self._waiting and self.held_bytes + byte_count <= self.total_bytes_max:
            self.held_bytes += byte_count
            return True
        self._waiting.append((account, byte_count))
        return False

    def _give(self, byte_count: int) -> None:
        self.held_bytes -= byte_count
        assert self.held_bytes >= 0, self.held_bytes
        waiting = self._waiting
        while waiting and self.held_bytes + waiting[0][1] <= self.total_bytes_max:
            account, wanted = waiting.popleft()
            self.held_bytes += wanted
            account._has_room(wanted)

    def _close(self, account: Account) -> None:
        self.connections -= 1
        self._silent.pop(account, None)
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not account)


class Account:
    """What one connection holds, in bytes."""

    __slots__ = ("_budget", "_closed", "_granted", "arriving", "refuse", "unanswered", "unread",
                 "waits")  # fmt: skip

    def __init__(self, budget: Budget, refuse: Refuse, granted: Callable[[], None]) -> None:
        self.refuse = refuse
        self.arriving = 0
        self.unanswered = 0
        self.unread = 0
        # Whether a frame waits for room.
        self.waits = False
        self._budget = budget
        self._granted = granted
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """All of it."""
        return self.arriving + self.unanswered + self.unread

    def said_hello(self) -> None:
        """It is silent no more."""
        self._budget._silent.pop(self, None)

    def reserve(self, length: int) -> bool:
        """Room for a large frame, now or (False) when ``granted()`` is called.

        Raises `Overloaded` if the connection would hold too much.
        """
        if self.arriving or self.waits:
            return not self.waits
        self._check(length)
        if self._budget._take(self, length):
            self.arriving = length
            return True
        self.waits = True
        return False

    def arrived(self) -> None:
        """The frame that had room reserved is complete, and has become something else."""
        arriving, self.arriving = self.arriving, 0
        if arriving:
            self._budget._give(arriving)

    def fits(self, length: int) -> bool:
        """Whether there is room for so much at once, and nobody waits for it."""
        budget = self._budget
        return not budget._waiting and budget.held_bytes + length <= budget.total_bytes_max

    def begin(self, length: int) -> None:
        """A call of ``length`` bytes is being served. Raises `Overloaded`."""
        budget = self._budget
        held = budget.held_bytes + length
        mine = self.unanswered + length
        if mine + self.unread > budget.each_bytes_max:
            self._check(length)
        if held > budget.total_bytes_max + SMALL_RESERVE_BYTES:
            raise budget.too_much(length)
        budget.held_bytes = held
        self.unanswered = mine

    def end(self, length: int) -> None:
        """That call was answered."""
        if not self._closed:
            self.unanswered -= length
            self._budget._give(length)

    def set_unread(self, byte_count: int) -> None:
        """The write buffer has ``byte_count``; 0 when it is no longer full. Raises `Overloaded`."""
        more = byte_count - self.unread
        if more > 0:
            self._check(more)
            if self._budget.held_bytes + more > self._budget.total_bytes_max + SMALL_RESERVE_BYTES:
                raise self._budget.too_much(more)
            self._budget.held_bytes += more
            self.unread = byte_count
        elif more < 0:
            self.unread = byte_count
            self._budget._give(-more)

    def close(self) -> None:
        """The connection is gone. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._budget._close(self)
        held = self.held_bytes
        self.arriving = self.unanswered = self.unread = 0
        self._budget._give(held)

    def too_long(self) -> Overloaded:
        """The error for a frame that waited for `ROOM_WAIT_S`."""
        wanted = next((size for one, size in self._budget._waiting if one is self), 0)
        return self._budget.too_much(wanted)

    def _check(self, more: int) -> None:
        held = self.unanswered + self.unread + more
        if held > self._budget.each_bytes_max:
            raise Overloaded(
                f"this connection would hold {held} bytes, "
                f"at most {self._budget.each_bytes_max} are allowed for each"
            )

    def _has_room(self, length: int) -> None:
        self.waits = False
        self.arriving = length
        self._granted()
