"""What an index is of: columns, expressions over them, and which rows a partial index has.

An index names its key by positions of columns. An expression counts down from -1: it is
``index.expressions[-1 - position]``, kept as its text like a CHECK's, and bound to the table each
time that code is generated. So is ``index.where``.
"""

from __future__ import annotations

from compute.sql.binder import Binder, Parameters, Scope
from compute.sql.catalog import ENCODER_NAMES, Index, Table
from compute.sql.definitions import check_columns_of
from compute.sql.expressions import (
    ColumnRef,
    Emitter,
    Junction,
    Node,
    NowUs,
    Retyped,
    SessionCall,
    Test,
    walk,
)
from compute.sql.mistakes import not_supported
from compute.sql.operators import Comparison
from compute.sql.rowcode import base_names
from compute.sql.syntax import parse
from polarless.errors import CallerMistake


def is_plain(index: Index) -> bool:
    """Whether it is an index of columns, with an entry for every row."""
    return not index.expressions and index.where is None


def part(table: Table, index: Index, position: int) -> Node:
    """A part of the key, over the row ``r``."""
    binder = Binder(Scope(table, table.name), Parameters())
    if position >= 0:
        return binder.column(position)
    return bound(table, index.expressions[-1 - position])


def parts(table: Table, index: Index) -> list[Node]:
    """All of the key."""
    return [part(table, index, position) for position in index.columns]


def key_parts(table: Table) -> list[Node]:
    """The same of the primary key."""
    binder = Binder(Scope(table, table.name), Parameters())
    return [binder.column(position) for position in table.primary_key]


def part_names(table: Table, index: Index) -> tuple[str, ...]:
    """The key's parts as PostgreSQL shows them: a call as it is, an operation in parentheses."""
    return tuple(
        table.columns[position].name if position >= 0 else shown(index.expressions[-1 - position])
        for position in index.columns
    )


def part_label(expression: str) -> str:
    """What an expression is called among the index's columns: its function, or expr."""
    tree = parse(f"SELECT {expression}").expressions[0]
    while tree.key in ("cast", "paren"):
        tree = tree.this
    if tree.key in ("anonymous", "coalesce"):
        return str(tree.this if tree.key == "anonymous" else tree.key).lower()
    return str(tree.name) if tree.key == "column" else "expr"


def distinct(labels: list[str]) -> list[str]:
    """The same labels, with a number behind those that were there before."""
    made: list[str] = []
    for label in labels:
        name, number = label, 0
        while name in made:
            number += 1
            name = f"{label}{number}"
        made.append(name)
    return made


def shown(expression: str) -> str:
    """An expression of a key as it has to be written there."""
    tree = parse(f"SELECT {expression}").expressions[0]
    return expression if tree.key in ("anonymous", "coalesce") else f"({expression})"


def bound(table: Table, source: str, *, what: str = "") -> Node:
    """An expression over the table's row; with ``what`` a condition."""
    text = f"SELECT {source}"
    binder = Binder(Scope(table, table.name), Parameters(), text)
    tree = parse(text).expressions[0]
    return binder.condition(tree, what) if what else binder.bind(tree)


def condition(table: Table, index: Index) -> Node | None:
    """Of which rows a partial index has entries."""
    return None if index.where is None else bound(table, index.where, what="WHERE")


def touched(table: Table, index: Index) -> set[int]:
    """The columns on which its entries depend."""
    if is_plain(index):
        return set(index.columns)
    texts = [*index.expressions, *([index.where] if index.where is not None else [])]
    names = {name for text in texts for name in check_columns_of(text)}
    own = {position for position in index.columns if position >= 0}
    return own | {table.index[name] for name in names if name in table.index}


def check_parts(table: Table, index: Index) -> None:
    """Raises 42P17, 0A000, and what is wrong with the expressions."""
    for node in parts(table, index):
        if node.type.family not in ENCODER_NAMES:
            raise not_supported(f"an index on a column of type {node.type.name}")
        _check_immutable(node, "index expression")
    where = condition(table, index)
    if where is not None:
        _check_immutable(where, "index predicate")


def _check_immutable(node: Node, what: str) -> None:
    if any(isinstance(found, (NowUs, SessionCall)) for found in walk(node)):
        raise CallerMistake(f"functions in {what} must be marked IMMUTABLE", sqlstate="42P17")


# --------------------------------------------------------------- the same expression in a statement


def fingerprint(node: Node) -> object:
    """Equal for expressions that compute the same in the same way."""
    while isinstance(node, Retyped):
        node = node.inner
    out = Emitter(base_names())
    known = set(out.names)
    source = node.emit(out)
    names = sorted((k, repr(v)) for k, v in out.names.items() if k not in known)
    return (source, tuple(out.lines), tuple(out.before), tuple(names))


def implied(table: Table, index: Index, conjuncts: list[Node]) -> bool:
    """Whether rows that fulfil all of these have their entries in the index: each part of its
    condition is among them, or says that a column is not NULL that one of them compares."""
    wanted = _conjuncts(condition(table, index))
    if not wanted:
        return True
    found = {fingerprint(node) for node in conjuncts}
    compared = {
        arg.index
        for node in conjuncts
        if isinstance(node, Comparison)
        for arg in map(_bare, node.args)
        if isinstance(arg, ColumnRef)
    }
    return all(
        fingerprint(node) in found
        or (
            isinstance(node, Test)
            and "is not None" in node.source
            and isinstance(node.inner, ColumnRef)
            and node.inner.index in compared
        )
        for node in wanted
    )


def _conjuncts(node: Node | None) -> list[Node]:
    if isinstance(node, Junction) and not node.stop:
        return [inner for part in node.parts for inner in _conjuncts(part)]
    return [] if node is None else [node]


def _bare(node: Node) -> Node:
    while isinstance(node, Retyped):
        node = node.inner
    return node
