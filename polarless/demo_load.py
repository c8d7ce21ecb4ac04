"""The load of the demo: pgbench if the machine has it, else the same statements through asyncpg.

`prepare` fills pgbench's tables at scale 1, `run` drives the default script and reports
transactions per second. Both are bounded in time and end with their task.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from polarless.errors import PolarlessError

ACCOUNTS: Final = 100_000
TELLERS: Final = 10
_TPS = re.compile(rb"tps = ([0-9.]+)")
_PROGRESS = re.compile(rb"progress: [0-9.]+ s, ([0-9.]+) tps")

# Called with transactions per second of the last second.
Progress = Callable[[float], object]


def find_pgbench() -> str | None:
    """pgbench on the PATH, or where Debian keeps it."""
    found = shutil.which("pgbench")
    if found is None:
        candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
        found = str(candidates[-1]) if candidates else None
    return found


class Pgbench:
    """PostgreSQL's own load generator, which nobody here wrote."""

    name = "pgbench"

    def __init__(self, program: str, url: str) -> None:
        parts = urlsplit(url)
        self._command = (program, "-h", str(parts.hostname), "-p", str(parts.port))

    async def prepare(self) -> None:
        """``pgbench -i -s 1``. Raises `PolarlessError` with what it printed."""
        output, code = await self._run("-i", "-q", "-s", "1", "postgres")
        if code:
            raise PolarlessError(f"pgbench -i failed: {_last_line(output)}")

    async def run(
        self, seconds: float, clients: int, progress: Progress, *, rate: int | None = None
    ) -> float:
        """Transactions per second; 0 if it was cut off (its server died: it has no retry)."""
        limit = () if rate is None else ("-R", str(rate))
        arguments = ("-n", "-M", "prepared", "-P", "1", "-c", str(clients), "-T", f"{seconds:.0f}")
        output, code = await self._run(*arguments, *limit, "postgres", progress=progress)
        found = _TPS.search(output)
        return float(found[1]) if found and code == 0 else 0.0

    async def _run(self, *arguments: str, progress: Progress | None = None) -> tuple[bytes, int]:
        process = await asyncio.create_subprocess_exec(
            *self._command, *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        output = b""
        try:
            async for line in process.stdout:
                output += line
                found = _PROGRESS.match(line)
                if found and progress is not None:
                    progress(float(found[1]))
            return output, await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


class OwnLoad:
    """pgbench's tables and its default script, through asyncpg."""

    name = "own driver"

    def __init__(self, url: str) -> None:
        self._url = url

    async def prepare(self) -> None:
        """The four tables of scale 1."""
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(
                "drop table if exists pgbench_accounts, pgbench_branches, pgbench_history, "
                "pgbench_tellers"
            )
            await connection.execute(
                "create table pgbench_history(tid int, bid int, aid int, delta int, "
                "mtime timestamp, filler char(22))"
            )
            for table, key, rest in (
                ("branches", "bid", "bbalance int"), ("tellers", "tid", "bid int, tbalance int"),
                ("accounts", "aid", "bid int, abalance int"),
            ):  # fmt: skip
                await connection.execute(
                    f"create table pgbench_{table}({key} int primary key, {rest}, filler char(84))"
                )
            await connection.execute("insert into pgbench_branches values (1, 0, '')")
            tellers = ", ".join(f"({tid}, 1, 0, '')" for tid in range(1, TELLERS + 1))
            await connection.execute(f"insert into pgbench_tellers values {tellers}")
            for start in range(1, ACCOUNTS + 1, 2000):
                rows = ", ".join(f"({aid}, 1, 0, '')" for aid in range(start, start + 2000))
                await connection.execute(f"insert into pgbench_accounts values {rows}")
        finally:
            await connection.close()

    async def run(
        self, seconds: float, clients: int, progress: Progress, *, rate: int | None = None
    ) -> float:
        """Transactions per second of ``clients`` connections."""
        end = time.monotonic() + seconds
        pause_s = 0.0 if rate is None else clients / rate
        counts = [0] * clients
        workers = [
            asyncio.create_task(self._client(counts, index, end, pause_s))
            for index in range(clients)
        ]
        before = 0
        try:
            while time.monotonic() < end and not all(worker.done() for worker in workers):
                await asyncio.wait(workers, timeout=1.0)
                progress(float(sum(counts) - before))
                before = sum(counts)
        finally:
            for worker in workers:
                worker.cancel()
            results = await asyncio.gather(*workers, return_exceptions=True)
        broken = any(isinstance(r, Exception) for r in results)
        return 0.0 if broken else sum(counts) / seconds

    async def _client(self, counts: list[int], index: int, end: float, pause_s: float) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            while time.monotonic() < end:
                await self._transaction(connection)
                counts[index] += 1
                if pause_s:
                    await asyncio.sleep(pause_s)
        finally:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=1)

    async def _transaction(self, connection: asyncpg.Connection) -> None:
        aid = random.randint(1, ACCOUNTS)
        tid = random.randint(1, TELLERS)
        delta = random.randint(-5000, 5000)
        async with connection.transaction():
            await connection.execute(
                "update pgbench_accounts set abalance = abalance + $1 where aid = $2", delta, aid
            )
            await connection.fetchval("select abalance from pgbench_accounts where aid = $1", aid)
            await connection.execute(
                "update pgbench_tellers set tbalance = tbalance + $1 where tid = $2", delta, tid
            )
            await connection.execute(
                "update pgbench_branches set bbalance = bbalance + $1 where bid = 1", delta
            )
            await connection.execute(
                "insert into pgbench_history(tid, bid, aid, delta, mtime) "
                "values ($1, 1, $2, $3, current_timestamp)", tid, aid, delta,
            )  # fmt: skip


Load = Pgbench | OwnLoad


def find_load(url: str) -> Load:
    """pgbench, or what stands in for it."""
    program = find_pgbench()
    return Pgbench(program, url) if program else OwnLoad(url)
