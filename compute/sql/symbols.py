"""Operators by their symbol, among them those of regular expressions: ``~ ~* !~ !~*``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from compute.sql import operators
from compute.sql.builtins import jsons, numbers
from compute.sql.builtins.patterns import matches, matches_any_case
from compute.sql.builtins.signatures import make, matching
from compute.sql.casts import NUMBER_RANK, cast
from compute.sql.expressions import Node, Strict, call, template
from compute.sql.operators import no_operator
from compute.sql.types import BOOL, JSONB, STRINGS, TEXT, UNKNOWN, display
from polarless.errors import CallerMistake

_MATCHERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "~": matches,
    "~*": matches_any_case,
}


def by_symbol(symbol: str, left: Node, right: Node) -> Node:
    """An operator by its symbol. Raises 42883."""
    if symbol in ("=", "<>", "<", "<=", ">", ">="):
        return operators.compare(symbol, left, right)
    if symbol in ("~~", "!~~", "~~*", "!~~*"):
        found = operators.like(left, right, escape=None, ignore_case=symbol.endswith("*"))
        return operators.negation(found) if symbol[0] == "!" else found
    if symbol in _ARITHMETIC and left.type is not JSONB:
        return operators.arithmetic(symbol, left, right)
    found_here = tabled(symbol, left, right)
    if found_here is not None:
        return found_here
    if symbol == "||":
        return operators.concat(left, right)
    if symbol == "^":
        return power(left, right)
    if symbol == "^@":
        return Strict((cast(left, TEXT), cast(right, TEXT)), template("{0}.startswith({1})"), BOOL)
    matcher = _MATCHERS.get(symbol.lstrip("!"))
    sides = [cast(node, TEXT) if node.type is UNKNOWN else node for node in (left, right)]
    if matcher is None or any(node.type not in STRINGS for node in sides):
        raise no_operator(symbol, left, right)
    texts = tuple(cast(node, TEXT) for node in sides)
    matched = Strict(texts, call(matcher), BOOL)
    return operators.negation(matched) if symbol[0] == "!" else matched


_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%"})
_TABLED: Final = {**numbers.BITS, **jsons.OPERATORS}


def tabled(symbol: str, *sides: Node) -> Node | None:
    """An operator of bits or of JSON; None if it is none for these types."""
    signatures = _TABLED.get(symbol)
    if signatures is None or all(side.type is UNKNOWN for side in sides):
        return None
    if sides[0].type is UNKNOWN and symbol in ("->", "->>", "#>", "#>>"):
        return None
    found = matching(signatures, list(sides))
    return None if found is None else make(*found)


def unary(symbol: str, node: Node) -> Node:
    """``~``, the bits' complement."""
    found = tabled(symbol, node)
    if found is None:
        raise CallerMistake(
            f"operator does not exist: {symbol} {display(node.type)}",
            sqlstate="42883",
            hint="No operator matches the given name and argument type. "
            "You might need to add an explicit type cast.",
        )
    return found


def power(left: Node, right: Node) -> Node:
    """``^``"""
    from compute.sql import functions

    for side in (left, right):
        if side.type is not UNKNOWN and side.type not in NUMBER_RANK:
            raise no_operator("^", left, right)
    return functions.make("power", [left, right])
