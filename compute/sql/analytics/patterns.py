"""POSIX regular expressions (``~ ~* !~ !~*``), by way of Python's.

What PostgreSQL writes otherwise is translated: classes in brackets (``[[:alpha:]]``), ends of words
(``\\m \\M \\y``). The rest of what people write means the same in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from compute.sql import operators
from compute.sql.casts import cast
from compute.sql.expressions import Node, Strict, call
from compute.sql.operators import no_operator
from compute.sql.types import BOOL, STRINGS, TEXT, UNKNOWN
from polarless.errors import CallerMistake

_CLASSES: Final = {
    "[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:alnum:]": "a-zA-Z0-9", "[:space:]": r"\s",
    "[:upper:]": "A-Z", "[:lower:]": "a-z", "[:punct:]": r"!-/:-@\[-`{-~", "[:blank:]": r" \t",
    "[:xdigit:]": "0-9a-fA-F", "[:cntrl:]": r"\x00-\x1f\x7f", "[:print:]": r"\x20-\x7e",
    "[:graph:]": r"\x21-\x7e",
}  # fmt: skip
_WORDS: Final = {r"\m": r"\b(?=\w)", r"\M": r"\b(?<=\w)", r"\y": r"\b", r"\Y": r"\B"}
_TRANSLATED = re.compile(r"\[:\w+:\]|\\.", re.DOTALL)
PATTERN_CHARS_MAX: Final = 10_000


@lru_cache(maxsize=256)
def compiled(pattern: str, ignore_case: bool) -> re.Pattern[str]:
    """Raises 2201B."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise CallerMistake("invalid regular expression: too long", sqlstate="2201B")
    source = _TRANSLATED.sub(lambda found: _replaced(found.group()), pattern)
    if source.startswith("***="):
        source = re.escape(source[4:])
    try:
        return re.compile(source, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise CallerMistake(f"invalid regular expression: {error}", sqlstate="2201B") from None


def _replaced(text: str) -> str:
    return _CLASSES.get(text) or _WORDS.get(text) or text


def _matches(text: str, pattern: str) -> bool:
    return compiled(pattern, False).search(text) is not None


def _matches_any_case(text: str, pattern: str) -> bool:
    return compiled(pattern, True).search(text) is not None


_MATCHERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "~": _matches,
    "~*": _matches_any_case,
}


def by_symbol(symbol: str, left: Node, right: Node) -> Node:
    """An operator by its symbol. Raises 42883."""
    if symbol in ("=", "<>", "<", "<=", ">", ">="):
        return operators.compare(symbol, left, right)
    if symbol in ("~~", "!~~", "~~*", "!~~*"):
        found = operators.like(left, right, escape=None, ignore_case=symbol.endswith("*"))
        return operators.negation(found) if symbol[0] == "!" else found
    matcher = _MATCHERS.get(symbol.lstrip("!"))
    sides = [cast(node, TEXT) if node.type is UNKNOWN else node for node in (left, right)]
    if matcher is None or any(node.type not in STRINGS for node in sides):
        raise no_operator(symbol, left, right)
    texts = tuple(cast(node, TEXT) for node in sides)
    matched = Strict(texts, call(matcher), BOOL)
    return operators.negation(matched) if symbol[0] == "!" else matched
