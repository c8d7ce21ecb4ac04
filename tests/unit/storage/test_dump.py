"""``python -m storage.dump``: what is there, and a nonzero exit when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polarless.kernel import redo
from polarless.kernel.page import LEAF, Frame, encode
from storage import dump
from storage.backends.log_files import LogFiles
from storage.backends.page_lmdb import PageLmdb
from storage.log import segment
from storage.pages.folded import Folded, encode_folded

CLUSTER = bytes(16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A storage folder with one group in the log and one folded page."""
    device = LogFiles(tmp_path / "storage" / "log")
    device.write_state(segment.encode_state(CLUSTER, epoch=3, durable_lsn=0))
    device.create(0, segment.encode_header(CLUSTER, 0))
    group = redo.encode_group(
        [(redo.FORMAT, 1, LEAF, 1, None, None, (5,), ((1, b"row", None),))],
        epoch=3, start_lsn=0, cts=1, transaction_id=1, horizon=0, next_page=16,
    )  # fmt: skip
    device.append([group])
    device.sync()
    device.close()
    store = PageLmdb(tmp_path / "storage" / "pages")
    frame = Frame(1, LEAF, 1, lsn=len(group), keys=[5], rows={5: (1, b"row", None)})
    store.stage([(1, encode(frame))])
    store.commit(encode_folded(CLUSTER, Folded(len(group), 1, 16, len(group))))
    store.close()
    return tmp_path


def test_shows_segments_groups_and_pages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dump.main([str(folder), "--json", "--groups", "--pages", "--page", "1"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["log"]["epoch"] == 3
    assert values["groups"][0]["records"] == {"format": 1}
    assert values["pages"][0]["kind"] == "leaf"
    assert values["page"]["rows"] == {"5": "(1, b'row', None)"}
    assert dump.main([str(folder)]) == 0
    assert "epoch" in capsys.readouterr().out


def test_damage_is_named_and_the_exit_code_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (folder / "storage" / "log").glob("*.log")
    data = bytearray(path.read_bytes())
    data[segment.HEADER_BYTES + 70] ^= 1
    path.write_bytes(data)
    assert dump.main([str(folder), "--json"]) in (0, 1)
    values = json.loads(capsys.readouterr().out)
    # The last group of a log: a torn tail unless something says that it was durable.
    assert values["damage"] or values["log"]["torn_bytes"]
    path.write_bytes(bytes(data[:10]))
    assert dump.main([str(folder)]) == 1


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert dump.main([str(tmp_path)]) == 2
