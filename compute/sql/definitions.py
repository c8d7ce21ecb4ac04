"""What CREATE TABLE and ALTER TABLE say of columns and constraints, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from compute.sql.binder import Binder, Parameters, Scope, type_of
from compute.sql.catalog import (
    COLUMNS_MAX,
    GENERATED,
    KEY_COLUMNS_MAX,
    PUBLIC,
    Table,
    TableColumn,
    make_table,
)
from compute.sql.dialect import DIALECT
from compute.sql.environment import creation_schema
from compute.sql.filling import assigned
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.syntax import identifier, parse
from compute.sql.types import BY_NAME, SqlType
from polarless.errors import CallerMistake

SERIALS: Final = {
    "SMALLSERIAL": "smallint", "SERIAL": "integer", "BIGSERIAL": "bigint", "SERIAL2": "smallint",
    "SERIAL4": "integer", "SERIAL8": "bigint",
}  # fmt: skip
NAME_MAX: Final = 63
# A constraint that was given this name was given none.
UNNAMED: Final = "?"


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name in the text."""

    schema: str
    name: str
    written: str


def table_name(node: Any) -> Name:
    """The name of an exp.Table."""
    if not isinstance(node, exp.Table) or node.args.get("alias"):
        raise SyntaxMistake(f"syntax error: {node.sql()[:60]} is no table name")
    schema = identifier(node.args["db"]) if node.args.get("db") else creation_schema()
    name = identifier(node.this)
    return Name(schema, name, f"{schema}.{name}" if node.args.get("db") else name)


@dataclass(slots=True)
class Unique:
    """UNIQUE (columns)."""

    name: str | None
    columns: list[str]


@dataclass(slots=True)
class CheckText:
    """CHECK (text). ``column``: whose constraint it is written as."""

    name: str | None
    text: str
    column: str | None = None


@dataclass(slots=True)
class Reference:
    """FOREIGN KEY (columns) REFERENCES other (other columns; None: its primary key)."""

    name: str | None
    columns: list[str]
    other: Name
    other_columns: list[str] | None
    on_delete: str = "a"
    on_update: str = "a"


@dataclass(slots=True)
class Generated:
    """serial, or GENERATED AS IDENTITY, with the options of its sequence."""

    column: str
    type: SqlType
    options: dict[str, int | None] = field(default_factory=dict)


@dataclass(slots=True)
class Definitions:
    """All of it, in the order in which it was written."""

    columns: list[TableColumn] = field(default_factory=list)
    keys: list[Unique] = field(default_factory=list)
    uniques: list[Unique] = field(default_factory=list)
    checks: list[CheckText] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    generated: list[Generated] = field(default_factory=list)
    # Tables whose indexes are wanted too.
    like: list[Table] = field(default_factory=list)


def read(trees: list[Any], table: str) -> Definitions:
    """The definitions between the parentheses of CREATE TABLE."""
    found = Definitions()
    for tree in trees:
        if isinstance(tree, exp.ColumnDef):
            read_column(tree, found)
        else:
            read_constraint(tree, found)
    names = [column.name for column in found.columns]
    for column in names:
        if names.count(column) > 1:
            raise CallerMistake(f'column "{column}" specified more than once', sqlstate="42701")
    if len(names) > COLUMNS_MAX:
        raise CallerMistake(f"tables can have at most {COLUMNS_MAX} columns", sqlstate="54011")
    if len(found.keys) > 1:
        raise CallerMistake(
            f'multiple primary keys for table "{table}" are not allowed', sqlstate="42P16"
        )
    return found


def read_constraint(tree: Any, found: Definitions) -> None:
    """A constraint of the table."""
    name, inner = None, tree
    if isinstance(tree, exp.Constraint):
        name = identifier(tree.this)
        name = None if name == UNNAMED else name
        inner = tree.expressions[0]
    if isinstance(inner, exp.PrimaryKey):
        found.keys.append(Unique(name, key_names(inner)))
    elif isinstance(inner, exp.UniqueColumnConstraint) and isinstance(inner.this, exp.Schema):
        found.uniques.append(Unique(name, key_names(inner.this)))
    elif isinstance(inner, exp.CheckColumnConstraint):
        found.checks.append(CheckText(name, sql_text(inner.this.unnest())))
    elif isinstance(inner, exp.ForeignKey):
        columns = [identifier(item) for item in inner.expressions]
        found.references.append(_reference(name, columns, inner.args["reference"]))
    else:
        raise not_supported(_constraint_words(inner))


def read_column(tree: Any, found: Definitions) -> None:
    """A column with its constraints."""
    name = identifier(tree.this)
    kind_tree = tree.args.get("kind")
    if kind_tree is None:
        raise SyntaxMistake(f'syntax error: column "{name}" has no type')
    word = getattr(getattr(kind_tree, "this", None), "name", "")
    if word == "USERDEFINED":
        word = str(kind_tree.args.get("kind") or "").upper()
    serial = word.upper() in SERIALS
    kind, typmod = (BY_NAME[SERIALS[word.upper()]], -1) if serial else type_of(kind_tree)
    not_null, default, identity = serial, None, ""
    if serial:
        found.generated.append(Generated(name, kind))
    for constraint in tree.args.get("constraints") or ():
        what = constraint.kind
        label = identifier(constraint.this) if constraint.this is not None else None
        if isinstance(what, exp.NotNullColumnConstraint):
            not_null = not what.args.get("allow_null")
        elif isinstance(what, exp.PrimaryKeyColumnConstraint):
            found.keys.append(Unique(label, [name]))
        elif isinstance(what, exp.UniqueColumnConstraint):
            found.uniques.append(Unique(label, [name]))
        elif isinstance(what, exp.CheckColumnConstraint):
            found.checks.append(CheckText(label, sql_text(what.this.unnest()), name))
        elif isinstance(what, exp.Reference):
            found.references.append(_reference(label, [name], what))
        elif isinstance(what, exp.DefaultColumnConstraint):
            _only_one(name, default=default, identity=identity)
            default = default_text(what.this, name, kind, typmod)
        elif isinstance(what, exp.ComputedColumnConstraint):
            _only_one(name, default=default, identity=identity)
            default, identity = sql_text(what.this), GENERATED
        elif isinstance(what, exp.GeneratedAsIdentityColumnConstraint):
            identity = "a" if what.this else "d"
            not_null = True
            found.generated.append(Generated(name, kind, _identity_options(what)))
        elif isinstance(what, exp.CollateColumnConstraint):
            if str(what.this.name).upper() not in ("C", "POSIX", "DEFAULT"):
                raise not_supported(f'collation "{what.this.name}"', hint='Use COLLATE "C".')
        else:
            raise not_supported(_constraint_words(what))
    found.columns.append(TableColumn(name, kind, typmod, not_null, default, identity))


def _only_one(name: str, *, default: str | None, identity: str) -> None:
    """Raises 42601 for a column with a default and a generation expression, or two of these."""
    if identity == GENERATED:
        what = "both default and generation expression" if default is None else (
            "multiple generation clauses"
        )  # fmt: skip
        raise CallerMistake(f'{what} specified for column "{name}"', sqlstate="42601")
    if default is not None:
        raise CallerMistake(
            f'both default and generation expression specified for column "{name}"',
            sqlstate="42601",
        )


def _identity_options(tree: Any) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name, option in (
        ("start", "start"), ("increment", "increment"), ("minvalue", "low"), ("maxvalue", "high"),
    ):  # fmt: skip
        value = tree.args.get(name)
        if isinstance(value, exp.Expression):
            found[option] = int(value.sql())
    found["cycle"] = bool(tree.args.get("cycle"))
    return found


def sql_text(tree: Any) -> str:
    """An expression as it is kept."""
    return str(tree.sql(dialect=DIALECT))


def key_names(tree: Any) -> list[str]:
    """The columns of a PRIMARY KEY (...) or UNIQUE (...) clause."""
    names = []
    for item in tree.expressions:
        inner = item.this if isinstance(item, (exp.Ordered, exp.Column)) else item
        if isinstance(inner, exp.Column):
            inner = inner.this
        if not isinstance(inner, exp.Identifier):
            raise not_supported("an expression in a key")
        names.append(identifier(inner))
    return names


def key_columns(wanted: list[str], names: list[str], what: str = "primary key") -> tuple[int, ...]:
    """Indexes of a key's columns. Raises 42703, 42701, 54011."""
    for column in wanted:
        if column not in names:
            raise CallerMistake(f'column "{column}" named in key does not exist', sqlstate="42703")
        if wanted.count(column) > 1:
            raise CallerMistake(
                f'column "{column}" appears twice in {what} constraint', sqlstate="42701"
            )
    if len(wanted) > KEY_COLUMNS_MAX:
        raise CallerMistake(
            f"cannot use more than {KEY_COLUMNS_MAX} columns in an index", sqlstate="54011"
        )
    return tuple(names.index(column) for column in wanted)


_ACTIONS: Final = {
    "NO ACTION": "a", "RESTRICT": "r", "CASCADE": "c", "SET NULL": "n", "SET DEFAULT": "d",
}  # fmt: skip


def _reference(name: str | None, columns: list[str], tree: Any) -> Reference:
    target, other_columns = tree.this, None
    if isinstance(target, exp.Schema):
        other_columns = [identifier(item) for item in target.expressions]
        target = target.this
    found = Reference(name, columns, table_name(target), other_columns)
    for option in tree.args.get("options") or ():
        words = str(option).upper().split()
        if words[:2] == ["ON", "DELETE"]:
            found.on_delete = _ACTIONS[" ".join(words[2:])]
        elif words[:2] == ["ON", "UPDATE"]:
            found.on_update = _ACTIONS[" ".join(words[2:])]
        elif words not in (["NOT", "DEFERRABLE"], ["INITIALLY", "IMMEDIATE"], ["MATCH", "SIMPLE"]):
            raise not_supported(f"FOREIGN KEY ... {' '.join(words)}")
    return found


def default_text(tree: Any, name: str, kind: SqlType, typmod: int) -> str | None:
    """A DEFAULT's text, checked. Raises what is wrong with it."""
    text = sql_text(tree)
    if isinstance(tree, exp.Null):
        return None
    # What is wrong with it should show now, not at the first INSERT.
    column = TableColumn(name, kind, typmod)
    table = make_table(0, PUBLIC, "", (column,), (), "", None)
    select = f"SELECT {text}"
    parsed = parse(select).expressions[0]
    if parsed.find(exp.Column) is not None and parsed.find(exp.Column).sql().lower() != "user":
        raise CallerMistake("cannot use column reference in DEFAULT expression", sqlstate="0A000")
    assigned(table, 0, Binder(Scope(), Parameters(), select).bind(parsed))
    return text


def check_columns_of(text: str) -> list[str]:
    """The columns that a CHECK names, each once."""
    tree = parse(f"SELECT {text}").expressions[0]
    return list(dict.fromkeys(identifier(node.this) for node in tree.find_all(exp.Column)))


def object_name(parts: Sequence[str], word: str) -> str:
    """The name that PostgreSQL gives to what was not named: ``table_column_word``."""
    first, rest = parts[0], "_".join(parts[1:])
    room = NAME_MAX - len(word) - 1
    while len(first) + len(rest) + (1 if rest else 0) > room:
        if len(first) >= len(rest):
            first = first[:-1]
        else:
            rest = rest[:-1]
    return "_".join(part for part in (first, rest, word) if part)


def fresh_name(parts: Sequence[str], word: str, taken: Any) -> str:
    """As `object_name`, with a number if ``taken(name)``."""
    number, label = 0, word
    while True:
        name = object_name(parts, label)
        if not taken(name):
            return name
        number += 1
        label = f"{word}{number}"


def own_names(table: Table) -> set[str]:
    """The names of a table's constraints."""
    names = {check.name for check in table.checks} | {key.name for key in table.foreign}
    names |= {index.name for index in table.indexes if index.constraint}
    return names | ({table.constraint} if table.primary_key else set())


def _constraint_words(node: Any) -> str:
    words = {"LikeProperty": "LIKE"}
    name = type(node).__name__
    return words.get(name, name.removesuffix("ColumnConstraint").upper()) + " in CREATE TABLE"
