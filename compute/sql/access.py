"""How a statement reaches its rows: by key, by a few keys, by a range of keys, or all of them.

The conjuncts of WHERE are looked at one by one. Those that compare a column of the primary key with
something known beforehand narrow the access and are done with; the others are left as a filter.

    WHERE a = 1 AND b > $1 AND c = 'x'     primary key (a, b)

is the range from ``prefix_end(encode(1, $1))`` to ``prefix_end(encode(1))``, filtered by ``c``.

    WHERE a BETWEEN 1 AND 3 OR a = 9 OR a BETWEEN 2 AND 5

is the two ranges from 1 to 5 and from 9 to 9: sorted and joined when the values are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compute.sql.catalog import ENCODER_NAMES, Index, Table
from compute.sql.expressions import (
    ColumnRef,
    Emitter,
    InList,
    Junction,
    Node,
    Retyped,
    emit_set,
    is_constant,
)
from compute.sql.index_parts import bound, fingerprint, implied, is_plain, key_parts, parts
from compute.sql.operators import Comparison


@dataclass(slots=True)
class Access:
    """The way to the rows. Exactly one of the four groups of fields is used:

    ``point``: the key's columns; ``keys``: a list of them; ``ranges``: several of what follows, on
    the first column; else ``equal``, ``low``, ``high``: what bounds the range, all empty for a full
    scan.
    """

    table: Table
    point: list[Node] = field(default_factory=list)
    keys: InList | None = None
    equal: list[Node] = field(default_factory=list)
    # The secondary index whose columns ``keys``, ``equal`` and the bounds are about.
    index: Index | None = None
    low: tuple[Node, bool] | None = None
    high: tuple[Node, bool] | None = None
    ranges: list[Access] = field(default_factory=list)
    # What is left of WHERE.
    rest: list[Node] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether every row of the table is read."""
        return not self.is_bounded and not (self.low or self.high)

    @property
    def is_bounded(self) -> bool:
        """Whether all ranges have two ends, so that they may be hoped to be short."""
        two_ends = self.low and self.high
        return bool(self.point or self.keys or self.ranges or self.equal or two_ends)

    def describe(self) -> str:
        """For EXPLAIN."""
        name = self.table.name
        if self.index is not None:
            return f"Index Scan using {self.index.name} on {name}"
        if self.point:
            return f"Primary Key Lookup on {name}"
        if self.keys is not None:
            return f"Primary Key Lookups on {name}"
        if self.is_full:
            return f"Seq Scan on {name}"
        return f"Primary Key Range Scan on {name}"

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns in whose order the rows come."""
        return self.table.primary_key if self.index is None else self.index.columns

    def _parts(self) -> list[Node]:
        """What `columns` are of, as expressions over a row."""
        table, index = self.table, self.index
        return parts(table, index) if index is not None else key_parts(table)

    def emit_point(self, out: Emitter, *, empty: str) -> str:
        """Source for the tree key; runs ``empty`` when a column is NULL."""
        sources = [node.emit(out) for node in self.point]
        _emit_null_test(out, list(zip(self.point, sources)), empty)
        if self.table.tree.int_keys:
            return sources[0]
        return _encoded(self._parts(), sources)

    def emit_bounds(self, out: Emitter) -> None:
        """The body of a function that returns ``(low, high)``, or None for nothing at all."""
        out.line(f"return {self._emit_range(out, nothing='return None')}")

    def emit_ranges(self, out: Emitter) -> None:
        """The body of a function that returns a list of ``(low, high)``, sorted and disjoint."""
        out.names["disjoint"] = disjoint
        out.line("found = []")
        for part in self.ranges:
            # A loop that runs once: `break` leaves it when a bound is NULL.
            with out.block("while True"):
                out.line(f"found.append({part._emit_range(out, nothing='break')})")
                out.line("break")
        out.line("return disjoint(found)")

    def _emit_range(self, out: Emitter, *, nothing: str) -> str:
        """Source of ``(low, high)``; runs ``nothing`` when a bound is NULL."""
        table = self.table
        equal = [node.emit(out) for node in self.equal]
        _emit_null_test(out, list(zip(self.equal, equal)), nothing)
        ends: list[str] = []
        for end in (self.low, self.high):
            if end is None:
                ends.append("")
                continue
            source = end[0].emit(out)
            _emit_null_test(out, [(end[0], source)], nothing)
            ends.append(source)
        low, high = "None", "None"
        columns = self.columns
        if table.tree.int_keys and self.index is None:
            if self.low is not None:
                low = ends[0] if self.low[1] else f"{ends[0]} + 1"
            if self.high is not None:
                high = f"{ends[1]} + 1" if self.high[1] else ends[1]
        elif columns:
            parts = self._parts()
            prefix = _encoded(parts, equal) if equal else "b''"
            if equal:
                low, high = prefix, f"prefix_end({prefix})"
            following = parts[len(equal)] if len(equal) < len(columns) else None
            if following is not None and (self.low is not None or self.high is not None):
                if self.high is None and following.nullable:
                    # NULLs are at the end, and are not larger than anything.
                    high = f"{prefix} + encode_null"
                encoder = ENCODER_NAMES[following.type.family]
                if self.low is not None:
                    key = f"{prefix} + {encoder}({ends[0]})"
                    low = key if self.low[1] else f"prefix_end({key})"
                if self.high is not None:
                    key = f"{prefix} + {encoder}({ends[1]})"
                    high = f"prefix_end({key})" if self.high[1] else key
        return f"({low}, {high})"

    def emit_keys(self, out: Emitter) -> None:
        """The body of a function that returns the sorted keys of an IN list."""
        assert self.keys is not None
        values, has_null = emit_set(out, self.keys.items)
        encoder = ENCODER_NAMES[self._parts()[0].type.family]
        plain = self.table.tree.int_keys and self.index is None
        item = "v" if plain else f"{encoder}(v)"
        test = " if v is not None" if has_null != "False" else ""
        out.line(f"return sorted([{item} for v in {values}{test}])")


def disjoint(ranges: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The same keys in ranges ``[low, high)`` that are sorted and do not meet."""
    result: list[tuple[Any, Any]] = []
    for low, high in sorted(ranges):
        if low >= high:
            continue
        if result and low <= result[-1][1]:
            first, last = result[-1]
            result[-1] = (first, max(last, high))
        else:
            result.append((low, high))
    return result


def _encoded(nodes: list[Node], sources: list[str]) -> str:
    parts = [f"{ENCODER_NAMES[n.type.family]}({source})" for n, source in zip(nodes, sources)]
    return " + ".join(parts)


def _emit_null_test(out: Emitter, pairs: list[tuple[Node, str]], action: str) -> None:
    tests = [f"{source} is None" for node, source in pairs if node.nullable]
    if tests:
        out.line(f"if {' or '.join(tests)}: {action}")


Finder = Callable[[Node], int | None]


def choose(table: Table, where: Node | None) -> Access:
    """The best access for a WHERE clause."""
    conjuncts = conjuncts_of(where)
    equals = _equals(conjuncts, _key_column)
    best = _try(table, None, conjuncts, equals, _key_column)
    if table.indexes and not best.point:
        score = _score(best)
        for index in table.indexes:
            if is_plain(index):
                other = _try(table, index, conjuncts, equals, _key_column)
            elif not conjuncts or not implied(table, index, conjuncts):
                continue
            else:
                finder = _finder(table, index)
                other = _try(table, index, conjuncts, _equals(conjuncts, finder), finder)
            if _score(other) > score:
                best, score = other, _score(other)
    return best


def _equals(conjuncts: list[Node], finder: Finder) -> dict[int, tuple[Node, Node]]:
    """The comparisons with =, by what they compare: the conjunct, and the value."""
    equals: dict[int, tuple[Node, Node]] = {}
    for node in conjuncts:
        found = _comparison(node, finder)
        if found is not None and found[1] == "=" and found[0] not in equals:
            equals[found[0]] = (node, found[2])
    return equals


def _finder(table: Table, index: Index) -> Finder:
    """As `_key_column`, and for expressions that the index has their place in its key."""
    known = {
        fingerprint(bound(table, source)): -1 - number
        for number, source in enumerate(index.expressions)
    }

    def find(node: Node) -> int | None:
        column = _key_column(node)
        if column is not None or not known or is_constant(node):
            return column
        return known.get(fingerprint(node))

    return find


def _score(access: Access) -> int:
    """How few rows an access may be hoped to read."""
    index = access.index
    if index is not None and index.unique and len(access.equal) == len(index.columns):
        return 1000
    if access.keys is not None:
        return 50 if index is None or index.unique else 15
    if access.ranges:
        return 7
    return 20 * len(access.equal) + 4 * (access.low is not None) + 4 * (access.high is not None)


def _try(
    table: Table,
    index: Index | None,
    conjuncts: list[Node],
    equals: dict[int, tuple[Node, Node]],
    finder: Finder,
) -> Access:
    """The access by the primary key, or by an index."""
    access = Access(table, index=index)
    key = access.columns
    used: set[int] = set()
    for column in key:
        if column not in equals:
            break
        node, value = equals[column]
        access.equal.append(value)
        used.add(id(node))
    if index is None and key and len(access.equal) == len(key):
        access.point, access.equal = access.equal, []
        access.rest = [node for node in conjuncts if id(node) not in used]
        return access
    if not access.equal and (len(key) == 1 or index is not None):
        for node in conjuncts:
            if isinstance(node, InList) and finder(node.inner) == key[0]:
                access.keys = node
                access.rest = [other for other in conjuncts if other is not node]
                return access
    if len(access.equal) < len(key):
        used |= _find_ends(access, conjuncts, key[len(access.equal)], finder)
    if access.is_full and key:
        used |= _find_ranges(access, conjuncts, finder)
    access.rest = [node for node in conjuncts if id(node) not in used]
    return access


def _find_ends(access: Access, conjuncts: list[Node], column: int, finder: Finder) -> set[int]:
    """Bounds on one column; a second bound on the same side stays in the filter."""
    used: set[int] = set()
    for node in conjuncts:
        found = _comparison(node, finder)
        if found is None or found[0] != column:
            continue
        _, symbol, value = found
        if symbol in (">", ">=") and access.low is None:
            access.low = (value, symbol == ">=")
            used.add(id(node))
        elif symbol in ("<", "<=") and access.high is None:
            access.high = (value, symbol == "<=")
            used.add(id(node))
    return used


def _find_ranges(access: Access, conjuncts: list[Node], finder: Finder) -> set[int]:
    """Ranges of the first column: an OR of which every part bounds it from both sides.

    A part may say more than that; then the OR stays in the filter.
    """
    column = access.columns[0]
    for node in conjuncts:
        if not (isinstance(node, Junction) and node.stop):
            continue
        exact = True
        for part in node.parts:
            inner = conjuncts_of(part)
            range_ = Access(access.table, index=access.index)
            used = _find_ends(range_, inner, column, finder) or _find_equal(
                range_, inner, column, finder
            )
            if range_.low is None or range_.high is None:
                access.ranges = []
                break
            exact = exact and len(used) == len(inner)
            access.ranges.append(range_)
        else:
            return {id(node)} if exact else set()
    return set()


def _find_equal(access: Access, conjuncts: list[Node], column: int, finder: Finder) -> set[int]:
    for node in conjuncts:
        found = _comparison(node, finder)
        if found is not None and found[:2] == (column, "="):
            access.low = access.high = (found[2], True)
            return {id(node)}
    return set()


def conjuncts_of(where: Node | None) -> list[Node]:
    """What all has to hold."""
    if where is None:
        return []
    result: list[Node] = []
    stack = [where]
    while stack:
        node = stack.pop()
        if isinstance(node, Junction) and not node.stop:
            stack.extend(reversed(node.parts))
        else:
            result.append(node)
    return result


_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _comparison(node: Node, finder: Finder) -> tuple[int, str, Node] | None:
    """(column, symbol, value) of ``column symbol value`` with a value known beforehand."""
    if not isinstance(node, Comparison) or node.symbol not in _TURNED:
        return None
    left, right = node.args
    column = finder(left)
    if column is not None and is_constant(right):
        return column, node.symbol, right
    column = finder(right)
    if column is not None and is_constant(left):
        return column, _TURNED[node.symbol], left
    return None


def _key_column(node: Node) -> int | None:
    """The column that this is, when its values compare like the keys: retyped, not converted."""
    while isinstance(node, Retyped):
        node = node.inner
    return node.index if isinstance(node, ColumnRef) else None
