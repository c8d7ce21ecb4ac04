"""The faults know every failpoint of the product, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sim.faults import POINTS

ROOT = Path(__file__).parent.parent.parent
HIT = re.compile(r"\bhit\(\s*\"([^\"]+)\"")


def test_the_faults_know_every_failpoint() -> None:
    named = {
        name
        for package in ("polarless", "memory_pool", "storage", "compute")
        for path in (ROOT / package).rglob("*.py")
        for name in HIT.findall(path.read_text())
    }
    assert named == set(POINTS)
