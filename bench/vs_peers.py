"""``vs-peers``: one key after the other, beside Redis and ZEO.

All three keep what they acknowledge: Redis syncs its append-only file for each command, ZEO's file
storage syncs each commit. Clients are Python's usual ones, one connection each; values have 100
bytes. Ours goes through asyncpg; a ZEO client that has read an object keeps it. What is not
installed has no row, and a note says so.

And what a lost writer costs, beside a standby of PostgreSQL: from the signal to the first commit
through our proxy, and from the command to promote the standby, which somebody has to give, to the
first commit there.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import asyncpg
import psycopg

from bench.servers import Postgres, free_port, wait_until
from bench.shapes import Result, Row, Tell
from bench.standby import Standby
from polarless.local import LocalCluster

VALUE: Final = b"v" * 100
KEYS: Final = 1_000
START_S: Final = 10.0
LOST: Final = "writer lost, to the first commit"
TABLE: Final = "create table if not exists kept (id serial primary key)"
COMMIT: Final = "insert into kept default values"

# get(key), put(key, value)
Store = tuple[Callable[[int], object], Callable[[int, bytes], object]]


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    pairs = int(options.get("pairs") or (1 if quick else 5))
    seconds = float(options.get("seconds") or (0.5 if quick else 3))
    rows = {}
    missing = []
    with LocalCluster(ro=0) as cluster, _polarless(cluster.sql_url("rw")) as ours:
        for index, (peer, opened) in enumerate((("Redis", _redis), ("ZEO", _zeo))):
            tell(peer, index / 2)
            try:
                with opened() as theirs:
                    for what, which in (("get", 0), ("put", 1)):
                        row = rows[f"{what}, beside {peer}"] = Row(f"{what}, beside {peer}", "1/s")
                        _fill(theirs)
                        for number in range(pairs):
                            order = [(ours, row.ours), (theirs, row.theirs)]
                            for store, values in order if number % 2 == 0 else order[::-1]:
                                values.append(_rate(store, which, seconds))
            except (ImportError, FileNotFoundError) as error:
                missing.append(f"{peer}: {error}")
    lost = rows["writer lost"] = Row(LOST, "s", notes={"less is better": "no detection in theirs"})
    for number in range(pairs):
        tell("a lost writer", 0.8 + 0.2 * number / pairs)
        lost.ours.append(_lost_writer())
        lost.theirs.append(_promoted_standby())
    settings = {"pairs": pairs, "seconds": seconds, "missing": missing}
    return Result("vs-peers", list(rows.values()), settings)


def _lost_writer() -> float:
    """Seconds from the writer's end to the first commit through the proxy."""
    with LocalCluster(ro=1) as cluster, psycopg.connect(cluster.url, autocommit=True) as client:
        client.execute(TABLE)
        client.execute(COMMIT)
        writer = cluster.node("rw")
        began = time.perf_counter()
        cluster.kill(writer)
        client.execute(COMMIT)
        return round(time.perf_counter() - began, 4)


def _promoted_standby() -> float:
    """Seconds from the command to promote a standby to the first commit there."""
    with Postgres() as primary:
        with psycopg.connect(primary.url, autocommit=True) as client:
            client.execute(TABLE)
            client.execute(COMMIT)
        with Standby(primary) as standby:
            primary.crash()
            began = time.perf_counter()
            standby.promote()
            with psycopg.connect(standby.url, autocommit=True) as client:
                client.execute(COMMIT)
            return round(time.perf_counter() - began, 4)


def _fill(store: Store) -> None:
    for key in range(KEYS):
        store[1](key, VALUE)


def _rate(store: Store, which: int, seconds: float) -> float:
    get, put = store
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        key = count * 7919 % KEYS
        if which:
            put(key, VALUE)
        else:
            get(key)
        count += 1
    return round(count / passed, 1)


@contextmanager
def _polarless(url: str) -> Iterator[Store]:
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(url))
    try:
        go = loop.run_until_complete
        go(connection.execute("create table kv (k bigint primary key, v bytea not null)"))
        read = go(connection.prepare("select v from kv where k = $1"))
        write = go(
            connection.prepare(
                "insert into kv values ($1, $2) on conflict (k) do update set v = excluded.v"
            )
        )
        store = (lambda key: go(read.fetchval(key)), lambda key, value: go(write.fetch(key, value)))
        _fill(store)
        yield store
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


@contextmanager
def _redis() -> Iterator[Store]:
    import redis

    tool = shutil.which("redis-server")
    if tool is None:
        raise FileNotFoundError("redis-server is not installed; `make postgres` installs it")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as folder:
        server = subprocess.Popen(
            [
                *(tool, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            client = redis.Redis(port=port)

            def is_up() -> bool:
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return False

            wait_until(is_up, START_S)
            yield (
                (lambda key: client.get(str(key))),
                (lambda key, value: client.set(str(key), value)),
            )
            client.close()
        finally:
            server.terminate()
            server.wait(START_S)


@contextmanager
def _zeo() -> Iterator[Store]:
    import transaction
    import ZEO
    from BTrees.LOBTree import LOBTree

    with tempfile.TemporaryDirectory(prefix="bench-zeo-") as folder:
        address, stop = ZEO.server(path=f"{folder}/data.fs", port=("127.0.0.1", free_port()))
        try:
            database = ZEO.DB(address)
            connection = database.open()
            tree = connection.root()["kv"] = LOBTree()
            transaction.commit()

            def put(key: int, value: bytes) -> None:
                tree[key] = value
                transaction.commit()

            def get(key: int) -> object:
                # A transaction of its own, so that it sees what others have committed.
                transaction.abort()
                return tree.get(key)

            yield get, put
            connection.close()
            database.close()
        finally:
            stop()
