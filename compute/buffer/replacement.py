"""SIEVE: which frame leaves the cache when it is over its budget.

A queue in order of arrival and one hand that moves from the oldest towards the newest. A frame that
was visited since the hand last passed stays where it is and loses its mark; the first one without a
mark leaves. New frames arrive at the young end, so a scan's pages, never visited twice, go before
the working set does.

The queue is a doubly linked list in two dicts, so that removing a frame from the middle (an
invalidation) costs as little as from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

_END = -1


class Sieve:
    """Order of page ids; knows nothing of frames but what `victims` is told."""

    def __init__(self) -> None:
        # older[p] and newer[p] are p's neighbours; _END stands for both ends.
        self._older: dict[int, int] = {_END: _END}
        self._newer: dict[int, int] = {_END: _END}
        self._hand = _END

    def __len__(self) -> int:
        return len(self._older) - 1

    def __contains__(self, page_id: int) -> bool:
        return page_id in self._older and page_id != _END

    def add(self, page_id: int) -> None:
        """Put a page at the young end."""
        newest = self._older[_END]
        self._older[page_id] = newest
        self._newer[page_id] = _END
        self._newer[newest] = page_id
        self._older[_END] = page_id

    def remove(self, page_id: int) -> None:
        """Take a page out of the queue."""
        older = self._older.pop(page_id)
        newer = self._newer.pop(page_id)
        self._newer[older] = newer
        self._older[newer] = older
        if self._hand == page_id:
            self._hand = newer

    def victims(self, spare: Callable[[int], bool]) -> Iterator[int]:
        """Page ids in the order they should leave; ``spare(id)`` says which stay this time.

        ``spare`` clears the visited mark as it answers. Ends after two rounds: then nothing can go.
        The caller may remove the page it was given.
        """
        for _ in range(2 * len(self)):
            page_id = self._hand
            if page_id == _END:
                page_id = self._newer[_END]
                if page_id == _END:
                    return
            self._hand = self._newer[page_id]
            if not spare(page_id):
                yield page_id
