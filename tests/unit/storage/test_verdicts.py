"""What became of a transaction, also after storage has folded its group and started again."""

from __future__ import annotations

import pytest

from polarless.config import StorageConfig
from polarless.kernel import redo
from storage import engine as storage_engine
from storage.backends.memory import MemoryLog, MemoryPages, Steps
from storage.engine import Engine
from storage.log import recovery
from storage.pages.folded import Folded
from tests.fakes import LoopClock
from tests.unit.storage.test_log import CLUSTER, Log


def proxied(number: int) -> int:
    return redo.PROXIED + number


def written(count: int) -> tuple[MemoryLog, list[int]]:
    """A log of so many commits, and where each begins; the end last."""
    log = Log(MemoryLog())
    log.fence(1)
    starts = []
    for number in range(count):
        start = log.chunk.accepted
        starts.append(start)
        data = redo.encode_group(
            [(redo.PUT, 7, number, b"row")], epoch=1, start_lsn=start, cts=number + 1,
            transaction_id=proxied(number), horizon=0, next_page=16, note=b"note %d" % number,
        )  # fmt: skip
        log.append(data, start)
    log.steps.drain()
    return log.device, [*starts, log.chunk.durable]


async def started(device: MemoryLog, folded: int) -> Engine:
    steps = Steps()
    examined = recovery.examine(device, CLUSTER)
    engine = Engine(
        LoopClock(), StorageConfig(), cluster=CLUSTER, device=device, store=MemoryPages(),
        submit_log=steps.submit, submit_pages=steps.submit, examined=examined,
        folded=Folded(lsn=folded), on_broken=lambda code: None,
    )  # fmt: skip
    await engine.start()
    engine.folding.stop()
    return engine


async def test_a_start_knows_the_transactions_below_the_folded_lsn() -> None:
    device, starts = written(10)
    engine = await started(device, starts[6])
    for number in range(10):
        state, lsn, note = engine.verdict(proxied(number), starts[number])
        assert (state, lsn, note) == ("committed", starts[number + 1], b"note %d" % number)
    # Nothing of this log was forgotten, so what is not here never happened.
    assert engine.verdict(proxied(99), starts[0])[0] == "absent"


async def test_what_lies_too_far_back_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    device, starts = written(10)
    monkeypatch.setattr(recovery, "READ_BYTES", 300)
    monkeypatch.setattr(storage_engine, "VERDICT_BYTES", 300)
    engine = await started(device, starts[9])
    assert engine.verdict(proxied(8), starts[8])[0] == "committed"
    assert engine.verdict(proxied(99), starts[8])[0] == "absent"
    assert engine.verdict(proxied(0), starts[0])[0] == "unknown"
