"""The commit pipeline over a store that is slow, or takes nothing more for now."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from compute.btree.tree import Tree
from compute.buffer.waits import WaitFor
from compute.txn import log_writer
from compute.txn.engine import Engine
from compute.txn.transaction import Transaction
from polarless.errors import Overloaded
from tests.fakes import Cluster, commit, running


async def begun(engine: Engine, tree: Tree, key: int, payload: bytes) -> Transaction:
    """A transaction that has written one row."""
    txn = engine.begin()
    await running(txn.start_statement)
    await running(partial(txn.lock_and_get, tree, key))
    txn.put(tree, key, payload)
    return txn


async def new_tree(engine: Engine) -> Tree:
    txn = engine.begin()
    await running(txn.start_statement)
    tree = engine.new_tree(txn, int_keys=True)
    await commit(engine, txn)
    return tree


@pytest.mark.allow_log("an append waits: full of appends")
async def test_what_the_store_does_not_take_is_tried_again_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_AGAIN_S", 0.001)
    async with Cluster() as cluster:
        engine = await cluster.writer()
        log = engine.log
        assert log is not None
        tree = await new_tree(engine)
        # The store's own assertions say that nothing is left out and nothing comes twice.
        take, refusals = cluster.store.append, 5

        def append(epoch: int, start_lsn: int, groups: bytes, done: Any) -> None:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise Overloaded("full of appends")
            take(epoch, start_lsn, groups, done)

        monkeypatch.setattr(cluster.store, "append", append)
        commits = []
        for key in range(20):
            txn = await begun(engine, tree, key, b"row")
            commits.append(asyncio.ensure_future(commit(engine, txn)))
        lsns = await asyncio.gather(*commits)
        assert refusals == 0
        assert lsns == sorted(lsns, key=lambda lsn: lsn or 0)
        assert log.durable == log.tail == len(cluster.store.log)


async def test_nothing_is_applied_while_too_much_is_not_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "WAITING_BYTES_MAX", 10_000)
    async with Cluster() as cluster:
        engine = await cluster.writer()
        log = engine.log
        assert log is not None
        tree = await new_tree(engine)
        first, second, third = [await begun(engine, tree, key, bytes(8000)) for key in (1, 2, 3)]
        cluster.store.paused = []
        acknowledged: list[Any] = []
        for txn in (first, second):
            engine.commit(txn, lambda lsn, error: acknowledged.append(error))
        with pytest.raises(WaitFor, match="storage, which is behind"):
            engine.commit(third, lambda lsn, error: None)
        assert not engine.can_log
        tail = log.tail
        last = asyncio.ensure_future(commit(engine, third))
        await asyncio.sleep(0)
        assert log.tail == tail, "it was applied"
        paused, cluster.store.paused = cluster.store.paused, None
        for answer in paused:
            answer()
        lsn = await last
        assert lsn == log.durable > tail
        assert acknowledged == [None, None]


async def test_whoever_waits_for_storage_hears_that_the_node_is_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "WAITING_BYTES_MAX", 10_000)
    async with Cluster() as cluster:
        engine = await cluster.writer()
        log = engine.log
        assert log is not None
        tree = await new_tree(engine)
        first, second, third = [await begun(engine, tree, key, bytes(8000)) for key in (1, 2, 3)]
        cluster.store.paused = []
        for txn in (first, second):
            engine.commit(txn, lambda lsn, error: None)
        waiting = asyncio.ensure_future(commit(engine, third))
        await asyncio.sleep(0)
        log.stop(Overloaded("over"))
        with pytest.raises(Overloaded, match="over"):
            await waiting
