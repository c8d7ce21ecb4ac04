"""Finds out what a log holds, without changing it; then makes it ready to be written.

`examine` only reads. It checks every byte that is kept, by the torn-tail rule in
storage/log/segment.py, and raises `CorruptData` with the position of the first damage. Whoever
opens a log examines it, examines everything else that must fit, and only then calls `prepare`,
which cuts the torn tail: a start that fails has changed nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from polarless.errors import CorruptData
from polarless.kernel.ids import FIRST_LSN
from storage.log import segment
from storage.log.device import LogDevice

log = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Examined:
    """A log that can be opened. ``segments`` are start LSNs; none at all means a new log.

    ``torn_bytes`` stand behind ``tail`` in the newest segment and are no groups. ``durable`` is how
    far the log is known to be durable, which its tail need not be yet. ``boundaries`` are LSNs
    where groups begin, some megabytes apart, ascending.
    """

    epoch: int = 0
    tail: int = FIRST_LSN
    cts: int = 0
    next_page: int = 0
    groups: int = 0
    torn_bytes: int = 0
    durable: int = FIRST_LSN
    segments: list[int] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)


def examine(
    device: LogDevice, cluster: bytes, *, known_lsn: int = 0, accept_loss_at: int | None = None
) -> Examined:
    """Read a whole log. Raises `CorruptData` naming the position of what is wrong.

    ``known_lsn`` was durable once, since the pages know of it. ``accept_loss_at`` is a
    person's word that the log may end at that position although groups stand behind it.
    """
    state = device.read_state()
    found = device.segments()
    if state is None and not found:
        if known_lsn > FIRST_LSN:
            raise CorruptData(f"the log is gone, but it was durable up to {known_lsn}")
        return Examined()
    if state is None:
        raise CorruptData(
            "the log's state record is gone, and with it the epoch that fences old writers"
        )
    epoch, durable_lsn = segment.decode_state(state, cluster)
    result = Examined(epoch=epoch)
    if not found:
        # A crash between the state record and the first segment.
        if max(durable_lsn, known_lsn) > FIRST_LSN:
            raise CorruptData(
                f"all segments are gone; the log was durable up to {max(durable_lsn, known_lsn)}"
            )
        return result
    walk = segment.Walk(found[0][0])
    for index, (start, size) in enumerate(found):
        if start != walk.end:
            raise CorruptData(
                f"log position {walk.end}: damaged or missing here, the next segment "
                f"starts at {start}"
            )
        segment.check_header(device.read(start, 0, segment.HEADER_BYTES), cluster, start)
        _walk_segment(device, walk, start, size, result.boundaries)
        torn = start + _data_bytes(size) - walk.end
        if torn and index + 1 < len(found):
            raise CorruptData(
                f"log position {walk.end}: the group here is damaged; "
                f"valid groups follow in segment {found[index + 1][0]}"
            )
        if torn:
            _judge_tail(device, walk, start, size, accept_loss_at)
        result.torn_bytes = torn
    if walk.end < known_lsn:
        raise CorruptData(
            f"log position {walk.end}: the log ends here, but pages know it up to {known_lsn}"
        )
    if walk.end < durable_lsn and accept_loss_at != walk.end:
        raise CorruptData(
            f"log position {walk.end}: the log ends here, but it was durable up to {durable_lsn}",
            hint=_HINT.format(walk.end),
        )
    if walk.epoch > epoch:
        raise CorruptData(
            f"the log holds groups of epoch {walk.epoch}, but its fence is at {epoch}"
        )
    result.tail, result.cts, result.next_page = walk.end, walk.cts, walk.next_page
    result.groups, result.durable = walk.groups, durable_lsn
    result.segments = [start for start, _ in found]
    return result


_HINT = (
    "Restore the file if you can. If what is lost may be lost, start storage once with "
    '"accept_loss_at": {} in its configuration.'
)


def prepare(device: LogDevice, cluster: bytes, examined: Examined) -> None:
    """Make an examined log ready for appends: cut the torn tail, create what a new log needs.

    Everything in it is durable afterwards. Whoever sends again what stands in it is told so, and
    the process that wrote it may have ended before its sync, or because its sync failed.
    """
    if not examined.segments:
        if device.read_state() is None:
            state = segment.encode_state(cluster, epoch=examined.epoch, durable_lsn=examined.tail)
            device.write_state(state)
        device.create(examined.tail, segment.encode_header(cluster, examined.tail))
        examined.segments.append(examined.tail)
        device.reserve_state(segment.STATE_BYTES)
        return
    newest = examined.segments[-1]
    if examined.torn_bytes:
        log.warning(
            "torn tail: %d bytes behind log position %d were never acknowledged and are cut",
            examined.torn_bytes, examined.tail,
        )  # fmt: skip
        # The record first: it must not claim what the cut takes away by a person's word.
        state = segment.encode_state(cluster, epoch=examined.epoch, durable_lsn=examined.tail)
        device.write_state(state)
        device.cut(newest, segment.HEADER_BYTES + examined.tail - newest)
    # Every batch but the last was synced before the next one was written, and a new segment is
    # begun in front of a batch: what may not be durable is in the newest.
    since = max(newest, min(examined.durable, examined.tail))
    device.settle(newest, segment.HEADER_BYTES + since - newest)
    device.reserve_state(segment.STATE_BYTES)


def _data_bytes(size: int) -> int:
    return max(0, size - segment.HEADER_BYTES)


def _walk_segment(
    device: LogDevice, walk: segment.Walk, start: int, size: int, boundaries: list[int]
) -> None:
    """Walk the groups of a segment; ``walk.end`` stays before the first that is not whole."""
    end = start + _data_bytes(size)
    wanted = 0
    while walk.end < end:
        at = walk.end
        boundaries.append(at)
        byte_count = min(max(READ_BYTES, wanted), end - at)
        data = device.read(start, segment.HEADER_BYTES + at - start, byte_count)
        if len(data) < byte_count:
            raise CorruptData(
                f"log position {at}: the device gave {len(data)} of {byte_count} bytes"
            )
        wanted = walk.feed(memoryview(data))
        if wanted < 0 or wanted > end - walk.end:
            return


def _judge_tail(
    device: LogDevice, walk: segment.Walk, start: int, size: int, accept_loss_at: int | None
) -> None:
    """Raises `CorruptData` if what stands behind ``walk.end`` is damage rather than a torn tail."""
    offset = segment.HEADER_BYTES + walk.end - start
    behind = segment.find_group(device.read(start, offset, size - offset), walk.end)
    if behind is not None and accept_loss_at != walk.end:
        raise CorruptData(
            f"log position {walk.end}: the group here is damaged; "
            f"a valid group follows at {behind}",
            hint=_HINT.format(walk.end),
        )
