"""Load: pgbench with its own scripts or ours, sysbench, and filling and warming of tables."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg

from bench.servers import pgbench_tps
from polarless.errors import CallerMistake

# Rows of about 1,000 bytes: 15 fit on a page of 16 KiB.
KEYED: Final = (
    "create table {table} (id bigint primary key, k bigint not null, pad text not null)",
    (
        "insert into {table} select g, g * 7919 % {rows}, repeat(md5(g::text), 30) "
        "from generate_series({low}, {high}) g"
    ),
)
POINT_SELECT: Final = "\\set id random(1, {rows})\nselect k from keyed where id = :id;\n"
FILL_ROWS: Final = 20_000
ROW_BYTES: Final = 990
ROWS_PER_PAGE: Final = 16


def script_tps(
    url: str, scripts: Sequence[tuple[str, int]], *arguments: str, seconds: float
) -> tuple[float, int]:
    """(transactions per second, failed ones) of pgbench with (script text, weight) each."""
    with tempfile.TemporaryDirectory(prefix="bench-scripts-") as folder:
        files: list[str] = []
        for number, (text, weight) in enumerate(scripts):
            path = Path(folder) / f"{number}.sql"
            path.write_text(text)
            files += ["-f", f"{path}@{weight}"]
        return pgbench_tps(url, *files, *arguments, seconds=seconds)


class Series:
    """A pgbench in the background that reports its rate each second."""

    def __init__(self, url: str, script: str, *arguments: str, seconds: float) -> None:
        tool = shutil.which("pgbench")
        if tool is None:
            raise CallerMistake("pgbench is not installed", hint="`make postgres` installs it")
        self._folder = tempfile.TemporaryDirectory(prefix="bench-series-")
        path = Path(self._folder.name) / "script.sql"
        path.write_text(script)
        self._output = (Path(self._folder.name) / "out").open("w+")
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            [tool, "-n", "-P", "1", "-T", str(round(seconds)), "-f", str(path), *arguments, url],
            stdout=self._output, stderr=self._output, text=True,
        )  # fmt: skip

    def is_running(self) -> bool:
        """Until its time is over or it gave up."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it before its time."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._folder.cleanup()

    def wait(self, seconds: float) -> list[tuple[float, float]]:
        """(second since the start, transactions per second); raises CallerMistake if it failed."""
        code = self._process.wait(timeout=seconds)
        self._output.seek(0)
        said = self._output.read()
        self._output.close()
        self._folder.cleanup()
        if code:
            raise CallerMistake(f"pgbench failed: {said.strip()[-500:]}")
        found = re.findall(r"^progress: ([\d.]+) s, ([\d.]+) tps", said, re.MULTILINE)
        return [(float(at), float(tps)) for at, tps in found]


def fill_keyed(url: str, table: str, rows: int) -> None:
    """Create a table of rows with about 1,000 bytes each, 1 to ``rows``, and fill it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(KEYED[0].format(table=table))
        for low in range(1, rows + 1, FILL_ROWS):
            high = min(rows, low + FILL_ROWS - 1)
            connection.execute(KEYED[1].format(table=table, rows=rows, low=low, high=high))


def warm(url: str, table: str, key: str, rows: int, step: int = ROWS_PER_PAGE // 2) -> None:
    """Read one row of each page by its key: a scan would pass by the pool."""
    with psycopg.connect(url, autocommit=True) as connection:
        for low in range(1, rows + 1, 400 * step):
            keys = list(range(low, min(rows + 1, low + 400 * step), step))
            connection.execute(f"select count({key}) from {table} where {key} = any(%s)", [keys])


def sysbench(url: str, workload: str, step: str, *options: str, seconds: float = 60) -> float:
    """One step of a workload; for ``run`` the transactions per second. Raises CallerMistake."""
    tool = shutil.which("sysbench")
    if tool is None:
        raise CallerMistake("sysbench is not installed", hint="`make postgres` installs it")
    parts = urlsplit(url)
    command = [
        *(tool, workload, "--db-driver=pgsql", f"--pgsql-host={parts.hostname}"),
        *(f"--pgsql-port={parts.port}", f"--pgsql-user={parts.username or 'postgres'}"),
        *("--pgsql-db=postgres", f"--time={round(seconds)}", "--db-ps-mode=auto", *options, step),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 600, check=False
    )
    if done.returncode:
        raise CallerMistake(f"sysbench {workload} failed: {(done.stdout + done.stderr)[-500:]}")
    rate = re.search(r"transactions:\s+\d+\s+\(([\d.]+) per sec", done.stdout)
    return float(rate[1]) if rate else 0.0
