"""A small storage folder, what is in it, and whether a damaged copy still says so.

As a program it is the process that looks at damaged copies, as LMDB may crash on a damaged file:
``python -m tests.faults.small_store FOLDER TRUTH`` reads one damage a line from its input and
answers each with one line, see `examine_copy`.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from polarless.config import StorageConfig
from polarless.errors import PolarlessError
from polarless.kernel import redo
from polarless.kernel.page import LEAF
from polarless.net.system import system_world
from polarless.wire.storage import ABSENT, PAGE
from storage.backends.log_files import LogFiles
from storage.backends.memory import Steps
from storage.backends.page_lmdb import PageLmdb
from storage.engine import Engine, examine_both

CLUSTER = bytes(range(16))
PAGES = (1, 2, 3, 4, 5)
# What a copy may answer.
RIGHT, REFUSED, SHORTER, WRONG = "right", "refused", "shorter", "WRONG"
FLIP, ZERO, CUT, LOST, STALE = "flip", "zero", "cut", "lost", "stale"
SECTOR_BYTES = 512
BLOCK_BYTES = 4096


class Reply:
    """Waits for an append."""

    def __init__(self) -> None:
        self.durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def answer(self, result: int) -> None:
        self.durable.set_result(result)

    def fail(self, error: PolarlessError) -> None:
        self.durable.set_exception(error)


class Folder:
    """An engine over real files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken: list[int] = []

    async def open(self) -> Engine:
        """As storage's `__main__` does. Raises `PolarlessError`."""
        device = self.device = LogFiles(self.folder / "log")
        state = None
        if PageLmdb.exists(self.folder / "pages"):
            looked_at = PageLmdb(self.folder / "pages", read_only=True, map_bytes=1 << 20)
            try:
                state = looked_at.read_state()
            finally:
                looked_at.close()
        examined, folded = examine_both(device, state, CLUSTER, accept_loss_at=None)
        store = self.store = PageLmdb(self.folder / "pages", map_bytes=1 << 20)
        soon = asyncio.get_running_loop().call_soon
        self.engine = Engine(
            system_world().clock, StorageConfig(segment_bytes=300, retention_bytes=0),
            cluster=CLUSTER, device=device, store=store, submit_log=Steps(soon).submit,
            submit_pages=Steps(soon).submit, examined=examined, folded=folded,
            on_broken=self.broken.append,
        )  # fmt: skip
        await self.engine.start()
        return self.engine

    def close(self) -> None:
        """Let go of the files, as a crash would."""
        engine = getattr(self, "engine", None)
        if engine is not None and engine._folding_task is not None:
            engine._folding_task.cancel()
        for one in ("store", "device"):
            if hasattr(self, one):
                getattr(self, one).close()


def _group(start: int, number: int) -> bytes:
    """A commit that changes two of the pages; the first ones create them."""
    if number <= len(PAGES):
        records: list[redo.Record] = [
            (
                redo.FORMAT,
                number,
                LEAF,
                1,
                None,
                None,
                (1,),
                ((number, b"row of %d" % number, None),),
            )
        ]
    else:
        # One value that LMDB keeps on pages of its own.
        text = b"version %d " % number * (600 if number == 7 else 1 + number % 3)
        records = [
            (redo.PUT, PAGES[number % 5], number, text),
            (redo.PUT, PAGES[(number + 2) % 5], 1, b"changed by %d" % number),
        ]
    return redo.encode_group(
        records, epoch=1, start_lsn=start, cts=number, transaction_id=number, horizon=0,
        next_page=16,
    )  # fmt: skip


async def build(folder: Path, *, folded: bool, clean: bool) -> dict[str, Any]:
    """Make a folder whose pages are folded in part or not at all, and close it or let it crash.

    Returns what is true of it: ``truth["lsns"]`` are the ends of the groups, and
    ``truth["pages"]`` each page as of each.
    """
    made = Folder(folder)
    engine = await made.open()
    fenced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    engine.fence(1, lambda error: fenced.set_result(None))
    await fenced
    lsns = [0]
    pages: list[dict[str, str | None]] = [{str(page): None for page in PAGES}]
    for number in range(1, 13):
        reply = Reply()
        start = engine.chunk.accepted
        engine.append(1, start, _group(start, number), reply)
        lsns.append(await reply.durable)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        engine.when_ingested(lsns[-1], partial(ready.set_result, None))
        await ready
        pages.append(_images(engine, lsns[-1]))
        if folded and number == 8:
            engine.announce(1, lsns[-1])
            assert await engine.folding.round(lsns[-1])
    first = engine.reader.first
    truth = {"lsns": lsns, "pages": pages, "first": first, "log": _log(engine).hex()}
    if clean:
        await engine.stop()
    made.close()
    return truth


def _images(engine: Engine, as_of: int) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for page_id in PAGES:
        answer = engine.read_page(page_id, as_of)
        assert answer[0] in (PAGE, ABSENT), answer
        found[str(page_id)] = answer[1].hex() if answer[0] == PAGE else None
    return found


def _log(engine: Engine) -> bytes:
    """All groups that are kept."""
    data, behind = b"", engine.reader.first
    while behind < engine.chunk.durable:
        more, behind = engine.read_log(behind, 1 << 20)
        data += more
    return data


async def examine_copy(folder: Path, truth: dict[str, Any]) -> str:
    """Open a damaged folder and compare all it says with the truth: one of the four words.

    A page that is not there although a tree names it is an error that compute reports, so it is
    counted as refused.
    """
    copy = Folder(folder)
    refused = False
    try:
        try:
            engine = await copy.open()
        except PolarlessError as error:
            return f"{REFUSED} {error}"
        tail = engine.chunk.durable
        if tail not in truth["lsns"]:
            return f"{WRONG}: the log ends at {tail}"
        expected = truth["pages"][truth["lsns"].index(tail)]
        for page_id in PAGES:
            try:
                answer = engine.read_page(page_id, tail)
            except PolarlessError:
                refused = True
                continue
            if answer[0] == ABSENT and expected[str(page_id)] is not None:
                refused = True
            elif answer[0] != PAGE or answer[1].hex() != expected[str(page_id)]:
                return f"{WRONG}: page {page_id} as of {tail} is {answer!r:.200}"
        first, whole = engine.reader.first, bytes.fromhex(truth["log"])
        if _log(engine) != whole[first - truth["first"] : tail - truth["first"]]:
            return f"{WRONG}: the log from {first} to {tail}"
        if refused or copy.broken or engine.folding.failed:
            return f"{REFUSED} while reading"
        return RIGHT if tail == truth["lsns"][-1] else f"{SHORTER} by {truth['lsns'][-1] - tail}"
    finally:
        copy.close()


def damage(path: Path, kind: str, place: int) -> None:
    """Flip a bit of the byte, make it zero, or cut the file there.

    Or what a disk does: lose the sector that begins there, or have the block before it in its place
    (a write that went to the wrong one).
    """
    with path.open("r+b") as file:
        if kind == CUT:
            file.truncate(place)
            return
        if kind == LOST:
            file.seek(place)
            byte_count = len(file.read(SECTOR_BYTES))
            file.seek(place)
            file.write(bytes(byte_count))
            return
        if kind == STALE:
            file.seek(place - BLOCK_BYTES)
            file.write(file.read(BLOCK_BYTES))
            return
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([0 if kind == ZERO else byte ^ (1 << place % 8)]))


async def main(folder: Path, truth: dict[str, Any]) -> None:
    """Answer each damage of the input."""
    copy = folder.with_name("copy")
    for line in sys.stdin:
        name, kind, place = line.split()
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        damage(copy / name, kind, int(place))
        print(f"{line.strip()} {await examine_copy(copy, truth)}", flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    faulthandler.enable()
    asyncio.run(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))))
