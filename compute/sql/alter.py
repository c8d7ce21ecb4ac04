"""ALTER TABLE: each action in turn changes the table's description; what changes the stored rows
writes them anew.

A row is a tuple by position, so adding, dropping or converting a column streams all rows through
generated code into a new tree, with new indexes, as ADD PRIMARY KEY does. Renames, defaults and
constraints change the description alone; NOT NULL, CHECK and FOREIGN KEY read the rows first.
Everything happens under the table's lock and is visible when the transaction commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlglot import exp

from compute.sql import ddl, definitions, indexes, rebuild
from compute.sql.binder import Binder, Parameters, Scope, type_of
from compute.sql.catalog import (
    GENERATED,
    Catalog,
    Table,
    TableColumn,
    has_int_keys,
    key_expression,
    make_table,
    row_key,
)
from compute.sql.constraints import bound_checks, emit_foreign, parents_of
from compute.sql.definitions import Definitions, Name, sql_text
from compute.sql.dependents import renamed_views
from compute.sql.expressions import Emitter, Node
from compute.sql.filling import assigned, check_generated, default_of, generated_columns, of_row
from compute.sql.index_ddl import Key, create_index
from compute.sql.index_parts import touched
from compute.sql.mistakes import duplicate_in_table, named, not_supported
from compute.sql.plan import Plan, SessionLike
from compute.sql.rebuild import AlterBound, Rows
from compute.sql.rowcode import base_names, compile_function
from compute.sql.syntax import identifier, parse
from compute.sql.types import NUMERIC
from compute.sql.write_run import retried, stored
from polarless.errors import CallerMistake


def plan_alter(tree: Any) -> Plan:
    """ALTER TABLE. Raises 0A000 for what is not built."""
    kind = str(tree.args.get("kind") or "").upper()
    if kind != "TABLE":
        raise not_supported(f"ALTER {kind}")
    actions = tree.args.get("actions") or []
    name = definitions.table_name(tree.this)
    if_exists = bool(tree.args.get("exists"))

    async def action(session: SessionLike) -> str:
        table = await retried(_locked, session, name)
        if table is None:
            if not if_exists:
                raise CallerMistake(f'relation "{name.written}" does not exist', sqlstate="42P01")
            session.notice("NOTICE", "42P01", f'relation "{name.written}" does not exist, skipping')
            return "ALTER TABLE"
        current = await retried(ddl.located, session, name)
        for item in actions:
            current = await _Alter(session, current).run(item)
        return "ALTER TABLE"

    return Plan(
        "ddl",
        writes=True,
        verb="ALTER TABLE",
        binder=lambda plan, params, results: AlterBound(plan, results, action),
    )


async def drop_column(session: SessionLike, name: Name, column: str) -> None:
    """Drop a column, and what depends on it."""
    table = await retried(_locked, session, name)
    if table is not None and column in table.index:
        change = _Alter(session, name)
        await change.load()
        await change.drop_column(column, quiet=False, cascade=True)


def _locked(session: SessionLike, name: Name) -> Table | None:
    table = ddl.newest(session, ddl.located(session, name))
    if table is not None:
        ddl.lock_table(session, table)
    return table


def _no_column(table: Table, column: str) -> CallerMistake:
    return CallerMistake(
        f'column "{column}" of relation "{table.name}" does not exist', sqlstate="42703"
    )


class _Alter:
    """One action on a table that is locked."""

    def __init__(self, session: SessionLike, name: Name) -> None:
        self.session = session
        self.name = name
        self.table: Any = None
        self.catalog: Any = None

    async def run(self, item: Any) -> Name:
        """Do it. Returns the table's name from now on."""
        await self.load()
        table = self.table
        if isinstance(item, exp.ColumnDef):
            await self._add_column(item)
        elif isinstance(item, exp.AddConstraint):
            for constraint in item.expressions:
                await self._add_constraint(constraint)
        elif isinstance(item, exp.Drop):
            quiet = bool(item.args.get("exists"))
            cascade = bool(item.args.get("cascade"))
            (target,) = item.args["tables"]
            if str(item.args.get("kind") or "COLUMN").upper() == "CONSTRAINT":
                await self._drop_constraint(identifier(target.this), quiet=quiet, cascade=cascade)
            else:
                await self.drop_column(identifier(target.this), quiet=quiet, cascade=cascade)
        elif isinstance(item, exp.RenameColumn):
            self._rename_column(identifier(item.this.this), identifier(item.args["to"].this))
        elif isinstance(item, exp.AlterRename):
            new = identifier(item.this.this)
            await retried(self._rename, new)
            return Name(table.schema, new, new)
        elif isinstance(item, exp.AlterColumn):
            await self._alter_column(item)
        else:
            raise not_supported("this ALTER TABLE")
        return self.name

    async def load(self) -> None:
        """Read the table and the catalog as they are now."""
        self.catalog = await retried(ddl.current_catalog, self.session)
        self.table = await retried(ddl.newest, self.session, self.name)

    def _store(self, table: Table) -> None:
        ddl.store(self.session, table)

    # Columns.

    async def _add_column(self, item: Any) -> None:
        table = self.table
        found = Definitions()
        definitions.read_column(item, found)
        (column,) = found.columns
        if column.name in table.index:
            if item.args.get("exists"):
                self.session.notice(
                    "NOTICE",
                    "42701",
                    f'column "{column.name}" of relation "{table.name}" already exists, skipping',
                )
                return
            raise CallerMistake(
                f'column "{column.name}" of relation "{table.name}" already exists',
                sqlstate="42701",
            )
        after = with_columns(table, (*table.columns, column))
        if found.generated:
            after = await retried(ddl.add_generated, self.session, after, found, self.catalog)
        nodes: list[Node | None] = [None] * len(table.columns)
        place = len(table.columns)
        check_generated(after)
        generated = column.identity == GENERATED
        nodes.append(of_row(after, place) if generated else default_of(after, place))
        after = await rewrite(self.session, table, after, nodes)
        self._store(after)
        for key in found.keys:
            await rebuild.add_primary_key(
                self.session, self.name, key.columns, key.name, if_exists=False
            )
        for unique in found.uniques:
            await self._unique(unique)
        if found.checks or found.references:
            found.uniques = []
            await self._checked(found)

    async def drop_column(self, column: str, *, quiet: bool, cascade: bool) -> None:
        """DROP COLUMN."""
        table: Table = self.table
        if column not in table.index:
            if not quiet:
                raise _no_column(table, column)
            self.session.notice(
                "NOTICE",
                "00000",
                f'column "{column}" of relation "{table.name}" does not exist, skipping',
            )
            return
        gone = table.index[column]
        referring = [
            (other, key)
            for other in self.catalog.tables.values()
            for key in other.foreign
            if key.other == table.table_id and gone in key.other_columns
        ]
        if referring and not cascade:
            other, key = referring[0]
            raise CallerMistake(
                f"cannot drop column {column} of table {table.name} because other objects depend "
                "on it",
                sqlstate="2BP01",
                detail=f"constraint {key.name} on table {other.name} depends on column {column} "
                f"of table {table.name}",
                hint="Use DROP ... CASCADE to drop the dependent objects too.",
            )
        for other, key in referring:
            await retried(self._drop_foreign, other, key.name)
        for using in _generated_of(table, column):
            if not cascade:
                raise CallerMistake(
                    f"cannot drop column {column} of table {table.name} because other objects "
                    "depend on it",
                    sqlstate="2BP01",
                    detail=f"column {using} of table {table.name} depends on column {column} of "
                    f"table {table.name}",
                    hint="Use DROP ... CASCADE to drop the dependent objects too.",
                )
            self.session.notice(
                "NOTICE", "00000", f"drop cascades to column {using} of table {table.name}"
            )
            await self.drop_column(using, quiet=False, cascade=True)
            self.table = table = await retried(ddl.newest, self.session, self.name)
            gone = table.index[column]
        engine, txn = self.session.engine, ddl.transaction_of(self.session)
        for sequence in ddl.owned_sequences(self.catalog, table):
            if sequence.owner == (table.table_id, column):
                ddl.drop_sequence(self.session, sequence)
        place = {
            old: new for new, old in enumerate(i for i in range(len(table.columns)) if i != gone)
        }

        def moved(columns: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(place.get(i, i) for i in columns)

        kept = []
        for index in table.indexes:
            if gone in touched(table, index) or gone in index.include:
                engine.drop_tree(txn, index.tree)
            else:
                columns, include = moved(index.columns), moved(index.include)
                kept.append(replace(index, columns=columns, include=include))
        names = {index.name for index in kept}
        before = replace(table, indexes=tuple(i for i in table.indexes if i.name in names))
        after = with_columns(table, tuple(c for c in table.columns if c.name != column))
        after = replace(
            after,
            primary_key=() if gone in table.primary_key else moved(table.primary_key),
            constraint="" if gone in table.primary_key else table.constraint,
            indexes=tuple(kept),
            checks=tuple(
                check
                for check in table.checks
                if column not in definitions.check_columns_of(check.text)
            ),
            foreign=tuple(
                replace(
                    key,
                    columns=moved(key.columns),
                    other_columns=moved(key.other_columns)
                    if key.other == table.table_id
                    else key.other_columns,
                )
                for key in table.foreign
                if gone not in key.columns
            ),
            comments={k: v for k, v in table.comments.items() if k != column},
        )
        after = await rewrite(self.session, before, after, [None] * len(after.columns), gone=gone)
        self._store(after)
        await retried(self._move_references, table, place)

    def _move_references(self, table: Table, place: dict[int, int]) -> None:
        """Other tables name the columns that they refer to by position."""
        for other in ddl.current_catalog(self.session).tables.values():
            if other.table_id != table.table_id and any(
                key.other == table.table_id for key in other.foreign
            ):
                now = ddl.newest(self.session, Name(other.schema, other.name, other.name))
                if now is None:
                    continue
                foreign = tuple(
                    replace(key, other_columns=tuple(place[i] for i in key.other_columns))
                    if key.other == table.table_id
                    else key
                    for key in now.foreign
                )
                self._store(replace(now, foreign=foreign))

    def _drop_foreign(self, other: Table, name: str) -> None:
        now = ddl.newest(self.session, Name(other.schema, other.name, other.name))
        if now is not None:
            self._store(replace(now, foreign=tuple(k for k in now.foreign if k.name != name)))

    def _rename_column(self, old: str, new: str) -> None:
        table: Table = self.table
        if old not in table.index:
            raise CallerMistake(f'column "{old}" does not exist', sqlstate="42703")
        if new in table.index:
            raise CallerMistake(
                f'column "{new}" of relation "{table.name}" already exists', sqlstate="42701"
            )
        columns = tuple(replace(c, name=new) if c.name == old else c for c in table.columns)
        columns = tuple(
            replace(c, default=_renamed_in(c.default, old, new))
            if c.identity == GENERATED and c.default is not None
            else c
            for c in columns
        )
        checks = [replace(c, text=_renamed_in(c.text, old, new)) for c in table.checks]
        comments = {new if k == old else k: v for k, v in table.comments.items()}
        renamed = [
            replace(
                index,
                expressions=tuple(_renamed_in(text, old, new) for text in index.expressions),
                where=None if index.where is None else _renamed_in(index.where, old, new),
            )
            for index in table.indexes
        ]
        after = replace(
            with_columns(table, columns),
            checks=tuple(checks),
            comments=comments,
            indexes=tuple(renamed),
        )
        self._store(after)
        for sequence in ddl.owned_sequences(self.catalog, table):
            if sequence.owner == (table.table_id, old):
                ddl.store_sequence(self.session, replace(sequence, owner=(table.table_id, new)))

    def _rename(self, new: str) -> None:
        table: Table = self.table
        if self.catalog.kind_of(new, table.schema) is not None:
            raise CallerMistake(f'relation "{new}" already exists', sqlstate="42P07")
        txn, tree = ddl.transaction_of(self.session), self.session.engine.catalog_tree
        ddl.newest(self.session, Name(table.schema, new, new))
        txn.put(tree, row_key(table.schema, table.name), None)
        ddl.move_grants(self.session, table.schema, table.name, new)
        self._store(replace(table, name=new))
        old = (table.schema, table.name)
        for view in renamed_views(self.catalog, old, (table.schema, new)):
            ddl.store_view(self.session, view)

    async def _alter_column(self, item: Any) -> None:
        table: Table = self.table
        name = identifier(item.this)
        if name not in table.index:
            raise _no_column(table, name)
        place = table.index[name]
        column = table.columns[place]
        args = item.args
        generated = column.identity == GENERATED
        if generated and (args.get("default") is not None or args.get("drop")):
            raise CallerMistake(
                f'column "{name}" of relation "{table.name}" is a generated column',
                sqlstate="42601",
            )
        if args.get("dtype") is not None:
            await self._retype(place, args["dtype"], args.get("using") or None)
        elif args.get("default") is not None:
            default = definitions.default_text(args["default"], name, column.type, column.typmod)
            self._replace(place, replace(column, default=default))
        elif args.get("allow_null") is not None and args["allow_null"]:
            if place in table.primary_key:
                raise CallerMistake(f'column "{name}" is in a primary key', sqlstate="42P16")
            self._replace(place, replace(column, not_null=False))
        elif args.get("allow_null") is not None:
            await self._check_not_null(place)
            self._replace(place, replace(column, not_null=True))
        elif args.get("drop"):
            self._replace(place, replace(column, default=None))
        else:
            raise not_supported("this ALTER COLUMN")

    def _replace(self, place: int, column: TableColumn) -> None:
        columns = list(self.table.columns)
        columns[place] = column
        self._store(with_columns(self.table, tuple(columns)))

    async def _check_not_null(self, place: int) -> None:
        out = Emitter(base_names())
        out.line(f"return any(unpack(payload)[{place}] is None for _, payload in batch)")
        found = compile_function("find", "batch", out)
        async for batch in rebuild.tree_batches(self.session, self.table.tree):
            if found(batch):
                raise CallerMistake(
                    f'column "{self.table.columns[place].name}" of relation "{self.table.name}" '
                    "contains null values",
                    sqlstate="23502",
                )
            await self.session.engine.clock.sleep(0)

    async def _retype(self, place: int, kind_tree: Any, using: Any) -> None:
        table: Table = self.table
        column = table.columns[place]
        kind, typmod = type_of(kind_tree)
        if any(place in key.columns for key in table.foreign):
            raise not_supported("changing the type of a column of a foreign key")
        if _generated_of(table, column.name):
            raise CallerMistake(
                "cannot alter type of a column used by a generated column",
                sqlstate="0A000",
                detail=f'Column "{column.name}" is used by generated column '
                f'"{_generated_of(table, column.name)[0]}".',
            )
        text = sql_text(using) if using is not None else f'"{column.name}"'
        select = f"SELECT {text}"
        binder = Binder(Scope(table, table.name), Parameters(), select)
        node = binder.bind(parse(select).expressions[0])
        default = column.default
        made = replace(column, type=kind, typmod=typmod, default=None)
        columns = list(table.columns)
        columns[place] = made
        after = with_columns(table, tuple(columns))
        if default is not None:
            columns[place] = replace(made, default=default)
        try:
            value = assigned(after, place, node)
        except CallerMistake as error:
            raise CallerMistake(
                f'column "{column.name}" cannot be cast automatically to type {kind.name}',
                sqlstate="42804",
                hint=f'You might need to specify "USING {column.name}::{kind.name}".',
            ) from error
        after = with_columns(table, tuple(columns))
        bound_checks(after)
        indexes.check_columns(after, after.primary_key)
        nodes: list[Node | None] = [None] * len(columns)
        nodes[place] = value
        self._store(await rewrite(self.session, table, after, nodes))

    # Constraints.

    async def _add_constraint(self, tree: Any) -> None:
        found = Definitions()
        definitions.read_constraint(tree, found)
        for key in found.keys:
            await rebuild.add_primary_key(
                self.session, self.name, key.columns, key.name, if_exists=False
            )
        for unique in found.uniques:
            await self._unique(unique)
        found.uniques = []
        if found.checks or found.references:
            await self._checked(found)

    async def _unique(self, unique: definitions.Unique) -> None:
        names = [column.name for column in self.table.columns]
        definitions.key_columns(unique.columns, names, "unique")
        key = Key([(column, None, 0) for column in unique.columns])
        await create_index(self.session, self.name, unique.name, key, unique=True, constraint=True)

    async def _checked(self, found: Definitions) -> None:
        """Add CHECK and FOREIGN KEY that all rows fulfil."""
        session = self.session
        table: Table = await retried(ddl.newest, session, self.name)
        catalog: Catalog = await retried(ddl.current_catalog, session)
        after: Table = await retried(ddl.add_constraints, session, table, found, catalog)
        self._store(after)
        await check_rows(session, table, after, await retried(ddl.current_catalog, session))

    async def _drop_constraint(self, name: str, *, quiet: bool, cascade: bool) -> None:
        table: Table = self.table
        if any(check.name == name for check in table.checks):
            self._store(replace(table, checks=tuple(c for c in table.checks if c.name != name)))
            return
        if any(key.name == name for key in table.foreign):
            self._drop_foreign(table, name)
            return
        index = next((i for i in table.indexes if i.constraint and i.name == name), None)
        is_key = bool(table.primary_key) and name == table.constraint
        if index is None and not is_key:
            if not quiet:
                raise CallerMistake(
                    f'constraint "{name}" of relation "{table.name}" does not exist',
                    sqlstate="42704",
                )
            self.session.notice(
                "NOTICE",
                "00000",
                f'constraint "{name}" of relation "{table.name}" does not exist, skipping',
            )
            return
        columns = set(table.primary_key if is_key else index.columns if index else ())
        for other in self.catalog.tables.values():
            for key in other.foreign:
                if key.other == table.table_id and set(key.other_columns) == columns:
                    if not cascade:
                        raise CallerMistake(
                            f"cannot drop constraint {name} on table {table.name} because other "
                            "objects depend on it",
                            sqlstate="2BP01",
                            detail=f"constraint {key.name} on table {other.name} depends on "
                            f"index {name}",
                            hint="Use DROP ... CASCADE to drop the dependent objects too.",
                        )
                    await retried(self._drop_foreign, other, key.name)
        if index is not None:
            kept = tuple(i for i in table.indexes if i.name != name)
            self._store(replace(table, indexes=kept))
            self.session.engine.drop_tree(ddl.transaction_of(self.session), index.tree)
            return
        after = replace(table, primary_key=(), constraint="")
        self._store(await rewrite(self.session, table, after, [None] * len(table.columns)))


def _generated_of(table: Table, column: str) -> list[str]:
    """The generated columns that a column is used by."""
    return [
        table.columns[i].name
        for i in generated_columns(table)
        if column in definitions.check_columns_of(table.columns[i].default or "")
    ]


def _renamed_in(text: str, old: str, new: str) -> str:
    """An expression over a table's columns, of which one has another name now."""
    tree = parse(f"SELECT {text}").expressions[0]
    for node in tree.find_all(exp.Column):
        if identifier(node.this) == old:
            node.set("this", exp.to_identifier(new, quoted=not new.isidentifier()))
    return sql_text(tree)


def with_columns(table: Table, columns: tuple[TableColumn, ...]) -> Table:
    """The table with other columns."""
    made = make_table(
        table.table_id,
        table.schema,
        table.name,
        columns,
        table.primary_key,
        table.constraint,
        table.tree,
    )
    return replace(
        made,
        indexes=table.indexes,
        checks=table.checks,
        foreign=table.foreign,
        comments=table.comments,
    )


async def rewrite(
    session: SessionLike,
    before: Table,
    after: Table,
    nodes: list[Node | None],
    *,
    gone: int | None = None,
) -> Table:
    """Write all rows anew. ``nodes``: for each column what computes it of the old row ``r``; None
    takes it over, from behind ``gone`` if that is left out. Returns the table with its trees.
    """
    int_keys = has_int_keys(after.columns, after.primary_key)

    def duplicate(key: Any) -> CallerMistake:
        shown = replace(after, tree=loader.tree).key_values(key)
        return duplicate_in_table(after.constraint, after.key_names, shown)

    loader = rebuild.Loader(session, int_keys=int_keys, duplicate=duplicate)
    target = after.with_tree(loader.tree)
    convert = _converter(target, nodes, gone)
    counter = iter(range(1, 1 << 62)).__next__
    async for batch in rebuild.tree_batches(session, before.tree):
        rows = await retried(convert, session, (), batch, counter)
        await loader.add(rows)
        await session.engine.clock.sleep(0)
    tree = await loader.finish()
    session.engine.drop_tree(ddl.transaction_of(session), before.tree)
    return await rebuild.fill_indexes(session, after.with_tree(tree))


def _converter(
    table: Table, nodes: list[Node | None], gone: int | None
) -> Callable[[Any, Any, Rows, Any], Rows]:
    """``convert(session, P, batch, next_id)``: the rows as the table has them now."""
    out = Emitter(base_names())
    out.line("rows = []; append = rows.append")
    out.line("for old, payload in batch:")
    out.indent += 1
    out.line("r = unpack(payload)")
    names = []
    for place, node in enumerate(nodes):
        source = place if gone is None or place < gone else place + 1
        if node is None:
            value = _loaded(table, place, source, out)
        else:
            value = node.emit(out)
        out.line(f"n{place} = {value}")
        names.append(f"n{place}")
    for place, column in enumerate(table.columns):
        node = nodes[place]
        if column.not_null and node is not None and node.nullable:
            out.names |= {"null_in": _null_in, "table": table}
            out.line(f"if n{place} is None: raise null_in(table, {place})")
    out.line(f"payload = pack_row({stored(table, names)})")
    key = key_expression(table, names) if table.primary_key else "next_id()"
    out.line(f"append(({key}, payload))")
    out.indent -= 1
    out.line("return rows")
    return compile_function("convert", "session, P, batch, next_id", out)


def _loaded(table: Table, place: int, source: int, out: Emitter) -> str:
    column = table.columns[place]
    if column.type is not NUMERIC:
        return f"r[{source}]"
    from decimal import Decimal

    out.names["Decimal_"] = Decimal
    return f"(None if r[{source}] is None else Decimal_(r[{source}]))"


def _null_in(table: Table, place: int) -> CallerMistake:
    return CallerMistake(
        f'column "{table.columns[place].name}" of relation "{table.name}" contains null values',
        sqlstate="23502",
    )


async def check_rows(session: SessionLike, before: Table, after: Table, catalog: Catalog) -> None:
    """Raises unless every row fulfils the constraints that are new in ``after``."""
    known = definitions.own_names(before)
    out = Emitter(base_names())
    out.names |= {"refuse": _refuse_check, "table": after}
    out.line("for key, payload in batch:")
    out.indent += 1
    out.line("r = unpack(payload)")
    for name, node in bound_checks(after):
        if name not in known:
            source = node.emit(out)
            out.line(f"if {source} is False: raise refuse(table, {name!r})")
    fresh = [parent for parent in parents_of(after, catalog) if parent.key.name not in known]
    emit_foreign(out, after, fresh, lock=False)
    out.line("pass")
    out.indent -= 1
    check = compile_function("check", "txn, batch", out)
    txn = ddl.transaction_of(session)
    async for batch in rebuild.tree_batches(session, after.tree):
        await retried(check, txn, batch)
        await session.engine.clock.sleep(0)


def _refuse_check(table: Table, name: str) -> CallerMistake:
    error = CallerMistake(
        f'check constraint "{name}" of relation "{table.name}" is violated by some row',
        sqlstate="23514",
    )
    return named(error, table.schema, table.name, name)
