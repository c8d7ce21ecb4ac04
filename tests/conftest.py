"""What holds for every test.

* Costly checks are on (``POLARLESS_VERIFY=1``), here and in every process that a test starts.
* asyncio runs in debug mode, warnings are errors, the order is random (all in pyproject.toml).
* **A test fails on any WARNING or ERROR log record** that it does not expect. It says what it
  expects with ``@pytest.mark.allow_log("regex", ...)``, searched in ``"logger: message"``; several
  marks add up, and a module may set ``pytestmark``.
* A failing run ends with the seed that brings back its order and its random numbers.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before any module of the project is imported: they may look once, at import.
os.environ["POLARLESS_VERIFY"] = "1"

# A property test is bounded by its examples. A deadline would fail on a busy machine, not on a bug.
settings.register_profile(
    "polarless",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("polarless")

ALLOWED_EVERYWHERE = (
    # asyncio's debug mode reports slow steps. How slow is a matter of the machine; whether a step
    # holds the loop too long is measured by the benchmarks.
    r"^asyncio: Executing .* took \d",
)


# ----------------------------------------------------------------------------- unexpected logs


class UnexpectedLogs(logging.Handler):
    """Keeps the records of WARNING and above that are not on the allow list."""

    def __init__(self, allowed: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._allowed = re.compile("|".join(f"(?:{pattern})" for pattern in allowed))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.name}: {record.getMessage()}"
        if not self._allowed.search(line):
            where = f"{record.pathname}:{record.lineno}"
            self.lines.append(f"{record.levelname} {line}  ({where})")

    def check(self) -> None:
        """Fail the test if something was kept, and start afresh."""
        lines, self.lines = self.lines, []
        if lines:
            text = "log records that no allow_log mark expects:\n  " + "\n  ".join(lines)
            pytest.fail(text, pytrace=False)


_handler_key = pytest.StashKey[UnexpectedLogs]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    allowed = [*ALLOWED_EVERYWHERE]
    for mark in item.iter_markers("allow_log"):
        allowed += mark.args
    handler = item.stash[_handler_key] = UnexpectedLogs(allowed)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        return (yield)
    finally:
        root.removeHandler(handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    item.stash[_handler_key].check()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    item.stash[_handler_key].check()
    return result


# ------------------------------------------------------------------------------------- the seed


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seed = getattr(config.option, "randomly_seed", None)
    if isinstance(seed, int) and (
        terminalreporter.stats.get("failed") or terminalreporter.stats.get("error")
    ):
        terminalreporter.write_line(f"to see it again: pytest --randomly-seed={seed}")


# ----------------------------------------------------------------------------------- PostgreSQL


def _find_program(name: str) -> Path | None:
    """Where ``name`` of PostgreSQL is. Debian keeps the server's programs out of PATH."""
    versions = Path("/usr/lib/postgresql")
    newest_first = sorted(versions.glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True)
    # pgbench and psql in PATH are wrappers in Perl there, which start slowly: take the real ones.
    for folder in newest_first:
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def _require_program(name: str) -> Path:
    found = _find_program(name)
    if found is not None:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is missing: scripts/install-postgres.sh should have installed it")
    pytest.skip(f"{name} is not installed: run scripts/install-postgres.sh")


@pytest.fixture(scope="session")
def pgbench() -> Path:
    """PostgreSQL's load generator. Without it the test is skipped, under CI=true it fails."""
    return _require_program("pgbench")


@pytest.fixture(scope="session")
def psql() -> Path:
    """PostgreSQL's shell. Without it the test is skipped, under CI=true it fails."""
    return _require_program("psql")


@pytest.fixture(scope="session")
def postgres_bin() -> Path:
    """The folder of PostgreSQL's server (initdb, postgres), for comparisons with the original."""
    return _require_program("postgres").parent
