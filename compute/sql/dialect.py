"""PostgreSQL as sqlglot parses it for us: a call stays a call, an operator an operator.

sqlglot turns the functions that it knows into classes of its own, with their arguments in another
order, defaults filled in and casts added. Here a function's name and arguments come as they were
written; only what has a syntax of its own (CAST, EXTRACT, TRIM, ...) is parsed by its rules.
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

# Calls whose arguments are not a plain list.
_SYNTAX: Final = frozenset(
    {
        *("CAST", "EXTRACT", "NORMALIZE", "OVERLAY", "POSITION", "STRING_AGG", "SUBSTRING"),
        *("TRIM", "XMLELEMENT", "XMLTABLE"),
    }
)
# What is no plain function in PostgreSQL either, and the aggregates that our own executor has.
_KNOWN: Final = frozenset(
    {
        *("COALESCE", "NULLIF", "GREATEST", "LEAST", "COUNT", "SUM", "MIN", "MAX", "AVG"),
        *("UNNEST", "ARRAY", "ARRAY_AGG", "STRING_AGG", "GROUPING"),
    }
)


def _operator(symbol: str) -> Any:
    def make(parser: Any, left: Any, right: Any) -> Any:
        return parser.expression(exp.Operator(this=left, operator=symbol, expression=right))

    return make


def _json(kind: Any) -> Any:
    """``->`` and ``->>`` with whatever stands behind them, not a path of sqlglot's."""

    def make(parser: Any, left: Any, right: Any) -> Any:
        return parser.expression(kind(this=left, expression=right))

    return make


_POSTGRES: Final[Any] = Postgres.Parser
_GENERATOR: Final[Any] = Postgres.Generator
# Not functions, but words of the grammar.
_UPPER: Final = frozenset(
    {"COALESCE", "NULLIF", "GREATEST", "LEAST", "EXTRACT", "CURRENT_TIMESTAMP"}
)


# What PostgreSQL calls the types that sqlglot has short names for.
_LONG: Final = {
    "int": "integer", "decimal": "numeric", "varchar": "character varying", "char": "character",
    "timestamptz": "timestamp with time zone", "timestamp": "timestamp without time zone",
    "float": "double precision", "time": "time without time zone", "bool": "boolean",
}  # fmt: skip


def _type_name(written: str) -> str:
    word, bracket, rest = written.partition("(")
    name, array, more = word.partition("[")
    long = _LONG.get(name, name)
    if bracket and " with" in long:
        # timestamp(3) with time zone
        first, _, tail = long.partition(" ")
        return f"{first}({rest.partition(')')[0]}) {tail}"
    return long + array + more + bracket + rest


class Dialect(Postgres):
    """See the module's docstring."""

    class Parser(_POSTGRES):  # type: ignore[misc]
        """Knows few functions."""

        FUNCTIONS: Final = {
            name: made for name, made in _POSTGRES.FUNCTIONS.items() if name in _KNOWN
        }
        FUNCTION_PARSERS: Final = {
            name: made for name, made in _POSTGRES.FUNCTION_PARSERS.items() if name in _SYNTAX
        }
        NO_PAREN_FUNCTION_PARSERS: Final = {
            name: made
            for name, made in _POSTGRES.NO_PAREN_FUNCTION_PARSERS.items()
            if name in ("ANY", "CASE", "VARIADIC")
        }
        # ``f(a -> b)`` is no lambda.
        LAMBDAS: Final = {TokenType.FARROW: _POSTGRES.LAMBDAS[TokenType.FARROW]}
        JSON_OPERATORS: Final = {
            **_POSTGRES.JSON_OPERATORS,
            TokenType.ARROW: _json(exp.JSONExtract),
            TokenType.DARROW: _json(exp.JSONExtractScalar),
            TokenType.HASH_ARROW: _operator("#>"),
            TokenType.DHASH_ARROW: _operator("#>>"),
            TokenType.HASH_DASH: _operator("#-"),
            TokenType.PLACEHOLDER: _operator("?"),
            TokenType.QMARK_PIPE: _operator("?|"),
            TokenType.QMARK_AMP: _operator("?&"),
            TokenType.AT_QMARK: _operator("@?"),
            TokenType.CARET_AT: _operator("^@"),
        }

    class Generator(_GENERATOR):  # type: ignore[misc]
        """Writes what is kept of an expression as PostgreSQL would show it."""

        def normalize_func(self, name: str) -> str:
            return name.upper() if name.upper() in _UPPER else name.lower()

        def cast_sql(self, expression: Any, safe_prefix: str | None = None) -> str:
            inner = self.sql(expression, "this")
            if not isinstance(expression.this, (exp.Literal, exp.Paren, exp.Anonymous, exp.Column)):
                inner = f"({inner})"
            kind = self.sql(expression, "to")
            return f"{inner}::{kind if chr(34) in kind else _type_name(kind.lower())}"

        def not_sql(self, expression: Any) -> str:
            inner = expression.this
            if isinstance(inner, (exp.Is, exp.In, exp.Between)):
                word = {exp.Is: "IS", exp.In: "IN", exp.Between: "BETWEEN"}[type(inner)]
                left, found, right = self.sql(inner).partition(f" {word} ")
                if found and left == self.sql(inner, "this"):
                    place = f"IS NOT {right}" if word == "IS" else f"NOT {word} {right}"
                    return f"{left} {place}"
            return str(super().not_sql(expression))


DIALECT: Final[Any] = Dialect
