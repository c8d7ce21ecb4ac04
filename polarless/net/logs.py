"""Log lines of a process, on standard error: pretty on a terminal, elsewhere one JSON object each.

Control sends the standard error of each node to ``DATA/logs/NODE.log``. No log grows without limit:

* a message that repeats more often than `REPEATS_MAX` times in a second is counted, not written;
* `rotate` cuts a file that has become too long, keeping the last part as ``NODE.log.1``. It works
  on files that are open elsewhere for appending, whatever writes them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Final

REPEATS_MAX: Final = 20
_STANDARD_ERROR: Final = 2
_COLOURS: Final = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}


def setup(node: str, *, level: int = logging.INFO) -> None:
    """Send this process's log records to standard error, as lines of ``node``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Pretty(node) if sys.stderr.isatty() else _JsonLines(node))
    handler.addFilter(_Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    # A crash inside a library (LMDB on a file that is damaged within) leaves a line and the place.
    faulthandler.enable(_STANDARD_ERROR)


def rotate(path: Path, bytes_max: int) -> bool:
    """Cut the file if it is longer. What is written between copy and cut is lost.

    If there is no room to keep the last part, that is lost too: the log must not grow.
    """
    try:
        if path.stat().st_size <= bytes_max:
            return False
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        # The newest part is what somebody will want to read.
        size = os.fstat(fd).st_size
        kept = os.pread(fd, bytes_max, max(0, size - bytes_max))
        old = path.with_name(path.name + ".1")
        with (
            contextlib.suppress(OSError),
            open(os.open(old, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
        ):
            file.write(kept)
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)
    return True


def tail(path: Path, line_count: int) -> list[str]:
    """The last lines of a log."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 400 * line_count))
        return file.read().decode(errors="replace").splitlines()[-line_count:]
    return []


class _Repeats(logging.Filter):
    """Lets a message (before its arguments are filled in) pass so many times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._counts: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._counts.clear()
        key = (record.name, str(record.msg))
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == REPEATS_MAX:
            record.msg = f"{record.msg} (more of these within this second are not shown)"
        return count <= REPEATS_MAX


class _JsonLines(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _iso(record.created),
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _Pretty(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        colour = _COLOURS.get(record.levelno)
        if colour:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        return f"\x1b[2m{_iso(record.created)[11:23]}\x1b[0m {self._node}: {text}"


def _iso(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"
