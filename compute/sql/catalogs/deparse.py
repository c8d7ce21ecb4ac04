"""Expressions as PostgreSQL's catalogs show them: each operation in parentheses of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from sqlglot import exp

from compute.sql.definitions import sql_text
from compute.sql.syntax import parse
from polarless.errors import PolarlessError

_OPERATIONS: Final = (
    exp.Binary, exp.Not, exp.In, exp.Between, exp.Is, exp.AtTimeZone, exp.Operator,
)  # fmt: skip
_NO_OPERATIONS: Final = (exp.Dot, exp.Slice, exp.Bracket)


@lru_cache(maxsize=1000)
def full(text: str) -> str:
    """An expression's text with all its parentheses."""
    try:
        tree = parse(f"SELECT {text}").expressions[0]
        return sql_text(tree.transform(_wrapped)) if tree.find(*_OPERATIONS, exp.Cast) else text
    except PolarlessError:
        return text


def _wrapped(node: Any) -> Any:
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Column):
        node.set("this", exp.Paren(this=node.this))
        return node
    if not isinstance(node, _OPERATIONS) or isinstance(node, _NO_OPERATIONS):
        return node
    parent = node.parent
    if isinstance(
        parent, (exp.Paren, type(node)) if isinstance(node, exp.Connector) else exp.Paren
    ):
        return node
    if isinstance(parent, exp.Not) and isinstance(node, (exp.Is, exp.In, exp.Between)):
        return node
    for side in ("this", "expression"):
        inner = node.args.get(side)
        if isinstance(inner, exp.Expression):
            node.set(side, inner.transform(_wrapped))
    return exp.Paren(this=node)
