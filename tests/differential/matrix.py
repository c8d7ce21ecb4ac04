"""Every operator and common function with every pair of types, as constants."""

from __future__ import annotations

import re
from collections.abc import Iterator

LITERALS = {
    "int2": "3::int2", "int4": "7", "int8": "5000000000", "numeric": "2.50",
    "float4": "1.5::float4", "float8": "2.25::float8", "text": "'12'::text",
    "varchar": "'ab'::varchar(5)", "char": "'ab'::char(4)", "bool": "true",
    "date": "date '2024-02-29'", "timestamp": "timestamp '2024-02-29 12:00:00'",
    "timestamptz": "timestamptz '2024-02-29 12:00:00+00'", "bytea": "'\\x0102'::bytea",
    "unknown": "'5'", "null": "null", "name": "'nm'::name", "oid": "42::oid",
}  # fmt: skip
OPERATORS = ("+", "-", "*", "/", "%", "||", "=", "<>", "<", ">=", "like", "is distinct from")
TYPES = (
    "int2", "int4", "int8", "numeric", "numeric(6,1)", "float4", "float8", "text", "varchar(2)",
    "char(3)", "bool", "date", "timestamp", "timestamptz", "bytea", "name", "oid",
)  # fmt: skip
FUNCTIONS = (
    "abs", "upper", "length", "round", "ceil", "sqrt", "md5", "ascii", "reverse", "sign",
    "pg_typeof", "count", "sum", "avg", "min", "max", "bool_or", "string_agg", "array_agg",
    "stddev",
)  # fmt: skip
PAIRS = (
    "select coalesce({0}, {1})", "select case when true then {0} else {1} end",
    "select {0} union select {1} order by 1", "select {0} in ({1})",
    "select 1 where {0} between {1} and {1}", "select greatest({0}, {1})",
    "select nullif({0}, {1})",
)  # fmt: skip

# What may differ, and why. The statement is searched for the expression.
KNOWN = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"(date|stamp|stamptz) '[^']+' [-+]|[-+] (date|timestamp|timestamptz) ", "needs interval"),
        (
            r"(coalesce\(|case when true then ).*::(varchar|char)\(",
            "PostgreSQL computes it first",
        ),
        (r"::char\(4\)", "a char(n) keeps no trailing blanks once its width is not known"),
        (r"5000000000.*oid|oid.*5000000000", "bigint and oid meet at bigint"),
        (r"oid", "numbers and oid: another error"),
        (r"::bytea (like|\|\|)|(like|\|\|) '.x0102'|md5\(", "bytea has few operators"),
        (r"sqrt|stddev|round|ceil|sign|abs", "of numeric and unknown: another type"),
        (r"(sum|avg|min|max|bool_or|array_agg)\('5'\)|\(null\)", "another error for no type"),
        (r"('5'|null) - '|- '5'", "text minus unknown: another error"),
        (r"'nm'::name|::name", "name meets text in another order"),
    )
)


def statements() -> Iterator[str]:
    """All of them."""
    values = LITERALS.values()
    for left in values:
        for right in values:
            yield from (f"select {left} {operator} {right}" for operator in OPERATORS)
            yield from (text.format(left, right) for text in PAIRS)
        yield from (f"select ({left})::{kind}" for kind in TYPES)
        yield from (f"select {function}({left})" for function in FUNCTIONS)


def known(text: str) -> str:
    """Why a statement may differ; empty if it may not."""
    return next((reason for pattern, reason in KNOWN if pattern.search(text)), "")
