"""The B+tree: descent through decoded frames, and reading a leaf's worth of rows.

    root (fixed page id)      keys:      [ 40 | 80 ]
                              children:  p7   p9   p12
    leaf p9                   low 40, high 80, keys 40 41 57 ..., rows {key: version}

* The root's page id never changes: a split of the root moves its content into two new pages. So the
  catalog names a tree by its root once and for all.
* Every page carries the fences ``[low, high)`` that its parent promises; `compute.btree.check`
  walks the tree and compares.
* Code here is synchronous and never awaits. A page that is not in the cache is raised as a
  `PageMiss`; the caller waits and **starts again from the root**. So a traversal sees one physical
  state of the tree, and no page latch is needed (the paper's section 4 has them).
* A descent is a dict look-up and a bisect per level, about half a microsecond for three levels.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from compute.buffer.fetch import PREFETCH_PAGES, Fetcher, PageMiss
from polarless.kernel.ids import PageId, TreeId
from polarless.kernel.page import LEAF, Frame, Key, Version

# Pages on either side of one that is missed whose places are asked for.
NEAR_PAGES: Final = 32


class Tree:
    """One tree on one node. Cheap to make: it holds no state of its own."""

    __slots__ = ("_fetcher", "_frames", "int_keys", "root", "tree_id")

    def __init__(
        self, fetcher: Fetcher, tree_id: TreeId, root: PageId, *, int_keys: bool = False
    ) -> None:
        self._fetcher = fetcher
        self._frames = fetcher.cache.frames
        self.tree_id = tree_id
        self.root = root
        self.int_keys = int_keys

    def __repr__(self) -> str:
        return f"<tree {self.tree_id} root {self.root}>"

    def leaf(self, key: Key) -> Frame:
        """The leaf that holds ``key``, if any does. Raises `PageMiss`."""
        frames = self._frames
        page_id = self.root
        frame = frames.get(page_id) or self._recalled(page_id)
        while True:
            frame.visited = True
            if frame.kind == LEAF:
                return frame
            page_id = frame.children[bisect_right(frame.keys, key)]
            frame = frames.get(page_id) or self._recalled(page_id, frame)

    def _recalled(self, page_id: PageId, parent: Frame | None = None) -> Frame:
        """A page that is not in the cache, if it can be read at once. Raises `PageMiss`.

        Then its neighbours' places are asked for with it: a cold cache meets them next.
        """
        frame = self._fetcher.recall(page_id)
        if frame is None:
            near: list[PageId] = []
            if parent is not None:
                index = parent.children.index(page_id)
                near = parent.children[max(0, index - NEAR_PAGES) : index + NEAR_PAGES]
            raise PageMiss(self._fetcher, page_id, near=near)
        return frame

    def find(self, key: Key) -> Version | None:
        """The newest applied version of a row. Raises `PageMiss`."""
        return self.leaf(key).rows.get(key)

    def absent_leaves(self, keys: Iterable[Key], limit: int) -> list[PageId]:
        """Pages that a look-up of these keys would miss, each once, at most ``limit`` of them.

        What the paper calls Batched Key PrePare (its section on index-aware prefetching) needs to
        know: whoever waits for the first of many keys can have the others fetched meanwhile.
        """
        frames, found = self._frames, dict[PageId, None]()
        for key in keys:
            page_id = self.root
            frame = frames.get(page_id)
            while frame is not None and frame.kind != LEAF:
                page_id = frame.children[bisect_right(frame.keys, key)]
                frame = frames.get(page_id)
            if frame is None:
                found[page_id] = None
                if len(found) == limit:
                    break
        return list(found)

    def path(self, key: Key) -> list[Frame]:
        """The pages from the root to the leaf of ``key``, both included. Raises `PageMiss`."""
        frames = self._frames
        page_id = self.root
        result: list[Frame] = []
        frame = frames.get(page_id) or self._recalled(page_id)
        while True:
            frame.visited = True
            result.append(frame)
            if frame.kind == LEAF:
                return result
            page_id = frame.children[bisect_right(frame.keys, key)]
            frame = frames.get(page_id) or self._recalled(page_id, frame)

    def leaf_for_scan(
        self, position: Key, *, reverse: bool = False, bound: Key | None = None
    ) -> Frame:
        """The leaf at a scan's position; a miss also asks for the leaves that come next.

        Forward: the leaf that holds ``position``, or the first one if it is None. Reverse: the leaf
        with the largest keys below ``position``, or the last one. What lies beyond ``bound`` is not
        asked for; a range that ends this near is no scan, and may come into the pool like any page.
        Raises `PageMiss`.
        """
        frames = self._frames
        page_id = self.root
        coming: list[PageId] = []
        is_short = False
        frame: Frame | None = frames.get(page_id) or self._recalled(page_id)
        while frame is not None:
            if frame.kind == LEAF:
                return frame
            children, keys = frame.children, frame.keys
            if position is None:
                index = len(children) - 1 if reverse else 0
            elif reverse:
                index = bisect_left(keys, position)
            else:
                index = bisect_right(keys, position)
            page_id = children[index]
            if reverse:
                first = 0 if bound is None else bisect_right(keys, bound)
                is_short = first > 0 and first >= index - PREFETCH_PAGES
                coming = children[max(first, index - PREFETCH_PAGES) : index][::-1]
            else:
                last = len(keys) if bound is None else bisect_left(keys, bound)
                is_short = last < len(keys) and last <= index + PREFETCH_PAGES
                coming = children[index + 1 : min(last, index + PREFETCH_PAGES) + 1]
            frame = frames.get(page_id) or self._fetcher.recall(page_id, scan=not is_short)
        raise PageMiss(self._fetcher, page_id, scan=not is_short, also=coming)

    def rows_in(
        self, position: Key, low: Key, high: Key, *, reverse: bool = False
    ) -> tuple[Frame, list[Key], Key | None]:
        """One leaf's keys within ``[low, high)`` at a scan's position, in scan order.

        Returns the leaf, the keys, and where to go on (None: this was the last leaf). The position
        is the next key to look at (forward) or the first that is done (reverse); None: the start.
        """
        if position is None:
            position = high if reverse else low
        frame = self.leaf_for_scan(position, reverse=reverse, bound=low if reverse else high)
        keys = frame.keys
        if reverse:
            end = len(keys) if position is None else bisect_left(keys, position)
            start = 0 if low is None else bisect_left(keys, low)
            rest = frame.low
            more = rest is not None and (low is None or rest > low)
            return frame, keys[start:end][::-1], rest if more else None
        start = 0 if position is None else bisect_left(keys, position)
        end = len(keys) if high is None else bisect_left(keys, high)
        rest = frame.high
        more = rest is not None and (high is None or rest < high)
        return frame, keys[start:end], rest if more else None
