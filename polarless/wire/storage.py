"""What storage is asked and what it answers; the calls travel by `polarless.net.rpc`.

HELLO fields: ``node``, ``role`` (compute, control, home or tool) and ``epoch``. Only a compute may
append; only a compute or control may fence. WELCOME fields: ``epoch``, ``tail``.

    append      (epoch, start LSN, groups: bytes) -> durable LSN
                Whole groups whose first byte stands at the start LSN. What lies below the tail and
                equals what is there is skipped, so an append may be sent again after a lost
                connection. Answered in order, when durable. `Fenced` for an epoch that is not the
                current one; `LocalProtocolError` for a gap, for bytes that differ from what is
                there, for an epoch that nobody fenced; `Overloaded` if the disk is full (nothing
                was written; the same append may be tried again).
    fence       (epoch) -> [tail, cts, next page, mark, folded]
                From now on lower epochs are refused, also after a restart. The same epoch again is
                answered again; a lower one gets `Fenced`.
    announce    (epoch, mark)                                              a notification
                The home has answered the advance up to ``mark``: pages may be folded so far.
    read_page   (page id, as of) -> ["page", image] | ["newer", LSN] | ["absent"]
                The page exactly as of that LSN, which must be durable. "newer": storage has folded
                beyond it, up to that LSN at least; take a newer mark and ask again.
    read_pages  ([page ids], as of) -> [the same for each]                 at most 64
    page_lsns   ([page ids], as of) -> [LSN for each]                      at most 256
                The LSN that the page has as of that LSN; 0 if there is no such page then, or if
                storage has folded beyond it.
    read_log    (from LSN, max bytes) -> [groups: bytes, next LSN]
                Whole durable groups; at least one if there is one. `CallerMistake` below the first
                LSN that is kept.
    verdict     (transaction id, from LSN) -> [state, LSN, note: bytes]
                Whether a transaction of a proxied client is durable: "committed" with its LSN and
                the answer that it carried, "absent", or "unknown" if transactions since that LSN
                were forgotten. Final for all epochs below one that was fenced.
    tail        () -> [tail, cts, next page, mark, folded, epoch]
    status      () -> {name: number}
    ping        () -> {"state", "role", "epoch"}
    stop        () -> None                                                  from control
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

APPEND: Final = "append"
FENCE: Final = "fence"
ANNOUNCE: Final = "announce"
READ_PAGE: Final = "read_page"
READ_PAGES: Final = "read_pages"
PAGE_LSNS: Final = "page_lsns"
READ_LOG: Final = "read_log"
VERDICT: Final = "verdict"
TAIL: Final = "tail"
STATUS: Final = "status"
PING: Final = "ping"
STOP: Final = "stop"

PAGE: Final = "page"
NEWER: Final = "newer"
ABSENT: Final = "absent"

ROLES: Final = frozenset({"compute", "control", "home", "tool"})
READ_PAGES_MAX: Final = 64
PAGE_LSNS_MAX: Final = 256
# One answer of read_log holds the loop for as long as its groups are checked.
READ_LOG_BYTES_MAX: Final = 1024 * 1024


class LogTail(NamedTuple):
    """Where the log stands.

    ``tail`` is the durable end; ``cts`` the newest commit below it and ``next_page`` the writer's
    page allocator there. ``mark`` is the newest announcement, ``folded`` the LSN up to which pages
    are stored. ``epoch`` is the current one.
    """

    tail: int
    cts: int
    next_page: int
    mark: int
    folded: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Newer:
    """The page cannot be built as of the LSN asked for; ``lsn`` is a position it is beyond."""

    lsn: int
