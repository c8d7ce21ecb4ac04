"""CREATE INDEX, on empty tables and filled ones.

The rows are read once and their entries sorted by `rebuild.Loader`, in bounded memory. Writers of
the table wait until the transaction ends; readers do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlglot import exp

from compute.sql import ddl, definitions
from compute.sql.catalog import Index, Table
from compute.sql.indexes import check_columns
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
    for key, what, hint in (
        ("where", "a partial index", "An index without WHERE serves the same queries."),
        ("include", "INCLUDE", "Name the columns at the end of the key."),
    ):
        if parameters.args.get(key):
            raise not_supported(what, hint=hint)
    wanted: list[str] = []
    for item in parameters.args.get("columns") or ():
        inner = item.this if isinstance(item, exp.Ordered) else item
        if not isinstance(inner, exp.Column):
            raise not_supported(
                "an index on an expression", hint="Store its value in a column, and index that one."
            )
        wanted.append(identifier(inner.this))
    if not wanted:
        raise SyntaxMistake("syntax error in CREATE INDEX")
    unique, if_not_exists = bool(tree.args.get("unique")), bool(tree.args.get("exists"))

    async def action(session: SessionLike) -> str:
        await create_index(
            session, name, given, wanted, unique=unique, constraint=False, quiet=if_not_exists
        )
        return "CREATE INDEX"

    return Plan(
        "ddl",
        writes=True,
        verb="CREATE INDEX",
        binder=lambda plan, params, results: AlterBound(plan, results, action),
    )


async def create_index(
    session: SessionLike,
    name: definitions.Name,
    given: str | None,
    wanted: list[str],
    *,
    unique: bool,
    constraint: bool,
    quiet: bool = False,
) -> None:
    """Add an index to a table and fill it. ``quiet``: IF NOT EXISTS."""
    found = await retried(_prepared, session, name, given, wanted, unique, constraint, quiet)
    if found is not None:
        ddl.store(session, await fill_index(session, found, len(found.indexes) - 1))


def _prepared(
    session: SessionLike,
    name: definitions.Name,
    given: str | None,
    wanted: list[str],
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
    for column in wanted:
        if column not in table.index:
            raise CallerMistake(f'column "{column}" does not exist', sqlstate="42703")
    columns = definitions.key_columns(wanted, [column.name for column in table.columns], "index")
    check_columns(table, columns)
    taken = ddl.taken_by(catalog, table.schema, definitions.own_names(table))
    word = "key" if constraint else "idx"
    made = given or definitions.fresh_name([table.name, *wanted], word, taken)
    tree = session.engine.new_tree(ddl.transaction_of(session), int_keys=False)
    index = Index(made, columns, unique=unique, constraint=constraint, tree=tree)
    return replace(table, indexes=(*table.indexes, index))
