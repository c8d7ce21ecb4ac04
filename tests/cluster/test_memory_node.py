"""Memory nodes as processes: killed, stopped, spoken to by strangers, ended."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from memory_pool.client import PoolClient
from polarless.net.datadir import remove_shared_memory, shared_memory_names
from polarless.net.logs import REPEATS_MAX
from polarless.net.system import system_world
from polarless.wire.control import READY, parse_ready
from tests.contracts.pool_cluster import CLUSTER, LIMIT_S, Compute, advance, always, image, snapshot

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parent.parent.parent


class Process:
    """One ``python -m memory_pool``."""

    def __init__(self, folder: Path, name: str, **settings: Any) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.config = folder / f"{name}.json"
        values = {"node": name, "cluster": CLUSTER.hex(), "host": "127.0.0.1", "port": 0}
        self.config.write_text(json.dumps(values | {"memory_mb": 2} | settings))
        self.process: asyncio.subprocess.Process
        self.address = self.fabric = ""

    async def start(self) -> None:
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "memory_pool", "--config", str(self.config),
                stdout=asyncio.subprocess.PIPE, stderr=log, cwd=ROOT,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = (await asyncio.wait_for(self.process.stdout.readline(), LIMIT_S)).decode()
        ready = parse_ready(line)
        if ready is None:
            await self.process.wait()
            pytest.fail(f"no {READY}line but {line!r}; log:\n{self.log.read_text()}")
        self.address, self.fabric = ready["address"], ready["fabric"]

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it; its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), LIMIT_S)

    def resident_bytes(self) -> int:
        """Private memory: without what it shares with others."""
        fields = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().split()
        return int(fields[fields.index("Anonymous:") + 1]) * 1024


class Pool:
    """Two memory nodes, the first of them home, a writer and a reader."""

    def __init__(self, folder: Path) -> None:
        self.home = Process(folder, "mem1", home=True, home_epoch=1, epoch=1)
        self.other = Process(folder, "mem2")
        self.rw, self.ro = Compute("rw"), Compute("ro1")

    async def start(self) -> None:
        await asyncio.gather(self.home.start(), self.other.start())
        world = system_world()
        for compute in (self.rw, self.ro):
            compute.pool = PoolClient(
                world, CLUSTER, compute.name, self.home.address, writer=compute is self.rw,
                epoch=1, events=compute,
            )  # fmt: skip
        await self.attach(self.other)
        joining = asyncio.ensure_future(self.client(self.ro).connect())
        await self.client(self.rw).connect()
        await advance(self.rw, 10, 1, [])
        await joining

    async def attach(self, process: Process) -> None:
        """What control does."""
        await self.control("attach_node", process.name, process.address)

    async def control(self, method: str, *args: Any) -> Any:
        from polarless.net import rpc

        world = system_world()
        peer = await rpc.connect(
            world.network, rpc.Service(), clock=world.clock, cluster=CLUSTER,
            address=self.home.address, hello={"node": "control", "role": "control"},
        )  # fmt: skip
        try:
            return await peer.call(method, *args, deadline_s=LIMIT_S)
        finally:
            peer.close()

    def client(self, compute: Compute) -> PoolClient:
        assert compute.pool is not None
        return compute.pool

    async def found(self, pages: range) -> int:
        """How many of the pages the reader finds in the pool."""
        answers = [await self.client(self.ro).register(page, deadline_s=LIMIT_S) for page in pages]
        for page, answer in zip(pages, answers):
            assert answer.image in (None, image(page, 9))
        return sum(answer.image is not None for answer in answers)

    async def fill(self, pages: range) -> None:
        for page in pages:
            done = await self.client(self.rw).write_back(page, image(page, 9), 9, always(10))
            assert done, page


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    one = Pool(tmp_path)
    try:
        await one.start()
        yield one
    finally:
        for compute in (one.rw, one.ro):
            if compute.pool is not None:
                compute.pool.close()
        for process in (one.home, one.other):
            assert await process.end() in (0, -signal.SIGKILL), process.log.read_text()
    # A process that was killed leaves its regions to control.
    remove_shared_memory([n for n in shared_memory_names(CLUSTER) if "-mem2-" in n])
    assert not shared_memory_names(CLUSTER)


async def test_killed_memory_node_is_a_miss_and_comes_back(pool: Pool, tmp_path: Path) -> None:
    pages = range(20, 60)
    await pool.fill(pages)
    assert await pool.found(pages) == 40
    await pool.other.end(signal.SIGKILL)
    await pool.ro.heard("slabs")
    assert 10 < await pool.found(pages) < 30
    await advance(pool.rw, 20, 2, [20])
    assert await snapshot(pool.ro) == 2

    await pool.control("detach_node", "mem2")
    again = Process(tmp_path, "mem2")
    await again.start()
    pool.other = again
    pool.rw.told.clear()
    await pool.attach(again)
    await pool.rw.heard("slabs")
    await pool.fill(range(100, 140))
    status = (await pool.control("status"))["home"]
    assert status["nodes"]["mem2"]["valid"] > 0
    texts = [text for _, text in status["events"]]
    assert any("mem2 detached" in text for text in texts), texts
    assert texts[-1] == "memory node mem2 attached"


async def test_stopped_memory_node_does_not_hold_up_a_fence(pool: Pool) -> None:
    await pool.fill(range(20, 30))
    pool.other.process.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(2):
            fenced = await pool.client(pool.ro).fence(2)
        assert fenced["published"] == 1
        # It is detached: whatever it still lets the old writer do, nobody looks there.
        status = (await pool.control("status"))["home"]
        assert list(status["nodes"]) == ["mem1"]
        await advance(pool.ro, 20, 2, [20], epoch=2)
    finally:
        pool.other.process.send_signal(signal.SIGCONT)


async def test_strangers_do_no_harm(pool: Pool) -> None:
    await pool.fill(range(20, 30))
    rng = random.Random(1)
    before = pool.home.resident_bytes()

    async def stranger(address: str, data: bytes) -> None:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            await writer.drain()
            await asyncio.wait_for(reader.read(1 << 20), LIMIT_S)
        except ConnectionError:
            pass
        finally:
            writer.close()

    huge = b"\xff\xff\xff\x7f"
    garbage = [rng.randbytes(rng.randrange(50, 100_000)) for _ in range(20)]
    for data in (*garbage, huge * 1000, b"GET / HTTP/1.1\r\n\r\n" * 10, b"PLFB" + huge * 50):
        await asyncio.gather(stranger(pool.home.address, data), stranger(pool.home.fabric, data))
    assert await pool.found(range(20, 30)) == 10
    assert pool.home.resident_bytes() - before < 8 * 1024 * 1024
    log = pool.home.log.read_text()
    assert "Traceback" not in log
    # Each is told, up to the number of like lines that a process logs in one second.
    assert REPEATS_MAX <= log.count("fabric connection from") <= len(garbage) + 3
    assert REPEATS_MAX <= log.count("connection refused") <= len(garbage) + 3


async def test_mistakes_end_with_a_word_about_them(tmp_path: Path) -> None:
    for settings, code, text in (
        ({"memory_mb": "much"}, 2, "invalid literal"),
        ({"cluster": "xyz"}, 2, "non-hexadecimal"),
        ({"pool": {"ack_timeout": 1}}, 2, "unexpected keyword argument 'ack_timeout'"),
        ({"memory_mb": 1 << 30}, 1, "are free in /dev/shm"),
    ):
        process = Process(tmp_path, "mem2", **settings)
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "memory_pool", "--config", str(process.config),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        out, errors = await asyncio.wait_for(started.communicate(), LIMIT_S)
        assert started.returncode == code, errors
        assert out == b""
        assert text in errors.decode()
        assert b"Traceback" not in errors
    assert not shared_memory_names(CLUSTER)
