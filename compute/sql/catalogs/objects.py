"""What the catalog holds, as the objects that PostgreSQL's catalogs list, each with an oid.

Tables have their own ids. What has none (indexes, constraints, system relations) gets an oid above
2^31 that is made of its kind and name: the same on every node, at every time.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from compute.sql import environment
from compute.sql.arraytypes import array_of
from compute.sql.catalog import Catalog, Sequence, Table, View
from compute.sql.catalog import Index as StoredIndex
from compute.sql.catalogs.deparse import full
from compute.sql.catalogs.information_columns import INFORMATION_SCHEMA
from compute.sql.catalogs.pg_columns import PG_CATALOG
from compute.sql.definitions import check_columns_of
from compute.sql.enums import EnumType
from compute.sql.index_parts import distinct, is_plain, part, part_label, shown
from compute.sql.types import BOOL, BY_NAME, BY_OID, INT8, SqlType
from polarless.errors import CallerMistake

PG_CATALOG_OID: Final = 11
PUBLIC_OID: Final = 2200
OWNER_OID: Final = 10
DATABASE_OID: Final = 5
HEAP_OID: Final = 2
BTREE_OID: Final = 403
DEFAULT_COLLATION: Final = 100
C_COLLATION: Final = 950
_SCHEMA_OIDS: Final = {"pg_catalog": PG_CATALOG_OID, "public": PUBLIC_OID}

# Columns of the relations of the schema polarless, written as in `pg_columns`.
POLARLESS: Final[dict[str, str]] = {
    "nodes": (
        "name:t role:t state:t this:b epoch:8 mark:8 published:8 sessions:4 catalog_version:8"
    ),
    "cache": "name:t value:f",
    "sessions": "pid:4 usename:n datname:n application_name:t state:t wait:t query:t",
    "pool": "name:t value:f",
}

# Internal names, as pg_type has them.
TYPE_NAMES: Final = {
    16: "bool", 17: "bytea", 18: "char", 19: "name", 20: "int8", 21: "int2", 23: "int4",
    25: "text", 26: "oid", 700: "float4", 701: "float8", 705: "unknown", 1042: "bpchar",
    1043: "varchar", 1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz",
    1186: "interval", 1266: "timetz", 1700: "numeric", 2205: "regclass", 2206: "regtype",
    2278: "void", 2950: "uuid", 114: "json", 3802: "jsonb", 22: "int2vector", 30: "oidvector",
}  # fmt: skip


def made_oid(kind: str, *names: object) -> int:
    """The oid of something that has none of its own."""
    text = "\0".join((kind, *map(str, names)))
    return (1 << 31) | (zlib.crc32(text.encode()) & 0x7FFFFFFF)


@dataclass(frozen=True, slots=True)
class Relation:
    """An entry of pg_class. ``kind`` as in relkind."""

    oid: int
    schema: str
    name: str
    kind: str
    # (name, type, typmod, not null, default)
    columns: tuple[tuple[str, SqlType, int, bool, str | None], ...] = ()
    table: Table | None = None
    # Of each column: GENERATED ALWAYS ("a"), BY DEFAULT ("d"), or not.
    identities: tuple[str, ...] = ()
    # Of a view: its query.
    text: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table; ``columns`` count from 0. ``source``: what the table says of it, if it
    is not of the primary key.
    """

    oid: int
    name: str
    table: Relation
    columns: tuple[int, ...]
    unique: bool
    primary: bool
    source: StoredIndex | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is of columns and all rows."""
        return self.source is None or is_plain(self.source)

    @property
    def expressions(self) -> tuple[str, ...]:
        """Its expressions, as they are written in a key."""
        return () if self.source is None else tuple(map(shown, self.source.expressions))

    def part(self, place: int) -> str:
        """A part of the key as it is written."""
        column = self.columns[place]
        if column >= 0:
            return quote(self.table.columns[column][0])
        return self.expressions[-1 - column]

    def options(self) -> list[int]:
        """indoption: 1 descending, 2 NULLs first."""
        given = self.source.options if self.source is not None else ()
        return list(given) or [0] * len(self.columns)

    @property
    def include(self) -> tuple[int, ...]:
        """The columns of INCLUDE."""
        return self.source.include if self.source is not None else ()

    def parts(self) -> list[tuple[str, SqlType, int]]:
        """Name, type and modifier of each part and each included column."""
        labels = []
        table = self.table.table
        for column in self.columns:
            if column >= 0:
                labels.append(self.table.columns[column][0])
            else:
                assert self.source is not None
                labels.append(part_label(self.source.expressions[-1 - column]))
        found = []
        for name, column in zip(distinct(labels), self.columns):
            if column >= 0:
                _, kind, typmod, _, _ = self.table.columns[column]
                found.append((name, kind, typmod))
            else:
                assert self.source is not None and table is not None
                node = part(table, self.source, column)
                found.append((name, node.type, node.typmod))
        return found + [self.table.columns[i][:3] for i in self.include]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint. ``kind`` as in contype; ``text`` as pg_get_constraintdef prints it."""

    oid: int
    name: str
    kind: str
    table: Relation
    columns: tuple[int, ...]
    text: str
    index: Index | None = None
    other: Relation | None = None
    other_columns: tuple[int, ...] = ()
    actions: tuple[str, str] = ("a", "a")
    # Of a CHECK: its condition.
    source: str = ""


@dataclass(slots=True)
class Objects:
    """See the module's docstring."""

    schemas: dict[str, int] = field(default_factory=dict)
    relations: dict[int, Relation] = field(default_factory=dict)
    by_name: dict[tuple[str, str], Relation] = field(default_factory=dict)
    indexes: dict[int, Index] = field(default_factory=dict)
    constraints: dict[int, Constraint] = field(default_factory=dict)
    # Sequences by their oids.
    sequences: dict[int, Sequence] = field(default_factory=dict)
    # Enums and their array types by their oids.
    types: dict[int, SqlType] = field(default_factory=dict)
    # Comments: (oid, the catalog that it is of, number of a column or 0).
    comments: dict[tuple[int, str, int], str] = field(default_factory=dict)

    def add(self, relation: Relation) -> None:
        """Make a relation known."""
        self.relations[relation.oid] = relation
        self.by_name[relation.schema, relation.name] = relation

    def find(self, name: str, schema: str | None = None) -> Relation | None:
        """A relation by its name, in the search path if no schema is given."""
        if schema is not None:
            return self.by_name.get((schema, name))
        path = environment.lookup_path()
        temporary = 1 if environment.current.environment.temporary else 0
        places = (*path[:temporary], "pg_catalog", *path[temporary:])
        return next((self.by_name[p, name] for p in places if (p, name) in self.by_name), None)

    def tables(self) -> list[Relation]:
        """The users' tables, by name."""
        found = [r for r in self.relations.values() if r.table is not None and r.kind == "r"]
        return sorted(found, key=lambda r: (r.schema, r.name))


def quote(name: str) -> str:
    """A name as it has to be written."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower()
    if plain and not name[0].isdigit() and name not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


_RESERVED: Final = frozenset(
    {"all", "analyse", "analyze", "and", "any", "array", "as", "asc", "both", "case", "cast",
     "check", "collate", "column", "constraint", "create", "current_date", "default", "desc",
     "distinct", "do", "else", "end", "except", "false", "fetch", "for", "foreign", "from", "grant",
     "group", "having", "in", "initially", "intersect", "into", "leading", "limit", "not", "null",
     "offset", "on", "only", "or", "order", "primary", "references", "returning", "select", "some",
     "table", "then", "to", "trailing", "true", "union", "unique", "user", "using", "when", "where",
     "window", "with"}
)  # fmt: skip


def build(catalog: Catalog) -> Objects:
    """All objects of a catalog."""
    found = Objects()
    for name in ("pg_catalog", "information_schema", "polarless", "public"):
        found.schemas[name] = _SCHEMA_OIDS.get(name) or made_oid("schema", name)
    for schema, names in (("pg_catalog", PG_CATALOG), ("information_schema", INFORMATION_SCHEMA)):
        for name in names:
            kind = "v" if schema != "pg_catalog" or name in _VIEWS else "r"
            found.add(Relation(made_oid("system", schema, name), schema, name, kind))
    for name in POLARLESS:
        found.add(Relation(made_oid("system", "polarless", name), "polarless", name, "v"))
    for schema in catalog.schemas:
        found.schemas.setdefault(schema, made_oid("schema", schema))
    for enum in catalog.types.values():
        found.schemas.setdefault(enum.schema, made_oid("schema", enum.schema))
        array = array_of(enum)
        assert array is not None
        found.types |= {enum.oid: enum, array.oid: array}
    for table in catalog.tables.values():
        _add_table(found, table)
    for table in catalog.tables.values():
        _add_foreign_keys(found, table)
    for sequence in catalog.sequences.values():
        _add_sequence(found, sequence)
    for view in catalog.views.values():
        _add_view(found, catalog, view)
    _add_comments(found, catalog)
    return found


def _add_comments(found: Objects, catalog: Catalog) -> None:
    for table in catalog.tables.values():
        for name, text in table.comments.items():
            what, _, part = name[1:].partition(" ") if name[:1] == "\0" else ("", "", "")
            if what:
                oid = made_oid(what, table.schema, table.name, part)
                catalog_name = "pg_class" if what == "index" else "pg_constraint"
                found.comments[oid, catalog_name, 0] = text
            elif not name or name in table.index:
                place = table.index[name] + 1 if name else 0
                found.comments[table.table_id, "pg_class", place] = text
    for (what, schema, name), text in catalog.comments.items():
        if what in ("view", "sequence"):
            found.comments[made_oid(what, schema, name), "pg_class", 0] = text
        elif what == "schema" and schema in found.schemas:
            found.comments[found.schemas[schema], "pg_namespace", 0] = text
        elif what == "type" and (schema, name) in catalog.types:
            found.comments[catalog.types[schema, name].oid, "pg_type", 0] = text
        elif what == "database":
            found.comments[DATABASE_OID, "pg_database", 0] = text
        elif what == "column":
            view, _, column = name.partition(".")
            relation = found.by_name.get((schema, view))
            names = [label for label, *_ in relation.columns] if relation is not None else []
            if relation is not None and column in names:
                found.comments[relation.oid, "pg_class", names.index(column) + 1] = text


_VIEWS: Final = frozenset(
    {"pg_tables", "pg_indexes", "pg_views", "pg_roles", "pg_user", "pg_settings", "pg_locks",
     "pg_stat_activity", "pg_sequences", "pg_matviews", "pg_stats", "pg_rules", "pg_policies"}
)  # fmt: skip


def _add_table(found: Objects, table: Table) -> None:
    found.schemas.setdefault(table.schema, made_oid("schema", table.schema))
    relation = Relation(
        table.table_id,
        table.schema,
        table.name,
        "r",
        tuple((c.name, c.type, c.typmod, c.not_null, c.default) for c in table.columns),
        table,
        tuple(c.identity for c in table.columns),
    )
    found.add(relation)
    if table.primary_key:
        name = table.constraint or f"{table.name}_pkey"
        _add_unique(found, relation, name, tuple(table.primary_key), "p")
    for index in table.indexes:
        if index.constraint:
            _add_unique(found, relation, index.name, index.columns, "u")
            continue
        oid = made_oid("index", table.schema, table.name, index.name)
        made = Index(oid, index.name, relation, index.columns, index.unique, False, index)
        _add_index(found, made)
    for check in table.checks:
        oid = made_oid("constraint", table.schema, table.name, check.name)
        names = check_columns_of(check.text)
        columns = tuple(table.index[name] for name in names if name in table.index)
        text = f"CHECK ({_in_parentheses(check.text)})"
        found.constraints[oid] = Constraint(
            oid, check.name, "c", relation, columns, text, source=check.text
        )


def _in_parentheses(text: str) -> str:
    made = full(text)
    return made if made.startswith("(") and made.endswith(")") else f"({made})"


def _add_unique(
    found: Objects, relation: Relation, name: str, columns: tuple[int, ...], kind: str
) -> None:
    """A primary key or a unique constraint, and its index."""
    primary = kind == "p"
    oid = made_oid("index", relation.schema, relation.name, name)
    index = Index(oid, name, relation, columns, unique=True, primary=primary)
    _add_index(found, index)
    names = _names(relation, columns)
    word = "PRIMARY KEY" if primary else "UNIQUE"
    oid = made_oid("constraint", relation.schema, relation.name, name)
    found.constraints[oid] = Constraint(
        oid, name, kind, relation, columns, f"{word} ({names})", index
    )


def _names(relation: Relation, columns: tuple[int, ...]) -> str:
    return ", ".join(quote(relation.columns[i][0]) for i in columns)


_ACTIONS: Final = {
    "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT",
}  # fmt: skip


def _add_foreign_keys(found: Objects, table: Table) -> None:
    relation = found.relations[table.table_id]
    for key in table.foreign:
        other = found.relations.get(key.other)
        if other is None:
            continue
        shown = quote(other.name)
        if other.schema != "public":
            shown = f"{quote(other.schema)}.{shown}"
        text = (
            f"FOREIGN KEY ({_names(relation, key.columns)}) REFERENCES "
            f"{shown}({_names(other, key.other_columns)})"
        )
        for word, action in (("UPDATE", key.on_update), ("DELETE", key.on_delete)):
            if action in _ACTIONS:
                text += f" ON {word} {_ACTIONS[action]}"
        index = next(
            (
                i
                for i in found.indexes.values()
                if i.table is other
                and i.unique
                and i.is_plain
                and set(i.columns) == set(key.other_columns)
            ),
            None,
        )
        oid = made_oid("constraint", table.schema, table.name, key.name)
        found.constraints[oid] = Constraint(
            oid, key.name, "f", relation, key.columns, text, index, other, key.other_columns,
            (key.on_update, key.on_delete),
        )  # fmt: skip


_SEQUENCE_COLUMNS: Final = (
    ("last_value", INT8, -1, True, None),
    ("log_cnt", INT8, -1, True, None),
    ("is_called", BOOL, -1, True, None),
)


def sequence_oid(sequence: Sequence) -> int:
    """The oid of a sequence."""
    return made_oid("sequence", sequence.schema, sequence.name)


def _add_sequence(found: Objects, sequence: Sequence) -> None:
    oid = sequence_oid(sequence)
    found.schemas.setdefault(sequence.schema, made_oid("schema", sequence.schema))
    found.add(Relation(oid, sequence.schema, sequence.name, "S", _SEQUENCE_COLUMNS))
    found.sequences[oid] = sequence


def _add_view(found: Objects, catalog: Catalog, view: View) -> None:
    from compute.sql.analytics.views import columns_of

    found.schemas.setdefault(view.schema, made_oid("schema", view.schema))
    oid = made_oid("view", view.schema, view.name)
    columns = columns_of(catalog, view)
    found.add(Relation(oid, view.schema, view.name, "v", columns, text=view.text))


def _add_index(found: Objects, index: Index) -> None:
    found.indexes[index.oid] = index
    columns = tuple((name, kind, typmod, False, None) for name, kind, typmod in index.parts())
    found.add(Relation(index.oid, index.table.schema, index.name, "i", columns))


def index_text(index: Index, *, pretty: bool = False) -> str:
    """As pg_get_indexdef prints it."""
    table = f"{quote(index.table.schema)}.{quote(index.table.name)}"
    unique = "UNIQUE " if index.unique else ""
    columns = ", ".join(
        index_part(index, place, pretty=pretty) + _ORDERS[option]
        for place, option in enumerate(index.options())
    )
    text = f"CREATE {unique}INDEX {quote(index.name)} ON {table} USING btree ({columns})"
    if index.include:
        names = ", ".join(quote(index.table.columns[i][0]) for i in index.include)
        text += f" INCLUDE ({names})"
    if index.source is not None and index.source.where is not None:
        where = index.source.where
        text += f" WHERE {where if pretty else full(where)}"
    return text


_ORDERS: Final = ("", " DESC NULLS LAST", " NULLS FIRST", " DESC")


def index_part(index: Index, place: int, *, pretty: bool = True) -> str:
    """A part of the key; not pretty, an operation is in two pairs of parentheses."""
    found = index.part(place)
    return f"({full(found[1:-1])})" if found.startswith("(") and not pretty else found


# ------------------------------------------------------------------------- of the statement at hand

_last: list[Any] = [None, None]


def of(current: Any) -> Objects:
    """The objects of the current statement's catalog."""
    catalog = current.catalog
    if catalog is None:
        raise CallerMistake("names of objects cannot be looked up here", sqlstate="0A000")
    if _last[0] is not catalog:
        # Threads may do this twice; the result is the same.
        _last[:] = [catalog, build(catalog)]
    found: Objects = _last[1] if _last[0] is catalog else build(catalog)
    return found


def reg_name(current: Any, word: str, oid: int) -> str:
    """An oid as its reg type prints it."""
    if oid == 0:
        return "-"
    if word == "regtype":
        made = of(current).types.get(oid)
        if made is not None:
            return shown_type(made)
        kind = BY_OID.get(oid)
        return kind.name if kind is not None else str(oid)
    if word == "regnamespace":
        names = {number: name for name, number in of(current).schemas.items()}
        return quote(names[oid]) if oid in names else str(oid)
    if word == "regclass":
        relation = of(current).relations.get(oid)
        if relation is None:
            return str(oid)
        visible = is_visible(relation)
        return ("" if visible else quote(relation.schema) + ".") + quote(relation.name)
    if word == "regrole":
        return role_name(current, oid) or str(oid)
    return str(oid)


def is_visible(relation: Relation) -> bool:
    """Whether a bare name finds it."""
    return relation.schema == "pg_catalog" or relation.schema in environment.lookup_path()


def owner(current: Any) -> str:
    """Whose the tables are said to be: they have no owners, but every superuser may do all."""
    user = str(current.session.user)
    access = current.access
    if access is None or not access.restricted(user):
        return user
    return min((name for name, role in access.roles.items() if role.superuser), default=user)


def role_oid(current: Any, name: str) -> int:
    """The oid of a role."""
    return OWNER_OID if name == owner(current) else made_oid("role", name)


def role_name(current: Any, oid: int) -> str | None:
    """The role with this oid."""
    if oid == OWNER_OID:
        return owner(current)
    roles = current.access.roles if current.access is not None else ()
    return next((name for name in roles if made_oid("role", name) == oid), None)


def split_name(text: str) -> list[str]:
    """``schema.name`` as its parts, folded unless quoted. Raises 42602."""
    parts: list[str] = []
    rest = text.strip()
    while rest:
        if rest[0] == '"':
            end = rest.find('"', 1)
            if end < 0:
                break
            part, rest = rest[1:end], rest[end + 1 :]
        else:
            part, dot, tail = rest.partition(".")
            part, rest = part.lower(), dot + tail
        parts.append(part)
        if not rest:
            return parts
        if rest[0] != ".":
            break
        rest = rest[1:]
    raise CallerMistake("invalid name syntax", sqlstate="42602")


def reg_oid(current: Any, word: str, text: str) -> int:
    """The oid of what has this name. Raises 42P01, 42704, 42883."""
    if text.strip().isdigit():
        return int(text)
    if text.strip() == "-":
        return 0
    found = find_oid(current, word, text)
    if found is not None:
        return found
    parts = split_name(text)
    if len(parts) > 1 and parts[-2] not in of(current).schemas:
        raise CallerMistake(f'schema "{parts[-2]}" does not exist', sqlstate="3F000")
    if word == "regclass":
        raise CallerMistake(f'relation "{text}" does not exist', sqlstate="42P01")
    if word == "regtype":
        raise CallerMistake(f'type "{text}" does not exist', sqlstate="42704")
    if word == "regnamespace":
        raise CallerMistake(f'schema "{text}" does not exist', sqlstate="3F000")
    if word == "regrole":
        raise CallerMistake(f'role "{text}" does not exist', sqlstate="42704")
    raise CallerMistake(f'function "{text}" does not exist', sqlstate="42883")


def find_oid(current: Any, word: str, text: str) -> int | None:
    """As `reg_oid`; None if there is none."""
    if word == "regtype":
        return _enum_oid(current, text) or _type_oid(text)
    parts = split_name(text)
    if word == "regclass":
        schema = parts[-2] if len(parts) > 1 else None
        relation = of(current).find(parts[-1], schema)
        return None if relation is None else relation.oid
    if word == "regnamespace":
        return of(current).schemas.get(parts[-1])
    if word == "regrole":
        known = parts[-1] == owner(current) or parts[-1] in current.access.roles
        return role_oid(current, parts[-1]) if known else None
    return None


def _enum_oid(current: Any, text: str) -> int | None:
    name, brackets, _ = text.strip().partition("[]")
    parts = split_name(name)
    for schema in environment.lookup_path() if len(parts) < 2 else (parts[-2],):
        for kind in of(current).types.values():
            if isinstance(kind, EnumType) and (kind.schema, kind.name) == (schema, parts[-1]):
                return kind.array_oid if brackets else kind.oid
    return None


def shown_type(kind: SqlType) -> str:
    """An enum or an array of one as format_type() shows it."""
    element = getattr(kind, "element", None)
    if element is not None:
        return f"{shown_type(element)}[]"
    schema = kind.schema if isinstance(kind, EnumType) else ""
    visible = schema in environment.lookup_path()
    return ("" if visible else quote(schema) + ".") + quote(kind.name)


def _type_oid(text: str) -> int | None:
    name = text.strip().lower().removeprefix("pg_catalog.")
    name = name.partition("(")[0].strip()
    kind = BY_NAME.get(name)
    if kind is None:
        numbers = {word: oid for oid, word in TYPE_NAMES.items()}
        return numbers.get(name)
    return kind.oid


__all__ = ["Objects", "build", "of"]
