"""A real storage process whose disk fails: nothing acknowledged is lost, and it says so."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.shimmed import Storage, Writer, power_loss, shim

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

COMMITS = 40
BROKEN = 4
# It ends with BROKEN, or goes on.
EITHER = -1
UNREADABLE = 1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
async def storage(tmp_path: Path, library: Path) -> AsyncIterator[Storage]:
    one = Storage(tmp_path, library)
    yield one
    await one.kill()


class Fault(NamedTuple):
    """Rules of the shim, and what the process does about it."""

    rules: str
    # Its exit code; None: it goes on.
    ends: int | None
    # Whether writers are told that the disk is full.
    full: bool = False


EIO, FULL, QUOTA = errno.EIO, errno.ENOSPC, errno.EDQUOT
LOG = {
    "a sync of the log": Fault(f"sync .log$ 5 1 {EIO}", BROKEN),
    "a sync of the log, for want of room": Fault(f"sync .log$ 5 1 {FULL}", BROKEN),
    "a write to the log": Fault(f"write .log$ 5 1 {EIO}", BROKEN),
    "half a write to the log": Fault("write .log$ 5 1 0", None),
    "no room in the log": Fault(f"write .log$ 5 1 {FULL}", None, full=True),
    "no room for half an append": Fault(
        f"write .log$ 5 1 0\nwrite .log$ 6 1 {QUOTA}", None, full=True
    ),
    "half an append cannot be taken back": Fault(
        f"write .log$ 5 1 0\nwrite .log$ 6 1 {FULL}\ntruncate .log$ 0 1 {EIO}", BROKEN
    ),
    "no room for a new segment": Fault(f"write .new$ 0 1 {FULL}", None, full=True),
    "a sync of a new segment": Fault(f"sync .new$ 0 1 {EIO}", BROKEN),
    "the name of a new segment": Fault(f"rename .log$ 0 1 {EIO}", BROKEN),
    "the folder of a new segment": Fault(f"sync storage/log$ 0 1 {EIO}", BROKEN),
}
PAGES = {
    "a write to the pages": Fault(f"write data.mdb$ 1 1 {EIO}", BROKEN),
    "a sync of the pages": Fault(f"sync data.mdb$ 0 1 {EIO}", BROKEN),
    "no room for pages": Fault(f"write data.mdb$ 0 2 {FULL}", None),
}
FAULTS = {**LOG, **PAGES}


async def run(storage: Storage, fault: Fault) -> Writer:
    """Commit beside the fault, and once more after it; ends with a check."""
    writer = Writer()
    await writer.connect(await storage.start())
    try:
        await writer.commits(5, storage)
        storage.rules(fault.rules)
        await writer.commits(COMMITS, storage)
        if fault.ends == EITHER:
            await storage.may_end()
        if fault.ends in (BROKEN, UNREADABLE) or storage.has_ended:
            assert await storage.end() in (fault.ends, BROKEN)
            told = writer.acknowledged
            storage.rules("")
            assert await storage.start()
            tail = (await writer.client.tail()).tail
            assert tail >= told
            await writer.commits(COMMITS, storage)
        assert writer.acknowledged == writer.tail
        assert not writer.errors
        assert storage.failures() or fault.rules.endswith(" 0"), "nothing has failed"
        assert bool(writer.was_full) == fault.full
        await writer.check(storage)
    finally:
        writer.client.close()
    return writer


async def survives(storage: Storage, fault: Fault, folder: Path) -> None:
    """Nothing is lost by the fault, also if the power goes in the end."""
    writer = await run(storage, fault)
    await storage.kill()
    power_loss(storage, folder / "data" / "storage")
    after = Storage(folder, storage.library)
    again = Writer()
    again.groups, again.tail, again.acknowledged = writer.groups, writer.tail, writer.acknowledged
    try:
        await again.connect(await after.start())
        await again.check(after)
        again.client.close()
    finally:
        await after.kill()


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.allow_log("storage.client: appends wait")
async def test_a_fault_loses_nothing(storage: Storage, name: str, tmp_path: Path) -> None:
    await survives(storage, FAULTS[name], tmp_path / "after")


STARTS = {
    "the pages cannot be mapped": (f"mmap data.mdb$ 0 1 {errno.ENOMEM}", UNREADABLE, "pages in"),
    "the log cannot be synced": (f"sync .log$ 0 1 {EIO}", BROKEN, "its disk failed"),
    "the log's folder cannot be synced": (f"sync storage/log$ 0 9 {EIO}", BROKEN, "its disk"),
}


@pytest.mark.parametrize("name", STARTS)
async def test_a_start_on_a_failing_disk_says_so_and_changes_nothing(
    storage: Storage, name: str
) -> None:
    rules, code, text = STARTS[name]
    writer = Writer()
    await writer.connect(await storage.start())
    await writer.commits(COMMITS, storage)
    await storage.kill()
    storage.rules(rules)
    assert not await storage.start()
    assert storage.ended[-1] == code
    assert text in storage.log()
    assert "Traceback" not in storage.log()
    storage.rules("")
    assert await storage.start()
    await writer.commits(3, storage)
    await writer.check(storage)
    writer.client.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.allow_log("storage.client: appends wait")
async def test_any_call_on_the_pages_may_fail(library: Path, tmp_path: Path, call: str) -> None:
    """LMDB's own: pages, the two syncs, and the page that makes them current."""
    for number in range(12 if call == "write" else 6):
        for error in (EIO, FULL):
            folder = tmp_path / f"{number}-{error}"
            folder.mkdir()
            one = Storage(folder, library)
            try:
                fault = Fault(f"{call} data.mdb$ {number} 1 {error}", EITHER)
                await survives(one, fault, folder / "after")
            finally:
                await one.kill()
