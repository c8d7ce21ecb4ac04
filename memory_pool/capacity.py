"""Slabs that come and go while the pool serves.

A new slot is taken from the slab with the most free ones, which spreads pages over the memory nodes
and keeps a fresh, empty node from getting everything only until it has caught up. A node that is
detached takes its slots along: whoever still has an address of it reads nothing there and asks
again.

A node lends its first so many slots. When it is to lend fewer, the rest gets nothing new at once,
and is emptied a few slots at a time, so that nobody waits for it; then its memory is given back.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_pool.slots import SLOT_MASK, TABLE_SHIFT, SlabTable


class Capacity:
    """All slab tables by number. Numbers are never used twice, so old addresses stay dead."""

    def __init__(self) -> None:
        self._tables: dict[int, SlabTable] = {}
        self._next = 0
        # Nodes that lend less than before, until what is not lent is empty.
        self._shrinking: set[str] = set()

    def __iter__(self) -> Iterator[SlabTable]:
        return iter(self._tables.values())

    def attach(self, node: str, slab: int, slot_count: int) -> SlabTable:
        """Add a slab with all slots free."""
        table = SlabTable(self._next, node, slab, slot_count)
        self._tables[self._next] = table
        self._next += 1
        return table

    def detach(self, node: str) -> list[SlabTable]:
        """Remove a node's slabs; they are returned for the home to forget what they held."""
        self._shrinking.discard(node)
        gone = self._of(node)
        for table in gone:
            del self._tables[table.number]
        return gone

    def lend(self, node: str, slots: int) -> None:
        """Use the first ``slots`` slots of a node from now on."""
        left = slots
        for table in self._of(node):
            table.lend(left)
            left -= table.limit
        self._shrinking.add(node)

    def lent(self, node: str) -> int:
        """How many slots of the node are used."""
        return sum(table.limit for table in self._of(node))

    def leftovers(self, count: int) -> list[int]:
        """At most ``count`` addresses that are not lent any more and not free yet."""
        found: list[int] = []
        for node in self._shrinking:
            for table in self._of(node):
                found += [table.base + slot for slot in table.leftovers(count - len(found))]
                if len(found) >= count:
                    return found
        return found

    def shrunk(self) -> list[str]:
        """Nodes whose slots that are not lent have become empty; each is said once."""
        done = [n for n in self._shrinking if not any(t.leftovers(1) for t in self._of(n))]
        self._shrinking.difference_update(done)
        return done

    def _of(self, node: str) -> list[SlabTable]:
        return [table for table in self._tables.values() if table.node == node]

    def nodes(self) -> list[str]:
        """Names of the nodes that have slabs here."""
        return sorted({table.node for table in self._tables.values()})

    def locate(self, address: int) -> tuple[SlabTable, int]:
        """The table and slot of an address that the home itself keeps."""
        return self._tables[address >> TABLE_SHIFT], address & SLOT_MASK

    def has(self, address: int) -> bool:
        """Whether the address's slab is still attached."""
        return address >> TABLE_SHIFT in self._tables

    def find(self, node: str, slab: int, slot: int) -> int | None:
        """The address that a peer named, or None if there is no such slot."""
        for table in self._tables.values():
            if table.node == node and table.slab == slab:
                return table.base + slot if 0 <= slot < table.slot_count else None
        return None

    def allocate(self) -> int | None:
        """A free slot's address, or None. The caller gives it a state at once."""
        best: SlabTable | None = None
        most = 0
        for table in self._tables.values():
            count = table.free_count
            if count > most:
                best, most = table, count
        return None if best is None else best.base + best.take()
