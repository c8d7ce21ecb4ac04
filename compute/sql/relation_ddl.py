"""Sequences, views, schemas, comments, and indexes by name: DDL read from its tokens.

    CREATE | ALTER | DROP SEQUENCE    CREATE | DROP VIEW      CREATE | DROP SCHEMA
    DROP INDEX    ALTER INDEX ... RENAME    COMMENT ON

`plan_relations` gives a plan, or None for what others read. A view is kept as the text of its
query; whoever reads from it plans that text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from compute.sql import ddl
from compute.sql.catalog import PUBLIC, Catalog, Sequence, View, relation_key
from compute.sql.comment_ddl import plan_comment
from compute.sql.definitions import Name
from compute.sql.dependents import drop_views_on
from compute.sql.environment import creation_schema
from compute.sql.mistakes import not_supported
from compute.sql.plan import Plan, SessionLike, command_complete
from compute.sql.syntax import NUMBER, Token, near
from compute.sql.types import BY_NAME
from compute.sql.utility import Reader, session_plan
from polarless.errors import CallerMistake


def read_name(reader: Reader) -> Name:
    """``[schema.]name``."""
    first = reader.name()
    if reader.accept("."):
        second = reader.name()
        return Name(first, second, f"{first}.{second}")
    return Name(creation_schema(), first, first)


def name_list(reader: Reader) -> list[Name]:
    """Several names, with commas between them."""
    names = [read_name(reader)]
    while reader.accept(","):
        names.append(read_name(reader))
    return names


def _cascade(reader: Reader) -> bool:
    cascade = reader.accept("cascade")
    if not cascade:
        reader.accept("restrict")
    reader.end()
    return cascade


def plan_relations(text: str, tokens: list[Token]) -> Plan | None:
    """See the module's docstring."""
    reader = Reader(tokens)
    if reader.accept("comment", "on"):
        return plan_comment(reader)
    if reader.accept("lock"):
        return _lock(reader)
    word = tokens[0].value
    if len(tokens) < 2 or word not in ("create", "alter", "drop"):
        return None
    reader.next()
    replaces = reader.accept("or", "replace")
    if reader.accept("temporary") or reader.accept("temp"):
        pass
    what = reader.next().value
    if what == "view" and word == "create":
        return _create_view(text, reader, replaces=replaces)
    maker = _MAKERS.get((word, what))
    return None if maker is None or replaces else maker(reader)


def _lock(reader: Reader) -> Plan:
    """LOCK [TABLE] a, b [IN mode MODE]. Modes that keep writers out wait for them; others are void,
    since readers are never in anybody's way."""
    reader.accept("table")
    names = name_list(reader)
    mode = ""
    if reader.accept("in"):
        words = []
        while not reader.accept("mode"):
            words.append(reader.next().value)
        mode = " ".join(words)
    reader.accept("nowait")
    reader.end()

    def action(session: SessionLike) -> str:
        if not getattr(session, "explicit", True):
            raise CallerMistake(
                "LOCK TABLE can only be used in transaction blocks", sqlstate="25P01"
            )
        for written in names:
            table = ddl.newest(session, ddl.located(session, written))
            if table is None:
                raise CallerMistake(
                    f'relation "{written.written}" does not exist', sqlstate="42P01"
                )
            if mode not in ("access share", "row share", "row exclusive"):
                ddl.lock_table(session, table)
        return "LOCK TABLE"

    return ddl.ddl_plan("LOCK TABLE", action)


# ---------------------------------------------------------------------------------------- sequences


def _number(reader: Reader) -> int:
    sign = -1 if reader.accept("-") else 1
    reader.accept("+")
    token = reader.next()
    if token.kind != NUMBER or not token.value.isdigit():
        raise near(token)
    return sign * int(token.value)


def sequence_options(reader: Reader) -> dict[str, Any]:
    """The options of a sequence, up to the end."""
    found: dict[str, Any] = {}
    while reader.peek is not None:
        if reader.accept("as"):
            found["type"] = BY_NAME.get(reader.name())
            if found["type"] is None or found["type"].name not in ("smallint", "integer", "bigint"):
                raise CallerMistake(
                    "sequence type must be smallint, integer, or bigint", sqlstate="22023"
                )
        elif reader.accept("increment"):
            reader.accept("by")
            found["increment"] = _number(reader)
            if not found["increment"]:
                raise CallerMistake("INCREMENT must not be zero", sqlstate="22023")
        elif reader.accept("minvalue"):
            found["low"] = _number(reader)
        elif reader.accept("maxvalue"):
            found["high"] = _number(reader)
        elif reader.accept("no", "minvalue") or reader.accept("no", "maxvalue"):
            pass
        elif reader.accept("start"):
            reader.accept("with")
            found["start"] = _number(reader)
        elif reader.accept("restart"):
            found["restart"] = None
            if reader.accept("with") or (reader.peek is not None and reader.peek.kind == NUMBER):
                found["restart"] = _number(reader)
        elif reader.accept("cache"):
            _number(reader)
        elif reader.accept("no", "cycle"):
            found["cycle"] = False
        elif reader.accept("cycle"):
            found["cycle"] = True
        elif reader.accept("owned", "by"):
            parts = [reader.name()]
            while reader.accept("."):
                parts.append(reader.name())
            found["owner"] = parts
        elif reader.accept("owner", "to"):
            reader.name()
        else:
            raise near(reader.next())
    return found


def plain_identity(text: str, tokens: list[Token]) -> str:
    """The text with the options of identity columns in the one order that sqlglot reads."""
    parts: list[str] = []
    position = index = 0
    while index + 2 < len(tokens):
        index += 1
        if [token.value for token in tokens[index - 1 : index + 2]] != ["as", "identity", "("]:
            continue
        end = next(i for i in range(index, len(tokens)) if tokens[i].value == ")")
        found = sequence_options(Reader(tokens[index + 2 : end]))
        words = [
            f"{word} {found[name]}"
            for name, word in (
                ("start", "START WITH"), ("increment", "INCREMENT BY"), ("low", "MINVALUE"),
                ("high", "MAXVALUE"),
            )
            if found.get(name) is not None
        ]  # fmt: skip
        if found.get("cycle"):
            words.append("CYCLE")
        inside = f" ({' '.join(words)})" if words else ""
        parts += (text[position : tokens[index].end], inside)
        position, index = tokens[end].end, end
    return "".join(parts) + text[position:] if parts else text


def _owner(catalog: Catalog, parts: list[str]) -> tuple[int, str] | None:
    if parts == ["none"]:
        return None
    schema, table, column = ([PUBLIC, *parts] if len(parts) == 2 else parts)[:3]
    found = catalog.find(table, schema)
    if found is None:
        raise CallerMistake(f'relation "{table}" does not exist', sqlstate="42P01")
    if column not in found.index:
        raise CallerMistake(
            f'column "{column}" of relation "{table}" does not exist', sqlstate="42703"
        )
    return found.table_id, column


def _create_sequence(reader: Reader) -> Plan:
    quiet = reader.accept("if", "not", "exists")
    name = read_name(reader)
    options = sequence_options(reader)

    def action(session: SessionLike) -> str:
        ddl.check_schema(session, name)
        catalog = ddl.current_catalog(session)
        if catalog.kind_of(name.name, name.schema) is not None:
            if not quiet:
                raise CallerMistake(f'relation "{name.name}" already exists', sqlstate="42P07")
            session.notice("NOTICE", "42P07", f'relation "{name.name}" already exists, skipping')
            return "CREATE SEQUENCE"
        owner = _owner(catalog, options["owner"]) if options.get("owner") else None
        kind = options.get("type") or BY_NAME["bigint"]
        ddl.create_sequence(session, name.schema, name.name, kind, options, owner)
        return "CREATE SEQUENCE"

    return ddl.ddl_plan("CREATE SEQUENCE", action)


def _sequence(catalog: Catalog, name: Name) -> Sequence:
    found = catalog.sequences.get((name.schema, name.name))
    if found is None:
        raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
    return found


def _alter_sequence(reader: Reader) -> Plan:
    quiet = reader.accept("if", "exists")
    name = read_name(reader)
    renamed = reader.name() if reader.accept("rename", "to") else None
    options = sequence_options(reader)

    def action(session: SessionLike) -> str:
        catalog = ddl.current_catalog(session)
        if quiet and (name.schema, name.name) not in catalog.sequences:
            session.notice("NOTICE", "42P01", f'relation "{name.name}" does not exist, skipping')
            return "ALTER SEQUENCE"
        found = _sequence(catalog, name)
        if renamed is not None:
            if catalog.kind_of(renamed, name.schema) is not None:
                raise CallerMistake(f'relation "{renamed}" already exists', sqlstate="42P07")
            key = relation_key("sequence", found.schema, found.name)
            ddl.transaction_of(session).put(session.engine.catalog_tree, key, None)
            ddl.store_sequence(session, replace(found, name=renamed))
            _rename_default(session, catalog, found, renamed)
            return "ALTER SEQUENCE"
        changes: dict[str, Any] = {
            key: options[key] for key in ("increment", "low", "high", "start", "cycle",
                                                 "type") if key in options}  # fmt: skip
        if "owner" in options:
            changes["owner"] = _owner(catalog, options["owner"])
        if changes:
            ddl.store_sequence(session, replace(found, **changes))
        if "restart" in options:
            ddl.restart_sequence(session, replace(found, **changes), options["restart"])
        return "ALTER SEQUENCE"

    return ddl.ddl_plan("ALTER SEQUENCE", action)


def _rename_default(session: SessionLike, catalog: Catalog, found: Sequence, renamed: str) -> None:
    """The default that names the sequence names it by its new name."""
    if found.owner is None:
        return
    table = catalog.by_id(found.owner[0])
    if table is None:
        return
    old = ddl.nextval_text(found.schema, found.name)
    new = ddl.nextval_text(found.schema, renamed)
    now = ddl.newest(session, Name(table.schema, table.name, table.name))
    if now is not None:
        columns = tuple(replace(c, default=new) if c.default == old else c for c in now.columns)
        ddl.store(session, replace(now, columns=columns))


def _missing(session: SessionLike, what: str, name: Name, *, quiet: bool) -> None:
    if not quiet:
        state = "42704" if what == "index" else "42P01"
        raise CallerMistake(f'{what} "{name.written}" does not exist', sqlstate=state)
    session.notice("NOTICE", "00000", f'{what} "{name.written}" does not exist, skipping')


def _drop_sequence(reader: Reader) -> Plan:
    quiet = reader.accept("if", "exists")
    names = name_list(reader)
    cascade = _cascade(reader)

    def action(session: SessionLike) -> str:
        for name in names:
            catalog = ddl.current_catalog(session)
            found = catalog.sequences.get((name.schema, name.name))
            if found is None:
                _missing(session, "sequence", name, quiet=quiet)
                continue
            default = ddl.nextval_text(found.schema, found.name)
            for table in catalog.tables.values():
                users = [column for column in table.columns if column.default == default]
                if users and not cascade:
                    raise CallerMistake(
                        f"cannot drop sequence {found.name} because other objects depend on it",
                        sqlstate="2BP01",
                        detail=f"default value for column {users[0].name} of table {table.name} "
                        f"depends on sequence {found.name}",
                        hint="Use DROP ... CASCADE to drop the dependent objects too.",
                    )
                if users:
                    columns = tuple(
                        replace(c, default=None) if c.default == default else c
                        for c in table.columns
                    )
                    ddl.newest(session, Name(table.schema, table.name, table.name))
                    ddl.store(session, replace(table, columns=columns))
            ddl.drop_sequence(session, found)
        return "DROP SEQUENCE"

    return ddl.ddl_plan("DROP SEQUENCE", action)


# ------------------------------------------------------------------------------------------ indexes


def _drop_index(reader: Reader) -> Plan:
    reader.accept("concurrently")
    quiet = reader.accept("if", "exists")
    names = name_list(reader)
    _cascade(reader)

    def action(session: SessionLike) -> str:
        for written in names:
            name = ddl.located(session, written)
            catalog = ddl.current_catalog(session)
            found = catalog.index(name.name, name.schema)
            if found is None:
                if catalog.kind_of(name.name, name.schema) == "index":
                    _refuse_constraint(name.name)
                _missing(session, "index", name, quiet=quiet)
                continue
            table, index = found
            if index.constraint:
                _refuse_constraint(index.name, table.name)
            ddl.newest(session, Name(table.schema, table.name, table.name))
            ddl.lock_table(session, table)
            kept = tuple(other for other in table.indexes if other.name != index.name)
            ddl.store(session, replace(table, indexes=kept))
            session.engine.drop_tree(ddl.transaction_of(session), index.tree)
        return "DROP INDEX"

    return ddl.ddl_plan("DROP INDEX", action)


def _refuse_constraint(name: str, table: str = "") -> None:
    where = f" on table {table}" if table else ""
    raise CallerMistake(
        f"cannot drop index {name} because constraint {name}{where} requires it",
        sqlstate="2BP01",
        hint=f"You can drop constraint {name}{where} instead.",
    )


def _alter_index(reader: Reader) -> Plan:
    quiet = reader.accept("if", "exists")
    name = read_name(reader)
    if not reader.accept("rename", "to"):
        raise not_supported("this ALTER INDEX", hint="RENAME TO is.")
    renamed = reader.name()
    reader.end()

    def action(session: SessionLike) -> str:
        catalog = ddl.current_catalog(session)
        found = catalog.index(name.name, name.schema)
        if found is None:
            if not quiet:
                raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
            session.notice("NOTICE", "42P01", f'relation "{name.name}" does not exist, skipping')
            return "ALTER INDEX"
        if catalog.kind_of(renamed, name.schema) is not None:
            raise CallerMistake(f'relation "{renamed}" already exists', sqlstate="42P07")
        table, index = found
        ddl.newest(session, Name(table.schema, table.name, table.name))
        indexes = tuple(
            replace(i, name=renamed) if i.name == index.name else i for i in table.indexes
        )
        ddl.store(session, replace(table, indexes=indexes))
        return "ALTER INDEX"

    return ddl.ddl_plan("ALTER INDEX", action)


# -------------------------------------------------------------------------------- views and schemas


def _create_view(text: str, reader: Reader, *, replaces: bool) -> Plan:
    quiet = reader.accept("if", "not", "exists")
    name = read_name(reader)
    columns: list[str] = []
    if reader.accept("("):
        columns.append(reader.name())
        while reader.accept(","):
            columns.append(reader.name())
        reader.expect(")")
    reader.expect("as")
    first = reader.peek
    if first is None:
        reader.next()  # raises
    assert first is not None
    query = text[first.start : reader.tokens[-1].end]

    def action(session: SessionLike) -> str:
        ddl.check_schema(session, name)
        catalog = ddl.current_catalog(session)
        kind = catalog.kind_of(name.name, name.schema)
        if kind is not None and not (replaces and kind == "view"):
            if replaces:
                raise CallerMistake(f'"{name.name}" is not a view', sqlstate="42809")
            if not quiet:
                raise CallerMistake(f'relation "{name.name}" already exists', sqlstate="42P07")
            return "CREATE VIEW"
        ddl.store_view(session, View(name.schema, name.name, query, tuple(columns)))
        return "CREATE VIEW"

    return ddl.ddl_plan("CREATE VIEW", action)


def _drop_view(reader: Reader) -> Plan:
    quiet = reader.accept("if", "exists")
    names = name_list(reader)
    cascade = _cascade(reader)

    def action(session: SessionLike) -> str:
        catalog = ddl.current_catalog(session)
        views: dict[tuple[str, str], View] = {}
        for written in names:
            name = ddl.located(session, written)
            place = (name.schema, name.name)
            if place in catalog.views:
                views[place] = catalog.views[place]
                continue
            kind = catalog.kind_of(name.name, name.schema)
            if kind is not None:
                raise CallerMistake(
                    f'"{name.name}" is not a view',
                    sqlstate="42809",
                    hint=f"Use DROP {kind.upper()} to remove {'an' if kind == 'index' else 'a'} "
                    f"{kind}.",
                )
            _missing(session, "view", name, quiet=quiet)
        gone = drop_views_on(session, catalog, views, cascade=cascade)
        for view in [*views.values(), *gone]:
            ddl.drop_view(session, view)
        return "DROP VIEW"

    return ddl.ddl_plan("DROP VIEW", action)


def _delete(session: SessionLike, kind: str, schema: str, name: str) -> None:
    txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
    key = relation_key(kind, schema, name)
    txn.lock_and_get(tree, key)
    txn.put(tree, key, None)
    ddl.drop_comment(session, kind, schema, name)
    ddl.changed(session)


def _create_schema(reader: Reader) -> Plan:
    quiet = reader.accept("if", "not", "exists")
    name = "" if reader.accept("authorization") else reader.name()
    if not name:
        name = reader.name()
    elif reader.accept("authorization"):
        reader.name()
    reader.end()

    def action(session: SessionLike) -> str:
        if name.startswith("pg_"):
            raise CallerMistake(
                f'unacceptable schema name "{name}"',
                sqlstate="42939",
                detail='The prefix "pg_" is reserved for system schemas.',
            )
        known = ddl.current_catalog(session).schemas
        if name in known or name in (PUBLIC, "information_schema", "polarless"):
            if not quiet:
                raise CallerMistake(f'schema "{name}" already exists', sqlstate="42P06")
            session.notice("NOTICE", "42P06", f'schema "{name}" already exists, skipping')
            return "CREATE SCHEMA"
        txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
        key = relation_key("schema", name, "")
        txn.lock_and_get(tree, key)
        txn.put(tree, key, b"\x80")
        ddl.changed(session)
        return "CREATE SCHEMA"

    return ddl.ddl_plan("CREATE SCHEMA", action)


def _drop_schema(reader: Reader) -> Plan:
    quiet = reader.accept("if", "exists")
    names = [name.name for name in name_list(reader)]
    cascade = _cascade(reader)

    def action(session: SessionLike) -> str:
        for name in names:
            catalog = ddl.current_catalog(session)
            if name not in catalog.schemas:
                if not quiet:
                    raise CallerMistake(f'schema "{name}" does not exist', sqlstate="3F000")
                session.notice("NOTICE", "00000", f'schema "{name}" does not exist, skipping')
                continue
            empty_schema(session, catalog, name, cascade=cascade)
            _delete(session, "schema", name, "")
        return "DROP SCHEMA"

    return ddl.ddl_plan("DROP SCHEMA", action)


def empty_schema(session: SessionLike, catalog: Catalog, name: str, *, cascade: bool) -> None:
    """Drop what is in a schema; without CASCADE it has to be empty."""
    tables = {t.table_id: t for t in catalog.tables.values() if t.schema == name}
    views = [view for view in catalog.views.values() if view.schema == name]
    sequences = [found for found in catalog.sequences.values() if found.schema == name]
    types = [found for found in catalog.types.values() if found.schema == name]
    inside: list[Any] = [*tables.values(), *views, *sequences, *types]
    if inside and not cascade:
        raise CallerMistake(
            f"cannot drop schema {name} because other objects depend on it",
            sqlstate="2BP01",
            detail=f"{type(inside[0]).__name__.lower()} {name}.{inside[0].name} depends on schema "
            f"{name}",
            hint="Use DROP ... CASCADE to drop the dependent objects too.",
        )
    for table in tables.values():
        ddl.newest(session, Name(table.schema, table.name, table.name))
        ddl.lock_table(session, table)
    ddl.drop_referring(session, catalog, tables, cascade=cascade, verb="drop")
    places = [(name, table.name) for table in tables.values()]
    places += [(name, view.name) for view in views]
    views += drop_views_on(session, catalog, places, cascade=cascade)
    for table in tables.values():
        ddl.drop_table(session, catalog, table)
    for view in views:
        ddl.drop_view(session, view)
    for found in sequences:
        if found.owner is None or found.owner[0] not in tables:
            ddl.drop_sequence(session, found)
    for kind in types:
        used = [
            (table, column.name)
            for table in catalog.tables.values()
            for column in table.columns
            if table.schema != name and column.type.oid in (kind.oid, kind.array_oid)
        ]
        if used:
            raise CallerMistake(
                f"cannot drop type {name}.{kind.name} because other objects depend on it",
                sqlstate="2BP01",
                detail=f"column {used[0][1]} of table {used[0][0].name} depends on it",
                hint=f"DROP TYPE {name}.{kind.name} CASCADE first.",
            )
        _delete(session, "type", name, kind.name)


# -------------------------------------------------------------------------------------- extensions

# What comes with PostgreSQL. Scripts ask for these as a matter of course.
_CONTRIB: Final = frozenset(
    """adminpack amcheck autoinc bloom btree_gin btree_gist citext cube dblink dict_int dict_xsyn
    earthdistance file_fdw fuzzystrmatch hstore insert_username intagg intarray isn lo ltree
    moddatetime old_snapshot pageinspect pg_buffercache pg_freespacemap pg_prewarm
    pg_stat_statements pg_surgery pg_trgm pg_visibility pg_walinspect pgcrypto pgrowlocks
    pgstattuple postgres_fdw refint seg sslinfo tablefunc tcn tsm_system_rows tsm_system_time
    unaccent uuid-ossp xml2""".split()  # noqa: SIM905
)


def _create_extension(reader: Reader) -> Plan:
    """Nothing can be loaded. IF NOT EXISTS of what comes with PostgreSQL is no more than a warning,
    since most scripts go on without it."""
    quiet = reader.accept("if", "not", "exists")
    name = reader.name()
    while reader.peek is not None:
        reader.next()

    def action(session: SessionLike) -> bytes:
        if name == "plpgsql":
            if not quiet:
                raise CallerMistake(f'extension "{name}" already exists', sqlstate="42710")
            session.notice("NOTICE", "42710", f'extension "{name}" already exists, skipping')
        elif not quiet or name not in _CONTRIB:
            raise CallerMistake(
                f'extension "{name}" is not available',
                sqlstate="0A000",
                hint="Nothing can be loaded into a node.",
            )
        else:
            session.notice("WARNING", "0A000", f'extension "{name}" is not available, skipping')
        return command_complete("CREATE EXTENSION")

    return session_plan("query", "CREATE EXTENSION", action)


def _drop_extension(reader: Reader) -> Plan:
    quiet = reader.accept("if", "exists")
    names = name_list(reader)
    _cascade(reader)

    def action(session: SessionLike) -> bytes:
        for name in names:
            if not quiet:
                raise CallerMistake(f'extension "{name.name}" does not exist', sqlstate="42704")
            session.notice("NOTICE", "00000", f'extension "{name.name}" does not exist, skipping')
        return command_complete("DROP EXTENSION")

    return session_plan("query", "DROP EXTENSION", action)


_MAKERS: Final[dict[tuple[str, str], Callable[[Reader], Plan]]] = {
    ("create", "sequence"): _create_sequence,
    ("alter", "sequence"): _alter_sequence,
    ("drop", "sequence"): _drop_sequence,
    ("drop", "view"): _drop_view,
    ("drop", "index"): _drop_index,
    ("alter", "index"): _alter_index,
    ("create", "extension"): _create_extension,
    ("drop", "extension"): _drop_extension,
    ("create", "schema"): _create_schema,
    ("drop", "schema"): _drop_schema,
}
