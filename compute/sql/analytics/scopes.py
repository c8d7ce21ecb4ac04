"""What names mean in a query: the relations of FROM, level by level.

A `Level` is the FROM of one SELECT; its parent is that of the query around it, so a column found
there makes this one a correlated subquery. ``star`` is what ``*`` stands for, in its order: columns
that USING or NATURAL merged come first, and only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from compute.sql.analytics.carriers import BIGINT, VARCHAR
from compute.sql.analytics.leaves import Leaf
from compute.sql.analytics.scans import Scan
from compute.sql.expressions import Node
from compute.sql.mistakes import unknown_column
from compute.sql.types import OID, TEXT
from polarless.errors import CallerMistake


@dataclass(slots=True, eq=False)
class Relation:
    """One item of FROM under its name or alias. ``columns`` give the leaves."""

    alias: str
    names: list[str]
    leaf: Callable[[int], Node]
    scan: Scan | None = None
    # Whether WHERE may narrow the scan: not on the side of an outer join that is filled with NULLs.
    preserved: bool = True
    # For messages: what the relation is called, if it was given an alias.
    real_name: str = ""
    # Indexes of the primary key's columns.
    key: tuple[int, ...] = ()
    # What tableoid says; 0: it is no table.
    oid: int = 0
    # Of a relation that nobody knows: a column of any name is there, and NULL.
    any_column: bool = False
    # A function of one column: its name alone is that column.
    scalar: bool = False


@dataclass(slots=True)
class Star:
    """One column of ``*``."""

    name: str
    node: Callable[[], Node]
    relation: Relation | None = None


@dataclass(slots=True, frozen=True)
class Cte:
    """A query of WITH: its name in DuckDB and its columns."""

    sql_name: str
    names: tuple[str, ...]
    leaves: tuple[Leaf, ...]


@dataclass(slots=True, eq=False)
class Level:
    """See the module's docstring."""

    parent: Level | None = None
    relations: list[Relation] = field(default_factory=list)
    star: list[Star] = field(default_factory=list)
    ctes: dict[str, Cte] = field(default_factory=dict)

    def add(self, relation: Relation) -> None:
        """Raises 42712 if the name is taken."""
        if any(found.alias == relation.alias for found in self.relations):
            raise CallerMistake(
                f'table name "{relation.alias}" specified more than once', sqlstate="42712"
            )
        self.relations.append(relation)

    def cte(self, name: str) -> Cte | None:
        """The query of WITH that has this name here."""
        level: Level | None = self
        while level is not None:
            found = level.ctes.get(name)
            if found is not None:
                return found
            level = level.parent
        return None


def stars_of(relation: Relation) -> list[Star]:
    """All columns of a relation."""
    return [
        Star(name, lambda index=index: relation.leaf(index), relation)  # type: ignore[misc]
        for index, name in enumerate(relation.names)
    ]


def find_column(level: Level | None, name: str, qualifier: str | None) -> tuple[Level, Star] | None:
    """The column that a name means, in the innermost level that knows it. Raises 42702."""
    while level is not None:
        found = (
            [star for star in level.star if star.name == name]
            if qualifier is None
            else _of_relation(level, name, qualifier)
        )
        if found is not None and len(found) > 1:
            raise CallerMistake(f'column reference "{name}" is ambiguous', sqlstate="42702")
        if found:
            return level, found[0]
        if found is not None and qualifier is not None:
            raise CallerMistake(f"column {qualifier}.{name} does not exist", sqlstate="42703")
        level = level.parent
    return None


def _of_relation(level: Level, name: str, qualifier: str) -> list[Star] | None:
    for relation in level.relations:
        if relation.alias == qualifier and relation.any_column:
            return [Star(name, lambda: Leaf("CAST(NULL AS VARCHAR)", VARCHAR, TEXT), relation)]
        if relation.alias == qualifier and name == "tableoid" and relation.oid:
            number = Leaf(str(relation.oid), BIGINT, OID)
            return [Star(name, partial(_itself, number), relation)]
        if relation.alias == qualifier:
            return [star for star in stars_of(relation) if star.name == name]
    return None


def _itself(node: Node) -> Node:
    return node


def missing(level: Level | None, name: str, qualifier: str | None) -> CallerMistake:
    """Nothing has this name: 42703, or 42P01 for the qualifier."""
    if qualifier is None:
        return unknown_column(name)
    hint: str | None = None
    text = f'missing FROM-clause entry for table "{qualifier}"'
    while level is not None:
        for relation in level.relations:
            if relation.real_name == qualifier:
                text = f'invalid reference to FROM-clause entry for table "{qualifier}"'
                hint = f'Perhaps you meant to reference the table alias "{relation.alias}".'
        level = level.parent
    return CallerMistake(text, sqlstate="42P01", hint=hint)
