"""`polarless.connect` against a real cluster, a killed writer included; the README's examples."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polarless
from polarless.errors import CallerMistake, Conflict, PolarlessError, Reroute
from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left
from tests.readme_examples import examples

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("client") / "data", ro=1)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
    assert_nothing_left(cluster)


async def fresh(db: polarless.Database, columns: str = "id int primary key, v text") -> None:
    await db.execute("drop table if exists t")
    await db.execute(f"create table t ({columns})")
    db.key_columns.clear()


async def test_put_get_delete_and_scan(running: LocalCluster) -> None:
    async with polarless.connect(running.url) as db:
        await fresh(db)
        table = db.table("t")
        assert await table.get(1) is None
        for key in range(1200):
            await table.put(key, {"v": f"v{key}"})
        await table.put(7, {"v": "seven", "id": 7})
        assert await table.get(7) == {"id": 7, "v": "seven"}
        assert [row["id"] async for row in table.scan()] == list(range(1200))
        assert [row["id"] async for row in table.scan(5, 8)] == [5, 6, 7]
        assert [row["id"] async for row in table.scan(reverse=True, limit=2)] == [1199, 1198]
        backwards = [row["id"] async for row in table.scan(10, 1100, reverse=True)]
        assert backwards == list(range(1099, 9, -1))
        assert await table.delete(7)
        assert not await table.delete(7)


async def test_composite_keys_and_wrong_keys(running: LocalCluster) -> None:
    async with polarless.connect(running.url) as db:
        await fresh(db, "a int, b text, v int, primary key (a, b)")
        table = db.table("t")
        await table.put((1, "x"), {"v": 3})
        assert await table.get((1, "x")) == {"a": 1, "b": "x", "v": 3}
        with pytest.raises(CallerMistake, match="2 values"):
            await table.get(1)
        with pytest.raises(CallerMistake, match="no table"):
            await db.table("nowhere").get(1)


async def test_a_transaction_is_all_or_nothing(running: LocalCluster) -> None:
    async with polarless.connect(running.url) as db:
        await fresh(db)
        with pytest.raises(ZeroDivisionError):
            async with db.transaction() as tx:
                await tx.table("t").put(1, {"v": "never"})
                raise ZeroDivisionError
        assert await db.table("t").get(1) is None
        async with db.transaction() as tx:
            await tx.table("t").put(1, {"v": "there"})
            assert await tx.table("t").get(1) == {"id": 1, "v": "there"}
        assert await db.table("t").get(1) == {"id": 1, "v": "there"}


async def test_run_begins_again_after_a_conflict(running: LocalCluster) -> None:
    async with polarless.connect(running.url) as db:
        await fresh(db, "id int primary key, n int")
        await db.table("t").put(1, {"n": 0})

        async def add(tx: polarless.Transaction) -> None:
            row = await tx.table("t").get(1)
            assert row is not None
            await asyncio.sleep(0)
            await tx.table("t").put(1, {"n": row["n"] + 1})

        await asyncio.gather(
            *(db.run(add, isolation="serializable", attempts=50) for _ in range(8))
        )
        assert await db.table("t").get(1) == {"id": 1, "n": 8}

        async def loses(tx: polarless.Transaction) -> None:
            raise Conflict("always")

        with pytest.raises(Conflict):
            await db.run(loses, attempts=2)


async def test_errors_are_ours_with_sqlstate_and_hint(running: LocalCluster) -> None:
    async with polarless.connect(running.url) as db:
        with pytest.raises(CallerMistake) as caught:
            await db.execute("selec 1")
        assert caught.value.sqlstate == "42601"
        assert await db.fetchrow("select 1 as one") == {"one": 1}
    async with polarless.connect(running.sql_url("ro")) as reader:
        with pytest.raises(Reroute) as refused:
            await reader.execute("create table refused (id int primary key)")
        assert refused.value.sqlstate == "25006"
        assert refused.value.hint
    with pytest.raises(CallerMistake, match="closed"):
        await db.execute("select 1")
    with pytest.raises(PolarlessError):
        async with polarless.connect("postgresql://127.0.0.1:1/postgres", deadline_s=0.2):
            pass


async def test_a_database_outlives_its_writer(running: LocalCluster) -> None:
    async with polarless.connect(running.url) as db:
        await fresh(db)
        table = db.table("t")
        await table.put(1, {"v": "before"})
        await asyncio.to_thread(running.kill, "rw")
        # Reads are repeated by the client; the write waits for a connection that works.
        assert await table.get(1) == {"id": 1, "v": "before"}
        await table.put(2, {"v": "after"})
        assert [row["id"] async for row in table.scan()] == [1, 2]
    await asyncio.to_thread(running.wait_until_serving)


def test_the_readmes_examples_run(running: LocalCluster, tmp_path: Path) -> None:
    programs = examples(running.url)
    assert len(programs) >= 2
    for number, program in enumerate(programs):
        path = tmp_path / f"example_{number}.py"
        path.write_text(program.source, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
