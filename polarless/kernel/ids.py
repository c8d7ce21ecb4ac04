"""The plain numbers that the tiers exchange, with their names.

All are ints at run time; the aliases say which one is meant.

* ``PageId``  names a page for ever: ids are never used twice (docs/decisions/0001).
* ``Lsn``     a byte position in the redo log; a page's LSN is the end of the group that changed it.
* ``Cts``     a commit timestamp, a counter. Commits become visible in its order: LSN order.
* ``Epoch``   the writer's incarnation, the fencing token. Nothing with a lower epoch changes
  the log, a slot, the home's tables or the published cell (C5).
"""

from __future__ import annotations

from typing import Final

PageId = int
Lsn = int
Cts = int
Epoch = int
TreeId = int
TransactionId = int

# Ids from here on are given out by the allocator; those below have a fixed meaning.
CATALOG_TREE: Final[TreeId] = 1
CATALOG_ROOT: Final[PageId] = 1
FIRST_FREE_PAGE: Final[PageId] = 16
FIRST_LSN: Final[Lsn] = 0
FIRST_CTS: Final[Cts] = 1

# Trees that were dropped and whose pages are still to be freed: tree id -> encoded (root page).
DROPPED_TREE: Final[TreeId] = 2
DROPPED_ROOT: Final[PageId] = 2
FIRST_FREE_TREE: Final[TreeId] = 16
