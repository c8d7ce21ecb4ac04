"""CREATE, ALTER and DROP TYPE: enums, read from their tokens.

    CREATE TYPE name AS ENUM ('label', ...)
    ALTER TYPE name ADD VALUE [IF NOT EXISTS] 'label' [BEFORE | AFTER 'label']
    ALTER TYPE name RENAME VALUE 'old' TO 'new' | RENAME TO new | SET SCHEMA new | OWNER TO role
    DROP TYPE [IF EXISTS] name, ... [CASCADE]

A type's oid is made of a page id, as a table's, from a tree that is given up at once.
"""

from __future__ import annotations

from collections.abc import Callable

from compute.sql import ddl
from compute.sql.alter import drop_column
from compute.sql.catalog import FIRST_TABLE_ID, Catalog, Table, encode_type, relation_key
from compute.sql.definitions import Name
from compute.sql.enums import GAP, EnumType, Labels, enum_type, place_between
from compute.sql.environment import lookup_path
from compute.sql.mistakes import not_supported, unknown_type
from compute.sql.plan import Plan, SessionLike
from compute.sql.rebuild import AlterBound
from compute.sql.relation_ddl import name_list, read_name
from compute.sql.syntax import STRING, Token, near, string_value
from compute.sql.utility import Reader
from compute.sql.write_run import retried
from polarless.errors import CallerMistake


def plan_types(tokens: list[Token]) -> Plan | None:
    """See the module's docstring; None for what is about something else."""
    if len(tokens) < 2 or tokens[1].value != "type":
        return None
    reader = Reader(tokens)
    word = reader.next().value
    reader.next()
    if word == "create":
        return _create(reader)
    if word == "alter":
        return _alter(reader)
    return _drop(reader) if word == "drop" else None


def _label(reader: Reader) -> str:
    token = reader.next()
    if token.kind != STRING:
        raise near(token)
    label = string_value(token)
    if len(label.encode()) > 63 or not label:
        raise CallerMistake(
            f'invalid enum label "{label}"',
            sqlstate="42602",
            detail="Labels must be 63 bytes or less.",
        )
    return label


def _create(reader: Reader) -> Plan:
    name = read_name(reader)
    if not reader.accept("as", "enum"):
        raise not_supported(
            "CREATE TYPE other than AS ENUM", hint="Use columns, or jsonb for a composite value."
        )
    reader.expect("(")
    labels: list[str] = []
    while not reader.accept(")"):
        if labels:
            reader.expect(",")
        label = _label(reader)
        if label in labels:
            raise _duplicate_label(label)
        labels.append(label)
    reader.end()

    def action(session: SessionLike) -> str:
        ddl.check_schema(session, name)
        catalog = ddl.current_catalog(session)
        _check_free(catalog, name.schema, name.name)
        txn, engine = ddl.transaction_of(session), session.engine
        tree = engine.new_tree(txn, int_keys=True)
        engine.drop_tree(txn, tree)
        places = tuple((GAP * number, label) for number, label in enumerate(labels, 1))
        _store(session, enum_type(FIRST_TABLE_ID + tree.root, name.schema, name.name, places))
        return "CREATE TYPE"

    return ddl.ddl_plan("CREATE TYPE", action)


def _duplicate_label(label: str) -> CallerMistake:
    return CallerMistake(
        'duplicate key value violates unique constraint "pg_enum_typid_label_index"',
        sqlstate="23505",
        detail=f"Key (enumlabel)=({label}) already exists.",
    )


def _check_free(catalog: Catalog, schema: str, name: str) -> None:
    # A table's rows have a type of its name.
    if (schema, name) in catalog.types or catalog.kind_of(name, schema) in ("table", "view"):
        raise CallerMistake(f'type "{name}" already exists', sqlstate="42710")


def _store(session: SessionLike, kind: EnumType) -> None:
    txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
    key = relation_key("type", kind.schema, kind.name)
    txn.lock_and_get(tree, key)
    txn.put(tree, key, encode_type(kind))
    ddl.changed(session)


def _forget(session: SessionLike, kind: EnumType) -> None:
    txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
    key = relation_key("type", kind.schema, kind.name)
    txn.lock_and_get(tree, key)
    txn.put(tree, key, None)
    ddl.drop_comment(session, "type", kind.schema, kind.name)
    ddl.changed(session)


def located_type(catalog: Catalog, name: Name) -> EnumType | None:
    """The type of this name, in the search path if it is a bare one."""
    places = lookup_path() if name.written == name.name else (name.schema,)
    for schema in places:
        found = catalog.types.get((schema, name.name))
        if found is not None:
            return found
    return None


def _known(session: SessionLike, name: Name) -> EnumType:
    found = located_type(ddl.current_catalog(session), name)
    if found is None:
        raise unknown_type(name.written)
    return found


# --------------------------------------------------------------------------------------- ALTER TYPE


def _alter(reader: Reader) -> Plan:
    name = read_name(reader)
    change = _change(reader)
    reader.end()

    def action(session: SessionLike) -> str:
        kind = _known(session, name)
        after = change(session, kind)
        if after is not None and after is not kind:
            if (after.schema, after.name) != (kind.schema, kind.name):
                _check_free(ddl.current_catalog(session), after.schema, after.name)
                _forget(session, kind)
            _store(session, after)
        return "ALTER TYPE"

    return ddl.ddl_plan("ALTER TYPE", action)


def _change(reader: Reader) -> Callable[[SessionLike, EnumType], EnumType | None]:
    if reader.accept("add", "value"):
        return _add_value(reader)
    if reader.accept("rename", "value"):
        old = _label(reader)
        reader.expect("to")
        new = _label(reader)
        return lambda session, kind: _with_labels(kind, _renamed(kind, old, new))
    if reader.accept("rename", "to"):
        to = reader.name()
        return lambda session, kind: enum_type(kind.oid, kind.schema, to, kind.labels)
    if reader.accept("set", "schema"):
        schema = reader.name()

        def move(session: SessionLike, kind: EnumType) -> EnumType:
            ddl.check_schema(session, Name(schema, kind.name, kind.name))
            return enum_type(kind.oid, schema, kind.name, kind.labels)

        return move
    if reader.accept("owner", "to"):
        reader.name()
        return lambda session, kind: None
    raise not_supported("this ALTER TYPE")


def _with_labels(kind: EnumType, labels: Labels) -> EnumType:
    return enum_type(kind.oid, kind.schema, kind.name, labels)


def _index(kind: EnumType, label: str) -> int:
    for index, (_, found) in enumerate(kind.labels):
        if found == label:
            return index
    raise CallerMistake(f'"{label}" is not an existing enum label', sqlstate="22023")


def _renamed(kind: EnumType, old: str, new: str) -> Labels:
    index = _index(kind, old)
    if any(label == new for _, label in kind.labels):
        raise CallerMistake(f'enum label "{new}" already exists', sqlstate="42710")
    labels = list(kind.labels)
    labels[index] = (labels[index][0], new)
    return tuple(labels)


def _add_value(reader: Reader) -> Callable[[SessionLike, EnumType], EnumType | None]:
    quiet = reader.accept("if", "not", "exists")
    label = _label(reader)
    before = _label(reader) if reader.accept("before") else None
    after = _label(reader) if reader.accept("after") else None

    def add(session: SessionLike, kind: EnumType) -> EnumType | None:
        if any(found == label for _, found in kind.labels):
            if not quiet:
                raise CallerMistake(f'enum label "{label}" already exists', sqlstate="42710")
            session.notice("NOTICE", "42710", f'enum label "{label}" already exists, skipping')
            return None
        index = len(kind.labels)
        if before is not None:
            index = _index(kind, before)
        elif after is not None:
            index = _index(kind, after) + 1
        labels = list(kind.labels)
        labels.insert(index, (place_between(kind.labels, index), label))
        return _with_labels(kind, tuple(labels))

    return add


# ---------------------------------------------------------------------------------------- DROP TYPE


def _drop(reader: Reader) -> Plan:
    quiet = reader.accept("if", "exists")
    names = name_list(reader)
    cascade = reader.accept("cascade")
    if not cascade:
        reader.accept("restrict")
    reader.end()

    async def action(session: SessionLike) -> str:
        for name in names:
            catalog = await retried(ddl.current_catalog, session)
            kind = located_type(catalog, name)
            if kind is None:
                if not quiet:
                    raise unknown_type(name.written)
                session.notice("NOTICE", "00000", f'type "{name.written}" does not exist, skipping')
                continue
            await drop_type(session, catalog, kind, cascade=cascade)
        return "DROP TYPE"

    return Plan(
        "ddl",
        writes=True,
        verb="DROP TYPE",
        binder=lambda plan, params, results: AlterBound(plan, results, action),
    )


def users_of(catalog: Catalog, kind: EnumType) -> list[tuple[Table, str]]:
    """The columns that are of a type, or arrays of it."""
    return [
        (table, column.name)
        for table in catalog.tables.values()
        for column in table.columns
        if column.type.oid in (kind.oid, kind.array_oid)
    ]


async def drop_type(
    session: SessionLike, catalog: Catalog, kind: EnumType, *, cascade: bool
) -> None:
    """Drop an enum, and with CASCADE the columns that are of it; else it is 2BP01."""
    for table, column in users_of(catalog, kind):
        if not cascade:
            raise CallerMistake(
                f"cannot drop type {kind.name} because other objects depend on it",
                sqlstate="2BP01",
                detail=f"column {column} of table {table.name} depends on type {kind.name}",
                hint="Use DROP ... CASCADE to drop the dependent objects too.",
            )
        session.notice("NOTICE", "00000", f"drop cascades to column {column} of table {table.name}")
        await drop_column(session, Name(table.schema, table.name, table.name), column)
    await retried(_forget, session, kind)
