"""What every log device does, on files and in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polarless.errors import CallerMistake, Overloaded
from storage.backends.log_files import LogFiles
from storage.backends.memory import Faults, MemoryLog
from storage.log.device import LogDevice

HEADER = b"h" * 64


class Subject:
    """A device, and how to close it and open it again."""

    def __init__(self, device: LogDevice, again: Callable[[LogDevice], LogDevice]) -> None:
        self.device = device
        self._again = again

    def reopen(self) -> LogDevice:
        self.device = self._again(self.device)
        return self.device


@pytest.fixture(params=["files", "memory", "faulty"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "files":

        def reopen(device: LogDevice) -> LogDevice:
            device.close()
            return LogFiles(tmp_path / "log")

        made = Subject(LogFiles(tmp_path / "log"), reopen)
    elif request.param == "memory":
        made = Subject(MemoryLog(), lambda device: device)
    else:
        # Only what was synced: a clean end must not need more.
        memory = MemoryLog(Faults(room_bytes=1 << 30))
        made = Subject(memory, lambda device: device.crash())  # type: ignore[attr-defined]
    yield made
    made.device.close()


def test_new_device_is_empty(subject: Subject) -> None:
    assert subject.device.segments() == []
    assert subject.device.read_state() is None


def test_synced_bytes_are_read_back_after_reopening(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    subject.device.append([b"abc", b"", b"def"])
    subject.device.append([b"ghi"])
    subject.device.sync()
    for reopen in (False, True):
        device = subject.reopen() if reopen else subject.device
        assert device.segments() == [(0, 73)]
        assert device.read(0, 0, 64) == HEADER
        assert device.read(0, 66, 4) == b"cdef"
        assert device.read(0, 70, 100) == b"ghi"
        assert device.read(0, 73, 10) == b""


def test_created_segment_is_durable_with_its_header(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    subject.device.create(7, HEADER)
    assert subject.reopen().segments() == [(0, 64), (7, 64)]


def test_append_goes_to_the_newest_segment(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    subject.device.append([b"old"])
    subject.device.sync()
    subject.device.create(3, HEADER)
    subject.device.append([b"new!"])
    subject.device.sync()
    assert subject.reopen().segments() == [(0, 67), (3, 68)]


def test_append_goes_on_after_reopening(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    subject.device.append([b"abc"])
    subject.device.sync()
    device = subject.reopen()
    device.append([b"def"])
    device.sync()
    assert subject.reopen().read(0, 64, 10) == b"abcdef"


def test_many_pieces_are_one_append(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    pieces = [b"%05d" % i for i in range(3000)]
    subject.device.append(pieces)
    subject.device.sync()
    assert subject.device.read(0, 64, 1 << 20) == b"".join(pieces)


def test_cut_is_durable_and_append_continues_there(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    subject.device.append([b"abcdef"])
    subject.device.sync()
    subject.device.cut(0, 66)
    device = subject.reopen()
    assert device.segments() == [(0, 66)]
    device.append([b"xy"])
    device.sync()
    assert device.read(0, 64, 10) == b"abxy"


def test_cut_while_the_segment_is_being_appended_to(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    subject.device.append([b"abcdef"])
    subject.device.cut(0, 65)
    subject.device.append([b"z"])
    subject.device.sync()
    assert subject.reopen().read(0, 64, 10) == b"az"


def test_settled_segment_is_as_it_was_found(subject: Subject) -> None:
    subject.device.create(0, HEADER)
    subject.device.append([b"abcdef"])
    for offset in (66, 70, 0):
        subject.device.settle(0, offset)
        device = subject.reopen()
        assert device.segments() == [(0, 70)]
        assert device.read(0, 60, 100) == b"hhhhabcdef"
    subject.device.append([b"g"])
    subject.device.sync()
    assert subject.reopen().read(0, 64, 100) == b"abcdefg"


def test_removed_segment_is_gone(subject: Subject) -> None:
    for start in (0, 10, 20):
        subject.device.create(start, HEADER)
    subject.device.read(0, 0, 64)
    subject.device.remove(0)
    subject.device.remove(0)
    assert subject.reopen().segments() == [(10, 64), (20, 64)]


def test_state_is_replaced(subject: Subject) -> None:
    subject.device.write_state(b"one")
    subject.device.write_state(b"three")
    assert subject.reopen().read_state() == b"three"


def test_order_is_by_number_not_by_text(subject: Subject) -> None:
    for start in (0, 9, 10, 10**12, 2):
        subject.device.create(start, HEADER)
    assert [start for start, _ in subject.device.segments()] == [0, 2, 9, 10, 10**12]


# ------------------------------------------------------------------------------------ full disks


def make_full(subject: Subject, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """The next write gets ``after`` bytes onto the disk and then finds it full."""
    if isinstance(subject.device, MemoryLog):
        subject.device.faults.room_bytes = after
        return
    real = os.pwrite
    left = after

    def write(fd: int, data: bytes, offset: int) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = bytes(data)[:left]
        left -= len(part)
        return real(fd, part, offset)

    def write_vector(fd: int, pieces: list[bytes], offset: int) -> int:
        return write(fd, b"".join(pieces), offset)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "pwritev", write_vector)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_full_disk_leaves_nothing_of_an_append(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    subject.device.create(0, HEADER)
    subject.device.append([b"abc"])
    subject.device.sync()
    with monkeypatch.context() as patch:
        make_full(subject, patch, after=after)
        with pytest.raises(Overloaded) as caught:
            subject.device.append([b"defgh", b"ijk"])
        assert caught.value.sqlstate == "53100"
    if isinstance(subject.device, MemoryLog):
        subject.device.faults.room_bytes = None
    assert subject.device.segments() == [(0, 67)]
    subject.device.append([b"xyz"])
    subject.device.sync()
    assert subject.reopen().read(0, 64, 100) == b"abcxyz"


def test_full_disk_leaves_nothing_of_a_new_segment(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.device.create(0, HEADER)
    with monkeypatch.context() as patch:
        make_full(subject, patch, after=10)
        with pytest.raises(Overloaded):
            subject.device.create(5, HEADER)
    assert subject.device.segments() == [(0, 64)]


def test_full_disk_keeps_the_old_state(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.device.write_state(b"old")
    with monkeypatch.context() as patch:
        make_full(subject, patch, after=2)
        with pytest.raises(Overloaded):
            subject.device.write_state(b"newer")
    assert subject.reopen().read_state() == b"old"


def test_reserved_room_takes_a_state_on_a_full_disk(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        subject.device.reserve_state(8)
        with monkeypatch.context() as patch:
            fill(subject, patch)
            subject.device.write_state(b"state %d." % number)
            # There is room for one.
            with pytest.raises(Overloaded):
                subject.device.write_state(b"another.")
            subject.device.reserve_state(8)
        if isinstance(subject.device, MemoryLog):
            subject.device.faults.room_bytes = None
        assert subject.reopen().read_state() == b"state %d." % number


def fill(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no file can grow."""
    if isinstance(subject.device, MemoryLog):
        subject.device.faults.room_bytes = 0
        return
    real = os.pwrite

    def write(fd: int, data: bytes, offset: int) -> int:
        if offset + len(data) > os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: write(fd, b"".join(pieces), at))


# ---------------------------------------------------------------------------- what only files have


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    first = LogFiles(tmp_path)
    with pytest.raises(CallerMistake, match="open in another process"):
        LogFiles(tmp_path)
    first.close()
    LogFiles(tmp_path).close()


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = LogFiles(tmp_path)
    device.create(0, HEADER)
    real = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: real(fd, b"".join(pieces)[:3], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:2], at))
    device.append([b"abcdef", b"ghijk"])
    assert device.read(0, 64, 100) == b"abcdefghijk"
    device.close()


def test_other_errors_go_up_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = LogFiles(tmp_path)
    device.create(0, HEADER)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail)
        with pytest.raises(OSError, match="Input/output"):
            device.append([b"x"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            device.append([b"x"])
            device.sync()
    device.close()


def test_files_are_private(tmp_path: Path) -> None:
    device = LogFiles(tmp_path)
    device.create(0, HEADER)
    device.write_state(b"state")
    device.close()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_what_a_crash_left_of_a_new_segment_is_no_segment(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000007.new").write_bytes(b"half")
    device = LogFiles(tmp_path)
    assert device.segments() == []
    device.close()


# ------------------------------------------------------------------------- what only memory can do


def test_crash_loses_what_was_not_synced() -> None:
    device = MemoryLog()
    device.create(0, HEADER)
    device.append([b"safe"])
    device.sync()
    device.append([b"unsafe"])
    assert device.crash().segments() == [(0, 68)]
    assert device.crash(torn_bytes=2).read(0, 64, 100) == b"safeun"


def test_sync_fails_once() -> None:
    device = MemoryLog(Faults(sync=True))
    device.contents[0] = bytearray(HEADER)
    with pytest.raises(OSError, match="on purpose"):
        device.sync()
    device.sync()


def test_torn_write_leaves_a_part() -> None:
    device = MemoryLog(Faults(torn_write=2))
    device.create(0, HEADER)
    with pytest.raises(OSError, match="torn"):
        device.append([b"abcdef"])
    assert device.read(0, 64, 100) == b"ab"
