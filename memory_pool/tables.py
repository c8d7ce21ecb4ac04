"""All that the home knows of pages, and the only code that changes it.

Seven tables with one meaning: addresses (page -> slot), references (page -> holders), watchers
(page -> who dropped its copy and may read the slot again unasked), staleness (page -> LSN), slots
by slab, claims (slots that were found full), and the order of eviction. Holders and watchers are
told of changes; a watcher does not keep a slot from being evicted, it finds another generation
there. What must always hold, see `check`:

* A page's address leads to a slot that is VALID or STALE and names the page.
* Every VALID or STALE slot is its page's address; an OFFERED one belongs to exactly one member.
* Once claims are chosen, every CLAIMED slot is among them. It has no address: its page is absent.
* A slot can be evicted if it is stale, or valid with no holder (or held for a scan only).
* C4: a VALID slot holds its page as of the home's mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from memory_pool.capacity import Capacity
from memory_pool.directory.addresses import Addresses
from memory_pool.directory.claims import Claim, Claims
from memory_pool.directory.members import Member
from memory_pool.directory.references import References
from memory_pool.directory.staleness import Change, Staleness
from memory_pool.eviction import Eviction, Ghosts
from memory_pool.slots import (
    CLAIMED,
    FREE,
    OFFERED,
    STALE,
    STATE_NAMES,
    VALID,
    Generations,
    Scan,
    SlabTable,
)
from polarless.kernel.stats import Stats

# Slots that one member may be writing at a time.
OFFERS_MAX: Final = 256
# Slots that are emptied in one go when a node lends less: a fraction of a millisecond.
LEFTOVERS_MAX: Final = 256


class PoolStats(Stats):
    """Counters of pages and slots since this home started."""

    __slots__ = (
        "absent", "adopted", "dropped", "evictions", "ghost_hits", "hits", "offers",
        "offers_expired", "offers_refused", "registers", "stale_hits", "validates_accepted",
        "validates_refused",
    )  # fmt: skip

    absent: int
    adopted: int
    dropped: int
    evictions: int
    ghost_hits: int
    hits: int
    offers: int
    offers_expired: int
    offers_refused: int
    registers: int
    stale_hits: int
    validates_accepted: int
    validates_refused: int


class PageTables:
    """The pages of the pool. Holders are members' places."""

    def __init__(self, home_epoch: int) -> None:
        self.addresses = Addresses()
        self.references = References()
        self.watchers = References()
        self.staleness = Staleness()
        self.claims = Claims()
        self.capacity = Capacity()
        self.eviction = Eviction()
        self.ghosts = Ghosts()
        self.stats = PoolStats()
        self._generations = Generations(home_epoch)

    # Reading.

    def register(self, page_id: int, place: int, *, scan: bool) -> tuple[SlabTable, int] | None:
        """Make the member a holder, and say where the page is; None if it is in no slot.

        The slot may be stale: the caller looks at its state.
        """
        stats = self.stats
        stats.registers += 1
        self.references.add(page_id, place)
        self.watchers.remove(page_id, place)
        address = self.addresses.get(page_id)
        if address is None:
            stats.absent += 1
            if self.ghosts.take(page_id):
                stats.ghost_hits += 1
            return None
        table, slot = self.capacity.locate(address)
        if table.state[slot] == VALID:
            stats.hits += 1
            if not scan:
                self.eviction.referenced(address)
        else:
            stats.stale_hits += 1
        return table, slot

    def locate(self, page_id: int, place: int) -> tuple[SlabTable, int] | None:
        """Where the page is, if its slot is valid; the member is told of changes from now on."""
        address = self.addresses.get(page_id)
        if address is None:
            return None
        table, slot = self.capacity.locate(address)
        if table.state[slot] != VALID:
            return None
        if not self.references.holders(page_id) >> place & 1:
            self.watchers.add(page_id, place)
        return table, slot

    def told(self, page_id: int) -> int:
        """The members that are told when the page changes, as bits."""
        return self.references.holders(page_id) | self.watchers.holders(page_id)

    def release(self, page_id: int, place: int) -> None:
        """The member has no copy any more, and is told of changes until it unregisters.

        Nothing happens if it is not told of this page's changes any more: one is on its way to it.
        """
        if self.references.holders(page_id) >> place & 1:
            self.watchers.add(page_id, place)
            if self.references.remove(page_id, place):
                self._let_go(page_id)
        elif self.watchers.holders(page_id) >> place & 1:
            # It had read the slot unasked.
            address = self.addresses.get(page_id)
            if address is not None:
                self.eviction.used(address)

    def unregister(self, page_id: int, place: int) -> None:
        """The member has no copy any more, and need not be told of changes."""
        self.watchers.remove(page_id, place)
        if self.references.remove(page_id, place):
            self._let_go(page_id)

    def hold(self, page_id: int, place: int) -> None:
        """The member has kept a copy from before."""
        self.references.add(page_id, place)
        address = self.addresses.get(page_id)
        if address is not None:
            self.eviction.referenced(address)

    def drop_member(self, place: int) -> None:
        """The member is gone: it leaves no holder entry behind (C7)."""
        self.watchers.drop(place)
        for page_id in self.references.drop(place):
            self._let_go(page_id)

    def _let_go(self, page_id: int) -> None:
        address = self.addresses.get(page_id)
        if address is not None:
            table, slot = self.capacity.locate(address)
            if table.state[slot] == VALID:
                self.eviction.unreferenced(address)

    # Changing.

    def make_stale(self, page_id: int, change: Change) -> None:
        """An advance changed the page: no image of it from before is valid."""
        self.staleness.stale(page_id, change)
        address = self.addresses.get(page_id)
        if address is not None:
            table, slot = self.capacity.locate(address)
            table.state[slot] = STALE
            self.eviction.stale(address)

    def offer(
        self, page_id: int, lsn: int, member: Member, *, scan: bool, now_us: int
    ) -> tuple[SlabTable, int, int] | None:
        """A slot to write the page's image into: (table, slot, generation).

        None if the pool does not want it: a scan, already valid, no room, or too many offers.
        """
        stats = self.stats
        address = self.addresses.get(page_id)
        valid = False
        if address is not None:
            table, slot = self.capacity.locate(address)
            valid = bool(table.state[slot] == VALID)
        if valid or len(member.offers) >= OFFERS_MAX or not self.eviction.admits(scan=scan):
            stats.offers_refused += 1
            return None
        address = self.capacity.allocate()
        if address is None and self._evict():
            address = self.capacity.allocate()
        if address is None:
            stats.offers_refused += 1
            return None
        table, slot = self.capacity.locate(address)
        generation = self._generations.take()
        table.offer(slot, page_id, lsn, generation, member.connection)
        member.offers[address] = now_us
        stats.offers += 1
        return table, slot, generation

    def offered(
        self, member: Member, page_id: int, node: str, slab: int, slot: int, generation: int
    ) -> int | None:
        """The address of an offer that the member still has, or None."""
        address = self.capacity.find(node, slab, slot)
        if address is None or address not in member.offers:
            return None
        table, _ = self.capacity.locate(address)
        assert table.state[slot] == OFFERED, STATE_NAMES[table.state.item(slot)]
        if table.page[slot] != page_id or table.generation[slot] != generation:
            return None
        return address

    def validate(self, member: Member, address: int, *, lsn: int, as_of: int, mark: int) -> bool:
        """Switch the page to the offered slot if its image is still the newest, else free it."""
        table, slot = self.capacity.locate(address)
        page_id = table.page.item(slot)
        member.offers.pop(address, None)
        if not self.staleness.is_newest(page_id, lsn=lsn, as_of=as_of, mark=mark):
            self.stats.validates_refused += 1
            table.release(slot)
            return False
        self.stats.validates_accepted += 1
        self.install(page_id, lsn, address)
        return True

    def install(self, page_id: int, lsn: int, address: int) -> None:
        """The slot holds the page as of the mark."""
        table, slot = self.capacity.locate(address)
        table.state[slot] = VALID
        table.lsn[slot] = lsn
        old = self.addresses.switch(page_id, address)
        if old is not None:
            self.eviction.forget(old)
            old_table, old_slot = self.capacity.locate(old)
            old_table.release(old_slot)
        if not self.references.holders(page_id):
            self.eviction.unreferenced(address)

    def drop_offer(self, member: Member, address: int) -> None:
        """The slot was not written, or may not have been: its generation is over."""
        member.offers.pop(address, None)
        table, slot = self.capacity.locate(address)
        table.release(slot)

    def drop_offers(self, member: Member) -> None:
        """The member is gone. A WRITE of its that is still on its way hits a free slot, or a
        generation that is over."""
        for address in list(member.offers):
            self.drop_offer(member, address)

    def expire_offers(self, member: Member, until_us: int) -> None:
        """The member has done nothing with slots that it was offered before ``until_us``.

        It may never have heard of them: an answer that comes after its caller's deadline is lost.
        """
        for address, since_us in list(member.offers.items()):
            if since_us >= until_us:
                break
            self.drop_offer(member, address)
            self.stats.offers_expired += 1

    def adopt(self, claim: Claim, good: bool, *, as_of: int, mark: int) -> None:
        """Storage has judged a claim as of ``as_of``: the slot is valid from now on, or free."""
        page_id, lsn, address = claim
        if not self._is_claimed(address):
            return
        newest = good and self.staleness.is_newest(page_id, lsn=lsn, as_of=as_of, mark=mark)
        if newest and page_id not in self.addresses:
            self.stats.adopted += 1
            self.install(page_id, lsn, address)
            self.eviction.oldest(address)
        else:
            # Old, or somebody was quicker with an image of its own.
            self.free_claims([address])

    def _is_claimed(self, address: int) -> bool:
        """Whether a claim is still one: its node is there, and its slot was not emptied."""
        if not self.capacity.has(address):
            return False
        table, slot = self.capacity.locate(address)
        return bool(table.state[slot] == CLAIMED)

    def _drop_claim(self) -> bool:
        while (address := self.claims.pop_oldest()) is not None:
            if self._is_claimed(address):
                self.free_claims([address])
                return True
        return False

    def _evict(self) -> bool:
        """Free a slot: a stale one, else the oldest claim, else the least recently used page."""
        if not self.eviction.stale_count and self._drop_claim():
            self.stats.evictions += 1
            return True
        address = self.eviction.pick()
        if address is None:
            return False
        self._drop(address)
        self.stats.evictions += 1
        return True

    def _drop(self, address: int) -> None:
        """Free the slot of a page; whoever still reads it finds it, or asks again."""
        table, slot = self.capacity.locate(address)
        if table.state[slot] == VALID:
            self.ghosts.add(table.page.item(slot))
        del self.addresses[table.page.item(slot)]
        table.release(slot)

    # Slabs.

    def attach(self, node: str, slab: int, slot_count: int, scan: Scan | None) -> None:
        """A memory node lends a slab; ``scan`` are claims that a rebuild will look at."""
        table = self.capacity.attach(node, slab, slot_count)
        if scan is not None:
            table.claim(scan)

    def detach(self, node: str, members: Iterable[Member]) -> bool:
        """A memory node is gone, and its slots with it; whether it was attached at all."""
        gone = self.capacity.detach(node)
        numbers = {table.number for table in gone}
        for member in members:
            kept = {a: since for a, since in member.offers.items() if a >> 32 not in numbers}
            member.offers = kept
        for table in gone:
            for slot in ((table.state == VALID) | (table.state == STALE)).nonzero()[0].tolist():
                self.eviction.forget(table.base + slot)
                del self.addresses[table.page.item(slot)]
        return bool(gone)

    def empty_leftovers(self) -> list[str]:
        """Empty some slots that are not lent any more; the nodes that have none left now.

        Slots that somebody is writing are waited for.
        """
        for address in self.capacity.leftovers(LEFTOVERS_MAX):
            table, slot = self.capacity.locate(address)
            if table.state[slot] in (VALID, STALE):
                self.eviction.forget(address)
                self._drop(address)
                self.stats.dropped += 1
            elif table.state[slot] == CLAIMED:
                self.free_claims([address])
        return self.capacity.shrunk()

    def free_claims(self, addresses: Iterable[int]) -> None:
        """Nobody vouches for these slots, which are CLAIMED."""
        for address in addresses:
            table, slot = self.capacity.locate(address)
            table.release(slot)

    # Looking.

    def by_node(self) -> dict[str, dict[str, int]]:
        """Slots by node and state."""
        counts: dict[str, dict[str, int]] = {}
        for table in self.capacity:
            row = counts.setdefault(table.node, dict.fromkeys(STATE_NAMES.values(), 0))
            for state, name in STATE_NAMES.items():
                row[name] += table.free_count if state == FREE else table.count(state)
        return counts

    def check(self) -> None:
        """The invariants of this module, by looking at everything; for tests."""
        self.references.check()
        self.watchers.check()
        found: dict[int, int] = {}
        claimed: set[int] = set()
        for table in self.capacity:
            lent = table.state[: table.limit]
            assert table.free_slots() == (lent == FREE).nonzero()[0].tolist()
            for slot in range(table.slot_count):
                state, page_id = table.state.item(slot), table.page.item(slot)
                address = table.base + slot
                if state in (VALID, STALE):
                    assert page_id not in found, f"page {page_id} has two slots"
                    found[page_id] = address
                    held = bool(self.references.holders(page_id))
                    if state == STALE or not held:
                        assert address in self.eviction, (page_id, STATE_NAMES[state])
                else:
                    assert address not in self.eviction
                if state == CLAIMED:
                    claimed.add(address)
        assert found == self.addresses, (found, dict(self.addresses))
        if self.claims.collected:
            assert claimed <= set(self.claims.addresses()), "a claimed slot that nobody asks about"
