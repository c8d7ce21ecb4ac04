"""The two databases under test, each in a folder of its own that goes when the run is over."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from polarless.errors import CallerMistake

START_S: Final = 30.0


def find_postgres() -> Path | None:
    """Where the newest PostgreSQL's programs are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    other = shutil.which("postgres")
    return Path(other).parent if other else None


class Postgres:
    """A private PostgreSQL with its defaults: fsync is on.

    It refuses to run as root; then the user ``postgres`` runs it.
    """

    def __init__(self) -> None:
        bin_ = find_postgres()
        if bin_ is None:
            raise CallerMistake(
                "PostgreSQL is not installed", hint="`make postgres` installs it from Debian"
            )
        self.bin = bin_
        self.version = subprocess.run(
            [str(bin_ / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        # Everything that it writes, its socket too.
        self.root = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
        self._data = self.root / "data"
        self._crashed = False
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        if os.geteuid() == 0:
            shutil.chown(self.root, "postgres")
        self._run(str(self.bin / "initdb"), "-D", str(self._data), "-A", "trust", "-U", "postgres")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.root}"
        self._run(
            str(self.bin / "pg_ctl"), "-D", str(self._data), "-w", "-t", str(int(START_S)),
            "-l", str(self.root / "log"), "-o", options, "start",
        )  # fmt: skip
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._crashed:
            self._run(str(self.bin / "pg_ctl"), "-D", str(self._data), "-m", "fast", "stop")
        shutil.rmtree(self.root, ignore_errors=True)

    def crash(self) -> None:
        """End it at once, as a power cut of its machine would, and without a word to standbys."""
        self._run(str(self.bin / "pg_ctl"), "-D", str(self._data), "-m", "immediate", "stop")
        self._crashed = True

    def _run(self, *command: str) -> None:
        if os.geteuid() == 0:
            command = ("runuser", "-u", "postgres", "--", *command)
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", timeout=2 * START_S,
        )  # fmt: skip


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def pgbench_tps(url: str, *arguments: str, seconds: float) -> tuple[float, int]:
    """(transactions per second, failed ones) of one pgbench run. Raises CallerMistake."""
    tool = shutil.which("pgbench")
    if tool is None:
        raise CallerMistake("pgbench is not installed", hint="`make postgres` installs it")
    command = [tool, "-n", "-T", str(max(1, round(seconds))), *arguments, url]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    tps, failed = 0.0, 0
    for line in done.stdout.splitlines():
        if line.startswith("tps = "):
            tps = float(line.split()[2])
        if line.startswith("number of failed transactions:"):
            failed = int(line.split(":")[1].split()[0])
    if done.returncode or not tps:
        raise CallerMistake(f"pgbench failed: {done.stderr.strip()[-500:]}")
    return tps, failed


def pgbench_load(url: str, scale: int) -> None:
    """Create and fill pgbench's tables."""
    subprocess.run(
        ["pgbench", "-i", "-q", "-s", str(scale), url],
        check=True, capture_output=True, timeout=600,
    )  # fmt: skip


def wait_until(holds: object, seconds: float) -> float:
    """Poll a function until it is true; seconds that it took. Raises TimeoutError."""
    began = time.monotonic()
    assert callable(holds)
    while not holds():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.005)
    return time.monotonic() - began
