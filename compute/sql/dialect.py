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


DIALECT: Final[Any] = Dialect
