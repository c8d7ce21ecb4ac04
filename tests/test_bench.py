"""What the benchmarks have in common, without running one."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS
from bench.counters import tiers
from bench.shapes import Row

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_run_and_is_described(name: str) -> None:
    assert callable(importlib.import_module(f"bench.{name.replace('-', '_')}").run)
    assert f"`{name}`" in DOCUMENT.read_text()


def test_ratio_is_the_median_of_the_pairs() -> None:
    row = Row("x", "1/s", ours=[10.0, 40.0, 90.0], theirs=[10.0, 10.0, 10.0])
    assert row.to_json()["ratio_median"] == 4.0
    assert Row("x", "1/s", ours=[10.0]).ratio_median is None


def test_statements_that_waited_are_counted_once() -> None:
    counted = {
        "server.statements": 150,
        "server.suspends": 50,
        "fetch.pool_hits": 30,
        "fetch.pool_misses": 10,
        "fetch.storage_reads": 10,
        "pool.read_shared": 30,
    }
    found = tiers(counted)
    assert found["statements"] == 100
    assert found["served locally"] == 0.6
    assert found["pool hits"] == 0.75
    assert found["round trips per statement"] == 0.5


def test_nothing_counted_is_no_division_by_zero() -> None:
    assert tiers({})["served locally"] == 1.0
