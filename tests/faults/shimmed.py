"""The real storage process on a disk that fails on demand, and what a writer was told by it.

`shim` compiles shim.c, which is put in front of the C library. `Storage` runs the process, `Writer`
appends to it over the network as compute does. What must hold in the end, whatever has failed:

* `Writer.check`: everything acknowledged is in the log, in its place, and the pages are right.
* `power_loss`: the same of a disk that kept only what was synced successfully after it was written.
  What was written before a sync that failed does not count, also if a later one succeeds: the
  kernel reports such an error once, and takes the pages for clean from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from polarless.errors import PolarlessError
from polarless.kernel import redo
from polarless.kernel.apply import apply
from polarless.kernel.page import LEAF, Frame, encode
from polarless.net.system import system_world
from storage.client import StorageClient

SOURCE: Final = Path(__file__).with_name("shim.c")
CLUSTER: Final = bytes(range(16))
LIMIT_S: Final = 30.0
PAGES: Final = tuple(range(1, 8))
# Small enough that every run begins new segments and folds.
SETTINGS: Final = {"segment_bytes": 4096, "fold_start_bytes": 2000, "fold_idle_s": 0.02}


def shim(folder: Path) -> Path:
    """The compiled shim. Without a compiler the test is skipped, under CI=true it fails."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no C compiler")
        pytest.skip("there is no C compiler")
    built = folder / "shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(built),
         str(SOURCE), "-ldl", "-lpthread"],
        check=True,
    )  # fmt: skip
    return built


class Storage:
    """The process. ``rules`` are the shim's; ``ended`` its exit codes, one a run."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.data = folder / "data" / "storage"
        self.trace = folder / "trace"
        self.ended: list[int] = []
        self.library = library
        self._control = folder / "rules"
        self._log = folder / "log.txt"
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self.rules("")

    def rules(self, text: str) -> None:
        """These faults from now on, counted from here."""
        new = self._control.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.rename(self._control)

    async def start(self) -> str:
        """Run it; its address, or "" if it ends instead."""
        config = self.folder / "config.json"
        config.write_text(
            json.dumps(
                {
                    "node": "storage",
                    "cluster": CLUSTER.hex(),
                    "host": "127.0.0.1",
                    "port": self._port,
                    "data": str(self.folder / "data"),
                    "storage": SETTINGS,
                }
            )
        )
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self.library),
            "SHIM_FOLDER": str(self.folder / "data"),
            "SHIM_CONTROL": str(self._control),
            "SHIM_TRACE": str(self.trace),
        }
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "storage", "--config", str(config),
                stdout=asyncio.subprocess.PIPE, stderr=log, env=environment,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), LIMIT_S)
        if not line:
            await self.end()
            return ""
        address = str(json.loads(line.decode().removeprefix("READY "))["address"])
        self._port = int(address.rpartition(":")[2])
        return address

    async def end(self) -> int:
        """Wait until it has ended by itself."""
        assert self._process is not None
        code = await asyncio.wait_for(self._process.wait(), LIMIT_S)
        self.ended.append(code)
        self._process = None
        return code

    async def may_end(self) -> None:
        """Wait a little for whether it does: folding goes on in the background."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 1.0)

    async def kill(self) -> None:
        """End it without a word, if it runs."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self.end()

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(encoding="utf-8")

    def failures(self) -> list[str]:
        """Calls that the shim let fail."""
        calls = [line.split() for line in self.trace.read_text(encoding="utf-8").splitlines()]
        return [f"{call[0]} {Path(call[1]).name}" for call in calls if call[4].startswith("-")]


class Writer:
    """Appends commits, and knows which of them it was told are durable."""

    def __init__(self) -> None:
        self.groups: list[bytes] = []
        self.tail = 0
        self.acknowledged = 0
        self.errors: list[PolarlessError] = []
        self.was_full = 0
        self.client: StorageClient
        self._changed = asyncio.Event()

    async def connect(self, address: str) -> None:
        """Fence the log and begin, at the first connection."""
        assert address, "storage has not started"
        self.client = StorageClient(system_world(), address, CLUSTER, "writer", epoch=1)
        self.client.on_full = lambda error: self._full(error)
        await self.client.connect(deadline_s=LIMIT_S)
        await self.client.fence(1, deadline_s=LIMIT_S)

    def _full(self, error: PolarlessError | None) -> None:
        self.was_full += error is not None

    def commit(self) -> None:
        """One more commit, on its way."""
        number = len(self.groups) + 1
        records: list[redo.Record] = [
            (redo.FORMAT, PAGES[number - 1], LEAF, 1, None, None, (1,), ((number, b"new", None),))
            if number <= len(PAGES)
            else (redo.PUT, PAGES[number % len(PAGES)], number % 20, b"%d" % number * 40)
        ]
        group = redo.encode_group(
            records, epoch=1, start_lsn=self.tail, cts=number, transaction_id=number, horizon=0,
            next_page=100,
        )  # fmt: skip
        start = self.tail
        self.groups.append(group)
        self.tail += len(group)
        self.client.append(1, start, group, self._answered)

    def _answered(self, lsn: int | None, error: PolarlessError | None) -> None:
        if error is not None or lsn is None:
            self.errors += [error] if error is not None else []
        else:
            self.acknowledged = max(self.acknowledged, lsn)
            self.client.announce(1, lsn)
        self._changed.set()

    async def commits(self, count: int, storage: Storage) -> None:
        """Commits one after the other, so that each is a batch, until the process has ended."""
        for _ in range(count):
            self.commit()
            while self.acknowledged < self.tail and not storage.has_ended and not self.errors:
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), 0.1)
                except TimeoutError:
                    continue
            if storage.has_ended:
                return

    async def check(self, storage: Storage) -> None:
        """The log is what was sent, with all that was acknowledged, and so are the pages."""
        tail = (await self.client.tail(deadline_s=LIMIT_S)).tail
        assert tail >= self.acknowledged, (tail, self.acknowledged)
        sent = b"".join(self.groups)
        found, behind = b"", 0
        while behind < tail:
            more, behind = await self.client.read_log(behind, deadline_s=LIMIT_S)
            found += more
        assert found == sent[:tail]
        frames: dict[int, Frame | None] = {}
        for group in redo.decode_groups(found, 0):
            for record in group.records:
                frames[record[1]] = apply(
                    frames.get(record[1]), record, lsn=group.end_lsn, cts=group.cts,
                    horizon=group.horizon,
                )  # fmt: skip
        for page_id in PAGES:
            frame = frames.get(page_id)
            image = await self.client.read_page(page_id, tail, deadline_s=LIMIT_S)
            assert image == (encode(frame) if frame is not None else None), page_id


def power_loss(storage: Storage, target: Path) -> None:
    """Make ``target`` the log as the disk has it if the machine loses its power now."""
    log = storage.data / "log"
    durable: dict[str, set[int]] = {}
    dirty: dict[str, set[int]] = {}
    named: set[str] = set()
    lasting: set[str] = set()
    for line in storage.trace.read_text(encoding="utf-8").splitlines():
        call, path, offset, _, result, _ = line.split()
        name, failed = path, int(result) < 0
        if call == "write" and not failed:
            dirty.setdefault(name, set()).update(range(int(offset), int(offset) + int(result)))
        elif call == "sync" and path == str(log):
            lasting |= named if not failed else set()
        elif call == "sync":
            written = dirty.pop(name, set())
            if not failed:
                durable.setdefault(name, set()).update(written)
        elif call == "truncate" and not failed:
            for kept in (dirty, durable):
                kept[name] = {at for at in kept.get(name, set()) if at < int(offset)}
        elif call == "rename" and not failed:
            named.add(name)
            durable[name] = durable.pop(str(Path(name).with_suffix(".new")), set())
    (target / "log").mkdir(parents=True)
    shutil.copy(log / "STATE", target / "log" / "STATE")
    for segment in sorted(log.glob("*.log")):
        if str(segment) in lasting:
            have, size = durable.get(str(segment), set()), 0
            while size in have:
                size += 1
            (target / "log" / segment.name).write_bytes(segment.read_bytes()[:size])
