"""Walks every tree that a node can see, and says what is wrong with any: for ``polarless check``.

Pages that are not in the cache are fetched as a scan does, so nothing is pushed out. A tree that
changes while it is walked may look wrong and is walked again; one that never stands still is
reported as not checked, not as damaged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from compute.btree.check import check
from compute.buffer.waits import Suspend, resumed
from compute.sql.catalog import Catalog, load
from polarless.errors import CorruptData

if TYPE_CHECKING:
    from compute.btree.tree import Tree
    from compute.txn.engine import Engine

TRIES_MAX: Final = 5


async def check_trees(engine: Engine, give_way: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Check all trees: counts, ``findings`` and ``unchecked``, both lists of texts.

    ``give_way`` is awaited now and then: others have to run too.
    """
    result: dict[str, Any] = {
        "trees": 0, "pages": 0, "keys": 0, "versions": 0, "findings": [], "unchecked": [],
    }  # fmt: skip
    for name, tree in _trees(engine, await _catalog(engine)):
        await _check_one(engine, name, tree, result, give_way)
    return result


def _trees(engine: Engine, catalog: Catalog) -> list[tuple[str, Tree]]:
    found: list[tuple[str, Tree]] = [("the catalog", engine.catalog_tree)]
    for (schema, name), table in sorted(catalog.tables.items()):
        found.append((f"table {schema}.{name}", table.tree))
        found += [(f"index {schema}.{index.name}", index.tree) for index in table.indexes]
    found += [
        (f"sequence {schema}.{name}", sequence.tree)
        for (schema, name), sequence in sorted(catalog.sequences.items())
    ]
    return found


async def _catalog(engine: Engine) -> Catalog:
    while True:
        try:
            return load(engine)
        except Suspend as suspend:
            await resumed(suspend)


async def _check_one(
    engine: Engine,
    name: str,
    tree: Tree,
    result: dict[str, Any],
    give_way: Callable[[], Awaitable[None]],
) -> None:
    for _ in range(TRIES_MAX):
        before = (_position(engine), engine.catalog_version)
        try:
            report = await check(tree, give_way)
        except CorruptData as error:
            if before == (_position(engine), engine.catalog_version):
                result["findings"].append(f"{name}: {error.message}")
                return
        else:
            result["trees"] += 1
            result["pages"] += report.leaf_pages + report.branch_pages
            result["keys"] += report.keys
            result["versions"] += report.versions
            return
        await give_way()
    result["unchecked"].append(f"{name}: it changed all the time")


def _position(engine: Engine) -> int:
    """Grows with whatever changes a page that this node can see."""
    return engine.log.tail if engine.log is not None else engine.fetcher.mark()
