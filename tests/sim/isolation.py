"""Checks a history of list-append transactions: which anomalies of Adya's does it show?

Transactions append values, each used once, to lists, and read whole lists. What a read gives is the
order in which a list was written, and from that follows who depends on whom:

    ww  the next value of a list was appended by another
    wr  a read ends with another's value
    rw  a read ends just before another's value: it did not see it

G0 is a cycle of ww, G1c one of ww and wr, G-single one with a single rw. Snapshot isolation has
none of them; SERIALIZABLE has no cycle at all. Beyond that every read has to show what was
acknowledged before its transaction began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import Final

COMMITTED, FAILED, UNKNOWN = "committed", "failed", "unknown"
# A value that no read shows is behind all others.
NOWHERE: Final = 1 << 62


@dataclass
class Txn:
    """``ops``: (key, value) is an append, (key, a tuple of values) a read. Times in seconds."""

    ops: list[tuple[int, int | tuple[int, ...]]] = field(default_factory=list)
    state: str = UNKNOWN
    began: float = 0.0
    ended: float = float("inf")

    def appends(self) -> Iterator[tuple[int, int]]:
        """What it appended, in order."""
        for key, what in self.ops:
            if isinstance(what, int):
                yield key, what

    def reads(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """What it read, without its own values at the end."""
        own: dict[int, list[int]] = {}
        for key, what in self.ops:
            if isinstance(what, int):
                own.setdefault(key, []).append(what)
            else:
                mine = own.get(key, [])
                yield key, what[: len(what) - len(mine)] if mine else what


def anomalies(history: list[Txn], *, serializable: bool = False) -> list[str]:
    """What is wrong with it, in words; [] if nothing is."""
    return list(_Checker(history).run(serializable=serializable))


class _Checker:
    def __init__(self, history: list[Txn]) -> None:
        self.history = history
        self.writer: dict[tuple[int, int], int] = {}
        self.order: dict[int, tuple[int, ...]] = {}
        # (key, value) -> where it is in the order of its key.
        self.place: dict[tuple[int, int], int] = {}
        self.ww: dict[int, set[int]] = {}
        self.wr: dict[int, set[int]] = {}
        self.rw: dict[int, set[int]] = {}

    def run(self, *, serializable: bool) -> Iterator[str]:
        for number, txn in enumerate(self.history):
            for key, value in txn.appends():
                self.writer[key, value] = number
        yield from self._own_writes()
        broken = list(self._orders())
        yield from broken
        if broken:
            return
        for key, values in self.order.items():
            self.place.update(((key, value), place) for place, value in enumerate(values))
        yield from self._aborted_and_intermediate()
        yield from self._real_time()
        self._edges()
        yield from self._cycles(serializable=serializable)

    def _own_writes(self) -> Iterator[str]:
        for number, txn in enumerate(self.history):
            own: dict[int, list[int]] = {}
            for key, what in txn.ops:
                if isinstance(what, int):
                    own.setdefault(key, []).append(what)
                elif own.get(key) and list(what[-len(own[key]) :]) != own[key]:
                    yield f"T{number} does not see its own appends to {key}: {what}"

    def _orders(self) -> Iterator[str]:
        for number, txn in enumerate(self.history):
            if txn.state == FAILED:
                continue
            for key, what in txn.ops:
                if isinstance(what, int):
                    continue
                short, long = sorted((what, self.order.get(key, ())), key=len)
                if long[: len(short)] != short:
                    yield f"T{number}: two orders of {key}: {short} and {long}"
                self.order[key] = long
        for key, values in self.order.items():
            # Every read is the beginning of it.
            if len(set(values)) < len(values):
                yield f"a value of {key} is there twice: {values}"
            for value in values:
                if (key, value) not in self.writer:
                    yield f"nobody appended {value} to {key}"

    def _aborted_and_intermediate(self) -> Iterator[str]:
        final: dict[tuple[int, int], int] = {}
        for number, txn in enumerate(self.history):
            for key, value in txn.appends():
                final[number, key] = value
        # Key -> where in its order the first value is that was rolled back.
        aborted: dict[int, int] = {}
        for key, values in self.order.items():
            failed = (self.history[self.writer[key, value]].state == FAILED for value in values)
            aborted[key] = next((place for place, is_so in enumerate(failed) if is_so), len(values))
        for number, txn in enumerate(self.history):
            if txn.state == FAILED:
                continue
            for key, values in txn.reads():
                if len(values) > aborted[key]:
                    value = values[aborted[key]]
                    yield f"G1a: T{number} reads {value} of {key}, which was rolled back"
                if values:
                    by = self.writer[key, values[-1]]
                    if by != number and final[by, key] != values[-1]:
                        yield f"G1b: T{number} reads {key} in the middle of T{by}: {values}"

    def _real_time(self) -> Iterator[str]:
        """Strong reads: what was acknowledged before is there."""
        acked: dict[int, list[tuple[float, int]]] = {}
        for txn in self.history:
            if txn.state == COMMITTED:
                for key, value in txn.appends():
                    place = self.place.get((key, value), NOWHERE)
                    acked.setdefault(key, []).append((txn.ended, place))
        # Key -> when, and how many values whoever reads from then on sees at least.
        least: dict[int, list[tuple[float, int]]] = {}
        for key, found in acked.items():
            found.sort()
            places = accumulate((place for _, place in found), max)
            least[key] = [(at, place + 1) for (at, _), place in zip(found, places, strict=True)]
        for number, txn in enumerate(self.history):
            if txn.state == FAILED:
                continue
            for key, values in txn.reads():
                before = bisect_left(least.get(key, ()), (txn.began,))
                if before and len(values) < least[key][before - 1][1]:
                    yield f"stale: T{number} does not see all of {key}: {values[-5:]}"

    def _edges(self) -> None:
        def edge(graph: dict[int, set[int]], one: int, other: int) -> None:
            if one != other:
                graph.setdefault(one, set()).add(other)

        for key, values in self.order.items():
            for value, following in pairwise(values):
                edge(self.ww, self.writer[key, value], self.writer[key, following])
        for number, txn in enumerate(self.history):
            if txn.state == FAILED:
                continue
            for key, values in txn.reads():
                if values:
                    edge(self.wr, self.writer[key, values[-1]], number)
                order = self.order[key]
                if len(values) < len(order):
                    edge(self.rw, number, self.writer[key, order[len(values)]])

    def _cycles(self, *, serializable: bool) -> Iterator[str]:
        if found := _cycle([self.ww]):
            yield f"G0: {_path(found)}"
        elif found := _cycle([self.ww, self.wr]):
            yield f"G1c: {_path(found)}"
        else:
            position = _positions([self.ww, self.wr], len(self.history))
            for one, others in self.rw.items():
                for other in others:
                    if found := _way([self.ww, self.wr], other, one, position):
                        yield f"G-single: {_path([one, *found])}, where the first did not see"
                        return
            if serializable and (found := _cycle([self.ww, self.wr, self.rw])):
                yield f"G2: {_path(found)}"


def _path(numbers: Iterable[int]) -> str:
    return " -> ".join(f"T{number}" for number in numbers)


def _positions(graphs: list[dict[int, set[int]]], count: int) -> list[int]:
    """Where each node is if all edges lead onwards. There is no cycle. Early ones come early."""
    missing = [0] * count
    for graph in graphs:
        for others in graph.values():
            for other in others:
                missing[other] += 1
    ready = [node for node in range(count) if not missing[node]]
    positions, next_position = [-1] * count, 0
    while ready:
        node = heappop(ready)
        positions[node], next_position = next_position, next_position + 1
        for graph in graphs:
            for other in graph.get(node, ()):
                missing[other] -= 1
                if not missing[other]:
                    heappush(ready, other)
    assert next_position == count, "a cycle"
    return positions


def _way(graphs: list[dict[int, set[int]]], start: int, end: int, position: list[int]) -> list[int]:
    """A shortest way, both ends included; [] if there is none. See `_positions`."""
    before: dict[int, int] = {start: start}
    queue = [start]
    for node in queue:
        if position[node] >= position[end]:
            # Whatever lies behind it is not the end; and mostly this ends the search at once.
            continue
        for graph in graphs:
            for following in sorted(graph.get(node, ())):
                if following not in before:
                    before[following] = node
                    queue.append(following)
        if end in before:
            way = [end]
            while way[-1] != start:
                way.append(before[way[-1]])
            return way[::-1]
    return []


def _cycle(graphs: list[dict[int, set[int]]]) -> list[int]:
    """Some cycle, its beginning at both ends; [] if there is none."""
    done: set[int] = set()
    for first in sorted({node for graph in graphs for node in graph}):
        # Depth first, without recursion: the way to here, and what is left to try at each node.
        way, left = [first], [_following(graphs, first)]
        on_way = {first}
        if first in done:
            continue
        while way:
            node = next(left[-1], None)
            if node is None:
                done.add(way[-1])
                on_way.discard(way.pop())
                left.pop()
            elif node in on_way:
                return [*way[way.index(node) :], node]
            elif node not in done:
                way.append(node)
                on_way.add(node)
                left.append(_following(graphs, node))
    return []


def _following(graphs: list[dict[int, set[int]]], node: int) -> Iterator[int]:
    return iter(sorted({other for graph in graphs for other in graph.get(node, ())}))
