"""What is damaged is told from what only changed while it was looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from compute import checking
from compute.btree.check import TreeReport
from compute.btree.tree import Tree
from compute.txn.engine import Engine
from polarless.errors import CorruptData
from tests.fakes import Cluster


async def nothing() -> None:
    await asyncio.sleep(0)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Cluster() as cluster:
        yield await cluster.writer()


async def test_a_damaged_tree_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(tree: Tree, give_way: object) -> TreeReport:
        raise CorruptData("page 7: keys do not ascend")

    monkeypatch.setattr(checking, "check", check)
    report = await checking.check_trees(engine, nothing)
    assert report["findings"] == ["the catalog: page 7: keys do not ascend"]


async def test_a_tree_that_changes_is_walked_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def check(tree: Tree, give_way: object) -> TreeReport:
        nonlocal tries
        tries += 1
        engine.catalog_changed()
        if tries < 3:
            raise CorruptData("its parent promises something else")
        return TreeReport(1, 1, 0, 5, 6)

    monkeypatch.setattr(checking, "check", check)
    report = await checking.check_trees(engine, nothing)
    assert (report["trees"], report["keys"], report["findings"]) == (1, 5, [])


async def test_a_tree_that_never_stands_still_is_not_called_damaged(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(tree: Tree, give_way: object) -> TreeReport:
        engine.catalog_changed()
        raise CorruptData("its parent promises something else")

    monkeypatch.setattr(checking, "check", check)
    report = await checking.check_trees(engine, nothing)
    assert not report["findings"]
    assert report["unchecked"] == ["the catalog: it changed all the time"]
