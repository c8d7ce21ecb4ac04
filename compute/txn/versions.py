"""Which version of a row a snapshot sees.

A row is a chain ``(cts, payload, older)``, newest first. A commit's versions are on the page before
they are published, so a reader walks until ``cts <= snapshot``; that is the whole visibility rule,
since nothing uncommitted ever reaches a page. ``cts`` 0 is a row that was bulk-loaded into a tree
that nobody could reach before its commit: whoever reaches the tree sees it.
"""

from __future__ import annotations

from typing import Any

from polarless.kernel.ids import Cts
from polarless.kernel.page import Version


def visible(version: Version | None, snapshot: Cts) -> Any:
    """The payload that a snapshot sees: bytes, a large value's place, or None (no such row)."""
    while version is not None:
        if version[0] <= snapshot:
            return version[1]
        version = version[2]
    return None
