"""What every page store does, in LMDB and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polarless.errors import CorruptData, Overloaded
from storage.backends.memory import Faults, MemoryPages
from storage.backends.page_lmdb import PageLmdb
from storage.pages.store import PageStore


class Subject:
    """A store, and how to close it and open it again."""

    def __init__(self, store: PageStore, again: Callable[[PageStore], PageStore]) -> None:
        self.store = store
        self._again = again

    def reopen(self) -> PageStore:
        self.store = self._again(self.store)
        return self.store


@pytest.fixture(params=["lmdb", "memory", "faulty"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "lmdb":

        def reopen(store: PageStore) -> PageStore:
            store.close()
            return PageLmdb(tmp_path / "pages")

        made = Subject(PageLmdb(tmp_path / "pages"), reopen)
    elif request.param == "memory":

        def close_only(store: PageStore) -> PageStore:
            store.close()
            return store

        made = Subject(MemoryPages(), close_only)
    else:
        memory = MemoryPages(Faults(room_bytes=1 << 30))
        made = Subject(memory, lambda store: store.crash())  # type: ignore[attr-defined]
    yield made
    made.store.close()


def test_new_store_is_empty(subject: Subject) -> None:
    assert subject.store.read(1) is None
    assert subject.store.read_state() is None
    assert list(subject.store.page_ids()) == []


def test_pages_and_state_appear_together(subject: Subject) -> None:
    store = subject.store
    store.stage([(1, b"one"), (2, b"two")])
    store.stage([(3, b"three")])
    assert store.read(1) is None
    assert store.read_state() is None
    store.commit(b"state")
    for reopen in (False, True):
        opened = subject.reopen() if reopen else store
        assert [opened.read(page_id) for page_id in (1, 2, 3, 4)] == [
            b"one",
            b"two",
            b"three",
            None,
        ]
        assert opened.read_state() == b"state"


def test_heads_are_those_of_committed_images(subject: Subject) -> None:
    store = subject.store
    store.stage([(1, b"one"), (2, b"second")])
    store.commit(b"s")
    store.stage([(3, b"three"), (1, None)])
    assert store.heads([2, 3, 1, 2], 3) == [b"sec", None, b"one", b"sec"]
    assert store.heads([], 3) == []


def test_the_last_of_what_was_staged_counts(subject: Subject) -> None:
    store = subject.store
    store.stage([(1, b"old"), (1, b"new")])
    store.stage([(2, b"x")])
    store.stage([(2, None)])
    store.commit(b"s")
    assert store.read(1) == b"new"
    assert store.read(2) is None


def test_abort_leaves_everything_as_it_was(subject: Subject) -> None:
    store = subject.store
    store.stage([(1, b"one")])
    store.commit(b"first")
    store.stage([(1, b"other"), (2, b"two")])
    store.abort()
    store.abort()
    for reopen in (False, True):
        opened = subject.reopen() if reopen else store
        assert opened.read(1) == b"one"
        assert opened.read(2) is None
        assert opened.read_state() == b"first"


def test_what_was_staged_is_gone_after_reopening(subject: Subject) -> None:
    subject.store.stage([(1, b"one")])
    subject.store.commit(b"first")
    subject.store.stage([(1, b"other")])
    store = subject.reopen()
    assert store.read(1) == b"one"
    store.stage([(2, b"two")])
    store.commit(b"second")
    assert store.read(1) == b"one"


def test_removed_page_is_gone(subject: Subject) -> None:
    store = subject.store
    store.stage([(1, b"one"), (2, b"two")])
    store.commit(b"1")
    store.stage([(1, None), (9, None)])
    store.commit(b"2")
    assert subject.reopen().read(1) is None
    assert list(subject.store.page_ids()) == [2]


def test_state_alone_can_be_committed(subject: Subject) -> None:
    subject.store.commit(b"only")
    assert subject.reopen().read_state() == b"only"


def test_page_ids_ascend(subject: Subject) -> None:
    ids = [2**63, 256, 1, 70000, 255]
    subject.store.stage([(page_id, b"%d" % page_id) for page_id in ids])
    subject.store.commit(b"s")
    assert list(subject.store.page_ids()) == sorted(ids)
    assert subject.store.read(2**63) == b"%d" % 2**63


def test_many_pages_of_full_size(subject: Subject) -> None:
    store = subject.store
    for first in range(0, 600, 50):
        store.stage([(i, bytes([i % 256]) * 16384) for i in range(first, first + 50)])
    store.commit(b"s")
    assert all(store.read(i) == bytes([i % 256]) * 16384 for i in range(600))
    assert store.statistics()["page_store_pages"] == 600


def test_statistics_have_the_same_names(subject: Subject) -> None:
    assert subject.store.statistics().keys() == MemoryPages().statistics().keys()


# ---------------------------------------------------------------------------------- what goes wrong


def test_full_memory_drops_what_was_staged() -> None:
    store = MemoryPages(Faults(room_bytes=10))
    store.stage([(1, b"12345")])
    with pytest.raises(Overloaded) as caught:
        store.stage([(2, b"1234567")])
    assert caught.value.sqlstate == "53100"
    store.commit(b"s")
    assert list(store.page_ids()) == []


def test_failed_commit_changes_nothing() -> None:
    store = MemoryPages(Faults(sync=True))
    store.stage([(1, b"one")])
    with pytest.raises(OSError, match="on purpose"):
        store.commit(b"s")
    assert store.read(1) is None
    assert store.read_state() is None
    store.commit(b"later")
    assert store.read(1) is None


def test_full_map_drops_what_was_staged_and_grows(tmp_path: Path) -> None:
    store = PageLmdb(tmp_path, map_bytes=256 * 1024)
    pages = [(i, b"x" * 16000) for i in range(100)]
    with pytest.raises(Overloaded) as caught:
        store.stage(pages)
        store.commit(b"s")
    assert caught.value.sqlstate == "53100"
    assert store.read(0) is None
    while True:
        assert store.grow()
        try:
            store.stage(pages)
            store.commit(b"s")
            break
        except Overloaded:
            continue
    assert store.read(99) == b"x" * 16000
    store.close()
    # A store that grew opens with room to spare, whatever it is told.
    store = PageLmdb(tmp_path, map_bytes=256 * 1024)
    assert store.statistics()["page_store_map_bytes"] >= 2 * 100 * 16000
    store.close()


def test_looking_changes_nothing(tmp_path: Path) -> None:
    store = PageLmdb(tmp_path)
    store.stage([(1, b"one")])
    store.commit(b"s")
    store.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    store = PageLmdb(tmp_path, read_only=True)
    assert store.read(1) == b"one"
    assert store.read_state() == b"s"
    store.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"\xff" * 8192)
    with pytest.raises(CorruptData):
        PageLmdb(tmp_path)
