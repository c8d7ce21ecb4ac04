"""The log in memory: what a crash, a cut or a flipped byte leaves, and who may append."""

from __future__ import annotations

import pytest

from polarless.errors import CorruptData, Fenced, LocalProtocolError, PolarlessError
from polarless.kernel import redo
from storage.backends.memory import MemoryLog, Steps
from storage.log import segment
from storage.log.chunk import Chunk
from storage.log.reader import LogReader
from storage.log.recovery import examine, prepare
from storage.log.writer import LogWriter

CLUSTER = bytes(range(16))


def group(start: int, number: int, epoch: int = 1) -> bytes:
    return redo.encode_group(
        [(redo.PUT, 7, number, b"x" * (number % 5))],
        epoch=epoch, start_lsn=start, cts=number, transaction_id=number, horizon=0, next_page=16,
    )  # fmt: skip


class Answer:
    """A reply that remembers what it got."""

    def __init__(self) -> None:
        self.result: int | None = None
        self.error: PolarlessError | None = None

    def answered(self) -> bool:
        return self.result is not None

    def answer(self, result: int) -> None:
        self.result = result

    def fail(self, error: PolarlessError) -> None:
        self.error = error


class Log:
    """A log on a device; nothing runs but when `steps` is driven."""

    def __init__(self, device: MemoryLog, *, segment_bytes: int = 1 << 20) -> None:
        self.device = device
        self.steps = Steps()
        self.examined = examine(device, CLUSTER)
        prepare(device, CLUSTER, self.examined)
        self.reader = LogReader(device, self.examined.segments)
        self.chunk = Chunk(
            epoch=self.examined.epoch, tail=self.examined.tail, cts=self.examined.cts,
            next_page=self.examined.next_page, mark=0, read=self.reader.bytes_at,
        )  # fmt: skip
        self.broken: list[BaseException] = []
        self.writer = LogWriter(
            device, self.steps.submit, self.chunk, cluster=CLUSTER,
            segments=self.examined.segments, segment_bytes=segment_bytes,
            on_durable=lambda lsn, pieces: None, on_broken=self.broken.append,
        )  # fmt: skip

    def fence(self, epoch: int) -> None:
        outcome: list[PolarlessError | None] = []
        self.writer.fence(epoch, outcome.append)
        self.steps.drain()
        assert outcome == [None]

    def append(self, data: bytes, start: int, epoch: int = 1) -> Answer:
        answer = Answer()
        self.writer.append(epoch, start, data, answer)
        return answer

    def fill(self, count: int, epoch: int = 1) -> list[bytes]:
        groups = []
        for number in range(1, count + 1):
            data = group(self.chunk.accepted, number, epoch)
            groups.append(data)
            self.append(data, self.chunk.accepted, epoch)
        self.steps.drain()
        return groups


@pytest.fixture
def log() -> Log:
    made = Log(MemoryLog())
    made.fence(1)
    return made


def everything(device: MemoryLog) -> bytes:
    return b"".join(bytes(device.contents[s][segment.HEADER_BYTES :]) for s in device.contents)


def test_answers_come_after_the_sync_and_one_sync_serves_a_batch(log: Log) -> None:
    first = log.append(group(0, 1), 0)
    syncs = log.device.syncs
    rest = []
    for number in range(2, 10):
        start = log.chunk.accepted
        rest.append(log.append(group(start, number), start))
    assert not first.answered()
    log.steps.drain()
    assert first.answered()
    assert all(answer.result == log.chunk.durable for answer in rest)
    assert log.device.syncs == syncs + 2


@pytest.mark.allow_log("torn tail")
def test_a_cut_at_any_byte_leaves_a_prefix_of_whole_groups(log: Log) -> None:
    groups = log.fill(6)
    whole = everything(log.device)
    ends = [sum(map(len, groups[:n])) for n in range(len(groups) + 1)]
    for size in range(len(whole)):
        device = log.device.crash()
        del device.contents[0][segment.HEADER_BYTES + size :]
        found = examine(device, CLUSTER)
        assert found.tail == max(end for end in ends if end <= size)
        assert found.torn_bytes == size - found.tail
        again = Log(device)
        assert everything(again.device) == whole[: found.tail], "the torn tail is cut before use"


def test_a_flipped_byte_anywhere_is_refused_with_its_position_or_cut_as_a_torn_tail(
    log: Log,
) -> None:
    groups = log.fill(5)
    whole = everything(log.device)
    last = len(whole) - len(groups[-1])
    for place in range(len(whole)):
        device = log.device.crash()
        device.contents[0][segment.HEADER_BYTES + place] ^= 0x10
        if place >= last:
            assert examine(device, CLUSTER).tail == last
            continue
        with pytest.raises(CorruptData, match="log position"):
            examine(device, CLUSTER)


def test_damage_below_what_was_known_to_be_durable_is_never_taken_for_a_torn_tail(
    log: Log,
) -> None:
    log.fill(3)
    tail = log.chunk.durable
    device = log.device.crash()
    device.contents[0][-1] ^= 1
    with pytest.raises(CorruptData):
        examine(device, CLUSTER, known_lsn=tail)


def test_what_was_not_synced_may_go_and_what_was_acknowledged_stays(log: Log) -> None:
    log.fill(4)
    durable = log.chunk.durable
    unanswered = log.append(group(durable, 9), durable)
    after = examine(log.device.crash(), CLUSTER)
    assert unanswered.result is None
    assert after.tail == durable


def test_lower_epochs_are_refused_for_ever_after_a_fence_also_after_a_crash(log: Log) -> None:
    log.fill(2)
    log.fence(5)
    start = log.chunk.accepted
    with pytest.raises(Fenced):
        log.append(group(start, 3), start, epoch=1)
    again = Log(log.device.crash())
    with pytest.raises(Fenced):
        again.append(group(start, 3), start, epoch=4)
    with pytest.raises(Fenced):
        again.writer.fence(4, lambda error: None)


def test_a_fence_stops_what_is_queued_and_answers_it(log: Log) -> None:
    under_way = log.append(group(0, 1), 0)
    queued = log.append(group(log.chunk.accepted, 2), log.chunk.accepted)
    log.fence(2)
    assert under_way.result is not None, "it is in the tail that the fence answers with"
    assert isinstance(queued.error, Fenced)


def test_an_append_that_is_sent_again_is_answered_and_not_written_twice(log: Log) -> None:
    groups = log.fill(3)
    before = everything(log.device)
    again = log.append(b"".join(groups), 0)
    log.steps.drain()
    assert again.result == len(before)
    assert everything(log.device) == before


def test_an_append_that_overlaps_with_other_bytes_is_refused(log: Log) -> None:
    log.fill(2)
    with pytest.raises(LocalProtocolError, match="something else"):
        log.append(group(0, 77), 0)


def test_an_append_behind_a_gap_is_refused(log: Log) -> None:
    with pytest.raises(LocalProtocolError, match="gap"):
        log.append(group(500, 1), 500)


@pytest.mark.allow_log("the log's device failed")
def test_the_first_failed_sync_is_the_last_thing_a_log_does(log: Log) -> None:
    log.fill(1)
    log.device.faults.sync = True
    answer = log.append(group(log.chunk.accepted, 2), log.chunk.accepted)
    log.steps.drain()
    # Whether it is durable is not known: nobody is answered, and the process ends.
    assert answer.error is None
    assert answer.result is None
    assert len(log.broken) == 1
    with pytest.raises(PolarlessError):
        log.append(group(log.chunk.accepted, 3), log.chunk.accepted)


@pytest.mark.allow_log("disk full")
def test_a_full_disk_refuses_and_tears_nothing(log: Log) -> None:
    log.fill(2)
    durable = log.chunk.durable
    log.device.faults.room_bytes = 10
    answer = log.append(group(durable, 3), durable)
    log.steps.drain()
    assert answer.error is not None
    assert answer.error.sqlstate == "53100"
    assert not log.broken
    log.device.faults.room_bytes = None
    good = log.append(group(durable, 4), durable)
    log.steps.drain()
    assert good.result == log.chunk.durable
    assert examine(log.device.crash(), CLUSTER).tail == log.chunk.durable


def test_segments_below_a_position_are_removed_and_the_rest_still_opens(log: Log) -> None:
    small = Log(log.device, segment_bytes=300)
    for _ in range(6):
        small.fill(3)
    assert len(small.device.segments()) > 2
    keep = small.device.segments()[-2][0]
    small.writer.remove_below(keep)
    small.steps.drain()
    assert small.device.segments()[0][0] <= keep
    assert examine(small.device.crash(), CLUSTER).tail == small.chunk.durable


def test_another_clusters_log_is_refused(log: Log) -> None:
    log.fill(1)
    with pytest.raises(CorruptData):
        examine(log.device.crash(), bytes(16))


@pytest.mark.allow_log("the log.s device failed")
def test_what_a_process_left_unsynced_is_durable_before_it_is_acknowledged(log: Log) -> None:
    log.fill(3)
    start = log.chunk.accepted
    last = group(start, 4)
    log.device.faults.sync = True
    assert not log.append(last, start).answered()
    log.steps.drain()
    assert log.broken
    # The process ends and the machine does not: what it wrote can be read.
    again = Log(log.device.crash(torn_bytes=len(last)))
    assert again.append(last, start).result == start + len(last)
    # Now the machine does.
    assert examine(again.device.crash(), CLUSTER).tail == start + len(last)
