"""CREATE TABLE, DROP TABLE, TRUNCATE, sequences: through the transaction like any other write.

Each statement first locks the table's row in the catalog and reads its newest state (the plan may
be old by then), then waits for the table's lock, and only then changes anything; so a `Suspend`
leaves nothing behind. Every change raises the engine's catalog version at once, since plans of this
very session must see it, and once more if it is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import sequences
from compute.sql.catalog import (
    FIRST_TABLE_ID,
    GENERATED,
    PG_CATALOG,
    PUBLIC,
    Catalog,
    Check,
    ForeignKey,
    Index,
    Sequence,
    Table,
    TableColumn,
    View,
    comment_key,
    decode_table,
    encode_sequence,
    encode_table,
    encode_view,
    has_int_keys,
    load,
    make_table,
    own_changes,
    relation_key,
    row_key,
)
from compute.sql.constraints import bound_checks, parents_of
from compute.sql.definitions import (
    CheckText,
    Definitions,
    Generated,
    Name,
    Unique,
    check_columns_of,
    fresh_name,
    key_columns,
    own_names,
    read,
    table_name,
)
from compute.sql.dependents import drop_views_on
from compute.sql.environment import lookup_path
from compute.sql.filling import check_generated
from compute.sql.index_parts import distinct, part_label
from compute.sql.indexes import check_columns
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.plan import Bound, Params, Plan, SessionLike, command_complete
from compute.sql.roles import EVERYBODY, grant_key, load_access
from compute.sql.select import arg
from compute.sql.types import SqlType
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.txn.transaction import Transaction


def check_schema(session: SessionLike, name: Name) -> None:
    """Raises unless something may be made in that schema."""
    if name.schema == PG_CATALOG:
        raise CallerMistake(
            f'permission denied to create "{PG_CATALOG}.{name.name}"',
            sqlstate="42501",
            detail="System catalog modifications are currently disallowed.",
        )
    if name.schema.startswith("pg_temp_"):
        return
    if name.schema != PUBLIC and name.schema not in current_catalog(session).schemas:
        raise CallerMistake(f'schema "{name.schema}" does not exist', sqlstate="3F000")


# ------------------------------------------------------------------------------- what all DDL does


def current_catalog(session: SessionLike) -> Catalog:
    """The catalog as this transaction sees it now. May raise a `Suspend`."""
    return load(session.engine, own_changes(session.txn))


def transaction_of(session: SessionLike) -> Transaction:
    """The transaction that a statement runs in."""
    txn = session.txn
    assert txn is not None
    return txn


def newest(session: SessionLike, name: Name) -> Table | None:
    """Lock a table's catalog row and read it. May raise a `Suspend`."""
    txn = transaction_of(session)
    engine = session.engine
    key = row_key(name.schema, name.name)
    payload = txn.lock_and_get(engine.catalog_tree, key)
    return None if payload is None else decode_table(engine, key, payload)


def located(session: SessionLike, name: Name) -> Name:
    """The name of what exists: of a bare one the first in the search path. May suspend."""
    path = lookup_path()
    if name.written != name.name or path == (PUBLIC,):
        return name
    catalog = current_catalog(session)
    for schema in path:
        if catalog.kind_of(name.name, schema) is not None:
            return Name(schema, name.name, name.written)
    return name


def lock_table(session: SessionLike, table: Table) -> None:
    """Wait until no other transaction has written to the table. May raise a `Suspend`."""
    transaction_of(session).lock_table(table.tree, exclusive=True)


def store(session: SessionLike, table: Table) -> None:
    """Write a table's catalog row."""
    txn = transaction_of(session)
    if any(name[:1] == "\0" for name in table.comments):
        # Comments of what is gone go too.
        parts = own_names(table) | {index.name for index in table.indexes}
        kept = {
            k: v for k, v in table.comments.items() if k[:1] != "\0" or k.split(" ", 1)[1] in parts
        }
        table = replace(table, comments=kept)
    key = row_key(table.schema, table.name)
    txn.put(session.engine.catalog_tree, key, encode_table(table))
    changed(session)


def changed(session: SessionLike) -> None:
    """The catalog as this session sees it has changed."""
    engine, txn = session.engine, transaction_of(session)
    engine.catalog_changed()
    if engine.catalog_changed not in txn.on_rollback:
        txn.on_rollback.append(engine.catalog_changed)


def ddl_plan(verb: str, action: Callable[[SessionLike], str]) -> Plan:
    """A plan that calls ``action(session)``, which returns the command tag."""

    def run(session: SessionLike, params: Params) -> bytes:
        # The plan may be of another version: names of types mean what they mean now.
        current_catalog(session)
        return command_complete(action(session))

    return Plan(
        "ddl",
        writes=True,
        fast=True,
        verb=verb,
        binder=lambda plan, params, results: Bound(plan, results, run),
    )


# ------------------------------------------------------------------------------------ CREATE TABLE

_ACCEPTED_PROPERTIES: Final = (
    "UnloggedProperty", "TableSpaceProperty", "Property", "WithDataProperty",
)  # fmt: skip


def plan_create(tree: Any) -> Plan:
    """CREATE TABLE. Raises 0A000 for what is not built."""
    kind = str(tree.args.get("kind") or "").upper()
    if kind != "TABLE":
        raise not_supported(f"CREATE {kind}")
    if tree.expression is not None:
        raise not_supported("CREATE TABLE AS")
    properties, temporary = tree.args.get("properties"), False
    for item in properties.expressions if properties is not None else ():
        if isinstance(item, exp.TemporaryProperty):
            temporary = True
        elif type(item).__name__ not in _ACCEPTED_PROPERTIES:
            word = type(item).__name__.removesuffix("Property")
            raise not_supported(f"CREATE TABLE with {word.upper()}")
    schema = tree.this
    if isinstance(schema, exp.Table):
        schema = exp.Schema(this=schema, expressions=[])
    if not isinstance(schema, exp.Schema):
        raise SyntaxMistake("syntax error in CREATE TABLE")
    written = table_name(schema.this)
    likes = [item for item in schema.expressions if isinstance(item, exp.LikeProperty)]
    own = [item for item in schema.expressions if not isinstance(item, exp.LikeProperty)]
    read(own, written.name)
    if_not_exists = bool(tree.args.get("exists"))

    def action(session: SessionLike) -> str:
        from compute.sql.temporary import place

        name = place(session, written) if temporary else written
        check_schema(session, name)
        found = read(own, name.name)
        for like in likes:
            _take_over(session, like, found)
        columns, primary_key, constraint = _make_columns(name, found)
        existing: Any = newest(session, name)
        catalog = current_catalog(session)
        if existing is None:
            existing = catalog.kind_of(name.name, name.schema)
        if existing is not None:
            if not if_not_exists:
                raise CallerMistake(f'relation "{name.name}" already exists', sqlstate="42P07")
            session.notice("NOTICE", "42P07", f'relation "{name.name}" already exists, skipping')
            return "CREATE TABLE"
        txn = transaction_of(session)
        int_keys = has_int_keys(columns, primary_key)
        new = session.engine.new_tree(txn, int_keys=int_keys)
        table_id = FIRST_TABLE_ID + new.root
        table = make_table(table_id, name.schema, name.name, columns, primary_key, constraint, new)
        check_columns(table, primary_key)
        check_generated(table)
        table = add_generated(session, table, found, catalog)
        table = add_constraints(session, table, found, catalog)
        store(session, _like_indexes(session, table, found, catalog))
        return "CREATE TABLE"

    return ddl_plan("CREATE TABLE", action)


_LIKE_WORDS: Final = (
    "defaults", "constraints", "indexes", "comments", "generated", "identity",
)  # fmt: skip


def _take_over(session: SessionLike, like: Any, found: Definitions) -> None:
    """CREATE TABLE (LIKE other INCLUDING ...): its columns, and what else is asked for."""
    name = located(session, table_name(like.this))
    other = newest(session, name)
    if other is None:
        raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
    wanted: set[str] = set()
    for item in like.expressions:
        word = item.args["value"].name.lower()
        words = set(_LIKE_WORDS) if word == "all" else {word}
        wanted = wanted | words if item.name.lower() == "including" else wanted - words
    taken = []
    for column in other.columns:
        if column.identity == GENERATED:
            kept = "generated" in wanted
            column = column if kept else replace(column, default=None, identity="")
        elif column.identity and "identity" in wanted:
            found.generated.append(Generated(column.name, column.type))
        else:
            kept = "defaults" in wanted and not column.identity
            column = replace(column, default=column.default if kept else None, identity="")
        taken.append(column)
    found.columns[:0] = taken
    if "constraints" in wanted:
        found.checks += [CheckText(check.name, check.text) for check in other.checks]
    if "indexes" in wanted:
        if other.primary_key:
            found.keys.append(Unique(None, list(other.key_names)))
        for index in other.indexes:
            if index.constraint:
                names = [other.columns[i].name for i in index.columns]
                found.uniques.append(Unique(None, names))
        found.like.append(other)


def _like_indexes(
    session: SessionLike, table: Table, found: Definitions, catalog: Catalog
) -> Table:
    """LIKE ... INCLUDING INDEXES: those that are no constraints."""
    taken = taken_by(catalog, table.schema, own_names(table))
    for other in found.like:
        for index in other.indexes:
            if index.constraint:
                continue

            place = {i: table.index[c.name] for i, c in enumerate(other.columns)}
            used = {index.name for index in table.indexes}
            parts = distinct(
                [
                    part_label(index.expressions[-1 - i]) if i < 0 else other.columns[i].name
                    for i in index.columns
                ]
            )
            name = fresh_name([table.name, *parts], "idx", lambda n, u=used: n in u or taken(n))
            made = replace(
                index,
                name=name,
                columns=tuple(place.get(i, i) for i in index.columns),
                include=tuple(place[i] for i in index.include),
                tree=session.engine.new_tree(transaction_of(session), int_keys=False),
            )
            table = replace(table, indexes=(*table.indexes, made))
    return table


def default_constraint(table: str) -> str:
    """What PostgreSQL calls a primary key that was not named."""
    return f"{table[:58]}_pkey"


def _make_columns(
    name: Name, found: Definitions
) -> tuple[tuple[TableColumn, ...], tuple[int, ...], str]:
    """The columns, the primary key, and its name."""
    if not found.keys:
        return tuple(found.columns), (), ""
    key = found.keys[0]
    primary_key = key_columns(key.columns, [column.name for column in found.columns])
    columns = tuple(
        replace(column, not_null=column.not_null or index in primary_key)
        for index, column in enumerate(found.columns)
    )
    return columns, primary_key, key.name or default_constraint(name.name)


def taken_by(catalog: Catalog, schema: str, names: set[str]) -> Callable[[str], bool]:
    """Whether a name is in use, in the catalog or among ``names``."""
    return lambda name: name in names or catalog.kind_of(name, schema) is not None


def add_constraints(
    session: SessionLike, table: Table, found: Definitions, catalog: Catalog
) -> Table:
    """The table with what `found` says beside columns and primary key. New indexes are empty."""
    txn, engine = transaction_of(session), session.engine
    names = [column.name for column in table.columns]
    used = own_names(table)
    taken = taken_by(catalog, table.schema, used)

    def label(given: str | None, parts: list[str], word: str) -> str:
        if given is not None and given in used:
            raise CallerMistake(
                f'constraint "{given}" for relation "{table.name}" already exists',
                sqlstate="42710",
            )
        made = given or fresh_name([table.name, *parts], word, taken)
        used.add(made)
        return made

    for unique in found.uniques:
        columns = key_columns(unique.columns, names, "unique")
        check_columns(table, columns)
        made = label(unique.name, unique.columns, "key")
        if catalog.kind_of(made, table.schema) is not None:
            raise CallerMistake(f'relation "{made}" already exists', sqlstate="42P07")
        tree = engine.new_tree(txn, int_keys=False)
        index = Index(made, columns, unique=True, constraint=True, tree=tree)
        table = replace(table, indexes=(*table.indexes, index))
    for check in found.checks:
        columns_of = check_columns_of(check.text)
        parts = [check.column] if check.column else columns_of if len(columns_of) == 1 else []
        made = label(check.name, parts, "check")
        table = replace(table, checks=(*table.checks, Check(made, check.text)))
    bound_checks(table)
    for reference in found.references:
        columns = key_columns(reference.columns, names, "foreign key")
        other: Table | None = table
        if (reference.other.schema, reference.other.name) != (table.schema, table.name):
            other = newest(session, reference.other)
        if other is None:
            raise CallerMistake(
                f'relation "{reference.other.written}" does not exist', sqlstate="42P01"
            )
        if reference.other_columns is None:
            if not other.primary_key:
                raise CallerMistake(
                    f'there is no primary key for referenced table "{other.name}"',
                    sqlstate="42704",
                )
            other_columns = other.primary_key
        else:
            for column in reference.other_columns:
                if column not in other.index:
                    raise CallerMistake(
                        f'column "{column}" referenced in foreign key constraint does not exist',
                        sqlstate="42703",
                    )
            other_columns = tuple(other.index[column] for column in reference.other_columns)
        made = label(reference.name, reference.columns, "fkey")
        if len(columns) != len(other_columns):
            raise CallerMistake(
                "number of referencing and referenced columns for foreign key disagree",
                sqlstate="42830",
            )
        for mine, its in zip(columns, other_columns):
            one, two = table.columns[mine].type, other.columns[its].type
            if one.family != two.family:
                raise CallerMistake(
                    f'foreign key constraint "{made}" cannot be implemented',
                    sqlstate="42804",
                    detail=f'Key columns "{names[mine]}" and "{other.columns[its].name}" are of '
                    f"incompatible types: {one.name} and {two.name}.",
                )
        key = ForeignKey(
            made,
            columns,
            other.table_id,
            tuple(other_columns),
            reference.on_delete,
            reference.on_update,
        )
        table = replace(table, foreign=(*table.foreign, key))
        parents_of(table, Catalog({(other.schema, other.name): other}))
    return table


# ---------------------------------------------------------------------------------------- sequences

_BOUNDS: Final = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}


def create_sequence(
    session: SessionLike,
    schema: str,
    name: str,
    kind: SqlType,
    options: dict[str, Any],
    owner: tuple[int, str] | None = None,
) -> None:
    """Make a sequence. Raises 22023 for bounds that make no sense."""
    bound = _BOUNDS[kind.name]
    increment = options.get("increment") or 1
    up = increment > 0
    low = options.get("low")
    high = options.get("high")
    low = (1 if up else -bound) if low is None else low
    high = (bound - 1 if up else -1) if high is None else high
    start = options.get("start")
    start = (low if up else high) if start is None else start
    if low >= high:
        raise CallerMistake(
            f"MINVALUE ({low}) must be less than MAXVALUE ({high})", sqlstate="22023"
        )
    if not low <= start <= high:
        word, limit = ("less", f"MINVALUE ({low})") if start < low else (
            "greater", f"MAXVALUE ({high})"
        )  # fmt: skip
        raise CallerMistake(
            f"START value ({start}) cannot be {word} than {limit}", sqlstate="22023"
        )
    txn, engine = transaction_of(session), session.engine
    tree = engine.new_tree(txn, int_keys=True)
    found = Sequence(
        schema, name, tree, kind, start, increment, low, high, bool(options.get("cycle")), owner
    )
    txn.put(tree, sequences.ROW, sequences.pack_value((start, False)))
    store_sequence(session, found)


def store_sequence(session: SessionLike, found: Sequence) -> None:
    """Write a sequence's catalog row."""
    key = relation_key("sequence", found.schema, found.name)
    txn = transaction_of(session)
    txn.lock_and_get(session.engine.catalog_tree, key)
    txn.put(session.engine.catalog_tree, key, encode_sequence(found))
    changed(session)


def drop_sequence(session: SessionLike, found: Sequence) -> None:
    """The sequence is gone."""
    txn, engine = transaction_of(session), session.engine
    txn.put(engine.catalog_tree, relation_key("sequence", found.schema, found.name), None)
    drop_comment(session, "sequence", found.schema, found.name)
    engine.drop_tree(txn, found.tree)
    changed(session)


def restart_sequence(session: SessionLike, found: Sequence, value: int | None = None) -> None:
    """Begin again, when the transaction commits."""
    txn = transaction_of(session)
    txn.lock_and_get(found.tree, sequences.ROW)
    row = (found.start if value is None else value, False)
    txn.put(found.tree, sequences.ROW, sequences.pack_value(row))
    sequences.forget(session, found)


def add_generated(
    session: SessionLike, table: Table, found: Definitions, catalog: Catalog
) -> Table:
    """Sequences for serial and identity columns, as the columns' defaults."""
    made: set[str] = set()
    columns = list(table.columns)
    for item in found.generated:
        if item.type.name not in _BOUNDS:
            raise CallerMistake(
                "identity column type must be smallint, integer, or bigint", sqlstate="22023"
            )
        name = fresh_name([table.name, item.column], "seq", taken_by(catalog, table.schema, made))
        made.add(name)
        create_sequence(
            session, table.schema, name, item.type, dict(item.options),
            (table.table_id, item.column),
        )  # fmt: skip
        index = table.index[item.column]
        default = nextval_text(table.schema, name)
        columns[index] = replace(columns[index], default=default)
    return replace(table, columns=tuple(columns))


def nextval_text(schema: str, name: str) -> str:
    """The default of a column that a sequence fills."""
    plain = all(part.isidentifier() and part == part.lower() for part in (schema, name))
    written = name if plain else f'"{name}"'
    if schema != PUBLIC:
        written = f"{schema if plain else chr(34) + schema + chr(34)}.{written}"
    return "nextval('" + written.replace("'", "''") + "'::regclass)"


def owned_sequences(catalog: Catalog, table: Table) -> list[Sequence]:
    """The sequences that go with a table."""
    return [
        found
        for found in catalog.sequences.values()
        if found.owner is not None and found.owner[0] == table.table_id
    ]


# -------------------------------------------------------------------------- DROP TABLE and TRUNCATE


def plan_drop(tree: Any) -> Plan:
    """DROP TABLE [IF EXISTS] a, b, ... [CASCADE | RESTRICT]."""
    kind = str(tree.args.get("kind") or "").upper()
    if kind != "TABLE":
        raise not_supported(f"DROP {kind}")
    trees = tree.args.get("tables") or [tree.this, *(tree.args.get("expressions") or [])]
    names = [table_name(node) for node in trees]
    if_exists = bool(tree.args.get("exists"))
    cascade = bool(tree.args.get("cascade"))

    def action(session: SessionLike) -> str:
        found = [(name, newest(session, located(session, name))) for name in names]
        for name, table in found:
            kind = None
            if table is None:
                place = located(session, name)
                kind = current_catalog(session).kind_of(place.name, place.schema)
            if kind in ("view", "sequence", "index"):
                raise CallerMistake(
                    f'"{name.name}" is not a table',
                    sqlstate="42809",
                    hint=f"Use DROP {kind.upper()} to remove {'an' if kind == 'index' else 'a'} "
                    f"{kind}.",
                )
            if table is None and not if_exists:
                raise CallerMistake(f'table "{name.written}" does not exist', sqlstate="42P01")
            if table is not None:
                lock_table(session, table)
        catalog = current_catalog(session)
        tables = {table.table_id: table for _, table in found if table is not None}
        drop_referring(session, catalog, tables, cascade=cascade, verb="drop")
        places = [(table.schema, table.name) for table in tables.values()]
        for view in drop_views_on(session, catalog, places, cascade=cascade):
            drop_view(session, view)
        for name, table in found:
            if table is None:
                session.notice(
                    "NOTICE", "00000", f'table "{name.written}" does not exist, skipping'
                )
        for table in tables.values():
            drop_table(session, catalog, table)
        return "DROP TABLE"

    return ddl_plan("DROP TABLE", action)


def drop_table(session: SessionLike, catalog: Catalog, table: Table) -> None:
    """A locked table goes, with its indexes and sequences."""
    engine, txn = session.engine, transaction_of(session)
    txn.put(engine.catalog_tree, row_key(table.schema, table.name), None)
    drop_grants(session, table.schema, table.name)
    for tree in (table.tree, *(index.tree for index in table.indexes)):
        engine.drop_tree(txn, tree)
    for sequence in owned_sequences(catalog, table):
        drop_sequence(session, sequence)
    changed(session)


def drop_view(session: SessionLike, view: View) -> None:
    """A view goes."""
    txn, tree = transaction_of(session), session.engine.catalog_tree
    key = relation_key("view", view.schema, view.name)
    txn.lock_and_get(tree, key)
    txn.put(tree, key, None)
    drop_grants(session, view.schema, view.name)
    drop_comment(session, "view", view.schema, view.name)
    for what, schema, name in current_catalog(session).comments:
        if what == "column" and schema == view.schema and name.startswith(f"{view.name}."):
            drop_comment(session, what, schema, name)
    changed(session)


def drop_comment(session: SessionLike, what: str, schema: str, name: str) -> None:
    """What had it is gone."""
    txn, tree = transaction_of(session), session.engine.catalog_tree
    key = comment_key(what, schema, name)
    if txn.lock_and_get(tree, key) is not None:
        txn.put(tree, key, None)


def store_view(session: SessionLike, view: View) -> None:
    """Write a view's catalog row."""
    txn, tree = transaction_of(session), session.engine.catalog_tree
    key = relation_key("view", view.schema, view.name)
    txn.lock_and_get(tree, key)
    txn.put(tree, key, encode_view(view))
    changed(session)


def move_grants(
    session: SessionLike, schema: str, old: str, new: str, to: str | None = None
) -> None:
    """A renamed table or view stays granted to whom it was, and its old name to nobody."""
    txn, tree = transaction_of(session), session.engine.catalog_tree
    # Read key by key, as the transaction may have granted some of it itself.
    for role in sorted({*load_access(session.engine).roles, EVERYBODY}):
        granted = txn.lock_and_get(tree, grant_key(schema, old, role))
        if granted is not None:
            txn.put(tree, grant_key(schema, old, role), None)
            txn.put(tree, grant_key(schema if to is None else to, new, role), granted)


def drop_grants(session: SessionLike, schema: str, name: str) -> None:
    """Whoever makes a table or view of this name again has granted nothing yet."""
    txn, tree = transaction_of(session), session.engine.catalog_tree
    for role in load_access(session.engine).grants.get((schema, name), ()):
        txn.put(tree, grant_key(schema, name, role), None)


def drop_referring(
    session: SessionLike,
    catalog: Catalog,
    tables: dict[int, Table],
    *,
    cascade: bool,
    verb: str,
) -> None:
    """The foreign keys of other tables that refer to these go too, or it is 2BP01."""
    for other in catalog.tables.values():
        keys = [key for key in other.foreign if key.other in tables]
        if not keys or other.table_id in tables:
            continue
        if not cascade:
            target = tables[keys[0].other]
            raise CallerMistake(
                f"cannot {verb} table {target.name} because other objects depend on it",
                sqlstate="2BP01",
                detail=f"constraint {keys[0].name} on table {other.name} depends on table "
                f"{target.name}",
                hint="Use DROP ... CASCADE to drop the dependent objects too.",
            )
        now = newest(session, Name(other.schema, other.name, other.name))
        if now is not None:
            kept = tuple(key for key in now.foreign if key.other not in tables)
            store(session, replace(now, foreign=kept))
            session.notice(
                "NOTICE",
                "00000",
                f"drop cascades to constraint {keys[0].name} on table {other.name}",
            )


def plan_truncate(tree: Any) -> Plan:
    """TRUNCATE [TABLE] a, b, ...: each gets a new, empty tree."""
    names = [table_name(node) for node in tree.expressions]
    restart = str(tree.args.get("identity") or "").upper() == "RESTART"
    cascade = str(tree.args.get("option") or "").upper() == "CASCADE"

    def action(session: SessionLike) -> str:
        found: dict[int, Table] = {}
        for name in names:
            table = newest(session, located(session, name))
            if table is None:
                raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
            lock_table(session, table)
            found[table.table_id] = table
        catalog = current_catalog(session)
        _referring_too(session, catalog, found, cascade=cascade)
        for table in found.values():
            replace_tree(session, table)
            for sequence in owned_sequences(catalog, table) if restart else ():
                restart_sequence(session, sequence)
        return "TRUNCATE TABLE"

    return ddl_plan("TRUNCATE TABLE", action)


def _referring_too(
    session: SessionLike, catalog: Catalog, found: dict[int, Table], *, cascade: bool
) -> None:
    """Tables that refer to truncated ones are truncated too, or it is 0A000."""
    while True:
        more = [
            other
            for other in catalog.tables.values()
            if other.table_id not in found and any(key.other in found for key in other.foreign)
        ]
        if not more:
            return
        if not cascade:
            key = next(key for key in more[0].foreign if key.other in found)
            raise CallerMistake(
                "cannot truncate a table referenced in a foreign key constraint",
                sqlstate="0A000",
                detail=f'Table "{more[0].name}" references "{found[key.other].name}".',
                hint=f'Truncate table "{more[0].name}" at the same time, or use TRUNCATE ... '
                "CASCADE.",
            )
        for other in more:
            now = newest(session, Name(other.schema, other.name, other.name))
            if now is not None:
                lock_table(session, now)
                found[now.table_id] = now
                session.notice("NOTICE", "00000", f'truncate cascades to table "{other.name}"')


def replace_tree(session: SessionLike, table: Table) -> Table:
    """Give a locked table a new, empty tree. Returns the table as it is now."""
    engine, txn = session.engine, transaction_of(session)
    fresh = engine.new_tree(txn, int_keys=table.tree.int_keys)
    engine.drop_tree(txn, table.tree)
    indexes = []
    for index in table.indexes:
        indexes.append(replace(index, tree=engine.new_tree(txn, int_keys=False)))
        engine.drop_tree(txn, index.tree)
    now = replace(table.with_tree(fresh), indexes=tuple(indexes))
    store(session, now)
    return now


def refuse_clauses(tree: Any, *names: str) -> None:
    """Raises 0A000 if any of these arguments is there."""
    for name in names:
        if arg(tree, name):
            raise not_supported(name.upper())
