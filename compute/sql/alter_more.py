"""ALTER TABLE, VIEW and SCHEMA in the forms that are read from their tokens.

    ALTER TABLE t RENAME CONSTRAINT a TO b | SET SCHEMA s | OWNER TO r | VALIDATE CONSTRAINT c
    ALTER TABLE t ALTER c DROP EXPRESSION | ADD GENERATED ... AS IDENTITY | SET GENERATED ...
                          | DROP IDENTITY | SET STATISTICS n | SET STORAGE s
    ALTER VIEW v RENAME TO w | RENAME COLUMN a TO b | SET SCHEMA s | OWNER TO r
    ALTER SCHEMA s RENAME TO t | OWNER TO r

What only tells PostgreSQL how to store or guard rows (OWNER, SET STATISTICS, SET (fillfactor = 70)
and others) is read and means nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from compute.sql import ddl
from compute.sql.catalog import (
    GENERATED,
    Catalog,
    Table,
    TableColumn,
    View,
    encode_type,
    relation_key,
    row_key,
)
from compute.sql.definitions import Definitions, Generated, Name, own_names
from compute.sql.dependents import renamed_views
from compute.sql.enums import enum_type
from compute.sql.mistakes import not_supported, unknown_table
from compute.sql.plan import Plan, SessionLike
from compute.sql.relation_ddl import read_name, sequence_options
from compute.sql.syntax import Token
from compute.sql.utility import Reader
from polarless.errors import CallerMistake

Change = Callable[[SessionLike, Table], Table | None]


def plan_alter_more(tokens: list[Token]) -> Plan | None:
    """See the module's docstring; None for what others read."""
    if len(tokens) < 3 or tokens[0].value != "alter":
        return None
    reader = Reader(tokens)
    reader.next()
    what = reader.next().value
    if what == "table":
        return _table(reader)
    if what == "view":
        return _view(reader)
    return _schema(reader) if what == "schema" else None


def _table(reader: Reader) -> Plan | None:
    quiet = reader.accept("if", "exists")
    reader.accept("only")
    name = read_name(reader)
    reader.accept("*")
    change = _change(reader)
    if change is None:
        return None
    reader.end()

    def action(session: SessionLike) -> str:
        place = ddl.located(session, name)
        table = ddl.newest(session, place)
        if table is None:
            kind = ddl.current_catalog(session).kind_of(place.name, place.schema)
            if kind is not None and change is _nothing:
                return "ALTER TABLE"
            if kind is not None:
                raise CallerMistake(f'"{name.name}" is not a table', sqlstate="42809")
            if not quiet:
                raise unknown_table(name.written)
            session.notice("NOTICE", "42P01", f'relation "{name.written}" does not exist, skipping')
            return "ALTER TABLE"
        ddl.lock_table(session, table)
        after = change(session, table)
        if after is not None:
            ddl.store(session, after)
        return "ALTER TABLE"

    return ddl.ddl_plan("ALTER TABLE", action)


def _change(reader: Reader) -> Change | None:
    if reader.accept("rename", "constraint"):
        old = reader.name()
        reader.expect("to")
        new = reader.name()
        return lambda session, table: _rename_constraint(session, table, old, new)
    if reader.accept("set", "schema"):
        schema = reader.name()
        return lambda session, table: _move(session, table, schema)
    if reader.accept("validate", "constraint"):
        wanted = reader.name()
        return lambda session, table: _validate(table, wanted)
    if _means_nothing(reader):
        return _nothing
    start = reader.position
    if reader.accept("alter"):
        reader.accept("column")
        found = _column(reader, reader.name())
        if found is not None:
            return found
    reader.position = start
    return None


def _nothing(session: SessionLike, table: Table) -> None:
    """What has no meaning here."""


_NOTHING: Final = (
    ("owner", "to"), ("replica", "identity"), ("cluster", "on"), ("set", "without"),
    ("set", "logged"), ("set", "unlogged"), ("set", "("), ("reset", "("), ("set", "tablespace"),
    ("enable", "trigger"), ("disable", "trigger"),
)  # fmt: skip


def _means_nothing(reader: Reader) -> bool:
    """Step over what has no meaning here, to the end."""
    if not any(reader.accept(*words) for words in _NOTHING):
        return False
    while reader.peek is not None:
        reader.next()
    return True


def _column(reader: Reader, name: str) -> Change | None:
    if reader.accept("drop", "expression"):
        quiet = reader.accept("if", "exists")
        return lambda session, table: _drop_expression(session, table, name, quiet=quiet)
    if reader.accept("drop", "identity"):
        quiet = reader.accept("if", "exists")
        return lambda session, table: _drop_identity(session, table, name, quiet=quiet)
    if reader.accept("set", "statistics") or reader.accept("set", "storage"):
        while reader.peek is not None:
            reader.next()
        return lambda session, table: _nothing_of(table, name)
    if reader.accept("set", "generated"):
        kind = _always(reader)
        return lambda session, table: _set_identity(table, name, kind)
    if reader.accept("add", "generated"):
        kind = _always(reader)
        reader.expect("as", "identity")
        options: dict[str, Any] = {}
        if reader.accept("("):
            inner = Reader(reader.tokens[reader.position : -1])
            options = sequence_options(inner)
            reader.position = len(reader.tokens) - 1
            reader.expect(")")
        return lambda session, table: _add_identity(session, table, name, kind, options)
    return None


def _always(reader: Reader) -> str:
    if reader.accept("always"):
        return "a"
    reader.expect("by", "default")
    return "d"


def _place(table: Table, name: str) -> int:
    if name not in table.index:
        raise CallerMistake(
            f'column "{name}" of relation "{table.name}" does not exist', sqlstate="42703"
        )
    return table.index[name]


def _nothing_of(table: Table, name: str) -> None:
    _place(table, name)


def _with_column(table: Table, place: int, column: TableColumn) -> Table:
    columns = list(table.columns)
    columns[place] = column
    return replace(table, columns=tuple(columns))


def _drop_expression(session: SessionLike, table: Table, name: str, *, quiet: bool) -> Table | None:
    place = _place(table, name)
    column = table.columns[place]
    if column.identity == GENERATED:
        return _with_column(table, place, replace(column, identity="", default=None))
    message = f'column "{name}" of relation "{table.name}" is not a stored generated column'
    if not quiet:
        raise CallerMistake(message, sqlstate="55000")
    session.notice("NOTICE", "00000", f"{message}, skipping")
    return None


def _not_identity(table: Table, name: str) -> str:
    return f'column "{name}" of relation "{table.name}" is not an identity column'


def _drop_identity(session: SessionLike, table: Table, name: str, *, quiet: bool) -> Table | None:
    place = _place(table, name)
    column = table.columns[place]
    if column.identity not in ("a", "d"):
        if not quiet:
            raise CallerMistake(_not_identity(table, name), sqlstate="55000")
        session.notice("NOTICE", "00000", f"{_not_identity(table, name)}, skipping")
        return None
    for sequence in ddl.owned_sequences(ddl.current_catalog(session), table):
        if sequence.owner == (table.table_id, name):
            ddl.drop_sequence(session, sequence)
    return _with_column(table, place, replace(column, identity="", default=None))


def _set_identity(table: Table, name: str, kind: str) -> Table:
    place = _place(table, name)
    column = table.columns[place]
    if column.identity not in ("a", "d"):
        raise CallerMistake(_not_identity(table, name), sqlstate="55000")
    return _with_column(table, place, replace(column, identity=kind))


def _add_identity(
    session: SessionLike, table: Table, name: str, kind: str, options: dict[str, Any]
) -> Table:
    place = _place(table, name)
    column = table.columns[place]
    where = f'column "{name}" of relation "{table.name}"'
    if not column.not_null:
        raise CallerMistake(
            f"{where} must be declared NOT NULL before identity can be added", sqlstate="55000"
        )
    if column.identity in ("a", "d"):
        raise CallerMistake(f"{where} is already an identity column", sqlstate="55000")
    if column.default is not None:
        raise CallerMistake(f"{where} already has a default value", sqlstate="55000")
    found = Definitions(generated=[Generated(name, column.type, options)])
    after = ddl.add_generated(session, table, found, ddl.current_catalog(session))
    return _with_column(after, place, replace(after.columns[place], identity=kind))


def _validate(table: Table, name: str) -> None:
    """What is there was checked when it was added."""
    if name not in own_names(table):
        raise CallerMistake(
            f'constraint "{name}" of relation "{table.name}" does not exist', sqlstate="42704"
        )


def _rename_constraint(session: SessionLike, table: Table, old: str, new: str) -> Table:
    if old not in own_names(table):
        raise CallerMistake(
            f'constraint "{old}" for table "{table.name}" does not exist', sqlstate="42704"
        )
    is_index = old == table.constraint or any(index.name == old for index in table.indexes)
    if is_index and ddl.current_catalog(session).kind_of(new, table.schema) is not None:
        raise CallerMistake(f'relation "{new}" already exists', sqlstate="42P07")
    if new in own_names(table):
        raise CallerMistake(
            f'constraint "{new}" for relation "{table.name}" already exists', sqlstate="42710"
        )

    def named(item: Any) -> Any:
        return replace(item, name=new) if item.name == old else item

    return replace(
        table,
        constraint=new if table.constraint == old else table.constraint,
        indexes=tuple(map(named, table.indexes)),
        checks=tuple(map(named, table.checks)),
        foreign=tuple(map(named, table.foreign)),
    )


def _move(session: SessionLike, table: Table, schema: str) -> Table | None:
    """To another schema, with the sequences that it owns."""
    if schema == table.schema:
        return None
    ddl.check_schema(session, Name(schema, table.name, table.name))
    catalog = ddl.current_catalog(session)
    if catalog.kind_of(table.name, schema) is not None:
        raise CallerMistake(
            f'relation "{table.name}" already exists in schema "{schema}"', sqlstate="42P07"
        )
    txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
    ddl.newest(session, Name(schema, table.name, table.name))
    columns = list(table.columns)
    for sequence in ddl.owned_sequences(catalog, table):
        txn.put(tree, relation_key("sequence", sequence.schema, sequence.name), None)
        ddl.store_sequence(session, replace(sequence, schema=schema))
        old = ddl.nextval_text(sequence.schema, sequence.name)
        new = ddl.nextval_text(schema, sequence.name)
        columns = [replace(c, default=new) if c.default == old else c for c in columns]
    txn.put(tree, row_key(table.schema, table.name), None)
    ddl.move_grants(session, table.schema, table.name, table.name, schema)
    for view in renamed_views(catalog, (table.schema, table.name), (schema, table.name)):
        ddl.store_view(session, view)
    return replace(table, schema=schema, columns=tuple(columns))


# -------------------------------------------------------------------------------- views and schemas


def _view(reader: Reader) -> Plan | None:
    quiet = reader.accept("if", "exists")
    name = read_name(reader)
    rename = reader.accept("rename")
    schema = to = column = ""
    if rename and reader.accept("to"):
        to = reader.name()
    elif rename:
        reader.accept("column")
        column = reader.name()
        reader.expect("to")
        to = reader.name()
    elif reader.accept("set", "schema"):
        schema = reader.name()
    elif not _means_nothing(reader):
        raise not_supported("this ALTER VIEW", hint="CREATE OR REPLACE VIEW is.")
    reader.end()

    def action(session: SessionLike) -> str:
        place = ddl.located(session, name)
        catalog = ddl.current_catalog(session)
        view = catalog.views.get((place.schema, place.name))
        if view is None:
            if catalog.kind_of(place.name, place.schema) is not None:
                raise CallerMistake(f'"{name.name}" is not a view', sqlstate="42809")
            if not quiet:
                raise unknown_table(name.written)
            session.notice("NOTICE", "42P01", f'relation "{name.written}" does not exist, skipping')
            return "ALTER VIEW"
        if column:
            ddl.store_view(session, _renamed_column(catalog, view, column, to))
        elif to or schema:
            after = replace(view, name=to or view.name, schema=schema or view.schema)
            _move_view(session, catalog, view, after)
        return "ALTER VIEW"

    return ddl.ddl_plan("ALTER VIEW", action)


def _move_view(session: SessionLike, catalog: Catalog, view: View, after: View) -> None:
    ddl.check_schema(session, Name(after.schema, after.name, after.name))
    if catalog.kind_of(after.name, after.schema) is not None:
        raise CallerMistake(f'relation "{after.name}" already exists', sqlstate="42P07")
    txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
    key = relation_key("view", view.schema, view.name)
    txn.lock_and_get(tree, key)
    txn.put(tree, key, None)
    ddl.move_grants(session, view.schema, view.name, after.name, after.schema)
    ddl.store_view(session, after)
    places = ((view.schema, view.name), (after.schema, after.name))
    for other in renamed_views(catalog, *places):
        ddl.store_view(session, other)


def _renamed_column(catalog: Catalog, view: View, old: str, new: str) -> View:
    from compute.sql.analytics.views import columns_of

    names = [name for name, *_ in columns_of(catalog, view)]
    if old not in names:
        raise CallerMistake(f'column "{old}" does not exist', sqlstate="42703")
    if new in names:
        raise CallerMistake(
            f'column "{new}" of relation "{view.name}" already exists', sqlstate="42701"
        )
    return replace(view, columns=tuple(new if name == old else name for name in names))


def _schema(reader: Reader) -> Plan | None:
    name = reader.name()
    if reader.accept("owner", "to"):
        reader.name()
        to = ""
    else:
        reader.expect("rename", "to")
        to = reader.name()
    reader.end()

    def action(session: SessionLike) -> str:
        catalog = ddl.current_catalog(session)
        if name not in catalog.schemas:
            if name == "public" and not to:
                return "ALTER SCHEMA"
            raise CallerMistake(f'schema "{name}" does not exist', sqlstate="3F000")
        if to:
            _rename_schema(session, catalog, name, to)
        return "ALTER SCHEMA"

    return ddl.ddl_plan("ALTER SCHEMA", action)


def _rename_schema(session: SessionLike, catalog: Catalog, old: str, new: str) -> None:
    if new in catalog.schemas or new in ("public", "information_schema", "polarless"):
        raise CallerMistake(f'schema "{new}" already exists', sqlstate="42P06")
    if new.startswith("pg_"):
        raise CallerMistake(f'unacceptable schema name "{new}"', sqlstate="42939")
    txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
    for schema in (new, old):
        txn.lock_and_get(tree, relation_key("schema", schema, ""))
    tables = [
        ddl.newest(session, Name(t.schema, t.name, t.name))
        for t in catalog.tables.values()
        if t.schema == old
    ]
    for found in tables:
        if found is not None:
            ddl.lock_table(session, found)
    txn.put(tree, relation_key("schema", old, ""), None)
    txn.put(tree, relation_key("schema", new, ""), b"\x80")
    for found in tables:
        moved = None if found is None else _move(session, found, new)
        if moved is not None:
            ddl.store(session, moved)
    for view in catalog.views.values():
        if view.schema == old:
            _move_view(session, catalog, view, replace(view, schema=new))
    for kind in catalog.types.values():
        if kind.schema == old:
            txn.put(tree, relation_key("type", old, kind.name), None)
            moved_type = enum_type(kind.oid, new, kind.name, kind.labels)
            txn.put(tree, relation_key("type", new, kind.name), encode_type(moved_type))
    for sequence in catalog.sequences.values():
        if sequence.schema == old and sequence.owner is None:
            txn.put(tree, relation_key("sequence", old, sequence.name), None)
            ddl.store_sequence(session, replace(sequence, schema=new))
    ddl.changed(session)
