"""The demo, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polarless.net.datadir import DataDirectory, shared_memory_names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

FIELDS = {
    "acked", "lost", "failover_s", "tps_before", "tps_after", "pool_hits_after",
    "storage_reads_after",
}  # fmt: skip


@pytest.mark.parametrize("pgbench", [True, False], ids=["pgbench", "own driver"])
def test_the_demo_loses_nothing_and_leaves_nothing(tmp_path: Path, pgbench: bool) -> None:
    data = tmp_path / "demo"
    environment = dict(os.environ)
    hide = "" if pgbench else "import polarless.demo_load as d; d.find_pgbench = lambda: None; "
    done = subprocess.run(
        [
            sys.executable, "-c", hide + "from polarless.cli import main; main()",
            "demo", "--json", "--data", str(data),
        ],
        capture_output=True, text=True, timeout=110, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert set(report) >= FIELDS
    assert report["lost"] == 0
    assert report["acked"] > 100
    assert report["good"]
    assert report["pool_hits_after"] > report["storage_reads_after"]
    assert not shared_memory_names(DataDirectory(data).cluster())
