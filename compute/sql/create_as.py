"""CREATE TABLE ... AS query: a table with the query's columns, then INSERT of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from compute.sql import ddl, definitions
from compute.sql.catalog import FIRST_TABLE_ID, TableColumn, make_table
from compute.sql.catalogs.objects import quote
from compute.sql.plan import Plan, SessionLike
from compute.sql.rebuild import AlterBound
from compute.sql.syntax import identifier
from compute.sql.temporary import place
from compute.sql.types import BY_OID, TEXT, UNKNOWN
from compute.sql.write_run import retried
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.planner import Planner


class _Nothing:
    async def rows(self, data: bytes) -> None:
        """INSERT gives none."""


def plan_create_as(planner: Planner, tree: Any) -> Plan:
    """CREATE TABLE [IF NOT EXISTS] name [(columns)] AS query [WITH NO DATA]."""
    target = tree.this
    names: list[str] = []
    if isinstance(target, exp.Schema):
        names = [identifier(node) for node in target.expressions]
        target = target.this
    written = definitions.table_name(target)
    quiet = bool(tree.args.get("exists"))
    query = tree.expression.sql(dialect="postgres")
    properties = tree.args.get("properties")
    empty = any(
        isinstance(item, exp.WithDataProperty) and item.args.get("no")
        for item in (properties.expressions if properties is not None else ())
    )
    temporary = any(
        isinstance(item, exp.TemporaryProperty)
        for item in (properties.expressions if properties is not None else ())
    )

    def named(session: SessionLike) -> definitions.Name:
        return place(session, written) if temporary else written

    def create(session: SessionLike) -> bool:
        name = named(session)
        ddl.check_schema(session, name)
        existing: Any = ddl.newest(session, name)
        if existing is None:
            existing = ddl.current_catalog(session).kind_of(name.name, name.schema)
        if existing is not None:
            if not quiet:
                raise CallerMistake(f'relation "{name.name}" already exists', sqlstate="42P07")
            session.notice("NOTICE", "42P07", f'relation "{name.name}" already exists, skipping')
            return False
        found = planner.prepare(session, query).columns
        if len(names) > len(found):
            raise CallerMistake("too many column names were specified", sqlstate="42601")
        labels = [*names, *(column.name for column in found[len(names) :])]
        for label in labels:
            if labels.count(label) > 1:
                raise CallerMistake(f'column "{label}" specified more than once', sqlstate="42701")
        columns = tuple(
            TableColumn(
                label,
                TEXT if BY_OID[column.oid] is UNKNOWN else BY_OID[column.oid],
                column.typmod,
            )
            for label, column in zip(labels, found)
        )
        tree = session.engine.new_tree(ddl.transaction_of(session), int_keys=True)
        table_id = FIRST_TABLE_ID + tree.root
        ddl.store(session, make_table(table_id, name.schema, name.name, columns, (), "", tree))
        return True

    async def action(session: SessionLike) -> str:
        if not await retried(create, session):
            return "CREATE TABLE AS"
        if empty:
            return "CREATE TABLE AS"
        name = named(session)
        text = f"INSERT INTO {quote(name.schema)}.{quote(name.name)} {query}"
        plan = await retried(planner.prepare, session, text)
        tag = await plan.bind().rows(session, (), _Nothing())
        return f"SELECT {tag.rpartition(' ')[2]}"

    return Plan(
        "ddl",
        writes=True,
        verb="CREATE TABLE AS",
        binder=lambda plan, params, results: AlterBound(plan, results, action),
    )
