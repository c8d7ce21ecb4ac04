"""CHECK and FOREIGN KEY: the code that looks at a row before it is written.

A CHECK's text is bound to the table each time code is generated for it. A FOREIGN KEY locks the row
that it refers to (or the entry of the unique index by which it is found), so that nobody takes it
away before this transaction has ended; as locks have one kind, two transactions that refer to the
same row follow each other. What happens to rows that refer to one that goes is in `referring`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from compute.sql.binder import Binder, Parameters, Scope
from compute.sql.catalog import ENCODER_NAMES, Catalog, ForeignKey, Table
from compute.sql.expressions import Emitter, Node
from compute.sql.indexes import loaded
from compute.sql.mistakes import named
from compute.sql.syntax import parse
from compute.sql.types import to_text
from polarless.errors import CallerMistake


class Parent(NamedTuple):
    """A foreign key, the table that it refers to, and which of its unique indexes finds the row:
    None is the primary key. ``order``: the columns here in the order of that key.
    """

    key: ForeignKey
    table: Table
    unique: int | None
    order: tuple[int, ...]


def parents_of(table: Table, catalog: Catalog) -> list[Parent]:
    """What a table's foreign keys refer to."""
    found = []
    for key in table.foreign:
        other = table if key.other == table.table_id else catalog.by_id(key.other)
        if other is not None:
            found.append(_parent(key, other))
    return found


def _parent(key: ForeignKey, other: Table) -> Parent:
    pairs = dict(zip(key.other_columns, key.columns))
    if set(other.primary_key) == set(key.other_columns):
        return Parent(key, other, None, tuple(pairs[i] for i in other.primary_key))
    for number, index in enumerate(other.indexes):
        whole = index.unique and index.where is None
        if whole and set(index.columns) == set(key.other_columns):
            return Parent(key, other, number, tuple(pairs[i] for i in index.columns))
    raise CallerMistake(
        f'there is no unique constraint matching given keys for referenced table "{other.name}"',
        sqlstate="42830",
    )


def bound_checks(table: Table) -> list[tuple[str, Node]]:
    """The CHECK constraints as expressions over ``r``."""
    found = []
    for check in table.checks:
        text = f"SELECT {check.text}"
        tree = parse(text).expressions[0]
        binder = Binder(Scope(table, table.name), Parameters(), text)
        found.append((check.name, binder.condition(tree, "CHECK")))
    return found


def check_violation(table: Table, name: str, row: Any) -> CallerMistake:
    """23514 with the row, as PostgreSQL shows it."""
    error = CallerMistake(
        f'new row for relation "{table.name}" violates check constraint "{name}"',
        sqlstate="23514",
        detail=f"Failing row contains ({', '.join(shown_row(table, row))}).",
    )
    return named(error, table.schema, table.name, name)


def shown_row(table: Table, row: Any) -> list[str]:
    """A stored row's values, printed."""
    return [
        "null"
        if value is None
        else str(value)
        if column.type.family == "numeric"
        else to_text(value, column.type, column.typmod)
        for value, column in zip(row, table.columns)
    ]


def emit_checks(out: Emitter, table: Table) -> None:
    """Refuse the row ``r`` if a CHECK is false; NULL passes."""
    for name, node in bound_checks(table):
        out.names |= {"check_violation": check_violation, "table": table}
        source = node.emit(out)
        out.line(f"if {source} is False: raise check_violation(table, {name!r}, r)")


def missing_parent(table: Table, parent: Parent, values: tuple[Any, ...]) -> CallerMistake:
    """23503 of the referring side."""
    names = [table.columns[i].name for i in parent.order]
    shown = [
        to_text(value, table.columns[i].type, table.columns[i].typmod)
        for value, i in zip(values, parent.order)
    ]
    error = CallerMistake(
        f'insert or update on table "{table.name}" violates foreign key constraint '
        f'"{parent.key.name}"',
        sqlstate="23503",
        detail=f"Key ({', '.join(names)})=({', '.join(shown)}) is not present in table "
        f'"{parent.table.name}".',
    )
    return named(error, table.schema, table.name, parent.key.name)


def emit_foreign(
    out: Emitter,
    table: Table,
    parents: Iterable[Parent],
    columns: set[int] | None = None,
    *,
    lock: bool = True,
) -> None:
    """Lock what the row ``r`` refers to, or refuse it. ``columns``: only keys that have these.
    Without ``lock`` it is only looked up: the table is locked as a whole.
    """
    for parent in parents:
        if columns is not None and not columns & set(parent.order):
            continue
        label = f"{len(out.names)}"
        tree = parent.table.tree
        if parent.unique is not None:
            tree = parent.table.indexes[parent.unique].tree
        out.names |= {
            f"ptree{label}": tree,
            f"parent{label}": parent,
            "table": table,
            "missing_parent": missing_parent,
        }
        sources = [loaded(table, index, out) for index in parent.order]
        names = []
        for source in sources:
            name = out.temp()
            out.line(f"{name} = {source}")
            names.append(name)
        known = " and ".join(f"{name} is not None" for name in names)
        if tree.int_keys:
            key = names[0]
        else:
            families = [table.columns[index].type.family for index in parent.order]
            parts = [f"{ENCODER_NAMES[f]}({name})" for f, name in zip(families, names)]
            key = " + ".join(parts)
        own = ""
        if parent.table.table_id == table.table_id and parent.unique is None:
            # A row may refer to itself.
            own = f" and {key} != key"
        values = ", ".join(names)
        look_up = "lock_and_get" if lock else "get"
        out.line(
            f"if {known}{own} and txn.{look_up}(ptree{label}, {key}) is None: "
            f"raise missing_parent(table, parent{label}, ({values},))"
        )


ACTION_WORDS: Final = {
    "a": "NO ACTION", "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT",
}  # fmt: skip
