"""sysbench's OLTP workloads, unchanged: prepare, run, cleanup, and no error of any kind."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

SYSBENCH = shutil.which("sysbench")
TABLES, ROWS, THREADS = 4, 10_000, 8

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(90),
    pytest.mark.skipif(SYSBENCH is None, reason="sysbench is not installed"),
]

# (workload, transactions)
WORKLOADS = (
    ("oltp_point_select", 4000),
    ("oltp_read_only", 400),
    ("oltp_read_write", 300),
    ("oltp_write_only", 600),
    ("oltp_update_index", 1000),
    ("oltp_update_non_index", 1000),
    ("oltp_insert", 1000),
    ("oltp_delete", 2000),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = LocalCluster(tmp_path_factory.mktemp("sysbench") / "data", ro=0)
    try:
        cluster.start()
        yield cluster.url
    finally:
        cluster.stop()
    assert_nothing_left(cluster)


@pytest.fixture(scope="module")
def loaded(url: str) -> Iterator[str]:
    """The URL of a cluster with sysbench's tables, which its own cleanup removes again."""
    sysbench(url, "oltp_read_write", "prepare")
    assert tables(url) == {f"sbtest{number}": ROWS for number in range(1, TABLES + 1)}
    yield url
    sysbench(url, "oltp_read_write", "cleanup")
    assert tables(url) == {}


def tables(url: str) -> dict[str, int]:
    """Every table, and how many rows it has."""
    with psycopg.connect(url) as connection:
        names = connection.execute("select tablename from pg_tables where schemaname = 'public'")
        found = {}
        for (name,) in names.fetchall():
            counted = connection.execute(f"select count(*) from {name}").fetchone()
            assert counted is not None
            found[name] = counted[0]
        return found


def sysbench(url: str, workload: str, step: str, *options: str) -> str:
    assert SYSBENCH is not None
    parts = urlsplit(url)
    command = [
        *(SYSBENCH, workload, "--db-driver=pgsql", f"--pgsql-host={parts.hostname}"),
        *(f"--pgsql-port={parts.port}", "--pgsql-user=root", "--pgsql-db=postgres"),
        *(f"--tables={TABLES}", f"--table-size={ROWS}", f"--threads={THREADS}", *options, step),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "FATAL" not in said, said
    assert "ALERT" not in said, said
    return said


@pytest.mark.parametrize("prepared", ["auto", "disable"])
@pytest.mark.parametrize(("workload", "transactions"), WORKLOADS)
def test_a_workload_runs_without_errors(
    loaded: str, workload: str, transactions: int, prepared: str
) -> None:
    said = sysbench(
        loaded, workload, "run", f"--db-ps-mode={prepared}", "--time=0",
        f"--events={transactions}",
        # By default three quarters of the rows are drawn from a hundred. Two transactions that
        # take two of these in opposite order are a deadlock in any database, and no error of it.
        "--rand-type=uniform",
    )  # fmt: skip
    report = dict(line.strip().split(":", 1) for line in said.splitlines() if ":" in line)
    count = {name: report[name].split()[0] for name in ("transactions", "ignored errors")}
    assert count == {"transactions": str(transactions), "ignored errors": "0"}, said
    assert report["reconnects"].split()[0] == "0", said
