"""A random walk over the pool's protocol: the real home among modelled nodes and channels.

Channels are queues that are emptied a message at a time, in any interleaving. Nodes crash, wake up
as zombies, stop answering, lose their home. A page is the list of LSNs that changed it, an image is
one of them. After every step:

* C1  what a reader has cached is exactly the page as of the reader's mark;
* C2  a reader that may take a snapshot sees every acknowledged commit, in all of its cached pages;
* C4  a valid slot holds its page as of the home's mark (and its bytes are really there);
* C6  the published cell never goes back, whatever home it is;
* C7  nobody but members holds anything at the home (`Home.check`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from memory_pool.directory import messages as m
from memory_pool.home import Home
from memory_pool.home_state import HomeConfig
from memory_pool.slots import SCAN_DTYPE, VALID
from polarless.errors import Fenced
from polarless.wire.memory import decode_claims

PAGES = range(1, 7)
SLOTS = 3
READERS = ("ro1", "ro2")
CONFIG = HomeConfig(
    pull_timeout_us=150_000,
    rejoin_grace_us=300_000,
    rebuild_timeout_us=2_000_000,
    confirm_timeout_us=100_000,
)


@dataclass(eq=False)
class Cells:
    """One home's cells; a reader keeps looking at the ones it was given."""

    published: int = 0
    knows: bool = False
    words: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Fetch:
    """A reader's fetch: ``stage`` is what it waits for."""

    stage: str
    found: tuple[Any, ...] = ()
    as_of: int = 0
    image: int = 0
    restart: bool = False


@dataclass(eq=False)
class Node:
    """A compute process. A new process of the same name is a new object."""

    name: str
    epoch: int
    writer: bool = False
    alive: bool = True
    stopped: bool = False  # SIGSTOP: hears nothing, but its sessions may wake with it
    connection: int = 0
    member: bool = False
    joining: bool = False
    kept: bool = False  # the cache may survive the next join
    mark: int = 0
    place: int = -1
    incarnation: int = 0
    cells: Cells | None = None
    cache: dict[int, int] = field(default_factory=dict)
    fetches: dict[int, Fetch] = field(default_factory=dict)
    # Where pages lie, cached or not: (node, slab, slot), generation, lsn.
    places: dict[int, tuple[tuple[str, int, int], int, int]] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    held_acks: list[int] = field(default_factory=list)
    # Of a writer: (lsn, cts, pages) not answered yet, and what it may say at a rejoin.
    unanswered: list[tuple[int, int, list[int]]] = field(default_factory=list)
    advance_sent: int = 0
    admitted: list[str] = field(default_factory=list)
    must_advance: bool = False
    promoting: bool = False
    # Images read before a connection was lost, (page, image, as of), to be offered on the next one.
    late: list[tuple[int, int, int]] = field(default_factory=list)
    # page -> the first change since the image under way was made
    overtaken: dict[int, int | None] = field(default_factory=dict)


@dataclass(eq=False)
class Write:
    """A WRITE on its way."""

    connection: int
    address: tuple[str, int, int]
    page_id: int
    lsn: int
    generation: int
    node: Node
    as_of: int


class Walk:
    """The world, and one random step at a time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.counts = {"adopted": 0}
        self.now_us = 0
        self.trace: list[str] = []
        # Storage.
        self.epoch = 1
        self.tail = 0
        self.cts = 0
        self.log: list[tuple[int, int, list[int]]] = []
        self.changes: dict[int, list[int]] = {page: [] for page in PAGES}
        self.lsn_of_cts = {0: 0}
        # Memory.
        self.memory: dict[tuple[str, int, int], tuple[int, int, int]] = {}
        self.writes: list[Write] = []
        self.revoked: set[int] = set()
        self.revokes: list[int] = []
        # What a writer was asked about found slots, and has not asked storage yet.
        self.questions: list[tuple[Node, int, int, int, list[tuple[int, int]]]] = []
        # Channels.
        self.next_connection = 0
        self.to_home: dict[int, deque[Any]] = {}
        self.to_node: dict[int, deque[Any]] = {}
        self.owner: dict[int, Node] = {}
        self.acknowledged_cts = 0
        self.published_ever = 0
        self.home_epoch = 0
        self.home: Home | None = None
        self.cells = Cells()
        self.new_home()
        self.writer = Node("rw", 1, writer=True)
        self.nodes = [self.writer, *(Node(name, 1) for name in READERS)]

    # The world.

    def newest(self, page: int, as_of: int) -> int:
        """The LSN of the page's image as of an LSN; 0 if there was none."""
        changes = self.changes[page]
        index = bisect_right(changes, as_of)
        return changes[index - 1] if index else 0

    def new_home(self) -> None:
        self.home_epoch += 1
        self.cells = Cells()
        # Every key that an older home granted is revoked before the slots are looked at.
        self.revoked.update(range(self.next_connection + 1))
        self.revokes.clear()
        self.home = Home(
            home_epoch=self.home_epoch, epoch=self.epoch, now_us=self.now_us, config=CONFIG
        )
        for node in ("mem1", "mem2"):
            rows = [
                (slot, *contents)
                for (name, _, slot), contents in self.memory.items()
                if name == node
            ]
            scan = np.array(rows, SCAN_DTYPE) if rows else np.zeros(0, SCAN_DTYPE)
            self.step(m.Attached(node, [(0, SLOTS, scan)]))
        self.step(m.Scanned())

    def step(self, event: m.Event) -> None:
        assert self.home is not None
        adopted = self.home.state.tables.stats.adopted
        for effect in self.home.step(event, self.now_us):
            match effect:
                case m.Answer(call, result):
                    self.send(call[0], ("answer", call, result))
                case m.Fail(call, error):
                    self.send(call[0], ("fail", call, error))
                case m.Push(connection, method, args):
                    self.send(connection, ("push", method, args))
                case m.Admit(call, connection, place, cold, mark):
                    self.send(connection, ("admit", call, place, cold, mark))
                case m.SetWord(place, value):
                    self.cells.words[place] = value
                case m.Publish(cts):
                    assert cts >= self.published_ever, "C6"
                    assert cts > self.cells.published, "C6"
                    self.published_ever = self.cells.published = cts
                case m.Know():
                    self.cells.knows = True
                case m.Revoke(connection):
                    self.revokes.append(connection)
                case m.Close(connection, _):
                    self.to_home.pop(connection, None)
                    self.send(connection, ("closed",))
                case _:
                    pass
        self.counts["adopted"] += self.home.state.tables.stats.adopted - adopted

    def send(self, connection: int, message: Any) -> None:
        queue = self.to_node.get(connection)
        if queue is not None:
            queue.append(message)

    def tell(self, node: Node, message: Any) -> None:
        queue = self.to_home.get(node.connection)
        if queue is not None:
            queue.append(message)

    # What nodes do.

    def connect(self, node: Node) -> None:
        self.next_connection += 1
        number = node.connection = self.next_connection
        self.to_home[number] = deque()
        self.to_node[number] = deque()
        self.owner[number] = node
        node.incarnation = number
        node.joining, node.member, node.place = True, False, -1
        node.fetches.clear()
        node.places.clear()
        node.asked.clear()
        node.held_acks.clear()
        call = (number, "join", None)
        warm = node.kept
        held = list(node.cache) if warm else []
        self.tell(
            node,
            m.Joined(
                number, call, node.name, number, node.writer, node.epoch, warm, held, node.admitted
            ),
        )

    def disconnected(self, node: Node, *, home_lost: bool) -> None:
        """The node's connection has ended; only the loss of a home lets a reader keep its cache."""
        self.to_node.pop(node.connection, None)
        node.member = node.joining = False
        node.promoting = False
        node.late = [
            (page, fetch.image, fetch.as_of)
            for page, fetch in node.fetches.items()
            if fetch.stage == "storage" and fetch.image and not fetch.restart
        ]
        node.fetches.clear()
        node.places.clear()
        node.asked.clear()
        node.held_acks.clear()
        node.overtaken.clear()
        node.kept = home_lost or node.writer
        if not node.kept:
            node.cache.clear()
        node.must_advance = node.writer

    def crash(self, node: Node) -> None:
        node.alive = False
        self.tell(node, "lost")
        self.to_node.pop(node.connection, None)
        self.nodes.remove(node)

    def commit(self, node: Node) -> None:
        if node.epoch < self.epoch:
            # A zombie: storage refuses its log.
            return
        # Some pages change rarely: an image of them may outlive a home.
        some = PAGES if self.random.random() < 0.4 else PAGES[:3]
        pages = self.random.sample(some, self.random.choice((1, 1, 2)))
        self.tail += 10
        self.cts += 1
        self.lsn_of_cts[self.cts] = self.tail
        self.log.append((self.tail, self.cts, pages))
        for page in pages:
            self.changes[page].append(self.tail)
            node.cache[page] = self.tail
            if page in node.overtaken and node.overtaken[page] is None:
                node.overtaken[page] = self.tail
        node.unanswered.append((self.tail, self.cts, pages))

    def advance(self, node: Node, *, everything: bool = False) -> None:
        fresh = [entry for entry in node.unanswered if everything or entry[0] > node.advance_sent]
        if not fresh and not everything:
            return
        lsn = fresh[-1][0] if fresh else max(self.tail_of(node), node.advance_sent)
        cts = fresh[-1][1] if fresh else max(c for c, at in self.lsn_of_cts.items() if at <= lsn)
        pages = sorted({page for entry in fresh for page in entry[2]})
        node.advance_sent = lsn
        node.must_advance = False
        call = (node.connection, "advance", (lsn, cts))
        self.tell(node, m.Advance(node.connection, call, node.epoch, lsn, cts, pages))

    def tail_of(self, node: Node) -> int:
        """What a writer knows to be durable."""
        return self.tail if node.epoch == self.epoch else node.advance_sent

    def offer(self, node: Node, page: int, image: int, as_of: int) -> None:
        """A reader's ``as_of`` is the mark it read at; -1: the writer's, known when it promises."""
        if node.writer:
            if page in node.overtaken:
                return
            node.overtaken[page] = None
        call = (node.connection, "offer", (page, image, as_of))
        self.tell(node, m.Offered(node.connection, call, page, image, False))

    def fetch(self, node: Node, page: int) -> None:
        node.fetches[page] = Fetch("registering")
        call = (node.connection, "register", page)
        self.tell(node, m.Register(node.connection, call, page, self.random.random() < 0.2))
        if self.random.random() < 0.1:
            near = self.random.sample(PAGES, 3)
            near = [page for page in near if page not in node.cache]
            node.asked.update(near)
            self.tell(node, m.Locate(node.connection, (node.connection, "locate", near), near))

    def read(self, node: Node, page: int, fetch: Fetch) -> None:
        """The slot is read, or storage has answered: install, or start again."""
        if fetch.restart:
            self.fetch(node, page)
            return
        if fetch.stage == "reading":
            _, name, slab, slot, generation, lsn, _ = fetch.found
            contents = self.memory.get((name, slab, slot))
            if contents is None or contents[0] != page or contents[2] != generation:
                self.fetch(node, page)
                return
            assert contents[1] == lsn
            fetch.image = lsn
        del node.fetches[page]
        if fetch.image > node.mark:
            return
        node.cache[page] = fetch.image
        if fetch.stage == "reading":
            _, *address, generation, lsn, _ = fetch.found
            node.places[page] = (tuple(address), generation, lsn)
        if fetch.stage == "storage" and fetch.image and self.random.random() < 0.7:
            self.offer(node, page, fetch.image, fetch.as_of)

    def invalidate(self, node: Node, lsn: int, pages: list[int], mark: int) -> None:
        for page in pages:
            node.cache.pop(page, None)
            node.places.pop(page, None)
            if page in node.fetches:
                node.fetches[page].restart = True
        node.mark = max(node.mark, mark)
        if self.random.random() < 0.7:
            self.tell(node, m.Ack(node.connection, lsn))
        else:
            node.held_acks.append(lsn)

    def hear(self, node: Node, message: Any) -> None:
        """A node takes the next message of its channel."""
        match message:
            case ("closed",):
                self.disconnected(node, home_lost=False)
            case ("home lost",):
                self.disconnected(node, home_lost=node.member or node.kept)
            case ("push", "invalidate", (lsn, pages, mark)):
                self.invalidate(node, lsn, pages, mark)
            case ("push", "mark", (mark,)):
                node.mark = max(node.mark, mark)
            case ("push", "pull", (page, ticket, offer)):
                chance = self.random.random()
                if page in node.cache and chance < 0.4:
                    self.offer(node, page, node.cache[page], -1)
                elif page in node.cache and page not in node.overtaken and chance < 0.8:
                    # The slot came along; it may be taken back before the image is there.
                    if node.writer:
                        node.overtaken[page] = None
                    self.start_write(node, page, node.cache[page], -1, offer)
                else:
                    self.tell(node, m.PullRefused(node.connection, page, ticket))
            case ("push", "confirm", (ticket, as_of, data)):
                self.questions.append((node, node.connection, ticket, as_of, decode_claims(data)))
            case ("push", ("expelled" | "fenced"), _):
                if not node.writer:
                    node.cache.clear()
                node.kept = False
            case ("admit", _, place, cold, mark):
                node.joining, node.member, node.place = False, True, place
                node.cells = self.cells
                if cold:
                    node.cache.clear()
                    node.mark = mark
                node.mark = max(node.mark, mark)
                node.kept = False
                if not node.writer:
                    for page, image, as_of in node.late:
                        self.offer(node, page, image, as_of)
                node.late.clear()
            case ("fail", (_, "join", _), error):
                self.tell(node, "lost")
                self.disconnected(node, home_lost=node.kept)
                if isinstance(error, Fenced) and self.random.random() < 0.3:
                    self.crash(node)
                    self.nodes.append(Node(node.name, self.epoch))
            case ("answer", call, result):
                self.answered(node, call[1], call[2], result)
            case ("fail", (_, "fence", _), _):
                node.promoting = False
            case ("fail", (_, ("offer" | "validate"), (page, _, as_of)), _):
                self.settled(node, page, as_of)
            case ("fail", (_, "register", page), _):
                node.fetches.pop(page, None)
            case _:
                pass

    def answered(self, node: Node, kind: str, context: Any, result: Any) -> None:
        if kind == "register":
            node.mark = max(node.mark, result[-1])
            fetch = node.fetches.get(context)
            if fetch is None or fetch.stage != "registering":
                return
            if fetch.restart:
                self.fetch(node, context)
            elif result[0] == "hit":
                fetch.stage, fetch.found = "reading", result
            else:
                fetch.stage, fetch.as_of = "storage", node.mark
                fetch.image = self.newest(context, fetch.as_of)
        elif kind == "locate":
            found, mark = result
            node.mark = max(node.mark, mark)
            for page, one in zip(context, found, strict=True):
                if one is not None and page in node.asked:
                    _, *address, generation, lsn, _ = one
                    node.places[page] = (tuple(address), generation, lsn)
        elif kind == "advance":
            lsn, cts = context
            node.admitted = result[0]
            node.mark = max(node.mark, lsn)
            node.unanswered = [entry for entry in node.unanswered if entry[0] > lsn]
            self.acknowledged_cts = max(self.acknowledged_cts, cts)
        elif kind == "offer":
            page, image, as_of = context
            if result is None:
                self.settled(node, page, as_of)
                return
            self.start_write(node, page, image, as_of, result)
        elif kind == "validate":
            self.settled(node, context[0], context[2])
        elif kind == "fence":
            self.promoted(node, context, result)

    def start_write(self, node: Node, page: int, image: int, as_of: int, offer: Any) -> None:
        *address, generation = offer
        self.writes.append(
            Write(node.connection, tuple(address), page, image, generation, node, as_of)
        )

    def settled(self, node: Node, page: int, as_of: int) -> None:
        """An image has come to its end. A reader's was not tracked."""
        if as_of < 0:
            node.overtaken.pop(page, None)

    def promoted(self, node: Node, epoch: int, result: dict[str, Any]) -> None:
        """Read the log behind the home's mark, apply it to the cache, advance."""
        if not node.writer:
            node.overtaken.clear()
        node.writer, node.epoch, node.promoting = True, epoch, False
        node.fetches.clear()
        node.asked.clear()
        node.admitted = []
        node.unanswered = []
        self.writer = node
        pages: set[int] = set()
        if result["cold"]:
            node.cache.clear()
            node.places.clear()
        else:
            for lsn, _, changed in self.log:
                if lsn > result["mark"]:
                    pages.update(changed)
                    for page in changed:
                        node.places.pop(page, None)
                        if page in node.cache:
                            node.cache[page] = lsn
        node.advance_sent = self.tail
        node.must_advance = False
        # Until it is answered these are this writer's to say.
        node.unanswered = [(self.tail, self.cts, sorted(pages))] if self.tail else []
        call = (node.connection, "advance", (self.tail, self.cts))
        self.tell(node, m.Advance(node.connection, call, epoch, self.tail, self.cts, sorted(pages)))

    # One random step.

    def turn(self) -> None:
        action = self.random.choices(ACTIONS, WEIGHTS)[0]
        name = action.__name__
        if action(self):
            self.counts[name] = self.counts.get(name, 0) + 1
        self.check()

    def pick(self, fits: Callable[[Node], object]) -> Node | None:
        nodes = [node for node in self.nodes if fits(node)]
        return self.random.choice(nodes) if nodes else None

    def check(self) -> None:
        home = self.home
        if home is not None:
            home.check()
            if home.state.rebuild is None:
                self.check_slots(home)
        for node in self.nodes:
            if node.writer or not (node.member or node.kept):
                continue
            for page, image in node.cache.items():
                expected = self.newest(page, node.mark)
                assert image == expected, (
                    f"C1: {node.name}: page {page} is {image}, as of {node.mark} {expected}"
                )
            cells = node.cells
            if cells is None or not node.member or cells.words.get(node.place) != node.incarnation:
                continue
            if cells.knows:
                assert cells.published >= self.acknowledged_cts, "C2: an old timestamp"
                snapshot = self.lsn_of_cts[cells.published]
                for page, image in node.cache.items():
                    assert image >= self.newest(page, snapshot), f"C2: page {page} is too old"

    def check_slots(self, home: Home) -> None:
        for table in home.state.tables.capacity:
            for slot in range(table.slot_count):
                if table.state[slot] != VALID:
                    continue
                page, lsn = table.page.item(slot), table.lsn.item(slot)
                assert lsn == self.newest(page, home.state.mark), f"C4: page {page} at {lsn}"
                held = self.memory[table.node, table.slab, slot]
                assert held == (page, lsn, table.generation.item(slot)), "C4: other bytes"


def deliver_to_home(walk: Walk) -> bool:
    ready = [number for number, queue in walk.to_home.items() if queue]
    if not ready or walk.home is None:
        return False
    number = walk.random.choice(ready)
    message = walk.to_home[number].popleft()
    if message == "lost":
        del walk.to_home[number]
        walk.step(m.Lost(number))
    else:
        walk.step(message)
    return True


def deliver_to_node(walk: Walk) -> bool:
    ready = [
        number for number, queue in walk.to_node.items() if queue and not walk.owner[number].stopped
    ]
    if not ready:
        return False
    number = walk.random.choice(ready)
    walk.hear(walk.owner[number], walk.to_node[number].popleft())
    return True


def connect(walk: Walk) -> bool:
    node = walk.pick(lambda n: not n.member and not n.joining and n.connection not in walk.to_node)
    if node is None or walk.home is None:
        return False
    if node.writer and node.epoch < walk.epoch and walk.random.random() < 0.1:
        # It is told that it is fenced: a process of its name starts as a reader.
        walk.crash(node)
        walk.nodes.append(Node(node.name, walk.epoch))
        return True
    walk.connect(node)
    return True


def commit(walk: Walk) -> bool:
    node = walk.pick(lambda n: n.writer and (n.member or n.kept) and not n.must_advance)
    if node is None or walk.tail - node.advance_sent > 60:
        return False
    walk.commit(node)
    return True


def advance(walk: Walk) -> bool:
    node = walk.pick(lambda n: n.writer and n.member)
    if node is None:
        return False
    walk.advance(node, everything=node.must_advance)
    return True


def fetch(walk: Walk) -> bool:
    node = walk.pick(lambda n: n.member and not n.writer and not n.promoting)
    if node is None:
        return False
    page = walk.random.choice(PAGES)
    if page in node.cache or page in node.fetches:
        return False
    walk.fetch(node, page)
    return True


def read(walk: Walk) -> bool:
    node = walk.pick(lambda n: any(f.stage != "registering" for f in n.fetches.values()))
    if node is None:
        return False
    page, found = walk.random.choice(
        [(p, f) for p, f in node.fetches.items() if f.stage != "registering"]
    )
    walk.read(node, page, found)
    return True


def evict(walk: Walk) -> bool:
    node = walk.pick(lambda n: n.member and n.cache)
    if node is None:
        return False
    page = walk.random.choice(list(node.cache))
    if node.writer and node.cache[page] > node.advance_sent:
        return False
    if page not in node.fetches:
        image = node.cache.pop(page)
        place = node.places.pop(page, None)
        if place is not None and place[2] == image and walk.random.random() < 0.8:
            node.places[page] = place
            walk.tell(node, m.Release(node.connection, [page]))
        else:
            node.asked.discard(page)
            walk.tell(node, m.Unregister(node.connection, [page]))
    return True


def recall(walk: Walk) -> bool:
    """A page whose place is still known is read again, and nobody is asked."""
    node = walk.pick(lambda n: n.member and not n.promoting and n.places.keys() - n.cache.keys())
    if node is None:
        return False
    page = walk.random.choice(sorted(node.places.keys() - node.cache.keys()))
    address, generation, lsn = node.places[page]
    contents = walk.memory.get(address)
    if page in node.fetches or contents is None:
        return False
    if contents[0] != page or contents[2] != generation:
        del node.places[page]
        return False
    assert contents[1] == lsn
    node.cache[page] = lsn
    return True


def write_back(walk: Walk) -> bool:
    node = walk.pick(lambda n: n.writer and n.member and n.cache and not n.must_advance)
    if node is None:
        return False
    page = walk.random.choice(list(node.cache))
    walk.offer(node, page, node.cache[page], -1)
    return True


def write(walk: Walk) -> bool:
    """A WRITE arrives, in any order; its sender promises next, or has given it up."""
    if not walk.writes:
        return False
    one = walk.writes.pop(walk.random.randrange(len(walk.writes)))
    old = walk.memory.get(one.address, (0, 0, 0))
    applied = one.connection not in walk.revoked and old[2] <= one.generation
    if applied:
        walk.memory[one.address] = (one.page_id, one.lsn, one.generation)
    node = one.node
    if node.connection != one.connection or not node.member:
        return True
    numbers = (one.page_id, *one.address, one.generation)
    if not applied or walk.random.random() < 0.1:
        walk.tell(node, m.DropOffer(one.connection, *numbers))
        walk.settled(node, one.page_id, one.as_of)
        return True
    as_of = one.as_of
    if as_of < 0:
        as_of = node.advance_sent
        changed = node.overtaken.get(one.page_id)
        if changed is not None and changed <= as_of:
            as_of = (1 << 62) - 1
    call = (one.connection, "validate", (one.page_id, one.lsn, one.as_of))
    walk.tell(node, m.Validate(one.connection, call, *numbers, one.lsn, as_of))
    return True


def ack(walk: Walk) -> bool:
    node = walk.pick(lambda n: n.held_acks)
    if node is None:
        return False
    walk.tell(node, m.Ack(node.connection, node.held_acks.pop(0)))
    return True


def confirm(walk: Walk) -> bool:
    """Storage says which LSNs pages have; or it has folded beyond; or is not there at all."""
    if not walk.questions:
        return False
    node, connection, ticket, as_of, claims = walk.questions.pop(0)
    if node.connection == connection and walk.random.random() < 0.9:
        verdicts = bytes(
            walk.newest(page, as_of) == lsn and walk.random.random() < 0.9 for page, lsn in claims
        )
        walk.tell(node, m.Confirmed(connection, ticket, verdicts))
    return True


def tick(walk: Walk) -> bool:
    walk.now_us += walk.random.choice((1_000, 1_000, 1_000, 20_000, 100_000))
    if walk.home is not None:
        walk.step(m.Tick())
    return True


def stop(walk: Walk) -> bool:
    node = walk.pick(lambda n: not n.stopped)
    if node is None:
        return False
    node.stopped = True
    return True


def wake(walk: Walk) -> bool:
    node = walk.pick(lambda n: n.stopped)
    if node is None:
        return False
    node.stopped = False
    return True


def revoke(walk: Walk) -> bool:
    if not walk.revokes or walk.home is None:
        return False
    number = walk.revokes.pop(0)
    walk.revoked.add(number)
    walk.step(m.Revoked(number))
    return True


def promote(walk: Walk) -> bool:
    """The writer is dead, or taken for dead: a zombie goes on for a while."""
    if any(node.promoting for node in walk.nodes):
        return False
    candidate = walk.pick(lambda n: not n.writer and (n.member or n.joining))
    if candidate is None:
        return False
    writer = walk.pick(lambda n: n.writer and n.epoch == walk.epoch)
    if writer is not None:
        if walk.random.random() < 0.6:
            walk.crash(writer)
            walk.nodes.append(Node(writer.name, walk.epoch + 1))
        elif not candidate.member:
            return False
    walk.epoch += 1
    candidate.promoting = True
    call = (candidate.connection, "fence", walk.epoch)
    walk.tell(candidate, m.Fence(candidate.connection, call, walk.epoch))
    return True


def promote_again(walk: Walk) -> bool:
    """Nobody is the writer any more: control tries the next one."""
    writers = [n for n in walk.nodes if n.writer and n.epoch == walk.epoch]
    return not writers and promote(walk)


def crash_reader(walk: Walk) -> bool:
    node = walk.pick(lambda n: not n.writer)
    if node is None:
        return False
    walk.crash(node)
    walk.nodes.append(Node(node.name, walk.epoch))
    return True


def crash_home(walk: Walk) -> bool:
    if walk.home is None:
        return False
    walk.home = None
    # Control knows it to be dead, and clears its admission words.
    walk.cells.words.clear()
    walk.to_home.clear()
    for queue in walk.to_node.values():
        queue.append(("home lost",))
    return True


def start_home(walk: Walk) -> bool:
    if walk.home is not None:
        return False
    walk.new_home()
    return True


def crash_memory(walk: Walk) -> bool:
    if walk.home is None:
        return False
    node = walk.random.choice(("mem1", "mem2"))
    walk.memory = {key: value for key, value in walk.memory.items() if key[0] != node}
    walk.writes = [one for one in walk.writes if one.address[0] != node]
    walk.step(m.Detached(node, "killed"))
    walk.step(m.Attached(node, [(0, SLOTS, None)]))
    return True


ACTIONS: list[Callable[[Walk], bool]] = [
    deliver_to_home, deliver_to_node, connect, commit, advance, fetch, read, evict, recall,
    write_back, write, ack, confirm, tick, revoke, promote, promote_again, crash_reader, crash_home,
    start_home, crash_memory, stop, wake,
]  # fmt: skip
WEIGHTS = [60, 60, 10, 12, 14, 20, 20, 8, 8, 8, 20, 4, 10, 10, 8, 0.6, 2, 0.3, 0.4, 3, 0.2, 0.6, 3]
assert len(WEIGHTS) == len(ACTIONS)
