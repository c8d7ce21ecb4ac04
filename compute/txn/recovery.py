"""Becoming the writer: fence, catch up, advance. There is no undo, and next to nothing to replay.

    1  storage.fence(epoch)     durable; the old writer can append nothing any more; the log's tail
    2  home.fence(epoch)        its admission and keys are gone; the home's mark
    3  log between mark and tail: applied to this node's own frames, so its cache stays warm
    4  advance(tail)            those pages become stale everywhere, the last commits published
    5  serve

The paper's section on recovery has eleven steps; those about undo, half-done structure changes and
pages newer than the log have no counterpart here, since nothing uncommitted and nothing that is not
durable ever left the old writer (C3).
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from compute.buffer.waits import Waiters, WaitFor, resumed
from compute.txn.commit import log_change
from compute.txn.engine import Engine
from polarless.errors import PolarlessError
from polarless.kernel import redo
from polarless.kernel.apply import apply
from polarless.kernel.failpoints import hit
from polarless.kernel.ids import (
    CATALOG_ROOT,
    CATALOG_TREE,
    DROPPED_ROOT,
    DROPPED_TREE,
    FIRST_CTS,
    FIRST_FREE_PAGE,
    Epoch,
    Lsn,
    PageId,
)
from polarless.kernel.page import LEAF, Frame

log = logging.getLogger(__name__)

# Pages that the log behind the mark names -> the cached frame that has all of it, or None.
Changed = dict[PageId, Frame | None]

READ_LOG_BYTES: Final = 4 * 1024 * 1024


class Takeover(NamedTuple):
    """What the steps found; times are microseconds since the start of the takeover."""

    tail: Lsn
    mark: Lsn
    groups: int
    pages: int
    fenced_us: int
    caught_up_us: int
    advanced_us: int


async def take_over(engine: Engine, epoch: Epoch, on_fenced: Any) -> Takeover:
    """Make this node the writer under ``epoch``. Raises `Fenced` if a higher one exists.

    Works for the first start (an empty log gets its first group), for a cold start on an old log
    (the home's mark is 0: nothing that is cached counts, there is nothing to catch up), and for a
    promotion.
    """
    clock = engine.clock
    start = clock.now()
    hit("takeover.before_fence")
    tail = await engine.store.fence(epoch)
    hit("takeover.after_fence")
    fenced = await engine.pool.fence(epoch)
    mark: Lsn = fenced["mark"]
    if fenced.get("cold"):
        # The home has just started and knows of nobody's pages: start from storage alone.
        mark = 0
        engine.cache.clear()
        engine.fetcher.restart_all()
    fenced_us = _us(clock.now() - start)
    cts, next_page, lsn = tail.cts, tail.next_page, tail.tail
    groups = 0
    changed: Changed = {}
    position = mark or lsn
    while position < lsn:
        data, following = await engine.store.read_log(position, READ_LOG_BYTES)
        if not data:
            break
        for group in redo.decode_groups(data, position):
            groups += 1
            _apply_group(engine, group, changed)
        position = following
    caught_up_us = _us(clock.now() - start)
    hit("takeover.before_advance")
    _drop_overtaken(engine, changed)
    await _advance(engine, epoch, lsn, cts, sorted(changed))
    engine.start_writing(epoch=epoch, tail=lsn, cts=cts, next_page=next_page, on_fenced=on_fenced)
    engine.catalog_changed()
    engine.store.announce(epoch, lsn)
    if lsn == 0:
        await _format_database(engine)
    result = Takeover(
        lsn, mark, groups, len(changed), fenced_us, caught_up_us, _us(clock.now() - start)
    )
    log.info("writer under epoch %s: %s", epoch, result)
    return result


def _drop_overtaken(engine: Engine, changed: Changed) -> None:
    """Forget what came while the log was read: until the advance the home gives it out as it was.

    Called right before the advance is sent: what the home answers after that is right.
    """
    frames = engine.cache.frames
    for page_id, followed in changed.items():
        engine.fetcher.invalidated(page_id)
        if frames.get(page_id) is not followed:
            engine.cache.remove(page_id)
    engine.fetcher.places.stop_asking()


def _apply_group(engine: Engine, group: redo.Group, changed: Changed) -> None:
    """Bring this node's own frames up to date; pages that it does not hold are only named."""
    frames = engine.cache.frames
    for record in group.records:
        page_id = record[1]
        # A fetch under way reads the page as of the mark: it must start again.
        engine.fetcher.invalidated(page_id)
        frame = frames.get(page_id)
        if page_id in changed and frame is not changed[page_id]:
            # It came after an earlier group was applied, and does not have that one.
            engine.cache.remove(page_id)
            frame = None
        changed[page_id] = frame
        if frame is None:
            continue
        # C1: the frame is the page as of the mark, so every group beyond the mark is new to it.
        assert frame.lsn <= group.end_lsn, (frame, group.end_lsn)
        after = apply(frame, record, lsn=group.end_lsn, cts=group.cts, horizon=group.horizon)
        changed[page_id] = after
        if after is None:
            engine.cache.remove(page_id)
            continue
        after.dirty = True
        if after is not frame:
            engine.cache.install(after)


async def _advance(engine: Engine, epoch: Epoch, lsn: Lsn, cts: int, pages: list[PageId]) -> None:
    waiters = Waiters()
    outcome: list[PolarlessError | None] = []

    def answered(result: Any, error: PolarlessError | None) -> None:
        outcome.append(error)
        waiters.wake(error)

    engine.pool.advance(epoch, lsn, cts, pages, answered)
    if not outcome:
        await resumed(WaitFor(waiters, "advance at takeover"))
    elif outcome[0] is not None:
        raise outcome[0]


async def _format_database(engine: Engine) -> None:
    """The first group of a new database: the empty trees with fixed roots."""
    writer = engine.log
    assert writer is not None
    records: list[redo.Record] = [
        (redo.FORMAT, root, LEAF, tree_id, None, None, (), ())
        for tree_id, root in ((CATALOG_TREE, CATALOG_ROOT), (DROPPED_TREE, DROPPED_ROOT))
    ]
    change = engine.change()
    for record in records:
        change.add(record)
    engine.next_page = FIRST_FREE_PAGE
    engine.next_cts = FIRST_CTS + 1
    waiters = Waiters()
    outcome: list[PolarlessError | None] = []

    def acknowledged(lsn: Lsn | None, error: PolarlessError | None) -> None:
        outcome.append(error)
        waiters.wake(error)

    log_change(engine, change, acknowledged)
    if not outcome:
        await resumed(WaitFor(waiters, "the first group of a new database"))


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)
