"""Tables, and where they are kept: rows of the catalog's tree, so DDL is transactional.

    key      keycode of (kind, schema, name), kind one of table, sequence, view, schema, type
    payload  msgpack; of a table: id, columns [(name, type oid, typmod, not null, default,
             identity)], primary key [column index], constraint, tree, root, int_keys, indexes,
             checks, foreign keys, comments. Of others: tuples

The catalog is read at its **newest** state, not at a statement's snapshot, as PostgreSQL does too:
a statement planned with yesterday's catalog would write into a tree that TRUNCATE has replaced. A
`Catalog` is decoded once per ``engine.catalog_version``; a transaction that did DDL has its own.

A table's id is the page id of its first root: page ids are never reused, so no counter is needed.
A table without a primary key has a hidden one: a row id that counts up (`planner.RowIds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgpack

from compute.buffer.waits import Suspend, resumed
from compute.sql.enums import EnumType, enum_type
from compute.sql.environment import current, lookup_path
from compute.sql.types import BPCHAR, BY_OID, NUMERIC, SqlType, to_text
from polarless.errors import Conflict
from polarless.kernel import keycode
from polarless.kernel.ids import CATALOG_TREE, PageId, TreeId

if TYPE_CHECKING:
    from compute.btree.tree import Tree
    from compute.sql.plan import SessionLike
    from compute.txn.engine import Engine
    from compute.txn.transaction import Transaction

PUBLIC: Final = "public"
PG_CATALOG: Final = "pg_catalog"
# Ids below are PostgreSQL's own objects.
FIRST_TABLE_ID: Final = 16384
COLUMNS_MAX: Final = 1600
GENERATED: Final = "s"
KEY_COLUMNS_MAX: Final = 32

# The numbers in an array of numeric go in as their text, as those of a column do.
_pack = msgpack.Packer(use_bin_type=True, default=str).pack


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column. ``default`` is an SQL expression's text."""

    name: str
    type: SqlType
    typmod: int = -1
    not_null: bool = False
    default: str | None = None
    # GENERATED AS IDENTITY: "a" always, "d" by default. `GENERATED`: ``default`` is an expression
    # over the row, see `filling`.
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """A secondary index: a tree of its own, see `indexes`. ``constraint``: made by UNIQUE.

    Positions below 0 in ``columns`` are expressions, see `index_parts`.
    """

    name: str
    columns: tuple[int, ...]
    unique: bool
    constraint: bool
    tree: Tree
    expressions: tuple[str, ...] = ()
    # The condition of a partial index.
    where: str | None = None
    # What is only shown: indoption of each part, and the columns of INCLUDE.
    options: tuple[int, ...] = ()
    include: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint with its expression's text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A FOREIGN KEY. The other table is named by its id, which a rename does not change. Actions
    are PostgreSQL's letters: a no action, r restrict, c cascade, n set null, d set default.
    """

    name: str
    columns: tuple[int, ...]
    other: int
    other_columns: tuple[int, ...]
    on_delete: str = "a"
    on_update: str = "a"


@dataclass(frozen=True, slots=True)
class Table:
    """One table. ``primary_key`` holds column indexes; empty: rows are keyed by a hidden row id."""

    table_id: int
    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    primary_key: tuple[int, ...]
    constraint: str
    tree: Tree
    index: Mapping[str, int] = field(compare=False)
    indexes: tuple[Index, ...] = ()
    checks: tuple[Check, ...] = ()
    foreign: tuple[ForeignKey, ...] = ()
    # Of the table ("") and of its columns, by name; of "\0index " and "\0constraint " by theirs.
    comments: Mapping[str, str] = field(default_factory=dict, compare=False)

    def key_values(self, key: Any) -> list[str]:
        """The primary key's values of a tree key, printed for an error's DETAIL."""
        values = (key,) if self.tree.int_keys else keycode.decode(key)
        return [
            to_text(value, column.type, column.typmod)
            for value, column in zip(values, (self.columns[i] for i in self.primary_key))
        ]

    @property
    def key_names(self) -> tuple[str, ...]:
        """The primary key's columns."""
        return tuple(self.columns[i].name for i in self.primary_key)

    def with_tree(self, tree: Tree) -> Table:
        """The same table with other content."""
        return replace(self, tree=tree)


def make_table(
    table_id: int,
    schema: str,
    name: str,
    columns: tuple[TableColumn, ...],
    primary_key: tuple[int, ...],
    constraint: str,
    tree: Any,
) -> Table:
    """A table with its index of column names. ``tree`` None: no stored rows, as in FROM f(...)."""
    index = {column.name: position for position, column in enumerate(columns)}
    return Table(table_id, schema, name, columns, primary_key, constraint, tree, index)


def has_int_keys(columns: tuple[TableColumn, ...], primary_key: tuple[int, ...]) -> bool:
    """Whether the tree's keys are plain ints: one integer column, or a hidden row id."""
    return not primary_key or (
        len(primary_key) == 1 and columns[primary_key[0]].type.family in ("int", "time", "date")
    )


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence. Its value is the only row of its tree; see `sequences`."""

    schema: str
    name: str
    tree: Tree
    type: SqlType
    start: int
    increment: int
    low: int
    high: int
    cycle: bool = False
    # (table id, column name) whose sequence this is: dropped with it.
    owner: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A view: the text of its query, and names for its columns if it has its own."""

    schema: str
    name: str
    text: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """All tables, sequences and views, by schema and name; the schemas that were created."""

    tables: Mapping[tuple[str, str], Table]
    sequences: Mapping[tuple[str, str], Sequence] = field(default_factory=dict)
    views: Mapping[tuple[str, str], View] = field(default_factory=dict)
    schemas: frozenset[str] = frozenset()
    types: Mapping[tuple[str, str], EnumType] = field(default_factory=dict)
    # (kind, schema, name): of what is neither a table nor a part of one.
    comments: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    def find(self, name: str, schema: str | None = None) -> Table | None:
        """The table of this name, in the search path if no schema is given."""
        if schema is not None:
            return self.tables.get((schema, name))
        for place in lookup_path():
            found = self.tables.get((place, name))
            if found is not None:
                return found
        return None

    def view(self, name: str, schema: str | None = None) -> View | None:
        """The view of this name, likewise."""
        for place in lookup_path() if schema is None else (schema,):
            found = self.views.get((place, name))
            if found is not None:
                return found
        return None

    def index(self, name: str, schema: str | None = None) -> tuple[Table, Index] | None:
        """The index of this name and its table."""
        for table in self.tables.values():
            if table.schema == (schema or PUBLIC):
                for found in table.indexes:
                    if found.name == name:
                        return table, found
        return None

    def kind_of(self, name: str, schema: str) -> str | None:
        """What has this name, of all that shares one space of names."""
        if (schema, name) in self.tables:
            return "table"
        if (schema, name) in self.sequences:
            return "sequence"
        if (schema, name) in self.views:
            return "view"
        for table in self.tables.values():
            if table.schema == schema and name == table.constraint:
                return "index"
        return "index" if self.index(name, schema) is not None else None

    def by_id(self, table_id: int) -> Table | None:
        """The table with this id."""
        return next((t for t in self.tables.values() if t.table_id == table_id), None)


# -------------------------------------------------------------------------------- rows of the tree


def row_key(schema: str, name: str) -> bytes:
    """The key of a table's row."""
    return keycode.encode(("table", schema, name))


def encode_table(table: Table) -> bytes:
    """The payload of a table's row."""
    return bytes(
        _pack(
            {
                "id": table.table_id,
                "columns": [
                    (c.name, c.type.oid, c.typmod, c.not_null, c.default, c.identity)
                    for c in table.columns
                ],
                "primary_key": table.primary_key,
                "constraint": table.constraint,
                "tree": table.tree.tree_id,
                "root": table.tree.root,
                "int_keys": table.tree.int_keys,
                "indexes": [
                    (
                        i.name,
                        i.columns,
                        i.unique,
                        i.constraint,
                        i.tree.tree_id,
                        i.tree.root,
                        i.expressions,
                        i.where,
                        i.options,
                        i.include,
                    )
                    for i in table.indexes
                ],
                "checks": [(c.name, c.text) for c in table.checks],
                "foreign": [
                    (f.name, f.columns, f.other, f.other_columns, f.on_delete, f.on_update)
                    for f in table.foreign
                ],
                "comments": dict(table.comments),
            }
        )
    )


def decode_table(engine: Engine, key: bytes, payload: bytes) -> Table:
    """The inverse of `row_key` and `encode_table`."""
    _, schema, name = keycode.decode(key)
    row: dict[str, Any] = msgpack.unpackb(payload, use_list=False)
    columns = tuple(
        TableColumn(column, BY_OID[oid], *others) for column, oid, *others in row["columns"]
    )
    tree_id: TreeId = row["tree"]
    root: PageId = row["root"]
    tree = engine.tree(tree_id, root, int_keys=row["int_keys"])
    table = make_table(
        row["id"], schema, name, columns, row["primary_key"], row["constraint"], tree
    )
    return replace(
        table,
        indexes=tuple(
            Index(label, on, unique, constraint, engine.tree(number, place, int_keys=False), *more)
            for label, on, unique, constraint, number, place, *more in row.get("indexes", ())
        ),
        checks=tuple(Check(*check) for check in row.get("checks", ())),
        foreign=tuple(ForeignKey(*found) for found in row.get("foreign", ())),
        comments=row.get("comments", {}),
    )


def encode_sequence(found: Sequence) -> bytes:
    """The payload of a sequence's row."""
    return bytes(
        _pack(
            (found.tree.tree_id, found.tree.root, found.type.oid, found.start, found.increment,
             found.low, found.high, found.cycle, found.owner)
        )
    )  # fmt: skip


def decode_sequence(engine: Engine, schema: str, name: str, payload: bytes) -> Sequence:
    """The inverse of `encode_sequence`."""
    tree_id, root, oid, *others = msgpack.unpackb(payload, use_list=False)
    tree = engine.tree(tree_id, root, int_keys=True)
    return Sequence(schema, name, tree, BY_OID[oid], *others)


def encode_view(view: View) -> bytes:
    """The payload of a view's row."""
    return bytes(_pack((view.text, view.columns)))


def encode_type(kind: EnumType) -> bytes:
    """The payload of an enum's row."""
    return bytes(_pack((kind.oid, kind.labels)))


def decode_type(schema: str, name: str, payload: bytes) -> EnumType:
    """The inverse of `encode_type`."""
    oid, labels = msgpack.unpackb(payload, use_list=False)
    return enum_type(oid, schema, name, labels)


def comment_key(what: str, schema: str, name: str) -> bytes:
    """The key of a comment's row; the payload is its text."""
    return keycode.encode(("comment", schema, f"{what} {name}"))


def relation_key(kind: str, schema: str, name: str) -> bytes:
    """The key of a row of any kind."""
    return keycode.encode((kind, schema, name))


TABLE_PREFIX: Final = keycode.encode(("table",))
_TYPE_PREFIX: Final = keycode.encode(("type",))
_KINDS: Final = ("comment", "schema", "sequence", "table", "type", "view")
_PREFIXES: Final = tuple(keycode.encode((kind,)) for kind in _KINDS)
# Between them are roles and grants too, which are no relations.
_LOW: Final = _PREFIXES[0]
_HIGH: Final = keycode.prefix_end(_PREFIXES[-1])


def newest_rows(engine: Engine) -> dict[bytes, bytes]:
    """The catalog's rows as of the newest change on this node. May raise a `Suspend`."""
    tree = engine.catalog_tree
    result: dict[bytes, bytes] = {}
    position: Any = None
    while True:
        frame, keys, position = tree.rows_in(position, _LOW, _HIGH)
        for key in keys:
            if not key.startswith(_PREFIXES):
                continue
            payload = frame.rows[key][1]
            if type(payload) is tuple:
                payload = engine.fetcher.large(payload[1], payload[2], payload[0])
            if payload is not None:
                result[key] = payload
        if position is None:
            return result


def load(engine: Engine, own: Mapping[Any, bytes | None] | None = None) -> Catalog:
    """The catalog, with a transaction's ``own`` changes put over it. May raise a `Suspend`."""
    rows = newest_rows(engine)
    for key, payload in (own or {}).items():
        if not key.startswith(_PREFIXES):
            continue  # a role, a grant
        if payload is None:
            rows.pop(key, None)
        else:
            rows[key] = payload
    tables: dict[tuple[str, str], Table] = {}
    sequences: dict[tuple[str, str], Sequence] = {}
    views: dict[tuple[str, str], View] = {}
    schemas: set[str] = set()
    types: dict[tuple[str, str], EnumType] = {}
    for key, payload in rows.items():
        if key.startswith(_TYPE_PREFIX):
            _, schema, name = keycode.decode(key)
            types[schema, name] = decode_type(schema, name, payload)
    current.types = types
    comments: dict[tuple[str, str, str], str] = {}
    for key, payload in rows.items():
        if key.startswith(_TYPE_PREFIX):
            continue
        if key.startswith(TABLE_PREFIX):
            table = decode_table(engine, key, payload)
            tables[table.schema, table.name] = table
            continue
        kind, schema, name = keycode.decode(key)
        if kind == "sequence":
            sequences[schema, name] = decode_sequence(engine, schema, name, payload)
        elif kind == "comment":
            what, _, named = name.partition(" ")
            comments[what, schema, named] = payload.decode()
        elif kind == "view":
            views[schema, name] = View(schema, name, *msgpack.unpackb(payload, use_list=False))
        else:
            schemas.add(schema)
    return Catalog(tables, sequences, views, frozenset(schemas), types, comments)


def own_changes(txn: Transaction | None) -> Mapping[Any, bytes | None] | None:
    """What a transaction has changed in the catalog so far."""
    if txn is None or not txn.writes:
        return None
    return txn.writes.get(CATALOG_TREE)


async def check_current(session: SessionLike, table: Table, version: int) -> int:
    """Raise `Conflict` if the table is not what it was at ``version``; returns the version now.

    For coroutines that write: while they waited for a row, a DDL may have given the table another
    tree, and what they write into the old one would be lost.
    """
    engine = session.engine
    while engine.catalog_version != version:
        version = engine.catalog_version
        try:
            found = load(engine, own_changes(session.txn)).find(table.name, table.schema)
        except Suspend as suspend:
            await resumed(suspend)
            version = -1
            continue
        if found is None or found.tree.tree_id != table.tree.tree_id:
            raise Conflict(
                f'relation "{table.name}" was changed while the statement waited',
                hint="Run the transaction again.",
            )
    return version


# -------------------------------------------------------------------------------------- row payload

pack_row = _pack


def stored_row(table: Table, values: list[Any]) -> list[Any]:
    """The values of a row as they go into the payload."""
    return [
        str(value) if value is not None and column.type is NUMERIC else value
        for value, column in zip(values, table.columns)
    ]


def key_expression(table: Table, names: list[str]) -> str:
    """Python source for the tree key, given the source of each column's value."""
    if table.tree.int_keys:
        return names[table.primary_key[0]]
    parts = [names[i] for i in table.primary_key]
    encoders = [ENCODER_NAMES[table.columns[i].type.family] for i in table.primary_key]
    return " + ".join(f"{encoder}({part})" for encoder, part in zip(encoders, parts))


# The names under which generated code finds the encoders of `keycode`.
ENCODER_NAMES: Final = {
    "int": "encode_int",
    "time": "encode_int",
    "date": "encode_int",
    "oid": "encode_int",
    "float": "encode_float",
    "numeric": "encode_decimal",
    "text": "encode_str",
    "bool": "encode_bool",
    "bytea": "encode_bytes",
    "uuid": "encode_str",
    "clock": "encode_int",
    "interval": "encode_bytes",
    "enum": "encode_int",
}
ENCODERS: Final = {name: getattr(keycode, name) for name in set(ENCODER_NAMES.values())}


def is_padded(column: TableColumn) -> bool:
    """Whether printing needs blanks added."""
    return column.type is BPCHAR and column.typmod >= 0
