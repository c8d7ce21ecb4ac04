"""What a compute node may rely on in the pool, with shared memory and without."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from memory_pool.client import Place, PoolClient, Registered
from memory_pool.fabric import reach
from polarless.errors import (
    ConnectionLost,
    Fenced,
    PolarlessError,
    RemoteProtocolError,
    Reroute,
    Retry,
)
from polarless.net import rpc
from tests.contracts.pool_cluster import (
    CLUSTER,
    LIMIT_S,
    Compute,
    PoolCluster,
    advance,
    always,
    image,
    pool_cluster,
    snapshot,
)


@pytest.fixture(params=[True, False], ids=["shared memory", "verbs"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[PoolCluster]:
    async with pool_cluster(shared_memory=request.param) as one:
        yield one


def pool_of(compute: Compute) -> PoolClient:
    assert compute.pool is not None
    return compute.pool


async def register(compute: Compute, page_id: int) -> Registered:
    """Without the place, which is of interest in few tests."""
    found = await pool_of(compute).register(page_id, deadline_s=LIMIT_S)
    return found._replace(place=None)


async def test_a_page_written_by_one_is_read_by_another(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    assert await register(ro, 7) == Registered(None, 0, 10)
    assert await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    assert await register(ro, 7) == Registered(image(7, 9), 9, 10)
    many = await pool_of(ro).register_many([8, 7], deadline_s=LIMIT_S)
    assert [one._replace(place=None) for one in many] == [
        Registered(None, 0, 10), Registered(image(7, 9), 9, 10),
    ]  # fmt: skip
    # A reader's offer, too.
    assert await pool_of(ro).write_back(8, image(8, 5), 5, always(10))
    assert (await register(rw, 8)).image == image(8, 5)
    shared = cluster.shared_memory
    statistics = pool_of(ro).statistics()
    assert statistics["read_shared"] == (2 if shared else 0)
    assert statistics["read_verbs"] == (0 if shared else 2)


async def test_a_page_that_was_let_go_is_read_again_without_asking(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    pool = pool_of(ro)
    written = await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    place = (await pool.register(7, deadline_s=LIMIT_S)).place
    assert place is not None
    assert place == written
    pool.release([7])
    asked = (await pool.status())["registers"]
    assert await pool.read_place(7, place, deadline_s=LIMIT_S) == image(7, 9)
    assert pool.read_now(7, place) == (image(7, 9) if cluster.shared_memory else None)
    assert pool.is_mapped(place) == cluster.shared_memory
    assert (await pool.status())["registers"] == asked
    # It is told of the next change, and then no more.
    await advance(rw, 20, 2, [7])
    await advance(rw, 30, 3, [7])
    assert [news for news in ro.told if news[0] == "invalidate"] == [("invalidate", 20, [7], 20)]
    pool.release([7])
    await advance(rw, 40, 4, [7])
    assert len([news for news in ro.told if news[0] == "invalidate"]) == 1


async def test_places_can_be_asked_for_beforehand(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    pool = pool_of(ro)
    for page_id in (7, 8):
        assert await pool_of(rw).write_back(page_id, image(page_id, 9), 9, always(10))
    await advance(rw, 20, 2, [8])
    found: dict[int, Place] = {}
    pool.locate([7, 8, 9], found.__setitem__)
    assert await pool.refresh_mark() == 20
    assert list(found) == [7]
    assert await pool.read_place(7, found[7], deadline_s=LIMIT_S) == image(7, 9)
    # It is told of what it asked for, if that was there.
    await advance(rw, 30, 3, [7, 8, 9])
    assert [news for news in ro.told if news[0] == "invalidate"] == [("invalidate", 30, [7], 30)]


async def test_a_page_that_was_let_go_may_leave_the_pool(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    pool = pool_of(ro)
    places = []
    for page_id in (7, 8):
        assert await pool_of(rw).write_back(page_id, image(page_id, 9), 9, always(10))
        place = (await pool.register(page_id, deadline_s=LIMIT_S)).place
        assert place is not None
        places.append(place)
    pool.release([7])
    await pool.refresh_mark()
    for page_id in range(100, 250):
        assert await pool_of(rw).write_back(page_id, image(page_id, 9), 9, always(10))
    assert await pool.read_place(7, places[0], deadline_s=LIMIT_S) is None
    assert await pool.read_place(8, places[1], deadline_s=LIMIT_S) == image(8, 9)
    assert await register(ro, 7) == Registered(None, 0, 10)


async def test_the_mark_rises_after_the_pages_are_dropped(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    await register(ro, 7)
    names, _ = await advance(rw, 20, 2, [7, 8])
    assert list(names) == ["ro1"]
    assert [news for news in ro.told if news[0] == "invalidate"] == [("invalidate", 20, [7], 20)]
    assert ro.marks_at_invalidate == [10]
    assert pool_of(ro).mark == 20
    assert await snapshot(ro) == 2


async def test_a_commit_waits_for_an_acknowledgement_that_is_held_back(
    cluster: PoolCluster,
) -> None:
    rw, ro = await cluster.serve()
    await register(ro, 7)
    ro.acknowledge = False
    waiting = asyncio.ensure_future(advance(rw, 20, 2, [7]))
    await ro.heard("invalidate")
    # The home answers in order: this one comes after it has processed the advance.
    assert await pool_of(rw).refresh_mark() == 20
    assert not waiting.done()
    assert await snapshot(ro) == 1
    pool_of(ro).ack(20)
    await waiting
    assert await snapshot(ro) == 2


async def test_a_stale_page_is_pulled_from_the_writer(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    assert await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    await advance(rw, 20, 2, [7])
    reading = asyncio.ensure_future(register(ro, 7))
    await rw.heard("pull")
    assert await pool_of(rw).write_back(7, image(7, 20), 20, always(20))
    assert await reading == Registered(image(7, 20), 20, 20)


async def test_a_pull_that_is_refused_leads_to_storage(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    assert await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    await advance(rw, 20, 2, [7])
    reading = asyncio.ensure_future(register(ro, 7))
    _, page_id, ticket = await rw.heard("pull")
    pool_of(rw).refuse_pull(page_id, ticket)
    assert await reading == Registered(None, 0, 20)
    # The writer itself is not kept waiting.
    assert await register(rw, 7) == Registered(None, 0, 20)


async def test_image_that_was_overtaken_is_refused(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    await advance(rw, 20, 2, [7])
    assert not await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    assert not await pool_of(rw).write_back(7, image(7, 20), 20, always((1 << 62) - 1))
    assert await register(ro, 7) == Registered(None, 0, 20)
    assert not await pool_of(ro).write_back(9, image(9, 9), 9, always(20), scan=True)


async def test_a_slot_that_changed_under_the_reader_is_asked_for_again(
    cluster: PoolCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rw, ro = await cluster.serve()
    assert await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    reaching = pool_of(ro).reach
    assert reaching is not None
    real, asked = reaching.read_slot, []

    def read_slot(
        node: str, slab: int, slot: int, page_id: int, generation: int, done: reach.ReadDone,
        *, deadline_s: float,
    ) -> None:  # fmt: skip
        asked.append(generation)
        wrong = generation - 1 if len(asked) < 3 else generation
        real(node, slab, slot, page_id, wrong, done, deadline_s=deadline_s)

    monkeypatch.setattr(reaching, "read_slot", read_slot)
    assert (await register(ro, 7)).image == image(7, 9)
    assert len(asked) == 3
    # Not for ever: storage has the page, too.
    asked.clear()
    monkeypatch.setattr(
        reaching, "read_slot",
        lambda *address, deadline_s: address[-1](reach.CHANGED, None),
    )  # fmt: skip
    assert await register(ro, 7) == Registered(None, 0, 10)


async def test_fenced_writer_can_write_nowhere(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    assert await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    old = pool_of(rw).reach
    home = cluster.nodes["mem1"].home
    assert old is not None
    assert home is not None
    before = cluster.nodes["mem1"].slabs.keys, cluster.nodes["mem2"].slabs.keys
    counts = [len(keys) for keys in before]
    assert (await pool_of(ro).fence(2))["mark"] == 10
    # One key for each slab, and the one of the cells.
    assert [len(keys) for keys in before] == [counts[0] - 2, counts[1] - 1]

    written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    old.write_slot("mem1", 0, 0, 1 << 60, bytes(64), written.set_result, deadline_s=LIMIT_S)
    assert await written is False
    _, error = await rw.heard("lost")
    assert isinstance(error, Fenced)
    with pytest.raises(Retry):
        await snapshot(rw)
    with pytest.raises(ConnectionLost):
        await advance(rw, 20, 2, [7])
    await advance(ro, 20, 2, [7], epoch=2)
    assert await snapshot(ro) == 2
    with pytest.raises(Fenced):
        await pool_of(rw).rejoin(cluster.nodes["mem1"].address, 1)


@pytest.mark.allow_log("ro1 expelled: no acknowledgement of LSN 20")
async def test_expelled_reader_cannot_serve_and_comes_back_cold(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    await register(ro, 7)
    ro.acknowledge = False
    names, _ = await advance(rw, 20, 2, [7])
    assert names == ()
    # Before it has heard of it: the word says so.
    with pytest.raises(Retry):
        await snapshot(ro)
    await ro.heard("lost")
    assert ("expelled",) in ro.told
    joined = await pool_of(ro).rejoin(cluster.nodes["mem1"].address, 1, held=[7])
    assert joined.cold
    assert joined.mark == 20
    assert await snapshot(ro) == 2


@pytest.mark.allow_log("memory node mem2 detached", "memory node mem2 cannot be attached")
async def test_lost_memory_node_is_a_miss_and_nothing_else(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    pages = range(20, 30)
    for page in pages:
        assert await pool_of(rw).write_back(page, image(page, 9), 9, always(10))
    found = [await register(ro, page) for page in pages]
    assert all(one.image is not None for one in found)
    old = cluster.nodes["mem2"].address
    cluster.kill("mem2")
    await ro.heard("slabs")
    found = [await register(ro, page) for page in pages]
    assert 0 < sum(one.image is not None for one in found) < len(found)
    for page in range(30, 40):
        assert await pool_of(rw).write_back(page, image(page, 9), 9, always(10))
    # A new process takes its place.
    home = cluster.nodes["mem1"].home
    assert home is not None
    home.detach("mem2")
    again = await cluster.memory("mem2")
    assert again.address != old
    ro.told.clear()
    await home.attach("mem2", again.address)
    await ro.heard("slabs")
    status = await pool_of(ro).status()
    assert status["nodes"]["mem2"]["valid"] == 0
    assert any("mem2 detached" in text for _, text in status["events"])
    for page in range(40, 50):
        assert await pool_of(rw).write_back(page, image(page, 9), 9, always(10))
        assert (await register(ro, page)).image is not None
    status = await pool_of(ro).status()
    assert status["nodes"]["mem2"]["valid"] > 0


async def lose_home(cluster: PoolCluster, *computes: Compute) -> None:
    """The home's process ends. Its memory goes with it."""
    cluster.kill("mem1")
    for compute in computes:
        await compute.heard("lost")
        assert not pool_of(compute).connected


NEW_HOME = pytest.mark.allow_log("memory node mem1 (cannot be attached|detached)")


@NEW_HOME
async def test_caches_and_slots_outlive_the_home(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    for page in (7, 8, 9, 10):
        assert await pool_of(rw).write_back(page, image(page, 9), 9, always(10))
        await register(ro, page)
    await advance(rw, 20, 2, [8])
    await lose_home(cluster, rw, ro)
    with pytest.raises(Retry):
        await snapshot(ro)
    with pytest.raises(ConnectionLost):
        await register(ro, 7)

    second = cluster.nodes["mem2"]
    await second.become_home(home_epoch=2, epoch=1, agents={})
    rejoining = asyncio.ensure_future(pool_of(ro).rejoin(second.address, 2, held=[7, 9, 10]))
    # What storage has as of 30; the writer itself has nothing cached.
    rw.stored = {7: 9, 8: 20, 9: 30, 10: 9}
    joined = await pool_of(rw).rejoin(second.address, 2, held=[])
    assert not joined.cold
    ro.told.clear()
    await advance(rw, 30, 3, [9])
    assert await rejoining == (False, 30)
    # The invalidation of the first advance has reached the cache that was kept.
    assert ("invalidate", 30, [9], 30) in ro.told
    assert await snapshot(ro) == 3
    _, as_of, claims = await rw.heard("confirm")
    assert as_of == 30
    claimed = dict(claims)
    assert claimed
    assert set(claimed) <= {7, 8, 9, 10}
    # Behind the answer on the same channel: the home has heard it.
    status = await pool_of(rw).status()
    assert status["claims"] == 0
    assert status["adopted"] == len(claimed.keys() - {8, 9})
    for page in claimed.keys() - {8, 9}:
        assert (await register(ro, page)).image == image(page, 9)
    # Pages 8 and 9 have changed since: their slots are free.
    assert await register(rw, 8) == Registered(None, 0, 30)
    assert await register(rw, 9) == Registered(None, 0, 30)


@NEW_HOME
async def test_reader_that_was_expelled_before_starts_cold(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    late = cluster.client("ro2", "mem1")
    await pool_of(late).connect()
    await register(late, 7)
    await advance(rw, 20, 2, [])
    assert pool_of(rw).admitted == ["ro1", "ro2"]
    pool_of(late).close()
    await advance(rw, 30, 3, [7])
    assert pool_of(rw).admitted == ["ro1"]
    await lose_home(cluster, rw, ro)
    second = cluster.nodes["mem2"]
    await second.become_home(home_epoch=2, epoch=1, agents={})
    one = asyncio.ensure_future(pool_of(ro).rejoin(second.address, 2, held=[5]))
    two = asyncio.ensure_future(pool_of(late).rejoin(second.address, 2, held=[7]))
    await pool_of(rw).rejoin(second.address, 2)
    await advance(rw, 40, 4, [])
    assert not (await one).cold
    assert (await two).cold


@NEW_HOME
async def test_writer_and_home_lost_together(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    late = cluster.client("ro2", "mem1")
    await pool_of(late).connect()
    assert await pool_of(rw).write_back(7, image(7, 9), 9, always(10))
    pool_of(rw).close()
    await lose_home(cluster, ro, late)
    second = cluster.nodes["mem2"]
    await second.become_home(home_epoch=2, epoch=2, agents={})
    one = asyncio.ensure_future(pool_of(ro).rejoin(second.address, 2, held=[7]))
    two = asyncio.ensure_future(pool_of(late).rejoin(second.address, 2, held=[7]))
    fenced = None
    while fenced is None:
        try:
            fenced = await pool_of(ro).fence(2)
        except Retry:
            # Its rejoin has not got that far.
            await asyncio.sleep(0)
    assert fenced["cold"]
    assert (await one).cold
    await advance(ro, 50, 9, [], epoch=2)
    assert (await two).cold
    assert await register(late, 7) == Registered(None, 0, 50)
    assert await snapshot(late) == 9


async def test_published_is_not_known_before_the_first_advance(cluster: PoolCluster) -> None:
    node = await cluster.memory("mem1")
    await node.become_home(home_epoch=1, epoch=1, agents={})
    rw = cluster.client("rw", "mem1", writer=True)
    with pytest.raises(Retry):
        await snapshot(rw)
    await pool_of(rw).connect()
    with pytest.raises(Retry, match="nothing is published yet"):
        await snapshot(rw)
    # A cluster that is empty has published 0.
    await advance(rw, 0, 0, [])
    assert await snapshot(rw) == 0
    await advance(rw, 10, 1, [])
    assert await snapshot(rw) == 1


async def test_concurrent_snapshots_share_a_read(cluster: PoolCluster) -> None:
    if cluster.shared_memory:
        pytest.skip("from shared memory a snapshot is a function call")
    rw, ro = await cluster.serve()
    assert await snapshot(ro) == 1
    before = cluster.nodes["mem1"].slabs.stats.ops
    results = await asyncio.gather(*(snapshot(ro) for _ in range(50)))
    assert results == [1] * 50
    # One is sent for the first caller; all others came before the second one was sent.
    assert cluster.nodes["mem1"].slabs.stats.ops - before == 2
    await advance(rw, 20, 2, [])
    assert await snapshot(ro) == 2


async def test_advance_that_was_not_sent_ends_the_connection(cluster: PoolCluster) -> None:
    rw, _ = await cluster.serve()
    with pytest.raises(PolarlessError, match="mark is 10"):
        await advance(rw, 5, 2, [7])
    await rw.heard("lost")
    assert not pool_of(rw).connected
    assert not (await pool_of(rw).rejoin(cluster.nodes["mem1"].address, 1)).cold
    await advance(rw, 20, 2, [7])


async def test_snapshots_of_readers_reach_the_writer(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    pool_of(ro).report([3, 5])
    await pool_of(ro).refresh_mark()
    assert await advance(rw, 20, 2, []) == (("ro1",), (3, 5))


async def test_node_without_the_role_refuses_members(cluster: PoolCluster) -> None:
    await cluster.serve()
    other = cluster.client("ro9", "mem2")
    with pytest.raises(Reroute, match="mem2 is not the pool's home"):
        await pool_of(other).connect()


@pytest.mark.allow_log("memory node mem[12] (cannot be attached|detached)")
async def test_older_home_is_refused(cluster: PoolCluster) -> None:
    rw, ro = await cluster.serve()
    first, second = cluster.nodes["mem1"], cluster.nodes["mem2"]
    with pytest.raises(Retry, match="is home 1, not 2"):
        await pool_of(ro).rejoin(first.address, 2)
    # Taking the role again does nothing; an older epoch is told so.
    await first.become_home(home_epoch=1, epoch=1, agents={"mem2": second.address})
    with pytest.raises(Fenced):
        await first.become_home(home_epoch=0, epoch=1, agents={})
    # A newer one elsewhere ends the old one's role as soon as they meet.
    await second.become_home(home_epoch=2, epoch=1, agents={"mem1": first.address})
    assert second.home is not None
    assert first.home is None
    await rw.heard("lost")


@pytest.mark.allow_log("connection refused")
@pytest.mark.parametrize(
    "hello",
    [
        {"node": "x", "role": "compute", "incarnation": 0},
        {"node": "x", "role": "compute", "incarnation": "1"},
        {"node": "", "role": "compute", "incarnation": 1},
        {"node": "x" * 65, "role": "compute", "incarnation": 1},
        {"node": "x", "role": "compute"},
        {"node": "x", "role": "thief"},
        {"node": "x"},
    ],
)
async def test_hello_of_nobody_is_refused(hello: dict[str, object]) -> None:
    async with pool_cluster() as cluster:
        await cluster.serve()
        with pytest.raises(RemoteProtocolError):
            await rpc.connect(
                cluster.world.network,
                rpc.Service(),
                clock=cluster.world.clock,
                cluster=CLUSTER,
                address=cluster.nodes["mem1"].address,
                hello=dict(hello),
            )


@pytest.mark.allow_log("connection refused")
@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("register", ("seven", False)),
        ("register", (7,)),
        ("advance", (1, 20, 2, [-1])),
        ("advance", (1, 20, 2, 7)),
        ("join", (False, 1, False, [], [])),
        ("no such method", ()),
    ],
)
async def test_call_that_makes_no_sense_is_refused_and_changes_nothing(
    method: str, args: tuple[object, ...]
) -> None:
    async with pool_cluster() as cluster:
        rw, ro = await cluster.serve()
        with pytest.raises(RemoteProtocolError):
            await pool_of(rw).call(method, *args)
        await advance(rw, 20, 2, [7])
        assert await snapshot(ro) == 2


@pytest.mark.allow_log("home 1 failed at Advance")
async def test_home_that_meets_its_own_bug_lays_the_role_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool_cluster() as cluster:
        rw, ro = await cluster.serve()
        node = cluster.nodes["mem1"]
        assert node.home is not None

        def broken(*_: object) -> bool:
            raise AssertionError("a bug")

        monkeypatch.setattr(type(node.home._core.state.tables), "make_stale", broken)
        with caplog.at_level(logging.ERROR), pytest.raises(PolarlessError):
            await advance(rw, 20, 2, [7])
        assert node.exit_code == 1
        await node.wait_stopped()
        await ro.heard("lost")
        with pytest.raises(Retry):
            await snapshot(ro)
