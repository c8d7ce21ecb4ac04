"""Counters that every node keeps and shows: plain ints in a dict-like record, no locks.

A node has one `Stats`; hot code does ``stats.pages_hit += 1``. `snapshot` gives plain values for
``status --json`` and the metrics page.
"""

from __future__ import annotations

from typing import Any


class Stats:
    """Named counters. A subclass lists them in ``__slots__``; all start at 0."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, Any]:
        """All counters by name."""
        return {name: getattr(self, name) for name in self.__slots__}
