"""FROM: tables, subqueries, functions and how they are joined; and what narrows their scans.

A condition narrows a scan when it is about that table alone, is made of nothing that may fail, and
stands where a row that does not meet it cannot come back: WHERE, or ON, unless an outer join keeps
the table's rows (or fills them with NULLs) whatever the condition says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from compute.sql import operators
from compute.sql.analytics import setreturning
from compute.sql.analytics.binder import AnalyticBinder
from compute.sql.analytics.carriers import BIGINT, carrier_of, common, element_of
from compute.sql.analytics.leaves import Leaf, is_constant
from compute.sql.analytics.lower import key_of
from compute.sql.analytics.scans import Lookup, Scan
from compute.sql.analytics.scopes import Level, Relation, Star, stars_of
from compute.sql.arraytypes import array_of
from compute.sql.binder import function_name
from compute.sql.casts import cast
from compute.sql.catalog import View
from compute.sql.catalogs.objects import made_oid
from compute.sql.catalogs.registry import is_system
from compute.sql.expressions import Coalesce, Const, Node
from compute.sql.functions import no_function
from compute.sql.mistakes import SyntaxMistake, not_supported, unknown_table
from compute.sql.select import arg
from compute.sql.syntax import identifier
from compute.sql.types import INT4, INT8, TEXT, UNKNOWN, display
from polarless.errors import CallerMistake

if TYPE_CHECKING:
    from compute.sql.analytics.query import Builder


def from_clause(builder: Builder, tree: Any, level: Level) -> str:
    """The SQL of FROM; the level learns what its names mean."""
    clause = arg(tree, "from")
    if clause is None:
        return ""
    source = Source(builder, level)
    joins = [*(tree.args.get("joins") or ()), *(tree.args.get("laterals") or ())]
    sql = source.joined(clause.this, joins)
    level.star = source.star
    return sql


class Source:
    """One FROM under way."""

    def __init__(self, builder: Builder, level: Level) -> None:
        self.builder = builder
        self.level = level
        self.star: list[Star] = []

    def joined(self, first: Any, joins: list[Any]) -> str:
        """An item and what is joined to it, from left to right."""
        own = list(first.args.get("joins") or ()) if isinstance(first, exp.Table) else []
        sql, star = self.item(first)
        self.star = star
        self.level.star = star
        for join in [*own, *joins]:
            sql = self._join(sql, join)
        return sql

    # Joins.

    def _join(self, left_sql: str, join: Any) -> str:
        level = self.level
        left = self.star
        before = list(level.relations)
        target = join.this if isinstance(join, exp.Join) else join
        level.star = left
        right_sql, right = self._right(target)
        after = [found for found in level.relations if found not in before]
        if not isinstance(join, exp.Join):
            self.star = level.star = left + right
            return f"{left_sql}, {right_sql}"
        side = (join.args.get("side") or "").upper()
        kind = (join.args.get("kind") or "").upper()
        method = (join.args.get("method") or "").upper()
        using = [identifier(found) for found in join.args.get("using") or ()]
        if kind not in ("", "INNER", "CROSS", "OUTER") or method not in ("", "NATURAL"):
            raise not_supported(f"{kind or method} JOIN")
        if method == "NATURAL":
            names = {star.name for star in right}
            using = [star.name for star in left if star.name in names]
        on = join.args.get("on")
        self._mark(side, before, after)
        if using:
            condition = self._using(using, side, left, right)
        elif on is not None:
            self.star = level.star = left + right
            binder = AnalyticBinder(
                self.builder, level, self.builder.parameters, self.builder.text, "JOIN conditions"
            )
            condition = self.builder.low.sql(binder.condition(on, "JOIN/ON"))
            allowed = {"": [*before, *after], "LEFT": after, "RIGHT": before}.get(side, [])
            narrow_by(level, on, [found for found in allowed if found.preserved or side])
        else:
            self.star = level.star = left + right
            if not (side or kind or method):
                return f"{left_sql}, {right_sql}"
            condition = "TRUE" if side or method else ""
        word = f"{side} JOIN" if side else "JOIN"
        if not condition:
            return f"{left_sql} CROSS JOIN {right_sql}"
        return f"{left_sql} {word} {right_sql} ON {condition}"

    def _right(self, target: Any) -> tuple[str, list[Star]]:
        """The right side, which may be a join in parentheses."""
        return self.item(target)

    @staticmethod
    def _mark(side: str, before: list[Relation], after: list[Relation]) -> None:
        """WHERE may no longer narrow what the join fills with NULLs."""
        if side in ("LEFT", "FULL"):
            for relation in after:
                relation.preserved = False
        if side in ("RIGHT", "FULL"):
            for relation in before:
                relation.preserved = False

    def _using(self, names: list[str], side: str, left: list[Star], right: list[Star]) -> str:
        merged: list[Star] = []
        parts = []
        low = self.builder.low
        for name in names:
            a = _only(left, name, "left")
            b = _only(right, name, "right")
            first, second = operators.comparable("=", a.node(), b.node())
            keys = []
            for node in (first, second):
                found = low.value(node)
                other = low.value(second if node is first else first)
                if found.carrier.kind != other.carrier.kind:
                    shared = common([found.carrier, other.carrier])
                    found = type(found)(low.sql(node, shared), shared)
                keys.append(key_of(found))
            parts.append(f"{keys[0]} = {keys[1]}")
            for star, partner, kept in ((a, b, "LEFT"), (b, a, "RIGHT")):
                # An outer join keeps all rows of its own side.
                if side not in (kept, "FULL"):
                    _narrow_by_star(star, partner)
            merged.append(_merged(name, side, a, b))
        rest = [star for star in [*left, *right] if star.name not in names]
        self.star = self.level.star = merged + rest
        return " AND ".join(parts)

    # Items.

    def item(self, tree: Any) -> tuple[str, list[Star]]:
        """One item: its SQL, and its columns."""
        if isinstance(tree, exp.Lateral):
            return self._lateral(tree)
        if isinstance(tree, exp.Subquery):
            return self._derived(tree)
        if isinstance(tree, exp.Values):
            return self._derived(tree)
        if isinstance(tree, exp.Unnest):
            return self._function(tree, tree.args.get("alias"))
        if isinstance(tree, exp.Paren):
            return self.item(tree.this)
        if not isinstance(tree, exp.Table):
            raise not_supported(f"{type(tree).__name__.upper()} in FROM")
        if tree.args.get("pivots") or tree.args.get("sample"):
            raise not_supported("PIVOT or TABLESAMPLE")
        if not isinstance(tree.this, exp.Identifier):
            return self._function(tree.this, tree.args.get("alias"), tree)
        return self._table(tree)

    def _table(self, tree: Any) -> tuple[str, list[Star]]:
        builder = self.builder
        name = identifier(tree.this)
        schema = identifier(tree.args["db"]) if tree.args.get("db") else None
        if tree.args.get("catalog"):
            schema = schema or None
        alias, columns = _alias(tree)
        cte = self.level.cte(name) if schema is None else None
        sql_name = builder.name("r")
        if cte is not None:
            leaves = [
                Leaf(f"{sql_name}.{leaf.sql}", leaf.carrier, leaf.type, leaf.typmod, pad=leaf.pad)
                for leaf in cte.leaves
            ]
            relation = _relation(alias or name, _renamed(list(cte.names), columns, name), leaves)
            self.level.add(relation)
            return f"{cte.sql_name} AS {sql_name}", stars_of(relation)
        table, virtual = builder.find_table(name, schema)
        if table is None and is_system(schema):
            return self._unknown(sql_name, alias or name)
        view = builder.catalog.view(name, schema)
        if table is None and view is not None:
            return self._view(view, sql_name, alias or name, columns)
        if table is None:
            raise unknown_table(f"{schema}.{name}" if schema else name)
        scan = Scan(builder.name("t"), table, alias or name, exact=builder.low.exact)
        scan.virtual, scan.place = virtual, sql_name
        builder.scans.append(scan)

        def leaf(index: int) -> Node:
            scan.used.add(index)
            column = table.columns[index]
            return Leaf(f"{sql_name}.c{index}", scan.carrier(index), column.type, column.typmod)

        relation = Relation(
            alias or name,
            _renamed([column.name for column in table.columns], columns, name),
            leaf,
            scan if not columns else None,
            real_name=name if alias else "",
            key=tuple(table.primary_key),
            oid=table.table_id or made_oid("system", table.schema, table.name),
        )
        self.level.add(relation)
        # The scan's own SQL is put in its place when it is known which columns are used.
        return f"{scan_mark(scan)} AS {sql_name}", stars_of(relation)

    def _view(
        self, view: View, sql_name: str, alias: str, columns: list[str]
    ) -> tuple[str, list[Star]]:
        from compute.sql.analytics.views import expand

        query = expand(self.builder, view)
        leaves = [
            Leaf(f"{sql_name}.{leaf.sql}", leaf.carrier, leaf.type, leaf.typmod, pad=leaf.pad)
            for leaf in query.leaves
        ]
        relation = _relation(alias, _renamed(query.names, columns, view.name), leaves)
        self.level.add(relation)
        return f"({query.sql}) AS {sql_name}", stars_of(relation)

    def _unknown(self, sql_name: str, alias: str) -> tuple[str, list[Star]]:
        """A relation of the catalogs that is not known here: no rows, and any column."""
        relation = _relation(alias, [], [])
        relation.any_column = True
        self.level.add(relation)
        return f"(SELECT NULL AS nothing WHERE FALSE) AS {sql_name}", []

    def _derived(self, tree: Any, *, lateral: bool = False) -> tuple[str, list[Star]]:
        inner = tree if isinstance(tree, exp.Values) else tree.this
        alias, columns = _alias(tree)
        if isinstance(inner, exp.Table) and not isinstance(tree, exp.Values):
            return self._parenthesised(inner, list(tree.args.get("joins") or ()), alias)
        outer = self.level if lateral else self.level.parent
        if isinstance(tree, exp.Values):
            from compute.sql.analytics.query import finished

            query = finished(self.builder, self.builder.values(tree, outer))
        else:
            query = self.builder.subquery(inner, outer_of(self.level, lateral=lateral))
        sql_name = self.builder.name("r")
        leaves = [
            Leaf(f"{sql_name}.{leaf.sql}", leaf.carrier, leaf.type, leaf.typmod, pad=leaf.pad)
            for leaf in query.leaves
        ]
        relation = _relation(
            alias or f"*{sql_name}", _renamed(query.names, columns, alias or ""), leaves
        )
        self.level.add(relation)
        word = "LATERAL " if lateral else ""
        return f"{word}({query.sql}) AS {sql_name}", stars_of(relation)

    def _parenthesised(
        self, first: Any, joins: list[Any], alias: str | None
    ) -> tuple[str, list[Star]]:
        if alias is not None:
            raise not_supported("an alias of a join in parentheses")
        outer_star = self.star
        sql = self.joined(first, joins)
        star, self.star = self.star, outer_star
        return f"({sql})", star

    def _lateral(self, tree: Any) -> tuple[str, list[Star]]:
        inner = tree.this
        if isinstance(inner, exp.Subquery):
            if tree.args.get("alias") is not None and inner.args.get("alias") is None:
                inner = inner.copy()
                inner.set("alias", tree.args["alias"])
            return self._derived(inner, lateral=True)
        return self._function(inner, tree.args.get("alias"), tree)

    # Functions.

    def _function(self, call: Any, alias_tree: Any, holder: Any = None) -> tuple[str, list[Star]]:
        builder = self.builder
        if isinstance(call, exp.Dot):
            call = call.expression
        binder = AnalyticBinder(
            builder, self.level, builder.parameters, builder.text, "functions in FROM"
        )
        name = "unnest" if isinstance(call, exp.Unnest) else series_name(call, builder.text)
        alias, columns = None, []
        if alias_tree is not None:
            alias = identifier(alias_tree.this) if alias_tree.this is not None else None
            columns = [identifier(found) for found in alias_tree.args.get("columns") or ()]
        offset = call.args.get("offset") if isinstance(call, exp.Unnest) else None
        ordinality = bool(offset) or bool(holder is not None and holder.args.get("ordinality"))
        if isinstance(offset, exp.Identifier):
            columns.append(identifier(offset))
        sql_name = builder.name("r")
        if name == "generate_series" and not ordinality:
            plain = _series_table(binder, call, sql_name)
            if plain is not None:
                sql, leaf = plain
                names = _renamed([alias or name], columns, alias or name)
                relation = _relation(alias or name, names, [leaf])
                relation.scalar = True
                self.level.add(relation)
                return sql, stars_of(relation)
        values, leaves = set_returning(binder, name, call)
        parts = [f"unnest({value}) AS c{i}" for i, value in enumerate(values)]
        given = setreturning.SETS.get(name)
        names = [name] * len(values)
        if given:
            names = [column.name or alias or name for column in given]
        if len(names) == 1 and alias and not given:
            names = [alias]
        found = [
            Leaf(f"{sql_name}.c{i}", leaf.carrier, leaf.type, leaf.typmod)
            for i, leaf in enumerate(leaves)
        ]
        if ordinality:
            parts.append(f"generate_subscripts({values[0]}, 1) AS c{len(values)}")
            names.append("ordinality")
            found.append(Leaf(f"{sql_name}.c{len(values)}", BIGINT, INT8))
        relation = _relation(alias or name, _renamed(names, columns, alias or name), found)
        relation.scalar = len(values) == 1
        self.level.add(relation)
        return f"LATERAL (SELECT {', '.join(parts)}) AS {sql_name}", stars_of(relation)


def _series_table(binder: AnalyticBinder, call: Any, sql_name: str) -> tuple[str, Leaf] | None:
    """generate_series() of constants: made as it is read, not as a list. None: it is not such."""
    nodes = [binder.bind(tree) for tree in _series_arguments(call)]
    if not 2 <= len(nodes) <= 3 or not all(is_constant(node) for node in nodes):
        return None
    if setreturning.series(nodes) is not None:
        return None
    kind = operators.common_type(nodes, "generate_series")
    kind = INT4 if kind is TEXT else kind
    step = nodes[2] if len(nodes) == 3 else Const(1, INT4)
    known = step.value if isinstance(step, Const) else 0
    if kind not in (INT4, INT8) or not known:
        return None
    low, carrier = binder.low, carrier_of(kind)
    ends = [f"CAST({low.sql(cast(node, kind))} AS BIGINT)" for node in (*nodes[:2], step)]
    sql = (
        f"(SELECT CAST(s.v AS {carrier.sql}) AS c0 FROM generate_series({', '.join(ends)}) AS s(v))"
    )
    return f"{sql} AS {sql_name}", Leaf(f"{sql_name}.c0", carrier, kind)


def outer_of(level: Level, *, lateral: bool) -> Level | None:
    """What a subquery in FROM sees around it: with LATERAL also what stands to its left."""
    if lateral:
        return level
    # Its siblings are out of sight, but WITH is not.
    return Level(parent=level.parent, ctes=level.ctes) if level.ctes else level.parent


def series_name(call: Any, text: str) -> str:
    """The name of a function in FROM."""
    kind = type(call).__name__.upper()
    if "GENERATESERIES" in kind:
        return "generate_series"
    if kind in ("UNNEST", "EXPLODE"):
        return "unnest"
    return function_name(call, text)


def set_returning(binder: AnalyticBinder, name: str, call: Any) -> tuple[list[str], list[Leaf]]:
    """Lists to unnest, and what their elements are. Raises 0A000 for other functions."""
    low = binder.low
    if name == "generate_series":
        nodes = [binder.bind(tree) for tree in _series_arguments(call)]
        made = setreturning.series(nodes) if 2 <= len(nodes) <= 3 else None
        if made is not None:
            found = low.value(made)
            element = element_of(made.type)
            assert element is not None
            return [found.sql], [Leaf("c0", found.carrier.element, element)]
        if not 2 <= len(nodes) <= 3:
            raise CallerMistake("generate_series takes two or three arguments", sqlstate="42883")
        kind = operators.common_type(nodes, "generate_series")
        if kind is TEXT:
            kind = INT4
        if kind not in (INT4, INT8):
            raise not_supported(f"generate_series of {display(kind)}")
        if len(nodes) == 2:
            nodes.append(Const(1, INT4))
        carrier = carrier_of(kind)
        start, stop, step = (f"CAST({low.sql(cast(n, kind))} AS BIGINT)" for n in nodes)
        if not isinstance(nodes[2], Const) or nodes[2].value == 0:
            step = f"CASE WHEN {step} = 0 THEN error('step size cannot equal zero') ELSE {step} END"
        series = f"generate_series({start}, {stop}, {step})"
        return [f"CAST({series} AS {carrier.sql}[])"], [Leaf("c0", carrier, kind)]
    if name in setreturning.SETS:
        args = [binder.bind(tree) for tree in call.expressions]
        bound = setreturning.bind(binder, name, args)
        if bound is None:
            raise no_function(name, args)
        return bound
    if name == "generate_subscripts":
        nodes = [binder.bind(tree) for tree in call.expressions]
        if not nodes or element_of(nodes[0].type) is None:
            raise no_function(name, nodes)
        base = getattr(nodes[0].type, "lower_bound", 1)
        series = f"generate_series({base}, len({low.sql(nodes[0])}) + {base - 1})"
        return [f"CAST({series} AS INTEGER[])"], [Leaf("c0", carrier_of(INT4), INT4)]
    if name == "unnest":
        trees = call.expressions if isinstance(call, exp.Unnest) else [call.this]
        lists, leaves = [], []
        for tree in trees:
            node = binder.bind(tree)
            element = element_of(node.type)
            if element is None:
                raise CallerMistake(
                    f"function unnest({display(node.type)}) does not exist", sqlstate="42883"
                )
            found = low.value(node)
            lists.append(found.sql)
            leaves.append(Leaf("c0", found.carrier.element, element))
        return lists, leaves
    raise not_supported(f"the function {name}() in FROM")


def _series_arguments(call: Any) -> list[Any]:
    found = []
    for name in ("start", "end", "step", "expressions"):
        value = call.args.get(name)
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, exp.Expression)]
    return found


# ------------------------------------------------------------------------------------------- names


_MARK: Final = "\x01{}\x02"


def scan_mark(scan: Scan) -> str:
    """Stands for a scan's SQL until all is bound."""
    return _MARK.format(scan.name)


def _relation(alias: str, names: list[str], leaves: Sequence[Leaf]) -> Relation:
    return Relation(alias, names, lambda index: leaves[index])


def _alias(tree: Any) -> tuple[str | None, list[str]]:
    alias = tree.args.get("alias")
    if alias is None:
        return None, []
    name = identifier(alias.this) if alias.this is not None else None
    return name, [identifier(found) for found in alias.args.get("columns") or ()]


def _renamed(names: list[str], columns: list[str], table: str) -> list[str]:
    if len(columns) > len(names):
        raise CallerMistake(
            f'table "{table}" has {len(names)} columns available but {len(columns)} columns '
            "specified",
            sqlstate="42P10",
        )
    return [*columns, *names[len(columns) :]]


def _only(stars: list[Star], name: str, side: str) -> Star:
    found = [star for star in stars if star.name == name]
    if not found:
        raise CallerMistake(
            f'column "{name}" specified in USING clause does not exist in {side} table',
            sqlstate="42703",
        )
    if len(found) > 1:
        raise CallerMistake(
            f'common column name "{name}" appears more than once in {side} table', sqlstate="42702"
        )
    return found[0]


def _merged(name: str, side: str, left: Star, right: Star) -> Star:
    if side == "RIGHT":
        return Star(name, lambda: _common(right, left), right.relation)
    if side != "FULL":
        return Star(name, lambda: _common(left, right), left.relation)

    def both() -> Node:
        a, b = left.node(), right.node()
        kind = operators.common_type([a, b], "JOIN/USING")
        typmod = operators.common_typmod([a, b], kind)
        return Coalesce([cast(a, kind), cast(b, kind)], kind, typmod)

    return Star(name, both)


def _common(star: Star, other: Star) -> Node:
    node = star.node()
    kind = operators.common_type([node, other.node()], "JOIN/USING")
    return cast(node, kind) if node.type is not kind else node


# --------------------------------------------------------------------------------- narrowing scans

_SAFE: Final = (
    exp.Column, exp.Identifier, exp.Literal, exp.Parameter, exp.Var, exp.EQ, exp.NEQ, exp.LT,
    exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between, exp.Like, exp.Is, exp.Null, exp.Not, exp.And,
    exp.Or, exp.Paren, exp.Boolean, exp.Neg, exp.Tuple,
)  # fmt: skip


def narrow(level: Level, where: Any, binder: AnalyticBinder) -> None:
    """Tell scans the conditions of WHERE that concern them alone."""
    relations = [found for found in level.relations if found.preserved]
    narrow_by(level, where, relations)
    for part in _conjuncts(where):
        array = _any_array(part)
        place = _place(level, part.this) if array is not None else None
        if place is None or place[0] not in relations or place[0].scan is None:
            continue
        value, items = binder.bind(part.this), binder.bind(array)
        if items.type is UNKNOWN:
            found = array_of(value.type)
            if found is None:
                continue
            items = cast(items, found)
        if is_constant(items):
            place[0].scan.key_arrays.append((place[1], items))


def _any_array(tree: Any) -> Any:
    """The array of ``column = ANY (array)``."""
    if not isinstance(tree, exp.EQ) or not isinstance(tree.this, exp.Column):
        return None
    inner = tree.expression
    if not isinstance(inner, exp.Any):
        return None
    inner = inner.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    return None if isinstance(inner, (exp.Query, exp.Values)) else inner


def narrow_by(level: Level, tree: Any, relations: list[Relation]) -> None:
    """As `narrow`, for the relations that the condition may narrow."""
    for part in _conjuncts(tree):
        if isinstance(part, exp.EQ):
            _look_up(level, part, relations)
        relation = _about(level, part)
        if relation is not None and relation.scan is not None and relation in relations:
            relation.scan.conditions.append(part)


def _look_up(level: Level, tree: Any, relations: list[Relation]) -> None:
    """``a.x = b.y``: rows of one that the other has no value for do not count."""
    sides = [
        _place(level, node) if isinstance(node, exp.Column) else None
        for node in (tree.this, tree.expression)
    ]
    left, right = sides
    if left is None or right is None or left[0] is right[0]:
        return
    for (mine, column), (other, source_column) in ((left, right), (right, left)):
        scan, source = mine.scan, other.scan
        if mine not in relations or scan is None or source is None:
            continue
        if scan.virtual is None and source.virtual is None:
            source.used.add(source_column)
            scan.lookups.append(Lookup(column, source, source_column))


def _narrow_by_star(mine: Star, other: Star) -> None:
    """As `_look_up`, for a column of USING."""
    if mine.relation is None or other.relation is None:
        return
    scan, source = mine.relation.scan, other.relation.scan
    if scan is None or source is None or scan.virtual or source.virtual:
        return
    column = mine.relation.names.index(mine.name)
    source_column = other.relation.names.index(other.name)
    source.used.add(source_column)
    scan.lookups.append(Lookup(column, source, source_column))


def _place(level: Level | None, column: Any) -> tuple[Relation, int] | None:
    """The relation of a column, here or around, and its place in it."""
    if isinstance(column.this, exp.Star):
        return None
    name = identifier(column.this)
    while level is not None:
        relation = _relation_of(level, column)
        if relation is not None:
            count = relation.names.count(name)
            return (relation, relation.names.index(name)) if count == 1 else None
        if any(star.name == name for star in level.star) and not column.args.get("table"):
            return None
        level = level.parent
    return None


def _conjuncts(tree: Any) -> list[Any]:
    found: list[Any] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.And):
            stack += [node.expression, node.this]
        elif isinstance(node, exp.Paren):
            stack.append(node.this)
        else:
            found.append(node)
    return found


def _about(level: Level, tree: Any) -> Relation | None:
    """The one relation of this level that a condition is about, if it is safe to check early."""
    found: Relation | None = None
    for node in tree.walk():
        if isinstance(node, (exp.Cast, exp.DataType)):
            if isinstance(node, exp.Cast) and not isinstance(node.this, exp.Literal):
                return None
            continue
        if not isinstance(node, _SAFE) or (isinstance(node, exp.In) and node.args.get("query")):
            return None
        if isinstance(node, exp.Column):
            relation = _relation_of(level, node)
            if relation is None or (found is not None and relation is not found):
                return None
            found = relation
    return found


def _relation_of(level: Level, column: Any) -> Relation | None:
    if isinstance(column.this, exp.Star):
        return None
    name = identifier(column.this)
    if column.args.get("table"):
        qualifier = identifier(column.args["table"])
        return next((r for r in level.relations if r.alias == qualifier), None)
    stars = [star for star in level.star if star.name == name]
    return stars[0].relation if len(stars) == 1 else None


def safe_text(node: Node) -> Node:
    """A node whose open type is text."""
    return cast(node, TEXT) if node.type is UNKNOWN else node


__all__ = ["SyntaxMistake", "from_clause", "narrow", "set_returning"]
