"""A standby of a `Postgres`: made by ``pg_basebackup``, streaming, promoted when asked to."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Final, Self

from bench.servers import START_S, Postgres, free_port

BACKUP_S: Final = 600.0


class Standby:
    """Use as a context manager; it is made on entering, and removed again."""

    def __init__(self, primary: Postgres) -> None:
        self._primary = primary
        self._folder = primary.root / "standby"
        self._port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> Self:
        primary = self._primary
        base = (str(primary.bin / "pg_basebackup"), "-d", primary.url, "-D", str(self._folder))
        self._run(*base, "-R", "-c", "fast", deadline_s=BACKUP_S)
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -k {primary.root}"
        self._control("-t", str(int(START_S)), "-l", f"{self._folder}.log", "-o", options, "start")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._control("-m", "immediate", "stop")
        shutil.rmtree(self._folder)

    def promote(self) -> None:
        """Make it a primary; returns when it takes writes."""
        self._control("promote")

    def _control(self, *arguments: str) -> None:
        tool = str(self._primary.bin / "pg_ctl")
        self._run(tool, "-D", str(self._folder), "-w", *arguments, deadline_s=2 * START_S)

    @staticmethod
    def _run(*command: str, deadline_s: float) -> None:
        if os.geteuid() == 0:
            command = ("runuser", "-u", "postgres", "--", *command)
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", timeout=deadline_s,
        )  # fmt: skip
