"""The engine over in-memory pools, against a plain dict as the model."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest

from compute.btree.check import check
from compute.btree.tree import Tree
from compute.buffer.fetch import PageMiss
from compute.buffer.waits import resumed
from compute.txn.engine import Engine, SnapshotWait
from compute.txn.sweeper import free_dropped, sweep
from compute.txn.transaction import Transaction
from polarless.errors import CallerMistake, Conflict, Deadlock, Reroute, Retry
from polarless.kernel.page import encode
from tests.fakes import Cluster, commit, running


async def put_rows(engine: Engine, tree: Tree, rows: dict[Any, bytes]) -> None:
    txn = engine.begin()
    await running(txn.start_statement)
    for key, payload in rows.items():
        await running(partial(txn.lock_and_get, tree, key))
        txn.put(tree, key, payload)
    await commit(engine, txn)


async def make_tree(engine: Engine, *, int_keys: bool = True) -> Tree:
    txn = engine.begin()
    await running(txn.start_statement)
    tree = engine.new_tree(txn, int_keys=int_keys)
    await commit(engine, txn)
    return tree


async def read_all(
    engine: Engine,
    tree: Tree,
    low: Any = None,
    high: Any = None,
    *,
    reverse: bool = False,
    txn: Transaction | None = None,
) -> list[tuple[Any, bytes]]:
    own = txn is None
    reading = txn or engine.begin()
    if own:
        await running(reading.start_statement)
    rows: list[tuple[Any, bytes]] = []
    position = None
    while True:
        step = partial(reading.batch, tree, low, high, after=position, reverse=reverse)
        batch, position = await running(step)
        rows.extend(batch)
        if position is None:
            break
    if own:
        engine.rollback(reading)
    return rows


@pytest.mark.parametrize("cache_bytes", [64 << 20, 200_000])
@pytest.mark.parametrize("int_keys", [True, False])
async def test_random_transactions_match_a_dict(cache_bytes: int, int_keys: bool) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    async with Cluster(cache_bytes=cache_bytes) as cluster:
        engine = await cluster.writer()
        reader = cluster.reader()
        tree = await make_tree(engine, int_keys=int_keys)
        model: dict[Any, bytes] = {}

        def key_of(n: int) -> Any:
            return n if int_keys else b"key-%08d" % n

        for round_ in range(60):
            txn = engine.begin()
            await running(txn.start_statement)
            staged = dict(model)
            for _ in range(rng.randrange(1, 60)):
                key = key_of(rng.randrange(1500))
                old = await running(partial(txn.lock_and_get, tree, key))
                assert old == staged.get(key)
                if rng.random() < 0.3:
                    txn.put(tree, key, None)
                    staged.pop(key, None)
                else:
                    payload = rng.randbytes(rng.choice((5, 50, 500, 1900, 5000)))
                    txn.put(tree, key, payload)
                    staged[key] = payload
            if rng.random() < 0.2:
                engine.rollback(txn)
            else:
                await commit(engine, txn)
                model = staged
            if round_ % 5 == 0:
                sweep(engine, 100)
            if round_ % 10 == 0:
                assert await read_all(engine, tree) == sorted(model.items())
                theirs = reader.tree(tree.tree_id, tree.root, int_keys=int_keys)
                assert await read_all(reader, theirs) == sorted(model.items())
                low, high = sorted((key_of(rng.randrange(1500)), key_of(rng.randrange(1500))))
                expected = [(k, v) for k, v in sorted(model.items()) if low <= k < high]
                assert await read_all(engine, tree, low, high) == expected
                assert await read_all(engine, tree, low, high, reverse=True) == expected[::-1]
                await check(tree)
                await check(theirs)
        # The writer's frames and the pages folded from its log are the same bytes.
        for frame in engine.cache.frames.values():
            stored = cluster.store.page(frame.page_id, 1 << 62)
            assert stored is not None
            assert encode(stored) == encode(frame)


@pytest.mark.parametrize("reverse", [False, True])
async def test_large_values_that_do_not_fit_into_memory_together_are_read(reverse: bool) -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        rows = {key: b"%d" % key * 20_000 for key in range(20)}
        await put_rows(engine, tree, rows)
        await put_rows(engine, tree, {3: b"short"})
        engine.fetcher.values.budget_bytes = 100_000
        engine.fetcher.values.put(1 << 40, b"")
        reading = engine.begin()
        await running(reading.start_statement)
        for key, payload in ((7, b"own"), (18, None), (30, b"new")):
            await running(partial(reading.lock_and_get, tree, key))
            reading.put(tree, key, payload)
        expected = sorted((rows | {3: b"short", 7: b"own", 30: b"new"}).items())
        expected = [row for row in expected if row[0] != 18]
        found = read_all(engine, tree, reverse=reverse, txn=reading)
        # It never ended before.
        assert await asyncio.wait_for(found, 30) == (expected[::-1] if reverse else expected)


async def commit_without_advance(engine: Engine, tree: Tree, key: int, payload: bytes) -> None:
    """It becomes durable, but its advance is never sent."""
    assert engine.log is not None
    engine.log.home_lost()
    txn = engine.begin()
    await running(txn.start_statement)
    await running(lambda: txn.lock_and_get(tree, key))
    txn.put(tree, key, payload)
    engine.commit(txn, lambda lsn, error: None)
    durable = asyncio.Event()
    engine.log.when_drained(durable.set)
    await durable.wait()


async def test_a_page_that_a_reader_fetches_while_it_is_promoted_is_not_kept_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        await put_rows(engine, tree, {7: b"first", 8: b"first"})
        reader = cluster.reader()
        theirs = reader.tree(tree.tree_id, tree.root, int_keys=True)
        await commit_without_advance(engine, tree, 7, b"last")
        between = len(cluster.store.log)
        await commit_without_advance(engine, tree, 8, b"last")
        pieces = [between, len(cluster.store.log)]

        async def read_log(from_lsn: int, max_bytes: int) -> tuple[bytes, int]:
            # The log comes in two pieces, and a statement fetches the page after the first.
            end = pieces.pop(0)
            if not pieces:
                await resumed(PageMiss(reader.fetcher, tree.root))
                assert reader.cache.frames[tree.root].rows[7][1] == b"first"
            return bytes(cluster.store.log[from_lsn:end]), end

        monkeypatch.setattr(cluster.store, "read_log", read_log)
        await cluster.writer(reader)
        assert dict(await read_all(reader, theirs)) == {7: b"last", 8: b"last"}


async def test_promoted_reader_goes_on_with_its_cache_and_every_acknowledged_commit() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        await put_rows(engine, tree, {k: b"%d" % k for k in range(2000)})
        reader = cluster.reader()
        theirs = reader.tree(tree.tree_id, tree.root, int_keys=True)
        assert len(await read_all(reader, theirs)) == 2000
        held = len(reader.cache.frames)
        await commit_without_advance(engine, tree, 7, b"last")
        assert dict(await read_all(reader, theirs))[7] == b"7"
        await cluster.writer(reader)
        assert len(reader.cache.frames) == held
        assert dict(await read_all(reader, theirs))[7] == b"last"
        await put_rows(reader, theirs, {8: b"after"})
        assert dict(await read_all(reader, theirs))[8] == b"after"
        await check(theirs)


async def test_bulk_load_builds_a_clean_tree_and_a_rollback_frees_it() -> None:
    async with Cluster(cache_bytes=3_000_000) as cluster:
        engine = await cluster.writer()
        rows = [(k, b"x" * 90) for k in range(30_000)]

        async def load() -> tuple[Transaction, Tree]:
            txn = engine.begin()
            await running(txn.start_statement)
            tree = engine.new_tree(txn, int_keys=True)
            loader = engine.bulk_loader(txn, tree)
            for start in range(0, len(rows), 1000):
                await loader.add(rows[start : start + 1000])
            await loader.finish()
            return txn, tree

        txn, tree = await load()
        engine.rollback(txn)
        while cluster.tasks:
            await asyncio.gather(*cluster.tasks)
        assert cluster.store.page(tree.root, 1 << 62) is None
        txn, tree = await load()
        await commit(engine, txn)
        assert (await check(tree)).keys == len(rows)
        assert await read_all(engine, tree) == rows
        txn = engine.begin()
        await running(txn.start_statement)
        engine.drop_tree(txn, tree)
        await commit(engine, txn)
        await put_rows(engine, await make_tree(engine), {1: b"moves the horizon"})
        assert await free_dropped(engine) == 1
        assert cluster.store.page(tree.root, 1 << 62) is None


async def test_duplicate_or_descending_bulk_rows_are_refused() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        txn = engine.begin()
        await running(txn.start_statement)
        loader = engine.bulk_loader(txn, engine.new_tree(txn, int_keys=True))
        with pytest.raises(CallerMistake, match="duplicate"):
            await loader.add([(1, b""), (1, b"")])


async def test_a_snapshot_that_was_fetched_is_good_in_the_step_that_it_comes_in_only() -> None:
    # Whoever comes back later, having waited for something else, would read at a snapshot whose
    # versions nobody has kept.
    async with Cluster(remote_snapshots=True) as cluster:
        writer, reader = await cluster.writer(), cluster.reader()
        tree = await make_tree(writer)
        await put_rows(writer, tree, {1: b"one"})
        txn = reader.begin(read_only=True)
        with pytest.raises(SnapshotWait) as caught:
            txn.start_statement()
        await resumed(caught.value)
        await put_rows(writer, tree, {1: b"two"})
        with pytest.raises(SnapshotWait):
            txn.start_statement()
        await running(txn.start_statement)
        assert await running(lambda: txn.get(tree, 1)) == b"two"


async def test_a_timestamp_that_cannot_be_fetched_is_asked_for_again() -> None:
    # This node stays a member: nobody else would wake who waits for it.
    async with Cluster(remote_snapshots=True) as cluster:
        writer = await cluster.writer()
        pool: Any = writer.pool
        fetch, failures = pool.fetch_published, [Retry("the home is away")] * 2

        async def fetch_or_fail() -> int:
            if failures:
                raise failures.pop()
            return int(await fetch())

        pool.fetch_published = fetch_or_fail
        txn = writer.begin()
        await asyncio.wait_for(running(txn.start_statement), 10)
        assert not failures


async def test_repeatable_read_keeps_its_snapshot_and_loses_to_the_first_updater() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        await put_rows(engine, tree, {1: b"a"})
        old = engine.begin("repeatable read")
        await running(old.start_statement)
        assert old.get(tree, 1) == b"a"
        for _ in range(5):
            await put_rows(engine, tree, {1: b"b"})
        await running(old.start_statement)
        assert old.get(tree, 1) == b"a"
        with pytest.raises(Conflict):
            old.lock_and_get(tree, 1)
        engine.rollback(old)
        assert not engine.pins


async def test_serializable_refuses_write_skew() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        await put_rows(engine, tree, {1: b"on", 2: b"on"})
        one, two = engine.begin("serializable"), engine.begin("serializable")
        for txn, mine in ((one, 1), (two, 2)):
            await running(txn.start_statement)
            assert len(txn.batch(tree)[0]) == 2
            txn.lock_and_get(tree, mine)
            txn.put(tree, mine, b"off")
        await commit(engine, one)
        with pytest.raises(Conflict):
            await commit(engine, two)


async def test_deadlock_is_found_when_it_closes_and_the_other_goes_on() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        await put_rows(engine, tree, {1: b"", 2: b""})
        one, two = engine.begin(), engine.begin()
        for txn in (one, two):
            await running(txn.start_statement)
        one.lock_and_get(tree, 1)
        two.lock_and_get(tree, 2)
        waiting = asyncio.ensure_future(running(lambda: one.lock_and_get(tree, 2)))
        await asyncio.sleep(0)
        with pytest.raises(Deadlock):
            two.lock_and_get(tree, 1)
        engine.rollback(two)
        assert await waiting == b""
        engine.rollback(one)
        assert not any(engine.locks.rows.values())


async def test_writes_on_a_reader_are_refused_with_a_hint() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        reader = cluster.reader()
        txn = reader.begin()
        await running(txn.start_statement)
        with pytest.raises(Reroute) as caught:
            txn.lock_and_get(tree, 1)
        assert caught.value.sqlstate == "25006"
        assert caught.value.hint


async def test_snapshot_fetched_over_the_network_is_never_older_than_the_statement() -> None:
    async with Cluster(remote_snapshots=True) as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        for value in (b"1", b"2", b"3"):
            await put_rows(engine, tree, {1: value})
            txn = engine.begin()
            await running(txn.start_statement)
            assert txn.get(tree, 1) == value
            engine.rollback(txn)


async def test_hot_row_with_an_old_snapshot_open_stays_within_its_page() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        await put_rows(engine, tree, {1: b"first"})
        old = engine.begin("repeatable read")
        await running(old.start_statement)
        assert old.get(tree, 1) == b"first"
        for n in range(1000):
            await put_rows(engine, tree, {1: b"%d" % n * 20})
        assert old.get(tree, 1) == b"first"
        assert (await check(tree)).leaf_pages == 1
        engine.rollback(old)


async def test_hot_row_goes_on_when_all_its_writers_wait_for_the_readers_to_report() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        assert engine.log is not None
        # The readers have reported this, and their next report has not come yet.
        cluster.hub.snapshots = [cluster.hub.published]

        async def write() -> None:
            for n in range(300):
                await put_rows(engine, tree, {1: b"%d" % n})

        writing = asyncio.create_task(write())
        while not engine.progress.callbacks or engine.log.advanced < engine.log.tail:
            assert not writing.done()
            await asyncio.sleep(0)
        # No commit is under way whose advance could bring it.
        cluster.hub.snapshots = [cluster.hub.published]
        await asyncio.wait_for(writing, 5.0)


async def test_what_is_not_published_yet_may_be_changed_but_not_shown() -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        await put_rows(engine, tree, {1: b"old"})
        first, second = engine.begin(), engine.begin()
        first.start_statement()
        first.lock_and_get(tree, 1)
        first.put(tree, 1, b"new")
        acknowledged: list[Any] = []
        engine.commit(first, lambda lsn, error: acknowledged.append((lsn, error)))
        # Its locks are gone, its group is not durable.
        second.start_statement()
        assert second.lock_and_get(tree, 1) == b"new"
        assert not acknowledged
        wait = second.unpublished()
        assert wait is not None
        await resumed(wait)
        assert acknowledged[0][1] is None
        assert second.unpublished() is None
        engine.rollback(second)


@pytest.mark.parametrize("reverse", [False, True])
async def test_range_asks_for_no_page_beyond_its_end_and_is_a_scan_only_if_it_is_long(
    reverse: bool,
) -> None:
    async with Cluster() as cluster:
        engine = await cluster.writer()
        tree = await make_tree(engine)
        for low in range(0, 400, 100):
            await put_rows(engine, tree, dict.fromkeys(range(low, low + 100), b"x" * 1000))
        # A node with the root, the parent of all leaves, and the first leaf.
        cold = cluster.reader()
        other = Tree(cold.fetcher, tree.tree_id, tree.root, int_keys=True)
        await running(partial(other.leaf, 0))
        root = cold.cache.frames[tree.root]
        children, bounds = root.children, root.keys
        assert len(children) > 20

        def missed(low: int | None, high: int | None) -> tuple[bool, set[int]]:
            with pytest.raises(PageMiss) as caught:
                other.rows_in(None, low, high, reverse=reverse)
            return caught.value.scan, {caught.value.page_id, *caught.value.also}

        # From within the tenth leaf into the twelfth.
        low, high = bounds[9] + 1, bounds[11] + 1
        assert missed(low, high) == (False, set(children[10:13]))
        assert missed(bounds[9], bounds[10]) == (False, {children[10]})
        scan, pages = missed(bounds[1], bounds[-1])
        assert scan
        assert len(pages) > 4
