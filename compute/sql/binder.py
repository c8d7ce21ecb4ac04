"""From sqlglot's trees to typed expressions: names to columns, literals to values, types resolved.

One `Binder` binds the expressions of one statement over at most one table. Parameters are numbered
slots whose type is what the client said, or what the context says; what stays open is text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from compute.sql import enums, functions, operators, scalars, symbols
from compute.sql.arraytypes import array_of
from compute.sql.builtins import times
from compute.sql.builtins.texts import unistr
from compute.sql.casts import EXPLICIT, cast
from compute.sql.catalog import Table
from compute.sql.environment import current
from compute.sql.expressions import (
    Aggregate,
    Case,
    Coalesce,
    ColumnRef,
    Const,
    Local,
    Node,
    Param,
    ParamSlot,
    call,
)
from compute.sql.mistakes import SyntaxMistake, not_supported, unknown_column, unknown_type
from compute.sql.numerics import parse_numeric
from compute.sql.syntax import identifier
from compute.sql.types import (
    BOOL,
    BPCHAR,
    BY_NAME,
    CLOCK,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    INTERVAL_FIELDS,
    JSONB,
    NUMERIC,
    OID,
    PARSERS,
    TEXT,
    TEXT_LENGTH_MAX,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VARCHAR,
    SqlType,
    type_by_oid,
)
from polarless.errors import CallerMistake

PARAMETERS_MAX: Final = 65535


class Parameters:
    """The statement's parameters: their slots, made as they are met."""

    def __init__(self, oids: tuple[int, ...] = (), types: tuple[SqlType, ...] = ()) -> None:
        self.slots: list[ParamSlot] = []
        # Whether they stand for literals of the text.
        self.literals = bool(types)
        # How many the client declared, or how many literals the text had.
        for kind in types or tuple(type_by_oid(oid) if oid else UNKNOWN for oid in oids):
            self.slots.append(ParamSlot(len(self.slots), kind))

    def slot(self, number: int) -> ParamSlot:
        """The slot of ``$number``."""
        if not 1 <= number <= PARAMETERS_MAX:
            raise CallerMistake(f"there is no parameter ${number}", sqlstate="42P02")
        while len(self.slots) < number:
            self.slots.append(ParamSlot(len(self.slots), UNKNOWN))
        found = self.slots[number - 1]
        found.used = True
        return found

    def settle(self) -> tuple[int, ...]:
        """Every type that is still open becomes text. Returns the type oids."""
        for slot in self.slots:
            if slot.type is UNKNOWN:
                slot.type = TEXT
        return tuple(slot.type.oid for slot in self.slots)


@dataclass(slots=True)
class Scope:
    """What names mean: one table under its name or alias, or nothing."""

    table: Table | None = None
    alias: str = ""
    # Columns of a set-returning function in FROM, of ON CONFLICT's excluded row, ...
    extra: Callable[[str, str | None], Node | None] | None = None


class Binder:
    """See the module's docstring. ``text`` is what the trees were parsed from."""

    def __init__(
        self, scope: Scope, parameters: Parameters, text: str = "", *, clause: str = "VALUES"
    ) -> None:
        self.scope = scope
        # What is being bound, for messages.
        self.clause = clause
        self.parameters = parameters
        self.text = text
        # Aggregates met so far, when they are allowed.
        self.aggregates: list[Aggregate] | None = None
        self._in_aggregate = False
        # Whether ``column = ANY (array)`` is better left to DuckDB.
        self.arrays_elsewhere = False
        # After grouping: expressions of GROUP BY by their SQL, and columns that are grouped.
        self.groups: dict[str, Local] | None = None

    # Entry points.

    def bind(self, node: Any) -> Node:
        """One expression."""
        if self.groups is not None and not self._in_aggregate:
            found = self.groups.get(self.group_key(node))
            if found is not None:
                return found
        method = _METHODS.get(type(node))
        if method is not None:
            return method(self, node)
        if isinstance(node, exp.Func):
            return self._function(node)
        raise not_supported(f"{type(node).__name__.upper()} in an expression")

    def group_key(self, node: Any) -> str:
        """Equal for expressions that GROUP BY takes as the same."""
        while isinstance(node, (exp.Paren, exp.Alias)):
            node = node.this
        if isinstance(node, exp.Column):
            return "." + identifier(node.this)
        return str(node.sql(dialect="postgres"))

    def condition(self, node: Any, what: str) -> Node:
        """A WHERE, HAVING, ... clause."""
        if what in ("WHERE", "HAVING"):
            self.clause = what
        return operators.as_bool(self.bind(node), what)

    # Names and literals.

    def _column(self, node: Any) -> Node:
        if isinstance(node.this, exp.Star):
            raise SyntaxMistake("* is not allowed here")
        name = identifier(node.this)
        qualifier = identifier(node.args["table"]) if node.args.get("table") else None
        scope = self.scope
        if scope.extra is not None:
            found = scope.extra(name, qualifier)
            if found is not None:
                return found
        table = scope.table
        if table is None:
            if qualifier is not None:
                raise _missing_from(qualifier)
            if name in _BARE_FUNCTIONS:
                return functions.make(name, [])
            raise unknown_column(name)
        if qualifier is not None and qualifier != scope.alias:
            raise _missing_from(qualifier, scope)
        index = table.index.get(name)
        if index is None:
            if qualifier is None and name in _BARE_FUNCTIONS:
                return functions.make(name, [])
            if qualifier:
                raise CallerMistake(f"column {qualifier}.{name} does not exist", sqlstate="42703")
            raise unknown_column(name)
        return self.column(index)

    def column(self, index: int) -> Node:
        """The table's column of this index."""
        table = self.scope.table
        assert table is not None
        column = table.columns[index]
        if self.groups is not None and not self._in_aggregate:
            raise CallerMistake(
                f'column "{self.scope.alias}.{column.name}" must appear in the GROUP BY clause '
                "or be used in an aggregate function",
                sqlstate="42803",
            )
        return ColumnRef(
            table.name, column.name, index, column.type, column.typmod, nullable=not column.not_null
        )

    def _literal(self, node: Any) -> Node:
        if node.is_string:
            return Const(str(node.this), UNKNOWN)
        return number(str(node.this))

    def _parameter(self, node: Any) -> Node:
        inner = node.this
        try:
            return Param(self.parameters.slot(int(inner.name if hasattr(inner, "name") else inner)))
        except (TypeError, ValueError):
            raise SyntaxMistake(f"syntax error: {node.sql()} is no parameter") from None

    def _placeholder(self, node: Any) -> Node:
        raise SyntaxMistake(f'syntax error at or near "{node.sql()}"', hint="Write $1, $2, ...")

    # Operators.

    def _binary(self, node: Any) -> tuple[Node, Node]:
        return self.bind(node.this), self.bind(node.expression)

    def _arithmetic(self, node: Any) -> Node:
        symbol, (left, right) = _ARITHMETIC[type(node)], self._binary(node)
        if symbol == "-" and left.type is JSONB:
            return self._by_symbol(symbol, left, right)
        return operators.arithmetic(symbol, left, right)

    def _comparison(self, node: Any) -> Node:
        symbol = _COMPARISONS[type(node)]
        if isinstance(node.this, exp.Tuple):
            return self._row_comparison(symbol, node)
        right = node.expression
        if isinstance(right, exp.Anonymous) and right.name.lower() in ("all", "some", "any"):
            kind = exp.All if right.name.lower() == "all" else exp.Any
            right = kind(this=exp.Paren(this=right.expressions[0]))
        if isinstance(right, (exp.Any, exp.All)):
            inner = right.this
            while isinstance(inner, exp.Paren):
                inner = inner.this
            if isinstance(inner, (exp.Query, exp.Values)):
                raise not_supported("ANY or ALL of a query")
            value, items = self.bind(node.this), self.bind(inner)
            if self.arrays_elsewhere and isinstance(value, ColumnRef) and symbol == "=":
                # There the keys of an array are looked up.
                raise not_supported("ANY of an array")
            array: Node = _arrays().quantified(
                symbol, value, items, all_=isinstance(right, exp.All)
            )
            return array
        sides = self._binary(node)
        if any(is_array(side) for side in sides):
            found: Node = _arrays().compare(symbol, *sides)
            return found
        return operators.compare(symbol, *sides)

    def _row_comparison(self, symbol: str, node: Any) -> Node:
        """``(a, b) = (1, 2)``, and ``<`` with its meaning column by column from the left."""
        left = [self.bind(found) for found in node.this.expressions]
        right_node = node.expression
        if not isinstance(right_node, exp.Tuple) or len(right_node.expressions) != len(left):
            raise SyntaxMistake("unequal number of entries in row expressions")
        right = [self.bind(found) for found in right_node.expressions]
        pairs = list(zip(left, right))
        if symbol == "=":
            return operators.all_of([operators.compare("=", a, b) for a, b in pairs])
        if symbol == "<>":
            return operators.any_of([operators.compare("<>", a, b) for a, b in pairs])
        strict = symbol[0]
        result = operators.compare(symbol, *pairs[-1])
        for a, b in reversed(pairs[:-1]):
            equal = operators.all_of([operators.compare("=", a, b), result])
            result = operators.any_of([operators.compare(strict, a, b), equal])
        return result

    def _junction(self, node: Any) -> Node:
        kind = type(node)
        parts: list[Node] = []
        stack = [node]
        what = "AND" if kind is exp.And else "OR"
        while stack:
            found = stack.pop()
            if type(found) is kind:
                stack.append(found.expression)
                stack.append(found.this)
            else:
                parts.append(operators.as_bool(self.bind(found), what))
        return operators.all_of(parts) if kind is exp.And else operators.any_of(parts)

    def _not(self, node: Any) -> Node:
        inner = node.this
        if isinstance(inner, exp.Is):
            return self._is(inner, flip=True)
        return operators.negation(self.bind(inner))

    def _is(self, node: Any, *, flip: bool = False) -> Node:
        negate = bool(node.args.get("negate")) != flip
        what = node.expression
        if isinstance(what, exp.Not):
            what, negate = what.this, not negate
        value = self.bind(node.this)
        if isinstance(what, exp.Null):
            return operators.null_test(value, negate=negate)
        if isinstance(what, exp.Boolean):
            return operators.truth(value, bool(what.this), negate=negate)
        if isinstance(what, (exp.Var, exp.Column)) and what.name.lower() == "unknown":
            return operators.truth(value, None, negate=negate)
        raise SyntaxMistake(f'syntax error at or near "{what.sql()}"')

    def _null_safe(self, node: Any) -> Node:
        equal = isinstance(node, exp.NullSafeEQ)
        return operators.is_distinct(*self._binary(node), negate=equal)

    def _in(self, node: Any) -> Node:
        if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
            raise not_supported("IN with a subquery")
        if isinstance(node.this, exp.Tuple):
            rows = [exp.EQ(this=node.this, expression=item) for item in node.expressions]
            found = operators.any_of([self._row_comparison("=", row) for row in rows])
            return operators.negation(found) if node.args.get("negate") else found
        value = self.bind(node.this)
        items = [self.bind(found) for found in node.expressions]
        found = operators.in_list(value, items)
        return operators.negation(found) if node.args.get("negate") else found

    def _between(self, node: Any) -> Node:
        value = self.bind(node.this)
        low, high = self.bind(node.args["low"]), self.bind(node.args["high"])
        found = self._between_nodes(value, low, high)
        if node.args.get("symmetric"):
            found = operators.any_of([found, self._between_nodes(value, high, low)])
        return operators.negation(found) if node.args.get("negate") else found

    @staticmethod
    def _between_nodes(value: Node, low: Node, high: Node) -> Node:
        return operators.all_of(
            [operators.compare(">=", value, low), operators.compare("<=", value, high)]
        )

    def _like(self, node: Any) -> Node:
        escape: str | None = None
        negate = bool(node.args.get("negate"))
        if isinstance(node, exp.Escape) and isinstance(node.this, exp.SimilarTo):
            return self._similar(node.this, self.bind(node.expression))
        if isinstance(node, exp.Escape):
            if not isinstance(node.expression, exp.Literal) or len(node.expression.name) > 1:
                raise CallerMistake(
                    "invalid escape string",
                    sqlstate="22019",
                    hint="Escape string must be empty or one character.",
                )
            escape = node.expression.name
            node = node.this
            negate = negate != bool(node.args.get("negate"))
        if isinstance(node.expression, (exp.Any, exp.All)):
            inner = node.expression.this
            while isinstance(inner, exp.Paren):
                inner = inner.this
            result: Node = _arrays().like_any(
                self.bind(node.this),
                self.bind(inner),
                all_=isinstance(node.expression, exp.All),
                ignore_case=isinstance(node, exp.ILike),
                negate=negate,
            )
            return result
        value, pattern = self._binary(node)
        ignore_case = isinstance(node, exp.ILike)
        found = operators.like(value, pattern, escape=escape, ignore_case=ignore_case)
        return operators.negation(found) if negate else found

    def _negative(self, node: Any) -> Node:
        inner = node.this
        # -9223372036854775808: the digits alone would be too large.
        if isinstance(inner, exp.Literal) and not inner.is_string:
            return number("-" + str(inner.this))
        return operators.negate(self.bind(inner))

    # Conditional expressions.

    def _case(self, node: Any) -> Node:
        subject = self.bind(node.this) if node.this is not None else None
        conditions: list[Node] = []
        results: list[Node] = []
        for arm in node.args["ifs"]:
            if subject is not None:
                conditions.append(operators.compare("=", subject, self.bind(arm.this)))
            else:
                conditions.append(self.condition(arm.this, "CASE/WHEN"))
            results.append(self.bind(arm.args["true"]))
        default = self.bind(node.args["default"]) if node.args.get("default") else None
        # ELSE counts first when the type is looked for.
        everything = results if default is None else [default, *results]
        kind = operators.common_type(everything, "CASE")
        arms = [(test, cast(value, kind)) for test, value in zip(conditions, results)]
        default = None if default is None else cast(default, kind)
        typmod = -1 if default is None else operators.common_typmod(everything, kind)
        return Case(arms, default, kind, typmod)

    def _coalesce(self, node: Any) -> Node:
        args = [self.bind(found) for found in (node.this, *node.expressions)]
        kind = operators.common_type(args, "COALESCE")
        typmod = operators.common_typmod(args, kind)
        return Coalesce([cast(arg, kind) for arg in args], kind, typmod)

    def _nullif(self, node: Any) -> Node:
        left, right = self._binary(node)
        left, right = operators.nullif(left, right)
        test = operators.compare("=", left, right)
        return Case([(test, Const(None, left.type))], left, left.type, left.typmod)

    def _extreme(self, node: Any) -> Node:
        args = [self.bind(found) for found in (node.this, *node.expressions)]
        return operators.greatest(args, least=isinstance(node, exp.Least))

    def _cast(self, node: Any) -> Node:
        kind, typmod = type_of(node.args["to"])
        tree = node.this
        if isinstance(tree, exp.Array) and not tree.expressions and kind.family == "array":
            return Const([], kind)
        inner = self.bind(tree)
        if is_array(inner) or kind.family == "array":
            found: Node | None = _arrays().cast_array(inner, kind)
            if found is not None:
                return found
        return cast(inner, kind, typmod, strength=EXPLICIT)

    # Functions.

    def _dot(self, node: Any) -> Node:
        """``pg_catalog.function(...)``"""
        schema = node.this
        if isinstance(schema, exp.Identifier) and isinstance(node.expression, exp.Func):
            if identifier(schema) in ("pg_catalog", "public"):
                return self.bind(node.expression)
            raise CallerMistake(f'schema "{schema.name}" does not exist', sqlstate="3F000")
        raise not_supported(f"the expression {node.sql(dialect='postgres')[:100]}")

    def _function(self, node: Any) -> Node:
        name = function_name(node, self.text)
        if name in functions.AGGREGATES:
            return self._aggregate(name, node)
        if isinstance(node, exp.Trim):
            return self._trim(node)
        trees = _arguments(node)
        if name in ("nextval", "currval", "setval") and trees and isinstance(trees[0], exp.Cast):
            # The name of a sequence is looked up when the function is called.
            trees = [trees[0].this, *trees[1:]]
        args = self.arguments(name, trees)
        if name in enums.FUNCTIONS and args and args[0].type.family == "enum":
            return _enum_function(name, args)
        if any(is_array(arg) for arg in args):
            found: Node | None = _arrays().function(name, args)
            if found is not None:
                return found
        return functions.make(name, args)

    def arguments(self, name: str, trees: list[Any]) -> list[Node]:
        """The arguments of a call, those that are named in their places."""
        if name == "make_interval" and any(isinstance(tree, exp.Kwarg) for tree in trees):
            values: list[Node] = [Const(0, INT4) for _ in times.INTERVAL_PARTS]
            values[-1] = Const(0.0, FLOAT8)
            for place, tree in enumerate(trees):
                if isinstance(tree, exp.Kwarg):
                    word = tree.this.name.lower()
                    if word not in times.INTERVAL_PARTS:
                        raise functions.no_function(name, [])
                    place, tree = times.INTERVAL_PARTS.index(word), tree.expression
                values[place] = self.bind(tree)
            return values
        return [self.bind(found) for found in trees]

    def _trim(self, node: Any) -> Node:
        args = [self.bind(node.this)]
        if node.args.get("expression") is not None:
            args.append(self.bind(node.expression))
        return functions.make(trim_name(node), args)

    def _aggregate(self, name: str, node: Any) -> Node:
        if self.aggregates is None or self._in_aggregate:
            raise CallerMistake(
                "aggregate function calls cannot be nested"
                if self._in_aggregate
                else f"aggregate functions are not allowed in {self.clause}",
                sqlstate="42803",
            )
        args = _arguments(node)
        distinct = False
        if len(args) == 1 and isinstance(args[0], exp.Distinct):
            distinct, args = True, list(args[0].expressions)
        if len(args) == 1 and isinstance(args[0], exp.Star):
            args = []
            if distinct:
                raise SyntaxMistake('syntax error at or near "*"')
            if name != "count":
                raise functions.no_function(name, [])
        elif not args:
            raise CallerMistake(
                f"{name}(*) must be used to call a parameterless aggregate function",
                sqlstate="42809",
            )
        self._in_aggregate = True
        try:
            bound = [self.bind(found) for found in args]
        finally:
            self._in_aggregate = False
        if bound and bound[0].type is UNKNOWN and name != "count":
            bound[0] = cast(bound[0], TEXT)
        if bound and is_array(bound[0]) and (name != "count" or distinct):
            raise not_supported("an aggregate of arrays")
        kind = functions.aggregate_type(name, bound)
        found = Aggregate(
            name, bound[0] if bound else None, kind, distinct=distinct, index=len(self.aggregates)
        )
        self.aggregates.append(found)
        return found

    # Arrays. What they mean is in `analytics.arrays`, which imports this module.

    def _bracket(self, node: Any) -> Node:
        """``jsonb[key]``, ``array[i]``, ``array[i:j]``"""
        array: Node = _arrays().bind_bracket(self, node)
        return array

    def _array(self, node: Any) -> Node:
        """``ARRAY[...]``"""
        if any(isinstance(item, (exp.Query, exp.Values)) for item in node.expressions):
            raise not_supported("ARRAY of a query in an expression")
        array: Node = _arrays().bind_array(self, node)
        return array

    def _array_contains(self, node: Any) -> Node:
        left, right = self._binary(node)
        if JSONB in (left.type, right.type):
            symbol = "<@" if isinstance(node, exp.ArrayContainedBy) else "@>"
            return self._by_symbol(symbol, left, right)
        if isinstance(node, exp.ArrayContainedBy):
            left, right = right, left
        array: Node = _arrays().contains(left, right, overlaps=isinstance(node, exp.ArrayOverlaps))
        return array

    def _refuse(self, node: Any) -> Node:
        names = {exp.Subquery: "a subquery in an expression", exp.Exists: "EXISTS"}
        what = names.get(type(node), f"{type(node).__name__.upper()} in an expression")
        raise not_supported(what)

    def _boolean(self, node: Any) -> Node:
        return Const(bool(node.this), BOOL)

    def _null(self, node: Any) -> Node:
        return Const(None, UNKNOWN)

    def _paren(self, node: Any) -> Node:
        return self.bind(node.this)

    def _interval(self, node: Any) -> Node:
        literal = node.this
        if not isinstance(literal, exp.Literal):
            raise SyntaxMistake("syntax error at or near INTERVAL: its value must be a literal")
        text, unit = str(literal.this), node.args.get("unit")
        if unit is None:
            return Const(PARSERS[INTERVAL](text), INTERVAL)
        if isinstance(unit, exp.IntervalSpan):
            first, last = unit.this.name.lower(), unit.expression.name.lower()
        else:
            first = last = unit.name.lower()
        return Const(scalars.interval_of_fields(text, first, last), INTERVAL)

    def _json_at(self, node: Any) -> Node:
        """``->`` and ``->>``"""
        symbol = "->>" if isinstance(node, exp.JSONExtractScalar) else "->"
        return self._by_symbol(symbol, *self._binary(node))

    def _by_symbol(self, symbol: str, left: Node, right: Node) -> Node:
        return symbols.by_symbol(symbol, left, right)

    def _bits(self, node: Any) -> Node:
        return self._by_symbol(_BITS[type(node)], *self._binary(node))

    def _complement(self, node: Any) -> Node:
        return symbols.unary("~", self.bind(node.this))

    def _power(self, node: Any) -> Node:
        return symbols.power(*self._binary(node))

    def _operator(self, node: Any) -> Node:
        """``a OPERATOR(pg_catalog.~) b``, and those that `dialect` leaves as they are."""
        symbol = str(node.args["operator"]).rpartition(".")[2]
        return self._by_symbol(symbol, self.bind(node.this), self.bind(node.expression))

    def _pattern(self, node: Any) -> Node:
        symbol = "~*" if isinstance(node, exp.RegexpILike) else "~"
        return self._by_symbol(symbol, *self._binary(node))

    def _similar(self, node: Any, escape: Node | None = None) -> Node:
        value, pattern = self._binary(node)
        args = [pattern] if escape is None else [pattern, escape]
        made = functions.make("similar_to_escape", args)
        found = functions.make("similar_to", [value, made])
        return operators.negation(found) if node.args.get("negate") else found

    def _extract(self, node: Any) -> Node:
        unit = node.this
        word = unit.name if hasattr(unit, "name") else str(unit)
        return functions.make("extract", [Const(word.lower(), TEXT), self.bind(node.expression)])

    def _at_zone(self, node: Any) -> Node:
        zone = self.bind(node.args["zone"])
        return functions.make("timezone", [zone, self.bind(node.this)])

    def _overlaps(self, node: Any) -> Node:
        sides = node.this, node.expression
        if not all(isinstance(side, exp.Tuple) and len(side.expressions) == 2 for side in sides):
            raise SyntaxMistake("wrong number of parameters on side of OVERLAPS expression")
        ends: list[Node] = []
        for side in sides:
            start, end = (self.bind(found) for found in side.expressions)
            if end.type is INTERVAL:
                end = operators.arithmetic("+", start, end)
            ends += [start, end]
        kind = operators.common_type(ends, "OVERLAPS")
        args = tuple(cast(found, kind) for found in ends)
        found = operators.AlwaysKnown(args, call(times.overlaps), BOOL)
        found.nullable = True
        return found

    def _positional(self, node: Any) -> Node:
        """Calls with words between their arguments."""
        if isinstance(node, exp.StrPosition):
            return functions.make(
                "position", [self.bind(node.this), self.bind(node.args["substr"])]
            )
        if isinstance(node, exp.Overlay):
            names = ("this", "expression", "from_", "for_")
            args = [node.args.get(name, node.args.get(name.rstrip("_"))) for name in names]
            return functions.make("overlay", [self.bind(arg) for arg in args if arg is not None])
        name = "sqrt" if isinstance(node, exp.Sqrt) else "cbrt"
        return functions.make(name, [cast(self.bind(node.this), FLOAT8, strength=1)])

    def _unicode(self, node: Any) -> Node:
        return Const(unistr(str(node.this)), UNKNOWN)

    def _dpipe(self, node: Any) -> Node:
        left, right = self._binary(node)
        if is_array(left) or is_array(right):
            array: Node = _arrays().concat(left, right)
            return array
        return self._by_symbol("||", left, right)

    def _default(self, node: Any) -> Node:
        raise SyntaxMistake(f'syntax error at or near "{node.sql()}"')


_ARITHMETIC: Final[dict[type, str]] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%",
}  # fmt: skip
_BITS: Final[dict[type, str]] = {
    exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "#", exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}  # fmt: skip
_COMPARISONS: Final[dict[type, str]] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_METHODS: Final[dict[type, Callable[[Binder, Any], Node]]] = {
    **dict.fromkeys(_ARITHMETIC, Binder._arithmetic),
    **dict.fromkeys(_COMPARISONS, Binder._comparison),
    exp.Column: Binder._column,
    exp.Literal: Binder._literal,
    exp.Parameter: Binder._parameter,
    exp.Placeholder: Binder._placeholder,
    exp.And: Binder._junction,
    exp.Or: Binder._junction,
    exp.Not: Binder._not,
    exp.Is: Binder._is,
    exp.NullSafeEQ: Binder._null_safe,
    exp.NullSafeNEQ: Binder._null_safe,
    exp.In: Binder._in,
    exp.Between: Binder._between,
    exp.Like: Binder._like,
    exp.ILike: Binder._like,
    exp.Escape: Binder._like,
    exp.Neg: Binder._negative,
    exp.Case: Binder._case,
    exp.Coalesce: Binder._coalesce,
    exp.Nullif: Binder._nullif,
    exp.Greatest: Binder._extreme,
    exp.Least: Binder._extreme,
    exp.Cast: Binder._cast,
    exp.Dot: Binder._dot,
    exp.Boolean: Binder._boolean,
    exp.Null: Binder._null,
    exp.Paren: Binder._paren,
    exp.DPipe: Binder._dpipe,
    exp.Array: Binder._array,
    exp.ArrayOverlaps: Binder._array_contains,
    exp.Bracket: Binder._bracket,
    exp.Interval: Binder._interval,
    exp.JSONExtract: Binder._json_at,
    exp.JSONExtractScalar: Binder._json_at,
    exp.BitwiseAnd: Binder._bits,
    exp.BitwiseOr: Binder._bits,
    exp.BitwiseXor: Binder._bits,
    exp.BitwiseLeftShift: Binder._bits,
    exp.BitwiseRightShift: Binder._bits,
    exp.BitwiseNot: Binder._complement,
    exp.Pow: Binder._power,
    exp.Operator: Binder._operator,
    exp.RegexpLike: Binder._pattern,
    exp.RegexpILike: Binder._pattern,
    exp.ArrayContainsAll: Binder._array_contains,
    exp.ArrayContainedBy: Binder._array_contains,
    exp.SimilarTo: Binder._similar,
    exp.Extract: Binder._extract,
    exp.AtTimeZone: Binder._at_zone,
    exp.Overlaps: Binder._overlaps,
    exp.StrPosition: Binder._positional,
    exp.Overlay: Binder._positional,
    exp.Sqrt: Binder._positional,
    exp.Cbrt: Binder._positional,
    exp.UnicodeString: Binder._unicode,
    exp.Subquery: Binder._refuse,
    exp.Exists: Binder._refuse,
    exp.Var: Binder._default,
}
# Functions that are written without parentheses, unless a column has their name.
_BARE_FUNCTIONS: Final = frozenset({"user", "current_role", "current_schema", "current_catalog"})

# Names of sqlglot's classes where the text does not show the name.
_CLASS_NAMES: Final = {
    "CurrentTimestamp": "current_timestamp", "Localtimestamp": "localtimestamp",
    "CurrentDate": "current_date", "Ceil": "ceil", "Substring": "substring",
    "StrPosition": "position", "CurrentUser": "current_user", "SessionUser": "session_user",
    "CurrentCatalog": "current_catalog", "CurrentSchema": "current_schema",
    "CurrentVersion": "version", "CurrentDatabase": "current_database",
    "CurrentRole": "current_role", "Floor": "floor", "GroupConcat": "string_agg",
    "Trim": "btrim", "Mod": "mod",
}  # fmt: skip


def is_array(node: Node) -> bool:
    """Whether the value is an array."""
    return node.type.family == "array"


def _arrays() -> Any:
    """`analytics.arrays`, which imports this module."""
    from compute.sql.analytics import arrays

    return arrays


def function_name(node: Any, text: str) -> str:
    """The function's name as it was written, in small letters."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    meta = node.meta
    if text and "start" in meta:
        written = text[meta["start"] : meta["end"] + 1].lower()
        if written.isidentifier():
            return written
    known = _CLASS_NAMES.get(type(node).__name__)
    return known if known is not None else str(node.sql_name()).lower()


def trim_name(node: Any) -> str:
    """What TRIM(LEADING ...) is called."""
    position = str(node.args.get("position") or "both").lower()
    return {"leading": "ltrim", "trailing": "rtrim"}.get(position, "btrim")


def _arguments(node: Any) -> list[Any]:
    """The arguments in the order of the class, which is that of the call."""
    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    if isinstance(node, exp.Initcap):
        return [node.this]  # sqlglot adds the delimiters of its own accord
    found: list[Any] = []
    for name in node.arg_types:
        value = node.args.get(name)
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, exp.Expression)]
    return found


def number(text: str) -> Const:
    """A numeric literal: integer, bigint or numeric, whichever holds it."""
    digits = text[1:] if text[0] == "-" else text
    if digits.isdigit() and digits.isascii():
        if len(digits) <= 19:
            value = int(text)
            if -(1 << 31) <= value < 1 << 31:
                return Const(value, INT4)
            if -(1 << 63) <= value < 1 << 63:
                return Const(value, INT8)
        elif len(digits) > 4000:
            raise CallerMistake("value overflows numeric format", sqlstate="22003")
    return Const(parse_numeric(text), NUMERIC)


def _missing_from(name: str, scope: Scope | None = None) -> CallerMistake:
    if scope is not None and scope.table is not None and scope.table.name == name:
        return CallerMistake(
            f'invalid reference to FROM-clause entry for table "{name}"',
            sqlstate="42P01",
            hint=f'Perhaps you meant to reference the table alias "{scope.alias}".',
        )
    return CallerMistake(f'missing FROM-clause entry for table "{name}"', sqlstate="42P01")


# ------------------------------------------------------------------------------------------- types

_SQLGLOT_TYPES: Final = {
    "SMALLINT": "smallint", "INT": "integer", "BIGINT": "bigint", "TEXT": "text",
    "VARCHAR": "varchar", "CHAR": "char", "BPCHAR": "bpchar", "TIMESTAMP": "timestamp",
    "TIMESTAMPNTZ": "timestamp", "TIMESTAMPTZ": "timestamptz", "BOOLEAN": "boolean",
    "FLOAT": "real", "DOUBLE": "double precision", "DECIMAL": "numeric", "DATE": "date",
    "VARBINARY": "bytea", "BINARY": "bytea", "NAME": "name",
}  # fmt: skip
# Types of PostgreSQL that exist, only not here: a clearer word than "does not exist".
_LATER: Final = frozenset(
    {
        "TIMETZ", "ARRAY", "MONEY", "INET", "CIDR",
        "XML", "HSTORE", "BIT", "NESTED", "INT4RANGE", "INT8RANGE", "NUMRANGE", "TSRANGE",
        "TSTZRANGE", "DATERANGE",
    }
)  # fmt: skip

_INSTEAD: Final = {
    "TIMETZ": "Use timestamptz, or time and a column for the offset.",
    "MONEY": "Use numeric.",
    "INET": "Use text.",
    "CIDR": "Use text.",
    "XML": "Use text.",
    "HSTORE": "Use jsonb.",
}


def type_of(node: Any) -> tuple[SqlType, int]:
    """Type and modifier of a type in the text. Raises 42704, 0A000, 22023."""
    named = enum_of(node)
    if named is not None:
        return named, -1
    name, arguments = _type_name(node)
    kind = BY_NAME.get(name)
    if kind is None and name.strip('"') in _INTERNAL_NAMES:
        kind = BY_NAME.get(name.strip('"'))
    if kind is None:
        raise unknown_type(name)
    return kind, _typmod(kind, name, arguments)


def enum_of(node: Any) -> SqlType | None:
    """An enum by its name, or an array type of one; None if it is neither."""
    if not current.types or not isinstance(node, exp.DataType):
        return None
    if node.this == exp.DataType.Type.ARRAY and len(node.expressions) == 1:
        inner = enum_of(node.expressions[0])
        return inner if inner is None or inner.family == "array" else array_of(inner)
    if node.this != exp.DataType.Type.USERDEFINED:
        return None
    kind, schema = node.args.get("kind"), None
    if isinstance(kind, exp.Dot):
        schema, kind = identifier(kind.this), kind.expression
    elif isinstance(kind, exp.Table):
        schema = identifier(kind.args["db"]) if kind.args.get("db") else None
        kind = kind.this
    name = identifier(kind) if isinstance(kind, exp.Expression) else _folded(str(kind))
    found = enums.find(name, schema)
    if found is None and name.startswith("_"):
        element = enums.find(name[1:], schema)
        return None if element is None else array_of(element)
    return found


def _enum_function(name: str, args: list[Node]) -> Node:
    """enum_first(), enum_last(), enum_range() of an enum's NULL, or between two of its values."""
    kind = args[0].type
    assert isinstance(kind, enums.EnumType)
    places = [place for place, _ in kind.labels]
    if name != "enum_range":
        if not places:
            raise CallerMistake(f"enum {kind.name} contains no values", sqlstate="55000")
        return Const(places[0] if name == "enum_first" else places[-1], kind)
    array = array_of(kind)
    assert array is not None
    if len(args) == 1:
        return Const(places, array)
    ends = tuple(cast(arg, kind) for arg in args)
    if len(ends) != 2 or not all(isinstance(end, Const) for end in ends):
        raise not_supported("enum_range() of values that are not constant")
    low, high = (end.value for end in ends if isinstance(end, Const))
    inside = [
        place
        for place in places
        if (low is None or place >= low) and (high is None or place <= high)
    ]
    return Const(inside, array)


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name[:1] == '"' else name.lower()


# What pg_type calls the types, and so what drivers write in quotes.
_INTERNAL_NAMES: Final = frozenset(
    {
        *("bool", "bytea", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "name"),
        *("varchar", "bpchar", "oid", "date", "time", "timetz", "timestamp", "timestamptz"),
        *("interval", "uuid", "json", "jsonb"),
    }
)


def _type_name(node: Any) -> tuple[str, list[int]]:
    if isinstance(node, exp.DataType):
        word = node.this.name if hasattr(node.this, "name") else str(node.this)
        if word == "USERDEFINED":
            kind: Any = node.args.get("kind")
            if isinstance(kind, exp.Dot) and kind.this.name == "pg_catalog":
                kind = kind.expression
            name = kind.name if hasattr(kind, "name") else str(kind)
            quoted = isinstance(kind, exp.Identifier) and kind.args.get("quoted")
            return (f'"{name}"' if quoted else name.lower()), []
        if word == "ARRAY" and len(node.expressions) == 1:
            # One type for any number of dimensions; the element's modifier is not kept.
            inner = node.expressions[0]
            while isinstance(inner, exp.DataType) and inner.this == exp.DataType.Type.ARRAY:
                (inner,) = inner.expressions
            element, typmod = type_of(inner)
            return f"{element.name}[]", [typmod]
        if word in _LATER:
            raise not_supported(f"type {word.lower()}", hint=_INSTEAD.get(word))
        arguments: list[int] = []
        for item in node.expressions:
            literal = item.this if isinstance(item, exp.DataTypeParam) else item
            digits = isinstance(literal, exp.Literal) and literal.name.isdecimal()
            if not digits or literal.is_string or len(literal.name) > 9:
                raise SyntaxMistake("type modifiers must be simple constants")
            arguments.append(int(literal.name))
        name = _SQLGLOT_TYPES.get(word, word.lower())
        if name == "double precision" and arguments:
            arguments, name = arguments, "real"  # float(n)
        if name == "real" and arguments:
            if not 1 <= arguments[0] <= 53:
                raise CallerMistake("precision for type float out of range", sqlstate="22023")
            return ("real" if arguments[0] <= 24 else "double precision"), []
        return name, arguments
    name = str(getattr(node, "name", None) or node.this).lower()
    if name in ("regclass", "regproc", "regnamespace", "regtype", "regrole"):
        raise not_supported(f"type {name}")
    return name, []


def _typmod(kind: SqlType, name: str, arguments: list[int]) -> int:
    if kind.family == "array":
        return arguments[0] if arguments else -1
    if kind in (VARCHAR, BPCHAR):
        if kind is BPCHAR and not arguments and name != "bpchar":
            return 1 + 4  # char is char(1)
        if not arguments:
            return -1
        if not 1 <= arguments[0] <= TEXT_LENGTH_MAX:
            low = arguments[0] < 1
            word = "at least 1" if low else f"at most {TEXT_LENGTH_MAX}"
            raise CallerMistake(
                f"length for type {'varchar' if kind is VARCHAR else 'char'} must be {word}"
                if low
                else f"length for type {'varchar' if kind is VARCHAR else 'char'} cannot exceed "
                f"{TEXT_LENGTH_MAX}",
                sqlstate="22023",
            )
        return arguments[0] + 4
    if kind is NUMERIC and arguments:
        precision, scale = arguments[0], arguments[1] if len(arguments) > 1 else 0
        if not 1 <= precision <= 1000:
            raise CallerMistake(
                f"NUMERIC precision {precision} must be between 1 and 1000", sqlstate="22023"
            )
        if not 0 <= scale <= 1000:
            raise CallerMistake(
                f"NUMERIC scale {scale} must be between 0 and 1000", sqlstate="22023"
            )
        return ((precision << 16) | scale) + 4
    if kind in (TIMESTAMP, TIMESTAMPTZ, CLOCK) and arguments:
        return min(arguments[0], 6)
    if kind is INTERVAL and arguments:
        return INTERVAL_FIELDS | min(arguments[0], 6)
    if arguments and kind is not OID:
        raise SyntaxMistake(f'type modifier is not allowed for type "{kind.name}"')
    return -1
