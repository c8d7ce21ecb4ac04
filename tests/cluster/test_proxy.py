"""Clients behind the proxy do not notice what happens to the nodes: pgbench, which never retries,
and drivers with a transaction, a prepared statement and a cursor open."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left, running_cluster
from tests.cluster.ledger import Ledger

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

needs_pgbench = pytest.mark.skipif(shutil.which("pgbench") is None, reason="pgbench is missing")


@pytest.fixture
def running(data: Path) -> Iterator[LocalCluster]:
    with running_cluster(data, ro=2) as cluster:
        yield cluster


def pgbench(url: str, *arguments: str) -> list[str]:
    return ["pgbench", *arguments, url]


async def under_load(
    cluster: LocalCluster, actions: list[Callable[[], object]], *arguments: str
) -> None:
    """Run pgbench's default script while things happen, and check its books afterwards."""
    initial = pgbench(cluster.url, "-i", "-q", "-s", "1")
    await asyncio.to_thread(subprocess.run, initial, check=True, capture_output=True, timeout=60)
    command = pgbench(cluster.url, "-n", "-c", "8", "-T", "600", "-P", "1", *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    lines: list[str] = []

    async def progress(count: int) -> None:
        """Wait for so many seconds in which something was committed."""
        while count:
            assert process.stdout is not None
            line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
            assert line, lines
            lines.append(line)
            if line.startswith("progress:") and " 0.0 tps" not in line:
                count -= 1

    await progress(1)
    for action in actions:
        await asyncio.to_thread(action)
        await asyncio.to_thread(cluster.wait_until_serving, 30)
        await progress(1)
    # Its own end would take minutes; what it was told until now is what counts.
    process.send_signal(2)
    rest = (await asyncio.wait_for(process.stdout.read(), 60)).decode()
    await process.wait()
    said = "".join(lines) + rest
    assert "error" not in said.lower().replace("0 failed", ""), said
    assert "FATAL" not in said, said
    await books_balance(cluster)


async def books_balance(cluster: LocalCluster) -> None:
    connection = await asyncpg.connect(cluster.url)
    # One snapshot: pgbench was interrupted, and its last commits may still be under way.
    async with connection.transaction(isolation="repeatable_read"):
        sums = [
            await connection.fetchval(f"select coalesce(sum({column}), 0) from pgbench_{table}")
            for table, column in (
                ("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance"),
                ("history", "delta"),
            )
        ]  # fmt: skip
    await connection.close()
    assert len(set(sums)) == 1, sums


@needs_pgbench
async def test_pgbench_notices_no_killed_writer_home_or_storage(running: LocalCluster) -> None:
    victims = ("rw", "ro", "home", "rw", "storage", "memory", "rw")
    await under_load(
        running,
        [functools.partial(running.kill, role) for role in victims],
        "-M",
        "prepared",
    )


@needs_pgbench
async def test_pgbench_notices_no_planned_change(running: LocalCluster) -> None:
    actions: list[Callable[[], object]] = [
        lambda: running.scale(3),
        lambda: running.failover(),
        lambda: running.scale(1),
        lambda: running.rolling_restart(),
    ]
    before = {node.name: node.process.pid for node in running.nodes()}
    await under_load(running, actions, "-M", "extended")
    after = {node.name: node.process.pid for node in running.nodes()}
    assert len([n for n in running.nodes() if n.role == "ro"]) == 1
    # A proxy's process replaces itself, under the same pid; each other one is a new process.
    assert [name for name, pid in after.items() if before.get(name) == pid] == ["proxy-1"]
    counters = await asyncio.to_thread(running.control.node, "proxy-1")
    assert counters["generation"] == 1


@needs_pgbench
@pytest.mark.slow
async def test_pgbench_while_readers_and_memory_come_and_go(running: LocalCluster) -> None:
    actions: list[Callable[[], object]] = [
        lambda: running.scale(4),
        lambda: running.scale(pool_mb=64),
        lambda: running.scale(0),
        lambda: running.scale(memory_nodes=3),
        lambda: running.scale(pool_mb=512),
        lambda: running.scale(2),
        lambda: running.scale(memory_nodes=2),
    ]
    await under_load(running, actions * 3, "-M", "prepared")


@needs_pgbench
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
async def test_pgbench_for_long(running: LocalCluster, mode: str) -> None:
    victims = ("rw", "home", "rw", "storage", "rw", "control", "rw", "memory") * 3
    await under_load(
        running,
        [functools.partial(running.kill, role) for role in victims],
        "-M",
        mode,
    )


async def test_a_stopped_writer_costs_its_clients_a_pause_and_no_error(
    running: LocalCluster,
) -> None:
    ledger = Ledger(running)
    async with ledger.running():
        old = await asyncio.to_thread(running.pause, "rw")
        await ledger.progress()
        await asyncio.to_thread(running.resume, old)
        await asyncio.to_thread(running.wait_until_serving)
        await ledger.progress()
    await ledger.check()
    assert not ledger.errors, ledger.errors


async def test_each_commit_in_flight_has_one_verdict(running: LocalCluster) -> None:
    ledger = Ledger(running, writers=12)
    async with ledger.running():
        for _ in range(4):
            await ledger.progress(100)
            victim = await asyncio.to_thread(running.kill, "rw")
            assert victim.role == "rw"
            await asyncio.to_thread(running.wait_until_serving)
    assert not ledger.errors, ledger.errors
    # Every insert was acknowledged, so each id is there once: a second try would have been 23505.
    assert not ledger.in_doubt
    await ledger.check()


async def test_an_open_transaction_goes_on_with_what_it_saw(running: LocalCluster) -> None:
    url = running.url
    a, b = await asyncpg.connect(url), await asyncpg.connect(url)
    await a.execute("create table t (id int primary key, v int)")
    await a.executemany("insert into t values ($1, $2)", [(n, n) for n in range(300)])
    await a.execute("set application_name = 'before'")
    prepared = await a.prepare("select v from t where id = $1")
    transaction = a.transaction(isolation="repeatable_read")
    await transaction.start()
    cursor = await a.cursor("select id from t order by id")
    assert [row[0] for row in await cursor.fetch(3)] == [0, 1, 2]
    assert await prepared.fetchval(7) == 7
    await a.execute("update t set v = v + 1 where id = 7")
    await b.execute("update t set v = 1000 where id = 8")
    await asyncio.to_thread(running.kill, "rw")
    # Its own write, the old value of what another has committed, and the rest of the cursor.
    assert await prepared.fetchval(7) == 8
    assert await prepared.fetchval(8) == 8
    assert [row[0] for row in await cursor.fetch(3)] == [3, 4, 5]
    await transaction.commit()
    assert await prepared.fetchval(7) == 8
    assert await prepared.fetchval(8) == 1000
    assert await a.fetchval("show application_name") == "before"
    await a.close()
    await b.close()


async def test_clients_outlive_the_process_of_the_proxy(running: LocalCluster) -> None:
    a, b, c = [await asyncpg.connect(running.url) for _ in range(3)]
    await a.execute("create table t (id int primary key, v text)")
    await a.execute("set application_name = 'before'")
    prepared = await a.prepare("select v from t where id = $1")
    transaction = a.transaction(isolation="repeatable_read")
    await transaction.start()
    await a.execute("insert into t values (1, 'mine')")
    cursor = await a.cursor("select id from t")
    # One statement is under way, and waits for a lock; one COPY has come in half.
    blocked = asyncio.create_task(b.execute("insert into t values (1, 'other')"))
    half_sent, restarted = asyncio.Event(), asyncio.Event()

    async def rows() -> AsyncIterator[bytes]:
        yield b"2\ttwo\n3\tth"
        half_sent.set()
        await restarted.wait()
        yield b"ree\n"

    copied = asyncio.create_task(c.copy_to_table("t", source=rows()))
    await half_sent.wait()
    await asyncio.to_thread(running.rolling_restart, "proxy")
    restarted.set()
    assert await copied == "COPY 2"
    assert [row[0] for row in await cursor.fetch(3)] == [1]
    assert await prepared.fetchval(1) == "mine"
    assert not blocked.done()
    await transaction.commit()
    with pytest.raises(asyncpg.UniqueViolationError):
        await blocked
    assert await a.fetchval("show application_name") == "before"
    assert await prepared.fetchval(3) == "three"
    for connection in (a, b, c):
        await connection.close()


def test_psycopg_goes_on_too(running: LocalCluster) -> None:
    with psycopg.connect(running.url) as connection:
        connection.execute("create table t (id int primary key, v text)")
        connection.commit()
        connection.execute("insert into t values (1, 'one')")
        running.kill("rw")
        connection.execute("insert into t values (2, 'two')")
        assert connection.execute("select count(*) from t").fetchone() == (2,)
        connection.commit()
        running.kill("rw")
        assert connection.execute("select v from t order by id").fetchall() == [("one",), ("two",)]


async def test_a_transaction_whose_replay_differs_gets_40001(running: LocalCluster) -> None:
    connection = await asyncpg.connect(running.url)
    await connection.execute("create table t (id int primary key, v double precision)")
    await connection.execute("insert into t values (1, 0)")
    await connection.execute("begin")
    await connection.fetchval("select clock_timestamp()")
    await asyncio.to_thread(running.kill, "rw")
    with pytest.raises(asyncpg.SerializationError, match="other answers"):
        await connection.execute("update t set v = 1 where id = 1")
    await connection.execute("rollback")
    assert await connection.fetchval("select v from t where id = 1") == 0
    await connection.close()


async def test_copy_and_large_results_pass_through(running: LocalCluster) -> None:
    connection = await asyncpg.connect(running.url)
    await connection.execute("create table t (id int primary key, v text)")
    rows = [(n, "x" * 500) for n in range(20_000)]
    await connection.copy_records_to_table("t", records=rows)
    assert len(await connection.fetch("select id, v from t")) == 20_000
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.copy_records_to_table("t", records=rows[:10])
    assert await connection.fetchval("select count(*) from t") == 20_000
    await connection.close()


async def test_reads_go_to_readers_and_see_the_last_commit(running: LocalCluster) -> None:
    connection = await asyncpg.connect(running.url)
    await connection.execute("create table t (id int primary key, v int)")
    await connection.execute("insert into t values (1, 0)")
    for number in range(1, 300):
        await connection.execute("update t set v = $1 where id = 1", number)
        assert await connection.fetchval("select v from t where id = 1") == number
    counters = await asyncio.to_thread(running.control.node, "proxy-1")
    readers = {node.name for node in running.nodes() if node.role == "ro"}
    assert any(counters["links"][name]["sessions"] for name in readers), json.dumps(counters)
    await connection.close()


async def test_asleep_until_a_client_comes(running: LocalCluster) -> None:
    connection = await asyncpg.connect(running.url)
    await connection.execute("create table t (id int primary key)")
    await connection.execute("insert into t values (1)")
    await connection.close()
    await asyncio.to_thread(running.sleep)
    states = {node.state for node in running.nodes() if node.role in ("rw", "ro")}
    assert states == {"asleep"}
    connection = await asyncpg.connect(running.url)
    assert await connection.fetchval("select count(*) from t") == 1
    await connection.close()
    await asyncio.to_thread(running.wait_until_serving)


async def test_a_cancel_request_finds_its_session(running: LocalCluster) -> None:
    a, b = await asyncpg.connect(running.url), await asyncpg.connect(running.url)
    await a.execute("create table t (id int primary key)")
    await a.execute("insert into t values (1)")
    async with a.transaction():
        await a.execute("delete from t where id = 1")
        with pytest.raises(TimeoutError):
            # asyncpg sends a CancelRequest when its time-out has passed.
            await b.execute("delete from t where id = 1", timeout=0.3)
        assert await b.fetchval("select 1") == 1
    await a.close()
    await b.close()


async def test_a_commit_token_can_be_waited_for_anywhere(running: LocalCluster) -> None:
    a = await asyncpg.connect(running.url)
    await a.execute("create table t (id int primary key)")
    await a.execute("insert into t values (1)")
    token = int(await a.fetchval("show polarless.last_commit_lsn"))
    assert token > 0
    for node in running.nodes():
        if node.sql_url:
            b = await asyncpg.connect(node.sql_url)
            await b.execute(f"set polarless.wait_for_lsn = '{token}'")
            assert await b.fetchval("select count(*) from t") == 1
            with pytest.raises(asyncpg.InvalidParameterValueError):
                await b.execute("set polarless.wait_for_lsn = 'soon'")
            await b.execute("set statement_timeout = '100ms'")
            with pytest.raises(asyncpg.QueryCanceledError):
                await b.execute(f"set polarless.wait_for_lsn = '{token + 1_000_000_000}'")
            await b.close()
    await a.execute("set polarless.read_consistency = session")
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await a.execute("set polarless.read_consistency = never")
    await a.close()


@pytest.mark.parametrize(
    "failpoint",
    [
        "commit.before_append",
        "commit.after_durable",
        pytest.param("commit.before_advance", marks=pytest.mark.slow),
        pytest.param("commit.after_advance", marks=pytest.mark.slow),
    ],
)
async def test_each_commit_has_one_true_verdict_wherever_the_writer_dies(
    data: Path, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    # Every compute node that writes lets so many batches pass and is killed at the next.
    monkeypatch.setenv("POLARLESS_FAILPOINTS", f"{failpoint}=kill*150")
    cluster = LocalCluster(data, ro=2)
    try:
        await asyncio.to_thread(cluster.start)
        ledger = Ledger(cluster, writers=8)
        async with ledger.running():
            while len([e for e in cluster.events() if e["event"] == "failover"]) < 2:
                await ledger.progress(50)
        assert not ledger.errors, ledger.errors
        assert not ledger.in_doubt
        connection = await asyncpg.connect(cluster.url)
        there = {row["id"] for row in await connection.fetch("select id from ledger")}
        await connection.close()
        assert there == ledger.acked
    finally:
        for event in cluster.events():
            print(event["at"][11:23], event["event"], event["node"], event["text"])
        await asyncio.to_thread(cluster.stop)
    assert_nothing_left(cluster)
