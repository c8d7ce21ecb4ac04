"""CREATE TABLE, DROP TABLE, TRUNCATE: synchronous, through the transaction like any other write.

Each statement first locks the table's row in the catalog and reads its newest state (the plan may
be old by then), then waits for the table's lock, and only then changes anything; so a `Suspend`
leaves nothing behind. Every change raises the engine's catalog version at once, since plans of this
very session must see it, and once more if it is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql.binder import Binder, Parameters, Scope, type_of
from compute.sql.catalog import (
    COLUMNS_MAX,
    FIRST_TABLE_ID,
    KEY_COLUMNS_MAX,
    PG_CATALOG,
    PUBLIC,
    Table,
    TableColumn,
    decode_table,
    encode_table,
    has_int_keys,
    make_table,
    row_key,
)
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.plan import Bound, Params, Plan, SessionLike, command_complete
from compute.sql.select import arg
from compute.sql.syntax import identifier, parse
from compute.sql.types import SqlType
from compute.sql.write import assigned
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.txn.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Name:
    """A table's name in the text."""

    schema: str
    name: str
    written: str


def table_name(node: Any) -> Name:
    """The name of an exp.Table. Raises 3F000 for schemas that do not exist."""
    if not isinstance(node, exp.Table) or node.args.get("alias"):
        raise SyntaxMistake(f"syntax error: {node.sql()[:60]} is no table name")
    schema = identifier(node.args["db"]) if node.args.get("db") else PUBLIC
    name = identifier(node.this)
    return Name(schema, name, f"{schema}.{name}" if node.args.get("db") else name)


def check_schema(name: Name) -> None:
    """Raises unless tables may be made in that schema."""
    if name.schema == PG_CATALOG:
        raise CallerMistake(
            f'permission denied to create "{PG_CATALOG}.{name.name}"',
            sqlstate="42501",
            detail="System catalog modifications are currently disallowed.",
        )
    if name.schema != PUBLIC:
        raise CallerMistake(f'schema "{name.schema}" does not exist', sqlstate="3F000")


# ------------------------------------------------------------------------------- what all DDL does


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


def lock_table(session: SessionLike, table: Table) -> None:
    """Wait until no other transaction has written to the table. May raise a `Suspend`."""
    transaction_of(session).lock_table(table.tree, exclusive=True)


def store(session: SessionLike, table: Table) -> None:
    """Write a table's catalog row."""
    txn = transaction_of(session)
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
    properties = tree.args.get("properties")
    for item in properties.expressions if properties is not None else ():
        if type(item).__name__ not in _ACCEPTED_PROPERTIES:
            word = type(item).__name__.removesuffix("Property")
            raise not_supported(f"CREATE TABLE with {word.upper()}")
    schema = tree.this
    if isinstance(schema, exp.Table):
        schema = exp.Schema(this=schema, expressions=[])
    if not isinstance(schema, exp.Schema):
        raise SyntaxMistake("syntax error in CREATE TABLE")
    name = table_name(schema.this)
    check_schema(name)
    columns, primary_key, constraint = _definitions(schema.expressions, name)
    if_not_exists = bool(tree.args.get("exists"))

    def action(session: SessionLike) -> str:
        existing = newest(session, name)
        if existing is not None:
            if not if_not_exists:
                raise CallerMistake(f'relation "{name.name}" already exists', sqlstate="42P07")
            session.notice("NOTICE", "42P07", f'relation "{name.name}" already exists, skipping')
            return "CREATE TABLE"
        txn = transaction_of(session)
        int_keys = has_int_keys(columns, primary_key)
        new = session.engine.new_tree(txn, int_keys=int_keys)
        table_id = FIRST_TABLE_ID + new.root
        store(
            session,
            make_table(table_id, name.schema, name.name, columns, primary_key, constraint, new),
        )
        return "CREATE TABLE"

    return ddl_plan("CREATE TABLE", action)


def _definitions(
    trees: list[Any], name: Name
) -> tuple[tuple[TableColumn, ...], tuple[int, ...], str]:
    columns: list[TableColumn] = []
    keys: list[tuple[str | None, list[str]]] = []
    for tree in trees:
        if isinstance(tree, exp.ColumnDef):
            columns.append(_column(tree, keys))
        else:
            constraint, inner = None, tree
            if isinstance(tree, exp.Constraint):
                constraint = identifier(tree.this)
                inner = tree.expressions[0]
            if isinstance(inner, exp.PrimaryKey):
                keys.append((constraint, key_names(inner)))
            else:
                raise not_supported(_constraint_words(inner))
    names = [column.name for column in columns]
    for column in names:
        if names.count(column) > 1:
            raise CallerMistake(f'column "{column}" specified more than once', sqlstate="42701")
    if len(columns) > COLUMNS_MAX:
        raise CallerMistake(f"tables can have at most {COLUMNS_MAX} columns", sqlstate="54011")
    if len(keys) > 1:
        raise CallerMistake(
            f'multiple primary keys for table "{name.name}" are not allowed', sqlstate="42P16"
        )
    if not keys:
        return tuple(columns), (), ""
    constraint, wanted = keys[0]
    primary_key = key_columns(wanted, names)
    made = [
        TableColumn(c.name, c.type, c.typmod, c.not_null or i in primary_key, c.default)
        for i, c in enumerate(columns)
    ]
    return tuple(made), primary_key, constraint or default_constraint(name.name)


def default_constraint(table: str) -> str:
    """What PostgreSQL calls a primary key that was not named."""
    return f"{table[:58]}_pkey"


def key_names(tree: Any) -> list[str]:
    """The columns of a PRIMARY KEY (...) clause."""
    names = []
    for item in tree.expressions:
        inner = item.this if isinstance(item, (exp.Ordered, exp.Column)) else item
        names.append(identifier(inner))
    return names


def key_columns(wanted: list[str], names: list[str]) -> tuple[int, ...]:
    """Indexes of a key's columns. Raises 42703, 42701, 54011."""
    for column in wanted:
        if column not in names:
            raise CallerMistake(f'column "{column}" named in key does not exist', sqlstate="42703")
        if wanted.count(column) > 1:
            raise CallerMistake(
                f'column "{column}" appears twice in primary key constraint', sqlstate="42701"
            )
    if len(wanted) > KEY_COLUMNS_MAX:
        raise CallerMistake(
            f"cannot use more than {KEY_COLUMNS_MAX} columns in an index", sqlstate="54011"
        )
    return tuple(names.index(column) for column in wanted)


def _column(tree: Any, keys: list[tuple[str | None, list[str]]]) -> TableColumn:
    name = identifier(tree.this)
    kind_tree = tree.args.get("kind")
    if kind_tree is None:
        raise SyntaxMistake(f'syntax error: column "{name}" has no type')
    word = getattr(getattr(kind_tree, "this", None), "name", "")
    if "SERIAL" in word:
        raise not_supported(
            f"type {word.lower()}", hint="There are no sequences yet: use bigint and give values."
        )
    kind, typmod = type_of(kind_tree)
    not_null = False
    default: str | None = None
    for constraint in tree.args.get("constraints") or ():
        what = constraint.kind
        if isinstance(what, exp.NotNullColumnConstraint):
            not_null = not what.args.get("allow_null")
        elif isinstance(what, exp.PrimaryKeyColumnConstraint):
            label = constraint.this
            keys.append((identifier(label) if label is not None else None, [name]))
        elif isinstance(what, exp.DefaultColumnConstraint):
            default = _default(what.this, name, kind, typmod)
        elif isinstance(what, exp.CollateColumnConstraint):
            if str(what.this.name).upper() not in ("C", "POSIX", "DEFAULT"):
                raise not_supported(f'collation "{what.this.name}"', hint='Use COLLATE "C".')
        else:
            raise not_supported(_constraint_words(what))
    return TableColumn(name, kind, typmod, not_null, default)


def _default(tree: Any, name: str, kind: SqlType, typmod: int) -> str | None:
    text = str(tree.sql(dialect="postgres"))
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


def _constraint_words(node: Any) -> str:
    words = {
        "UniqueColumnConstraint": "UNIQUE",
        "CheckColumnConstraint": "CHECK",
        "Reference": "REFERENCES",
        "ForeignKey": "FOREIGN KEY",
        "GeneratedAsIdentityColumnConstraint": "GENERATED AS IDENTITY",
        "ComputedColumnConstraint": "GENERATED AS",
        "LikeProperty": "LIKE",
    }
    name = type(node).__name__
    return words.get(name, name.removesuffix("ColumnConstraint").upper()) + " in CREATE TABLE"


# -------------------------------------------------------------------------- DROP TABLE and TRUNCATE


def plan_drop(tree: Any) -> Plan:
    """DROP TABLE [IF EXISTS] a, b, ... [CASCADE | RESTRICT]."""
    kind = str(tree.args.get("kind") or "").upper()
    if kind != "TABLE":
        raise not_supported(f"DROP {kind}")
    trees = tree.args.get("tables") or [tree.this, *(tree.args.get("expressions") or [])]
    names = [table_name(node) for node in trees]
    if_exists = bool(tree.args.get("exists"))

    def action(session: SessionLike) -> str:
        found = [(name, newest(session, name)) for name in names]
        for name, table in found:
            if table is None and not if_exists:
                raise CallerMistake(f'table "{name.written}" does not exist', sqlstate="42P01")
            if table is not None:
                lock_table(session, table)
        engine, txn = session.engine, transaction_of(session)
        dropped: set[int] = set()
        for name, table in found:
            if table is None:
                session.notice(
                    "NOTICE", "00000", f'table "{name.written}" does not exist, skipping'
                )
            elif table.tree.tree_id not in dropped:
                dropped.add(table.tree.tree_id)
                txn.put(engine.catalog_tree, row_key(table.schema, table.name), None)
                engine.drop_tree(txn, table.tree)
        if dropped:
            changed(session)
        return "DROP TABLE"

    return ddl_plan("DROP TABLE", action)


def plan_truncate(tree: Any) -> Plan:
    """TRUNCATE [TABLE] a, b, ...: each gets a new, empty tree."""
    names = [table_name(node) for node in tree.expressions]

    def action(session: SessionLike) -> str:
        found: dict[int, Table] = {}
        for name in names:
            table = newest(session, name)
            if table is None:
                raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
            lock_table(session, table)
            found[table.table_id] = table
        for table in found.values():
            replace_tree(session, table)
        return "TRUNCATE TABLE"

    return ddl_plan("TRUNCATE TABLE", action)


def replace_tree(session: SessionLike, table: Table) -> Table:
    """Give a locked table a new, empty tree. Returns the table as it is now."""
    engine, txn = session.engine, transaction_of(session)
    fresh = engine.new_tree(txn, int_keys=table.tree.int_keys)
    engine.drop_tree(txn, table.tree)
    now = table.with_tree(fresh)
    store(session, now)
    return now


def refuse_clauses(tree: Any, *names: str) -> None:
    """Raises 0A000 if any of these arguments is there."""
    for name in names:
        if arg(tree, name):
            raise not_supported(name.upper())
