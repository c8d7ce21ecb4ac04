"""What is put into columns: values as their types take them, defaults, and generated ones.

A column that is GENERATED ALWAYS AS (...) STORED keeps its expression where others keep their
default. It is computed of its row whenever that is written: of the values that an INSERT or COPY
has under names, or of the row ``r`` that an UPDATE has changed.
"""

from __future__ import annotations

from compute.sql.binder import Binder, Parameters, Scope
from compute.sql.casts import ASSIGNMENT, can_cast, cast
from compute.sql.catalog import GENERATED, Table
from compute.sql.expressions import Const, Local, Node, NowUs, SessionCall, walk
from compute.sql.syntax import parse
from compute.sql.types import UNKNOWN, display
from polarless.errors import CallerMistake


def assigned(table: Table, index: int, node: Node) -> Node:
    """``node`` as a value of a column. Raises 42804."""
    column = table.columns[index]
    if node.type is not UNKNOWN and not can_cast(node, column.type, strength=ASSIGNMENT):
        raise CallerMistake(
            f'column "{column.name}" is of type {display(column.type)} but expression is of type '
            f"{display(node.type)}",
            sqlstate="42804",
            hint="You will need to rewrite or cast the expression.",
        )
    return cast(node, column.type, column.typmod, strength=ASSIGNMENT)


def default_of(table: Table, index: int) -> Node:
    """A column's default."""
    column = table.columns[index]
    if column.default is None:
        return Const(None, column.type)
    return assigned(table, index, _bound(column.default, Scope()))


def _bound(source: str, scope: Scope) -> Node:
    text = f"SELECT {source}"
    return Binder(scope, Parameters(), text).bind(parse(text).expressions[0])


# ----------------------------------------------------------------------------- generated columns


def generated_columns(table: Table) -> list[int]:
    """Which columns are generated."""
    return [i for i, column in enumerate(table.columns) if column.identity == GENERATED]


def of_row(table: Table, index: int) -> Node:
    """A generated column as an expression over the row ``r``."""
    source = table.columns[index].default
    assert source is not None
    return assigned(table, index, _bound(source, Scope(table, table.name)))


def of_values(table: Table, index: int, prefix: str = "n") -> Node:
    """A generated column of values that are under the names ``n0``, ``n1``, ..."""

    source = table.columns[index].default
    assert source is not None
    return assigned(table, index, _bound(source, _scope_of_values(table, prefix)))


def _scope_of_values(table: Table, prefix: str) -> Scope:
    def value(name: str, qualifier: str | None) -> Node | None:
        place = table.index.get(name)
        if place is None or qualifier not in (None, table.name):
            return None
        column = table.columns[place]
        return Local(f"{prefix}{place}", column.type, column.typmod)

    return Scope(table, table.name, value)


def over_values(table: Table, source: str, prefix: str = "n") -> Node:
    """A condition over such values."""
    text = f"SELECT {source}"
    binder = Binder(_scope_of_values(table, prefix), Parameters(), text)
    return binder.condition(parse(text).expressions[0], "WHERE")


def check_generated(table: Table) -> None:
    """Raises 42P17 for expressions that are not a function of their row, and what else is wrong."""
    from compute.sql.definitions import check_columns_of

    for index in generated_columns(table):
        source = table.columns[index].default or ""
        for name in check_columns_of(source):
            place = table.index.get(name)
            if place is not None and table.columns[place].identity == GENERATED:
                raise CallerMistake(
                    f'cannot use generated column "{name}" in column generation expression',
                    sqlstate="42P17",
                    detail="A generated column cannot reference another generated column.",
                )
        node = of_row(table, index)
        if not is_immutable(node):
            raise CallerMistake("generation expression is not immutable", sqlstate="42P17")


def is_immutable(node: Node) -> bool:
    """Whether an expression depends on its arguments alone."""
    return not any(isinstance(found, (NowUs, SessionCall)) for found in walk(node))


def refuse_value(table: Table, index: int) -> CallerMistake:
    """428C9 for a value that INSERT gives."""
    name = table.columns[index].name
    return CallerMistake(
        f'cannot insert a non-DEFAULT value into column "{name}"',
        sqlstate="428C9",
        detail=f'Column "{name}" is a generated column.',
    )


def refuse_update(table: Table, index: int) -> CallerMistake:
    """428C9 for a value that UPDATE gives."""
    name = table.columns[index].name
    return CallerMistake(
        f'column "{name}" can only be updated to DEFAULT',
        sqlstate="428C9",
        detail=f'Column "{name}" is a generated column.',
    )
