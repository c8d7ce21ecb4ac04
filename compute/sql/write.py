"""INSERT, UPDATE and DELETE on one table: what they mean, as data. `write_run` makes them run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlglot import exp

from compute.sql.access import Access, choose, conjuncts_of
from compute.sql.analytics.arrays import assign_element
from compute.sql.binder import Binder, Parameters, Scope
from compute.sql.casts import cast
from compute.sql.catalog import GENERATED, Catalog, Table
from compute.sql.constraints import Parent, parents_of
from compute.sql.expressions import Const, Local, Node
from compute.sql.filling import (
    assigned,
    default_of,
    generated_columns,
    of_values,
    refuse_update,
    refuse_value,
)
from compute.sql.index_parts import bound, fingerprint, implied, touched
from compute.sql.mistakes import SyntaxMistake, not_supported, unknown_column
from compute.sql.select import (
    NotAShape,
    Output,
    Select,
    arg,
    bind_outputs,
    find_table,
    table_scope,
    understand,
)
from compute.sql.syntax import identifier
from compute.sql.types import TEXT, UNKNOWN, SqlType
from polarless.errors import CallerMistake


@dataclass(slots=True)
class Conflict:
    """ON CONFLICT: ``assignments`` empty is DO NOTHING."""

    assignments: list[tuple[int, Node]] = field(default_factory=list)
    where: Node | None = None
    # What decides that there is a conflict: -1 the primary key, others are unique indexes. None:
    # any of them.
    arbiters: set[int] | None = None


class RowSource(Protocol):
    """A query that our own executor does not run, as far as INSERT looks into it."""

    outputs: list[Output]
    access: None

    def entries(self, session: Any, values: Any, txn: Any) -> AsyncIterator[list[Any]]:
        """The rows as tuples of values, in lists."""


After = Callable[[Any, list[tuple[Any, Any]]], Awaitable[None]]
# Makes a source of the tree of a query.
SourceOf = Callable[[Any], RowSource]


@dataclass(slots=True)
class Insert:
    """Rows are complete: a node for each column of the table. Either ``rows`` or ``query``."""

    table: Table
    rows: list[list[Node]]
    query: Select | RowSource | None = None
    conflict: Conflict | None = None
    returning: list[Output] | None = None
    parents: list[Parent] = field(default_factory=list)


@dataclass(slots=True)
class Update:
    """``assignments`` None is a DELETE."""

    access: Access
    assignments: list[tuple[int, Node]] | None
    returning: list[Output] | None = None
    parents: list[Parent] = field(default_factory=list)
    # What is done with the changed rows, (before, after or None), when all are changed.
    after: After | None = None

    @property
    def collects(self) -> bool:
        """Whether changed rows are kept for `after`."""
        return self.after is not None

    @property
    def changes_key(self) -> bool:
        """Whether rows move to another key."""
        return bool(self._changed & set(self.access.table.primary_key))

    @property
    def changes_order(self) -> bool:
        """Whether rows move in the index by which they are found, and could be met again."""
        index = self.access.index
        return index is not None and bool(self._changed & touched(self.access.table, index))

    @property
    def _changed(self) -> set[int]:
        """The columns that get another value."""
        changed = {index for index, _ in self.assignments or ()}
        return changed.union(generated_columns(self.access.table)) if changed else changed


# ------------------------------------------------------------------------------------------- INSERT


def understand_insert(
    tree: Any, catalog: Catalog, parameters: Parameters, text: str, source_of: SourceOf
) -> Insert:
    """The meaning of an exp.Insert. Raises `CallerMistake`."""
    if tree.args.get("by_name") or tree.args.get("overwrite"):
        raise SyntaxMistake("syntax error in INSERT")
    target = tree.this
    table_tree = target.this if isinstance(target, exp.Schema) else target
    if not isinstance(table_tree, exp.Table):
        raise SyntaxMistake("syntax error in INSERT")
    table = find_table(table_tree, catalog)
    columns = (
        [_column(table, identifier(node)) for node in target.expressions]
        if isinstance(target, exp.Schema)
        else list(range(len(table.columns)))
    )
    if len(set(columns)) < len(columns):
        name = next(table.columns[i].name for i in columns if columns.count(i) > 1)
        raise CallerMistake(f'column "{name}" specified more than once', sqlstate="42701")
    explicit = isinstance(target, exp.Schema)
    source = tree.expression
    if any(column.identity == "a" for column in table.columns):
        _check_identity(table, columns, source, text, explicit=explicit)
    found = Insert(table, [], parents=parents_of(table, catalog))
    if tree.args.get("default"):
        found.rows = [complete(table, [], [])]
    elif isinstance(source, exp.Values) and not arg(tree, "with"):
        try:
            found.rows = _values(source, table, columns, parameters, text, explicit=explicit)
        except CallerMistake as error:
            if error.sqlstate != "0A000":
                raise
            # A subquery in VALUES: the rows of a query, then.
            found.query = source_of(source)
    elif isinstance(source, exp.Query):
        found.query = _query(tree, source, catalog, parameters, text, source_of)
    else:
        raise not_supported("this kind of INSERT")
    if found.query is not None:
        locals_: list[Node | None] = [
            Local(f"v{i}", _open_type(o.node), o.node.typmod, nullable=o.node.nullable)
            for i, o in enumerate(found.query.outputs)
        ]
        found.rows = [_row(table, columns, locals_, explicit=explicit)]
    alias = table_tree.args.get("alias")
    scope_name = identifier(alias.this) if alias is not None else table.name
    found.conflict = _conflict(tree.args.get("conflict"), table, scope_name, parameters, text)
    found.returning = _returning(tree, Scope(table, scope_name), parameters, text)
    return found


def _check_identity(
    table: Table, columns: list[int], source: Any, text: str, *, explicit: bool
) -> None:
    """Raises 428C9 for a value of a column that is GENERATED ALWAYS."""
    if "/*overriding system value*/" in text or source is None:
        return
    rows = source.expressions if isinstance(source, exp.Values) else []
    for place, index in enumerate(columns):
        column = table.columns[index]
        if column.identity != "a":
            continue
        given = [
            row.expressions[place] if isinstance(row, exp.Tuple) else row
            for row in rows
            if place < (len(row.expressions) if isinstance(row, exp.Tuple) else 1)
        ]
        if given and all(_is_default(value) for value in given):
            continue
        if given or (not rows and explicit):
            raise CallerMistake(
                f'cannot insert a non-DEFAULT value into column "{column.name}"',
                sqlstate="428C9",
                detail=f'Column "{column.name}" is an identity column defined as GENERATED ALWAYS.',
                hint="Use OVERRIDING SYSTEM VALUE to override.",
            )


def _open_type(node: Node) -> SqlType:
    """The type of a column of a query; open for a literal, which becomes what it is put into."""
    return UNKNOWN if isinstance(node, Const) and node.type is TEXT else node.type


def _values(
    source: Any,
    table: Table,
    columns: list[int],
    parameters: Parameters,
    text: str,
    *,
    explicit: bool,
) -> list[list[Node]]:
    binder = Binder(Scope(), parameters, text)
    rows = []
    for item in source.expressions:
        values = item.expressions if isinstance(item, exp.Tuple) else [item]
        nodes = [None if _is_default(value) else binder.bind(value) for value in values]
        rows.append(_row(table, columns, nodes, explicit=explicit))
    return rows


def _query(
    tree: Any,
    source: Any,
    catalog: Catalog,
    parameters: Parameters,
    text: str,
    source_of: SourceOf,
) -> Select | RowSource:
    """INSERT ... SELECT: by our own executor if it can."""
    while isinstance(source, exp.Subquery) and not source.args.get("order"):
        source = source.this
    above = arg(tree, "with")
    if above is not None:
        # WITH in front of INSERT is as good as one in front of its query.
        source = source.copy()
        source.set("with_", above)
        return source_of(source)
    if isinstance(source, exp.Select):
        try:
            return understand(source, catalog, parameters, text)
        except CallerMistake as error:
            if isinstance(error, NotAShape):
                raise
            try:
                return source_of(source)
            except CallerMistake as second:
                raise (error if second.sqlstate == error.sqlstate else second) from None
    return source_of(source)


def _column(table: Table, name: str) -> int:
    index = table.index.get(name)
    if index is None:
        raise unknown_column(name, table.name)
    return index


def _is_default(node: Any) -> bool:
    if isinstance(node, exp.Var):
        return str(node.this).upper() == "DEFAULT"
    return isinstance(node, exp.Column) and node.sql().upper() == "DEFAULT"


def _row(
    table: Table,
    columns: list[int],
    nodes: list[Node | None],
    *,
    explicit: bool,
) -> list[Node]:
    if len(nodes) > len(columns):
        raise CallerMistake("INSERT has more expressions than target columns", sqlstate="42601")
    if explicit and len(nodes) < len(columns):
        raise CallerMistake("INSERT has more target columns than expressions", sqlstate="42601")
    for index, node in zip(columns, nodes):
        if node is not None and table.columns[index].identity == GENERATED:
            raise refuse_value(table, index)
    return complete(table, columns[: len(nodes)], nodes)


def complete(table: Table, columns: list[int], nodes: list[Node | None]) -> list[Node]:
    """A node for every column: what is given (None: DEFAULT), else the default, else NULL.

    Those of generated columns are over the others' values, `filling.of_values`.
    """
    row: list[Node | None] = [None] * len(table.columns)
    for index, node in zip(columns, nodes):
        row[index] = None if node is None else assigned(table, index, node)
    for index in generated_columns(table):
        row[index] = of_values(table, index)
    return [default_of(table, i) if node is None else node for i, node in enumerate(row)]


def _conflict(
    clause: Any, table: Table, name: str, parameters: Parameters, text: str
) -> Conflict | None:
    if clause is None:
        return None
    arbiters: set[int] | None = None
    if clause.args.get("constraint") is not None:
        wanted = identifier(clause.args["constraint"])
        arbiters = {n for n, i in enumerate(table.indexes) if i.name == wanted and i.constraint}
        if wanted == table.constraint and table.primary_key:
            arbiters = {-1}
        if not arbiters:
            raise CallerMistake(
                f'constraint "{wanted}" for table "{table.name}" does not exist', sqlstate="42704"
            )
    keys = clause.args.get("conflict_keys") or ()
    if keys:
        arbiters = _inferred(clause, keys, table, name, text)
        if not arbiters:
            raise CallerMistake(
                "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                sqlstate="42P10",
            )
    action = clause.args.get("action")
    word = (action.name if action is not None else "").upper()
    if not clause.expressions and "UPDATE" not in word:
        return Conflict(arbiters=arbiters)
    if not keys and clause.args.get("constraint") is None:
        raise SyntaxMistake(
            "ON CONFLICT DO UPDATE requires inference specification or constraint name",
            hint="For example, ON CONFLICT (column_name).",
        )

    def excluded(column: str, qualifier: str | None) -> Node | None:
        if qualifier != "excluded":
            return None
        index = _column(table, column)
        found = table.columns[index]
        return Local(f"w{index}", found.type, found.typmod)

    scope = Scope(table, name, excluded)
    result = Conflict(_assignments(clause.expressions, scope, parameters, text), None, arbiters)
    if any(index in table.primary_key for index, _ in result.assignments):
        raise not_supported("ON CONFLICT DO UPDATE of a primary key column")
    where = clause.args.get("where")
    if where is not None:
        result.where = Binder(scope, parameters, text).condition(where.this, "WHERE")
    return result


def _inferred(clause: Any, keys: list[Any], table: Table, name: str, text: str) -> set[int]:
    """The unique indexes that ON CONFLICT (keys) WHERE ... describes; -1 is the primary key."""
    columns, expressions = set(), set()
    binder = Binder(Scope(table, name), Parameters(), text)
    for key in keys:
        bare = _bare(key)
        if isinstance(bare, exp.Identifier):
            columns.add(_column(table, identifier(bare)))
        else:
            expressions.add(fingerprint(binder.bind(bare)))
    predicate = clause.args.get("index_predicate")
    known = [] if predicate is None else conjuncts_of(binder.condition(predicate.this, "WHERE"))
    found = {
        number
        for number, index in enumerate(table.indexes)
        if index.unique
        and {i for i in index.columns if i >= 0} == columns
        and {fingerprint(bound(table, source)) for source in index.expressions} == expressions
        and implied(table, index, known)
    }
    if not expressions and table.primary_key and set(table.primary_key) == columns:
        found.add(-1)
    return found


def _bare(key: Any) -> Any:
    while isinstance(key, (exp.Ordered, exp.Paren, exp.Column)):
        key = key.this
    return key


# -------------------------------------------------------------------------------- UPDATE and DELETE


def understand_update(tree: Any, catalog: Catalog, parameters: Parameters, text: str) -> Update:
    """The meaning of an exp.Update. Raises `CallerMistake`."""
    _refuse(tree, ("from", "UPDATE ... FROM"), ("with", "WITH"), ("order", "ORDER BY in UPDATE"))
    _refuse(tree, ("limit", "LIMIT in UPDATE"))
    scope = table_scope(tree.this, catalog)
    assert scope.table is not None
    assignments = _assignments(tree.expressions, scope, parameters, text)
    return Update(
        _where(tree, scope, parameters, text),
        assignments,
        _returning(tree, scope, parameters, text),
        parents_of(scope.table, catalog),
    )


def understand_delete(tree: Any, catalog: Catalog, parameters: Parameters, text: str) -> Update:
    """The meaning of an exp.Delete. Raises `CallerMistake`."""
    _refuse(tree, ("using", "DELETE ... USING"), ("with", "WITH"), ("order", "ORDER BY in DELETE"))
    _refuse(tree, ("limit", "LIMIT in DELETE"))
    scope = table_scope(tree.this, catalog)
    return Update(
        _where(tree, scope, parameters, text), None, _returning(tree, scope, parameters, text)
    )


def _refuse(tree: Any, *what: tuple[str, str]) -> None:
    for name, words in what:
        if arg(tree, name):
            raise not_supported(words)


def _where(tree: Any, scope: Scope, parameters: Parameters, text: str) -> Access:
    clause = tree.args.get("where")
    binder = Binder(scope, parameters, text)
    assert scope.table is not None
    where = binder.condition(clause.this, "WHERE") if clause is not None else None
    return choose(scope.table, where)


def _assignments(
    trees: list[Any], scope: Scope, parameters: Parameters, text: str
) -> list[tuple[int, Node]]:
    table = scope.table
    assert table is not None
    binder = Binder(scope, parameters, text)
    found: list[tuple[int, Node]] = []
    for tree in trees:
        if not isinstance(tree, exp.EQ):
            raise SyntaxMistake(f'syntax error at or near "{tree.sql()[:60]}"')
        targets, values = [tree.this], [tree.expression]
        if isinstance(tree.this, exp.Tuple):
            if not isinstance(tree.expression, exp.Tuple):
                raise not_supported("UPDATE with a row or subquery source")
            targets, values = tree.this.expressions, tree.expression.expressions
            if len(targets) != len(values):
                raise SyntaxMistake("number of columns does not match number of values")
        for target, value in zip(targets, values):
            if isinstance(target, exp.Bracket):
                index = _column(table, identifier(_bare(target.this)))
                if table.columns[index].identity == GENERATED:
                    raise refuse_update(table, index)
                node = assign_element(binder, binder.column(index), target, value)
                found.append((index, assigned(table, index, node)))
                continue
            if isinstance(target, exp.Column) and target.args.get("table"):
                raise unknown_column(target.args["table"].name, table.name)
            index = _column(table, identifier(_bare(target)))
            if any(index == other for other, _ in found):
                raise CallerMistake(
                    f'multiple assignments to same column "{table.columns[index].name}"',
                    sqlstate="42601",
                )
            if table.columns[index].identity == GENERATED:
                if not _is_default(value):
                    raise refuse_update(table, index)
            elif _is_default(value):
                found.append((index, default_of(table, index)))
            else:
                found.append((index, assigned(table, index, binder.bind(value))))
    return found


def _returning(tree: Any, scope: Scope, parameters: Parameters, text: str) -> list[Output] | None:
    clause = tree.args.get("returning")
    if clause is None:
        return None
    outputs = bind_outputs(clause, Binder(scope, parameters, text), scope)
    return [
        Output(o.name, cast(o.node, TEXT) if o.node.type is UNKNOWN else o.node) for o in outputs
    ]
