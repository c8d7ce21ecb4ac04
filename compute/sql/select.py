"""SELECT over one table (or none): what it means, as data. `select_run` makes it run.

FROM, WHERE, GROUP BY, HAVING, the list, DISTINCT, ORDER BY, LIMIT are understood in the order in
which SQL gives them meaning. What is not built (joins, subqueries, CTEs, windows, set operations)
is refused here by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlglot import exp

from compute.sql import operators
from compute.sql.access import Access, choose, conjuncts_of
from compute.sql.binder import (
    Binder,
    Parameters,
    Scope,
    function_name,
    is_array,
    trim_name,
    type_of,
)
from compute.sql.casts import cast
from compute.sql.catalog import PUBLIC, Catalog, Table, TableColumn, make_table
from compute.sql.expressions import (
    Aggregate,
    ColumnRef,
    Const,
    Local,
    Node,
    is_constant,
)
from compute.sql.mistakes import SyntaxMistake, not_supported, unknown_table
from compute.sql.syntax import identifier
from compute.sql.types import INT4, INT8, NUMERIC, TEXT, UNKNOWN, display
from polarless.errors import CallerMistake


class Output(NamedTuple):
    """A column of the result."""

    name: str
    node: Node


class Order(NamedTuple):
    """One key of ORDER BY."""

    node: Node
    descending: bool
    nulls_first: bool


@dataclass(slots=True)
class Series:
    """generate_series(start, stop[, step]) in FROM."""

    start: Node
    stop: Node
    step: Node


@dataclass(slots=True)
class Select:
    """A SELECT, understood. ``access`` None: no table; then ``series`` or a single empty row."""

    access: Access | None
    series: Series | None
    where: Node | None
    outputs: list[Output]
    aggregates: list[Aggregate] = field(default_factory=list)
    groups: list[Node] = field(default_factory=list)
    grouped: bool = False
    having: Node | None = None
    distinct: bool = False
    order: list[Order] = field(default_factory=list)
    # The key's own order serves: no sort is needed, the scan goes this way.
    in_key_order: bool = False
    reverse: bool = False
    # min() or max() of the key's first column: the scan may end at the first row that counts.
    extreme: bool = False
    limit: Node | None = None
    offset: Node | None = None
    # FOR UPDATE and its kin: "wait", "nowait" or "skip". Then `conditions` is all of WHERE.
    lock: str = ""
    conditions: list[Node] = field(default_factory=list)


class NotAShape(CallerMistake):
    """A literal of the text decides the meaning here, so it may not become a parameter."""


def arg(node: Any, name: str) -> Any:
    """An argument of a sqlglot node; newer versions write ``from_`` and ``with_``."""
    found = node.args.get(name)
    return node.args.get(name + "_") if found is None else found


_REFUSED: Final = {
    "with": "WITH", "joins": "a join", "laterals": "LATERAL", "windows": "WINDOW",
    "qualify": "QUALIFY", "into": "SELECT INTO", "connect": "CONNECT BY", "match": "MATCH",
    "pivots": "PIVOT", "sample": "TABLESAMPLE",
    "cluster": "CLUSTER BY", "distribute": "DISTRIBUTE BY", "sort": "SORT BY",
    "settings": "SETTINGS", "format": "FORMAT", "prewhere": "PREWHERE", "fetch": "FETCH",
}  # fmt: skip


def understand(tree: Any, catalog: Catalog, parameters: Parameters, text: str) -> Select:
    """The meaning of an exp.Select. Raises `CallerMistake`."""
    for name, what in _REFUSED.items():
        if arg(tree, name):
            raise not_supported(what)
    scope, series_tree = resolve_from(tree, catalog)
    binder = Binder(scope, parameters, text)
    binder.arrays_elsewhere = True
    series = _series(series_tree, scope, parameters, text) if series_tree is not None else None
    where_tree = tree.args.get("where")
    where = binder.condition(where_tree.this, "WHERE") if where_tree is not None else None
    access = None
    if scope.table is not None and series is None:
        access = choose(scope.table, where)
    found = Select(access, series, where, [])
    found.distinct = _distinct(tree)
    _group(tree, binder, found)
    binder.aggregates = found.aggregates
    binder.clause = "this context"
    found.outputs = bind_outputs(tree, binder, scope)
    having = tree.args.get("having")
    if having is not None:
        found.grouped = True
        found.having = binder.condition(having.this, "HAVING")
    _order(tree, binder, found)
    binder.aggregates = None
    if found.aggregates:
        found.grouped = True
    if found.grouped and not found.groups:
        _refuse_columns(found)
    keys = [*found.groups, *(order.node for order in found.order)]
    if found.distinct:
        keys += [output.node for output in found.outputs]
    if any(is_array(node) for node in keys):
        raise not_supported("arrays that are compared")
    _use_key_order(found)
    _use_extreme(found)
    _limits(tree, binder, found)
    _resolve_unknown(found)
    if tree.args.get("locks"):
        _lock(tree, found, scope)
    return found


def _lock(tree: Any, found: Select, scope: Scope) -> None:
    """FOR UPDATE, SHARE, ... [OF table] [NOWAIT | SKIP LOCKED]."""
    what = "FOR UPDATE" if tree.args["locks"][0].args.get("update") else "FOR SHARE"
    if found.grouped or found.distinct or found.access is None:
        clause = "DISTINCT clause" if found.distinct else "aggregate functions or GROUP BY clause"
        if found.access is None:
            return
        raise CallerMistake(f"{what} is not allowed with {clause}", sqlstate="0A000")
    found.lock = "wait"
    for lock in tree.args["locks"]:
        for target in lock.expressions or ():
            if identifier(target.this) != scope.alias:
                raise CallerMistake(
                    f'relation "{identifier(target.this)}" in {what} clause not found in FROM '
                    "clause",
                    sqlstate="42P01",
                )
        wait = lock.args.get("wait")
        if wait is not None:
            found.lock = "nowait" if wait else "skip"
    found.conditions = conjuncts_of(found.where)


# -------------------------------------------------------------------------------------------- FROM


def resolve_from(tree: Any, catalog: Catalog) -> tuple[Scope, Any]:
    """What FROM names: a scope, and the tree of a generate_series."""
    clause = arg(tree, "from")
    if clause is None:
        return Scope(), None
    source = clause.this
    if isinstance(source, exp.Subquery):
        raise not_supported("a subquery in FROM")
    if not isinstance(source, exp.Table):
        raise not_supported(f"{type(source).__name__.upper()} in FROM")
    if source.args.get("joins") or source.args.get("laterals"):
        raise not_supported("a join")
    if isinstance(source.this, exp.Func):
        return _series_scope(source)
    return table_scope(source, catalog), None


def table_scope(source: Any, catalog: Catalog) -> Scope:
    """The scope of a table's name, perhaps with an alias. Raises 42P01."""
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        raise SyntaxMistake("syntax error: a table's name is missing")
    if source.args.get("pivots") or source.args.get("sample"):
        raise not_supported("PIVOT or TABLESAMPLE")
    table = find_table(source, catalog)
    alias = source.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise not_supported("column aliases of a table")
    name = identifier(alias.this) if alias is not None and alias.this is not None else table.name
    return Scope(table, name)


def find_table(source: Any, catalog: Catalog) -> Table:
    """The table that an exp.Table names. Raises 42P01, 0A000 for another database."""
    name = identifier(source.this)
    schema = identifier(source.args["db"]) if source.args.get("db") else None
    if source.args.get("catalog"):
        raise not_supported("a reference to another database")
    found = catalog.find(name, schema)
    if found is None:
        raise unknown_table(f"{schema}.{name}" if schema else name)
    return found


def _series_scope(source: Any) -> tuple[Scope, Any]:
    call = source.this
    name = "generate_series"
    is_series = "GENERATESERIES" in type(call).__name__.upper() or (
        isinstance(call, exp.Anonymous) and function_name(call, "") == name
    )
    if not is_series:
        raise not_supported("this function in FROM", hint="generate_series() is.")
    if source.args.get("ordinality"):
        raise not_supported("WITH ORDINALITY")
    alias = source.args.get("alias")
    column = name
    if alias is not None:
        if alias.this is not None:
            name = column = identifier(alias.this)
        if alias.args.get("columns"):
            column = identifier(alias.args["columns"][0])
    columns = (TableColumn(column, INT8),)
    return Scope(make_table(0, PUBLIC, name, columns, (), "", None), name), call


def _series(call: Any, scope: Scope, parameters: Parameters, text: str) -> Series:
    binder = Binder(Scope(), parameters, text)
    trees = [
        found
        for key in ("start", "end", "step", "expressions")
        for found in _as_list(call.args.get(key))
        if isinstance(found, exp.Expression)
    ]
    if not 2 <= len(trees) <= 3:
        raise CallerMistake("generate_series takes two or three arguments", sqlstate="42883")
    nodes = [binder.bind(tree) for tree in trees]
    kind = operators.common_type(nodes, "generate_series")
    if kind is TEXT:
        kind = INT4
    if kind not in (INT4, INT8):
        raise not_supported(f"generate_series of {display(kind)}")
    table = scope.table
    assert table is not None
    columns = (TableColumn(table.columns[0].name, kind, not_null=True),)
    scope.table = make_table(0, table.schema, table.name, columns, (), "", None)
    start, stop, *rest = [cast(node, kind) for node in nodes]
    return Series(start, stop, rest[0] if rest else Const(1, kind))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ------------------------------------------------------------------------------------ list, groups


def _distinct(tree: Any) -> bool:
    clause = tree.args.get("distinct")
    if clause is None:
        return False
    if clause.args.get("on") is not None:
        raise not_supported("DISTINCT ON")
    return True


def bind_outputs(tree: Any, binder: Binder, scope: Scope) -> list[Output]:
    outputs: list[Output] = []
    for item in tree.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        if isinstance(inner, exp.Star) or (
            isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)
        ):
            outputs += _star(inner, binder, scope)
            continue
        if isinstance(inner, (exp.Aliases, exp.Tuple)):
            raise not_supported("a row in the SELECT list")
        node = binder.bind(inner)
        if isinstance(item, exp.Alias):
            name = identifier(item.args["alias"])
        else:
            name = output_name(inner, binder.text)
        outputs.append(Output(name, node))
    return outputs


def _star(node: Any, binder: Binder, scope: Scope) -> list[Output]:
    if scope.table is None:
        raise CallerMistake("SELECT * with no tables specified is not valid", sqlstate="42601")
    if isinstance(node, exp.Column) and node.args.get("table") is not None:
        qualifier = identifier(node.args["table"])
        if qualifier != scope.alias:
            raise CallerMistake(
                f'missing FROM-clause entry for table "{qualifier}"', sqlstate="42P01"
            )
    return [
        Output(column.name, binder.column(index))
        for index, column in enumerate(scope.table.columns)
    ]


def output_name(node: Any, text: str) -> str:
    """What PostgreSQL calls a column that has no alias."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return identifier(node.this)
    if isinstance(node, exp.Cast):
        inner = node.this
        while isinstance(inner, exp.Paren):
            inner = inner.this
        weak = isinstance(inner, (exp.Cast, exp.Boolean, exp.Case))
        name = "?column?" if weak else output_name(inner, text)
        return _type_output_name(node) if name == "?column?" else name
    if isinstance(node, exp.Interval):
        return "interval"
    if isinstance(node, exp.Array):
        return "array"
    if isinstance(node, exp.Bracket):
        return output_name(node.this, text)
    if type(node) in _NAMELESS:
        return _NAMELESS[type(node)]
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        while isinstance(default, (exp.Paren, exp.Cast)):
            # A cast's type gives no name here.
            default = default.this
        name = "?column?" if default is None else output_name(default, text)
        return "case" if name == "?column?" else name
    if isinstance(node, exp.Trim) and node.args.get("position"):
        return trim_name(node)
    if isinstance(node, exp.Dot):
        return output_name(node.expression, text)
    operator = isinstance(node, (exp.Binary, exp.Unary, exp.Connector, exp.Predicate))
    if "start" in node.meta if operator else isinstance(node, exp.Func):
        return function_name(node, text)
    return "?column?"


# What is a call for sqlglot, and for PostgreSQL an operator; and the other way round.
_NAMELESS: Final = {
    exp.Concat: "?column?", exp.Sqrt: "?column?", exp.Cbrt: "?column?", exp.SimilarTo: "?column?",
    exp.AtTimeZone: "timezone", exp.Extract: "extract", exp.Overlay: "overlay",
    exp.StrPosition: "position", exp.Overlaps: "overlaps",
}  # fmt: skip
_INTERNAL_NAMES: Final = {
    "integer": "int4", "bigint": "int8", "smallint": "int2", "double precision": "float8",
    "real": "float4", "boolean": "bool", "character varying": "varchar", "character": "bpchar",
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    '"char"': "char", "time without time zone": "time",
}  # fmt: skip


def _type_output_name(node: Any) -> str:
    kind = type_of(node.args["to"])[0]
    name = getattr(kind, "element", kind).name
    return _INTERNAL_NAMES.get(name, name)


def _group(tree: Any, binder: Binder, found: Select) -> None:
    clause = tree.args.get("group")
    if clause is None:
        return
    for name in ("grouping_sets", "cube", "rollup", "all", "totals"):
        if clause.args.get(name):
            raise not_supported(f"GROUP BY {name.upper().replace('_', ' ')}")
    found.grouped = True
    groups: dict[str, Local] = {}
    for item in clause.expressions:
        target = item
        if isinstance(item, exp.Parameter):
            raise NotAShape("GROUP BY a parameter")
        if isinstance(item, exp.Literal) and not item.is_string:
            target = _position(item, tree, "GROUP BY")
        elif isinstance(item, exp.Column) and not item.args.get("table"):
            target = _alias(item, tree, binder) or item
        binder.clause = "GROUP BY"
        node = binder.bind(target)
        if node.type is UNKNOWN:
            node = cast(node, TEXT)
        index = len(found.groups)
        found.groups.append(node)
        local = Local(f"g{index}", node.type, node.typmod, nullable=node.nullable)
        groups.setdefault(binder.group_key(target), local)
    binder.groups = groups


def _alias(item: Any, tree: Any, binder: Binder) -> Any:
    """The expression behind an output name, unless the table has a column of that name."""
    name = identifier(item.this)
    table = binder.scope.table
    if table is not None and name in table.index:
        return None
    for output in tree.expressions:
        if isinstance(output, exp.Alias) and identifier(output.args["alias"]) == name:
            return output.this
    return None


def _position(item: Any, tree: Any, what: str) -> Any:
    number = int(item.this) if str(item.this).isdigit() else 0
    if not 1 <= number <= len(tree.expressions):
        raise CallerMistake(f"{what} position {item.this} is not in select list", sqlstate="42P10")
    target = tree.expressions[number - 1]
    target = target.this if isinstance(target, exp.Alias) else target
    if isinstance(target, exp.Star):
        raise not_supported(f"{what} position of a *")
    return target


def _refuse_columns(found: Select) -> None:
    """Aggregates without GROUP BY: no column may stand outside of one."""
    nodes = [output.node for output in found.outputs] + [order.node for order in found.order]
    for node in nodes:
        stack = [node]
        while stack:
            item = stack.pop()
            if isinstance(item, ColumnRef):
                raise CallerMistake(
                    f'column "{item.table}.{item.name}" must appear in the GROUP BY clause or be '
                    "used in an aggregate function",
                    sqlstate="42803",
                )
            stack.extend(item.children())


# ------------------------------------------------------------------------------ ORDER BY and LIMIT


def _order(tree: Any, binder: Binder, found: Select) -> None:
    clause = tree.args.get("order")
    if clause is None:
        return
    names = [output.name for output in found.outputs]
    for item in clause.expressions:
        ordered = item if isinstance(item, exp.Ordered) else exp.Ordered(this=item)
        target = ordered.this
        if isinstance(target, exp.Parameter):
            raise NotAShape("ORDER BY a parameter")
        node: Node | None = None
        if isinstance(target, exp.Literal) and not target.is_string:
            number = int(target.this) if str(target.this).isdigit() else 0
            if not 1 <= number <= len(names):
                raise CallerMistake(
                    f"ORDER BY position {target.this} is not in select list", sqlstate="42P10"
                )
            node = found.outputs[number - 1].node
        elif isinstance(target, exp.Column) and not target.args.get("table"):
            name = identifier(target.this)
            if name in names:
                node = _named_output(tree, found, names, name)
        if node is None:
            node = binder.bind(target)
            if found.distinct and not _is_output(node, target, tree, binder):
                raise CallerMistake(
                    "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                    sqlstate="42P10",
                )
        descending = bool(ordered.args.get("desc"))
        nulls_first = ordered.args.get("nulls_first")
        written = "nulls" in binder.text.lower()
        if nulls_first is None or not written:
            # sqlglot fills this in by its own idea of the dialect unless the text says it.
            nulls_first = descending
        found.order.append(Order(node, descending, bool(nulls_first)))


def _is_output(node: Node, target: Any, tree: Any, binder: Binder) -> bool:
    if isinstance(node, ColumnRef) and any(isinstance(item, exp.Star) for item in tree.expressions):
        return True
    key = binder.group_key(target)
    return any(binder.group_key(item) == key for item in tree.expressions)


def _named_output(tree: Any, found: Select, names: list[str], name: str) -> Node:
    """The output of that name. Several are fine if they are the same. Raises 42702."""
    places = [place for place, known in enumerate(names) if known == name]
    node = found.outputs[places[0]].node
    # Without a star there is one item for each output.
    items = [item.unalias().sql() for item in tree.expressions]
    written = items if len(items) == len(names) else [""] * len(names)
    for place in places[1:]:
        other = found.outputs[place].node
        if isinstance(node, ColumnRef) and isinstance(other, ColumnRef):
            same = node.index == other.index
        else:
            same = other is node or (bool(written[place]) and written[place] == written[places[0]])
        if not same:
            raise CallerMistake(f'ORDER BY "{name}" is ambiguous', sqlstate="42702")
    return node


def _use_key_order(found: Select) -> None:
    """Whether the scan gives the rows in the order that is asked for."""
    access = found.access
    if access is None or found.grouped or found.distinct or not found.order:
        return
    if access.keys or access.ranges:
        return
    key = list(access.columns)
    if access.index is not None:
        # NULLs are at the end of an index.
        if any(order.nulls_first != order.descending for order in found.order):
            return
        fixed = len(access.equal)
        first = found.order[0].node
        if fixed and isinstance(first, ColumnRef) and first.index not in key[:fixed]:
            key = key[fixed:]
    if len({order.descending for order in found.order}) > 1 or len(found.order) > len(key):
        # What is fixed by equality could be left out; nobody writes that often.
        return
    for order, index in zip(found.order, key):
        if not isinstance(order.node, ColumnRef) or order.node.index != index:
            return
    found.in_key_order = True
    found.reverse = found.order[0].descending
    found.order = []


def _use_extreme(found: Select) -> None:
    """Whether a lone min() or max() is that of the first row, read from the right end."""
    access = found.access
    if access is None or access.index is not None or access.keys or access.ranges:
        return
    if not access.columns or found.groups or len(found.aggregates) != 1:
        return
    (aggregate,) = found.aggregates
    node = aggregate.arg
    if aggregate.function in ("min", "max") and isinstance(node, ColumnRef):
        # DISTINCT changes nothing about an extreme.
        aggregate.distinct = False
        found.extreme = node.index == access.columns[0]
        found.reverse = found.extreme and aggregate.function == "max"


def _limits(tree: Any, binder: Binder, found: Select) -> None:
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    constants = Binder(Scope(), binder.parameters, binder.text, clause="LIMIT")
    if isinstance(limit, exp.Fetch):
        count = limit.args.get("count")
        found.limit = _count(constants, count if count is not None else exp.Literal.number(1))
        options = limit.args.get("limit_options")
        if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
            raise not_supported("FETCH ... WITH TIES or PERCENT")
    elif limit is not None:
        expression = limit.expression
        is_all = isinstance(expression, (exp.All, exp.Null, exp.Column)) and (
            isinstance(expression, exp.Null) or expression.name.upper() in ("ALL", "")
        )
        if not is_all:
            found.limit = _count(constants, expression)
    if offset is not None:
        found.offset = _count(constants, offset.expression)


def _count(binder: Binder, tree: Any) -> Node:
    node = binder.bind(tree)
    if node.type in (INT4, UNKNOWN):
        return cast(node, INT8)
    if node.type is NUMERIC:
        return cast(node, INT8, strength=1)
    if not is_constant(node) or node.type.family != "int":
        raise CallerMistake(
            f"argument of LIMIT must be type bigint, not type {display(node.type)}",
            sqlstate="42804",
        )
    return node


def _resolve_unknown(found: Select) -> None:
    """Literals and parameters of the list that nothing gave a type are text."""
    found.outputs = [
        Output(o.name, cast(o.node, TEXT) if o.node.type is UNKNOWN else o.node)
        for o in found.outputs
    ]
    found.order = [
        Order(cast(o.node, TEXT) if o.node.type is UNKNOWN else o.node, o.descending, o.nulls_first)
        for o in found.order
    ]
