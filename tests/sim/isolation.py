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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

COMMITTED, FAILED, UNKNOWN = "committed", "failed", "unknown"


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
                if len(set(what)) < len(what):
                    yield f"T{number} reads a value of {key} twice: {what}"
                short, long = sorted((what, self.order.get(key, ())), key=len)
                if long[: len(short)] != short:
                    yield f"T{number}: two orders of {key}: {short} and {long}"
                self.order[key] = long
        for key, values in self.order.items():
            for value in values:
                if (key, value) not in self.writer:
                    yield f"nobody appended {value} to {key}"

    def _aborted_and_intermediate(self) -> Iterator[str]:
        final: dict[tuple[int, int], int] = {}
        for number, txn in enumerate(self.history):
            for key, value in txn.appends():
                final[number, key] = value
        for number, txn in enumerate(self.history):
            if txn.state == FAILED:
                continue
            for key, values in txn.reads():
                for value in values:
                    if self.history[self.writer[key, value]].state == FAILED:
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
                    acked.setdefault(key, []).append((txn.ended, value))
        for number, txn in enumerate(self.history):
            if txn.state == FAILED:
                continue
            for key, values in txn.reads():
                missing = {value for at, value in acked.get(key, ()) if at < txn.began}
                if missing := missing - set(values):
                    yield f"stale: T{number} does not see {sorted(missing)[:5]} of {key}"

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
            for one, others in self.rw.items():
                for other in others:
                    if found := _way([self.ww, self.wr], other, one):
                        yield f"G-single: {_path([one, *found])}, where the first did not see"
                        return
            if serializable and (found := _cycle([self.ww, self.wr, self.rw])):
                yield f"G2: {_path(found)}"


def _path(numbers: Iterable[int]) -> str:
    return " -> ".join(f"T{number}" for number in numbers)


def _way(graphs: list[dict[int, set[int]]], start: int, end: int) -> list[int]:
    """A shortest way, both ends included; [] if there is none."""
    before: dict[int, int] = {start: start}
    queue = [start]
    for node in queue:
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
