"""CREATE INDEX, on empty tables and filled ones.

The rows are read once and their entries sorted by `rebuild.Loader`, in bounded memory. Writers of
the table wait until the transaction ends; readers do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from compute.sql import ddl, definitions
from compute.sql.catalog import KEY_COLUMNS_MAX, Index, Table
from compute.sql.index_parts import check_parts, distinct, part_label
from compute.sql.mistakes import SyntaxMistake, not_supported
from compute.sql.plan import Plan, SessionLike
from compute.sql.rebuild import AlterBound, fill_index
from compute.sql.syntax import identifier
from compute.sql.write_run import retried
from polarless.errors import CallerMistake


def plan_create_index(tree: Any) -> Plan:
    """CREATE [UNIQUE] INDEX [CONCURRENTLY] [IF NOT EXISTS] [name] ON table (columns)."""
    index = tree.this
    table = index.args.get("table")
    parameters = index.args.get("params")
    if table is None or parameters is None:
        raise SyntaxMistake("syntax error in CREATE INDEX")
    name = definitions.table_name(table)
    given = identifier(index.this) if index.this is not None else None
    using = parameters.args.get("using")
    if using is not None and using.name.lower() not in ("btree", "hash"):
        raise not_supported(f"access method {using.name.lower()}", hint="Use btree.")
    key = Key()
    for item in parameters.args.get("columns") or ():
        _add_part(key, item)
    if not key.parts:
        raise SyntaxMistake("syntax error in CREATE INDEX")
    where = parameters.args.get("where")
    if where is not None:
        key.where = definitions.sql_text(where.this)
    key.include = [identifier(item) for item in parameters.args.get("include") or ()]
    unique, if_not_exists = bool(tree.args.get("unique")), bool(tree.args.get("exists"))

    async def action(session: SessionLike) -> str:
        await create_index(
            session, name, given, key, unique=unique, constraint=False, quiet=if_not_exists
        )
        return "CREATE INDEX"

    return Plan(
        "ddl",
        writes=True,
        verb="CREATE INDEX",
        binder=lambda plan, params, results: AlterBound(plan, results, action),
    )


@dataclass(slots=True)
class Key:
    """What an index is of, as it is written: names of columns, or texts of expressions."""

    # (name, text, indoption), either of the first two.
    parts: list[tuple[str | None, str | None, int]] = field(default_factory=list)
    where: str | None = None
    include: list[str] = field(default_factory=list)


def _add_part(key: Key, item: Any) -> None:
    options, inner = 0, item
    if isinstance(item, exp.Ordered):
        inner = item.this
        descending = bool(item.args.get("desc"))
        first = item.args.get("nulls_first")
        options = descending + 2 * (descending if first is None else bool(first))
    while isinstance(inner, (exp.Opclass, exp.Collate)):
        if isinstance(inner, exp.Collate) and inner.expression.name.upper() not in ("C", "POSIX"):
            raise not_supported(f'collation "{inner.expression.name}"', hint='Use COLLATE "C".')
        inner = inner.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Column) and not inner.args.get("table"):
        key.parts.append((identifier(inner.this), None, options))
    else:
        key.parts.append((None, definitions.sql_text(inner), options))


async def create_index(
    session: SessionLike,
    name: definitions.Name,
    given: str | None,
    key: Key,
    *,
    unique: bool,
    constraint: bool,
    quiet: bool = False,
) -> None:
    """Add an index to a table and fill it. ``quiet``: IF NOT EXISTS."""
    found = await retried(_prepared, session, name, given, key, unique, constraint, quiet)
    if found is not None:
        ddl.store(session, await fill_index(session, found, len(found.indexes) - 1))


def _prepared(
    session: SessionLike,
    name: definitions.Name,
    given: str | None,
    key: Key,
    unique: bool,
    constraint: bool,
    quiet: bool,
) -> Table | None:
    """The locked table with the index, which is empty. May raise a `Suspend`."""
    table = ddl.newest(session, ddl.located(session, name))
    if table is None:
        raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
    ddl.lock_table(session, table)
    catalog = ddl.current_catalog(session)
    if given is not None and catalog.kind_of(given, table.schema) is not None:
        if quiet:
            session.notice("NOTICE", "42P07", f'relation "{given}" already exists, skipping')
            return None
        raise CallerMistake(f'relation "{given}" already exists', sqlstate="42P07")
    names = [column.name for column in table.columns]
    for column in [*(column for column, _, _ in key.parts if column is not None), *key.include]:
        if column not in table.index:
            raise CallerMistake(f'column "{column}" does not exist', sqlstate="42703")
    if len(key.parts) > KEY_COLUMNS_MAX:
        raise CallerMistake(
            f"cannot use more than {KEY_COLUMNS_MAX} columns in an index", sqlstate="54011"
        )
    columns: list[int] = []
    expressions: list[str] = []
    labels: list[str] = []
    for part, source, _ in key.parts:
        if part is not None:
            columns.append(table.index[part])
            labels.append(part)
        elif source is not None:
            expressions.append(source)
            columns.append(-len(expressions))
            labels.append(part_label(source))
    taken = ddl.taken_by(catalog, table.schema, definitions.own_names(table))
    word = "key" if constraint else "idx"
    made = given or definitions.fresh_name([table.name, *distinct(labels)], word, taken)
    tree = session.engine.new_tree(ddl.transaction_of(session), int_keys=False)
    index = Index(
        made, tuple(columns), unique, constraint, tree, tuple(expressions), key.where,
        tuple(options for _, _, options in key.parts),
        tuple(names.index(column) for column in key.include),
    )  # fmt: skip
    check_parts(table, index)
    return replace(table, indexes=(*table.indexes, index))
