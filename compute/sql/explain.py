"""EXPLAIN ANALYZE: run a statement, and say how many rows it gave and where its pages came from.

The statement is planned with trees that note which pages they look at, so that other statements do
not pay for the counting. A page counts as local if it was in this node's cache when it was first
looked at; what the pool and storage gave is counted by the node meanwhile, prefetched pages too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compute.btree.tree import Tree
from compute.sql.catalog import Catalog
from compute.sql.plan import Bound, Params, Plan, RowSink, SessionLike
from compute.sql.utility import text_row
from compute.sql.write_run import retried

if TYPE_CHECKING:
    from compute.sql.planner import Planner


class Noted:
    """The cache's frames as a tree sees them, with a note of each look."""

    __slots__ = ("_frames", "found", "missed")

    def __init__(self, frames: dict[Any, Any]) -> None:
        self._frames = frames
        self.found: set[int] = set()
        self.missed: set[int] = set()

    def get(self, page_id: int) -> Any:
        """As of the dict."""
        frame = self._frames.get(page_id)
        if frame is None:
            self.missed.add(page_id)
        elif page_id not in self.missed:
            self.found.add(page_id)
        return frame


def _noting(tree: Tree, noted: Noted) -> Tree:
    made = copy.copy(tree)
    made._frames = noted  # type: ignore[assignment]
    return made


def noting_catalog(catalog: Catalog, noted: Noted) -> Catalog:
    """The catalog with trees that note what they look at."""
    return replace(
        catalog,
        tables={
            name: replace(
                table,
                tree=_noting(table.tree, noted),
                indexes=tuple(replace(i, tree=_noting(i.tree, noted)) for i in table.indexes),
            )
            for name, table in catalog.tables.items()
        },
    )


class _Counting:
    """A sink that keeps nothing."""

    async def rows(self, data: bytes) -> None:
        """Forget them."""


class AnalyzeBound(Bound):
    """EXPLAIN ANALYZE of one statement. ``lines``: what EXPLAIN shows of it."""

    __slots__ = ("_lines", "_make", "_params")

    def __init__(
        self,
        plan: Plan,
        results: tuple[int, ...],
        params: tuple[int, ...],
        lines: list[str],
        make: Callable[[SessionLike, Noted], Plan],
    ) -> None:
        super().__init__(plan, results, None)
        self._params = params
        self._lines = lines
        self._make = make

    async def rows(self, session: SessionLike, params: Params, sink: RowSink) -> str:
        """See `Bound.rows`."""
        engine, txn = session.engine, session.txn
        assert txn is not None
        noted = Noted(engine.cache.frames)
        stats = engine.fetcher.stats
        pool, storage = stats.pool_hits, stats.storage_reads
        start = engine.clock.now()

        def step() -> tuple[Bound, bytes | None]:
            plan = self._make(session, noted)
            bound = plan.bind(self._params, ())
            mark = txn.savepoint()
            try:
                return bound, bound.run(session, params) if plan.fast else None
            except BaseException:
                txn.rollback_to(mark)
                raise

        bound, data = await retried(step)
        if data is None:
            tag = await bound.rows(session, params, _Counting())
        else:
            tag = data[data.rindex(b"C\0\0\0") + 5 : -1].decode()
        spent_ms = (engine.clock.now() - start) * 1000
        first, *others = self._lines
        lines = [
            f"{first} (actual rows={tag.rpartition(' ')[2]})",
            *others,
            (
                f"Pages: {len(noted.found)} from local cache, {stats.pool_hits - pool} from pool, "
                f"{stats.storage_reads - storage} from storage"
            ),
            f"Execution Time: {spent_ms:.3f} ms",
        ]
        await sink.rows(b"".join(map(text_row, lines)))
        return "EXPLAIN"


def planned_with(
    planner: Planner, text: str, oids: tuple[int, ...]
) -> Callable[[SessionLike, Noted], Plan]:
    """Plans ``text`` with noting trees."""

    def make(session: SessionLike, noted: Noted) -> Plan:
        own = copy.copy(planner)
        catalog = noting_catalog(planner.catalog(session), noted)
        own.catalog = lambda session: catalog  # type: ignore[method-assign]
        return own._plan(session, text, oids)

    return make
