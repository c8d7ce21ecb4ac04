"""Reads that may take an older timestamp: when they do, and what they see."""

from __future__ import annotations

from functools import partial
from typing import Any

from compute.btree.tree import Tree
from compute.txn.engine import Engine
from compute.txn.reuse import UNKNOWN, Reuse
from tests.fakes import Cluster, commit, running
from tests.unit.txn.test_engine import make_tree


class Reader:
    """A reader whose published timestamp is a READ away, and a writer beside it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.fetches = 0

    async def start(self) -> None:
        self.writer = await self.cluster.writer()
        self.tree = await make_tree(self.writer)
        self.engine = self.cluster.reader()
        self.theirs = self.engine.tree(self.tree.tree_id, self.tree.root, int_keys=True)
        fetch = self.engine.pool.fetch_published

        async def counted() -> int:
            self.fetches += 1
            return await fetch()

        self.engine.pool.fetch_published = counted  # type: ignore[method-assign]

    async def write(self, payload: bytes) -> int:
        """Change the row; the commit's timestamp."""
        txn = self.writer.begin()
        await running(txn.start_statement)
        await running(partial(txn.lock_and_get, self.tree, 1))
        txn.put(self.tree, 1, payload)
        # As the reader's report would say.
        self.cluster.hub.snapshots = [self.engine.recent] if self.engine.recent else None
        await commit(self.writer, txn)
        return txn.cts

    async def read(self, reuse: Reuse | None = None) -> bytes | None:
        return await read(self.engine, self.theirs, reuse)


async def read(engine: Engine, tree: Tree, reuse: Reuse | None) -> bytes | None:
    txn = engine.begin(read_only=True, reuse=reuse)
    try:
        await running(txn.start_statement)
        found: Any = await running(lambda: txn.get(tree, 1))
        return found  # type: ignore[no-any-return]
    finally:
        engine.rollback(txn)


def level(*, session: bool = False, age_s: float = 1000.0) -> Reuse:
    reuse = Reuse()
    reuse.is_session, reuse.age_s = session, age_s
    return reuse


async def test_a_bounded_read_takes_what_was_read_before_and_a_strong_one_does_not() -> None:
    async with Cluster(remote_snapshots=True) as cluster:
        reader = Reader(cluster)
        await reader.start()
        await reader.write(b"one")
        assert await reader.read(level()) == b"one"
        assert reader.fetches == 1, "nothing was known yet"
        await reader.write(b"two")
        assert await reader.read(level()) == b"one"
        assert (reader.fetches, reader.engine.snapshots_reused) == (1, 1)
        assert await reader.read() == b"two"
        assert reader.fetches == 2
        # What one has read is good for the others.
        assert await reader.read(level()) == b"two"
        assert reader.fetches == 2


async def test_a_bounded_read_takes_nothing_that_is_too_old() -> None:
    async with Cluster(remote_snapshots=True) as cluster:
        reader = Reader(cluster)
        await reader.start()
        await reader.write(b"one")
        await reader.read()
        await reader.write(b"two")
        reader.engine.recent_at -= 5.0
        assert await reader.read(level(age_s=6.0)) == b"one"
        assert await reader.read(level(age_s=4.0)) == b"two"
        assert await reader.read(level(age_s=0.0)) == b"two"
        assert reader.fetches == 3


async def test_a_session_sees_its_own_commits_and_never_goes_back() -> None:
    async with Cluster(remote_snapshots=True) as cluster:
        reader = Reader(cluster)
        await reader.start()
        await reader.write(b"one")
        mine, other = level(session=True), level(session=True)
        await reader.read()
        mine.note(await reader.write(b"two"))
        assert await reader.read(other) == b"one"
        assert reader.fetches == 1
        assert await reader.read(mine) == b"two"
        assert reader.fetches == 2
        # Another reader may be behind what this one has shown.
        seen = other.seen
        assert await reader.read(other) == b"two" and other.seen > seen
        reader.engine.recent = seen
        assert await reader.read(other) == b"two"
        assert reader.fetches == 3


async def test_a_session_that_does_not_know_what_it_has_committed_reads_strongly_once() -> None:
    async with Cluster(remote_snapshots=True) as cluster:
        reader = Reader(cluster)
        await reader.start()
        await reader.write(b"one")
        await reader.read()
        await reader.write(b"two")
        reuse = level(session=True)
        reuse.hear(UNKNOWN)
        reuse.note(1)
        assert await reader.read(reuse) == b"two"
        assert await reader.read(reuse) == b"two"
        assert reader.fetches == 2


async def test_nothing_is_taken_from_an_earlier_membership_or_by_a_writer() -> None:
    async with Cluster(remote_snapshots=True) as cluster:
        reader = Reader(cluster)
        await reader.start()
        await reader.write(b"one")
        await reader.read()
        reader.engine.forget_published()
        assert await reader.read(level()) == b"one"
        assert reader.fetches == 2
        await cluster.writer(reader.engine)
        assert await reader.read(level()) == b"one"
        assert reader.fetches == 3
