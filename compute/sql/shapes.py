"""Literals of a simple query become parameters, so that a text seen before in another guise is not
parsed again.

    SELECT abalance FROM pgbench_accounts WHERE aid = 4711;
    SELECT abalance FROM pgbench_accounts WHERE aid = $1;        shape, with the values ("4711",)

`cut` finds the literals with one regular expression, which may be fooled by quoted identifiers,
comments and escape strings; so `template` scans the shape once by the full lexical rules and
refuses it unless every literal is a token of its own there. Whether a literal may be a parameter
where it stands (ORDER BY 1, varchar(10)) is found out by planning: what cannot be planned as a
shape is planned as written.

A minus sign belongs to the literal where it can only be a sign: after ``= ( , < > + * /``. The
letters of `classes` are part of the key, since integer, bigint and numeric literals differ in type.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from compute.sql.plan import Bound
from compute.sql.syntax import OP, PARAM, scan
from compute.sql.types import INT4, INT8, NUMERIC, UNKNOWN, SqlType
from polarless.errors import CallerMistake

LITERALS_MAX: Final = 100

_LITERAL = re.compile(
    r"('[^']*(?:''[^']*)*'"
    r"|(?:(?<=[=(,<>+*/])-|(?<=[=(,<>+*/] )-)?(?<![\w.$\"])[0-9]+(?:\.[0-9]*)?"
    r"(?:[eE][+-]?[0-9]+)?(?![\w.]))"
)
_SHAPED = re.compile(r"\s*(?:select|insert|update|delete|values)\b", re.IGNORECASE)

# A small letter for a number without a sign, a large one with it.
_TYPES: Final[dict[str, SqlType]] = {
    "i": INT4, "I": INT4, "b": INT8, "B": INT8, "n": NUMERIC, "N": NUMERIC, "s": UNKNOWN,
}  # fmt: skip
# With a minus sign before them these are of a smaller type, and it is not always seen.
_EDGES: Final = frozenset(
    {"2147483648", "-2147483648", "9223372036854775808", "-9223372036854775808"}
)
_INT4_MAX: Final = (1 << 31) - 1
_INT8_MAX: Final = (1 << 63) - 1


class Shape:
    """A statement up to its literals, ready to run. ``following`` is what came after it last time:
    a session's next statement is compared with that first.
    """

    __slots__ = ("bound", "following", "match", "text", "version")

    def __init__(
        self, bound: Bound, version: int, text: str | None, match: Callable[[str], Any] | None
    ) -> None:
        self.bound = bound
        self.version = version
        self.text = text
        self.match = match
        self.following: Shape | None = None


class Cut(NamedTuple):
    """A text cut at its literals."""

    key: tuple[str, str]
    pieces: list[str]
    values: list[str]


def cut(text: str) -> Cut | None:
    """None: nothing to be gained, or nothing that a shape is made of."""
    parts = _LITERAL.split(text)
    if len(parts) == 1 or len(parts) > 2 * LITERALS_MAX or not _SHAPED.match(text):
        return None
    pieces, literals = parts[::2], parts[1::2]
    kinds: list[str] = []
    values: list[str] = []
    for literal in literals:
        if literal[0] == "'":
            kinds.append("s")
            values.append(literal[1:-1].replace("''", "'"))
            continue
        if literal in _EDGES:
            return None
        kinds.append(_kind(literal))
        values.append(literal)
    return Cut(("\0".join(pieces), "".join(kinds)), pieces, values)


def _kind(literal: str) -> str:
    digits = literal[1:] if literal[0] == "-" else literal
    signed = literal[0] == "-"
    if not digits.isdigit():
        kind = "n"
    elif len(digits) < 10 or int(digits[:40]) <= _INT4_MAX + signed:
        kind = "i"
    else:
        kind = "b" if len(digits) < 20 and int(digits) <= _INT8_MAX + signed else "n"
    return kind.upper() if signed else kind


def template(found: Cut) -> str | None:
    """The shape's text with ``$1``, ``$2``, ...; None if it is not safe to make one."""
    if any("$" in piece for piece in found.pieces):
        return None
    parts = [found.pieces[0]]
    starts: list[int] = []
    position = len(parts[0])
    for number, piece in enumerate(found.pieces[1:], 1):
        starts.append(position)
        # sqlglot takes the beginning of "$1,$2" for a dollar quote: the blank keeps them apart.
        name = f"${number} "
        parts += (name, piece)
        position += len(name) + len(piece)
    text = "".join(parts)
    try:
        tokens = scan(text)
    except CallerMistake:
        return None
    if [token.start for token in tokens if token.kind == PARAM] != starts:
        return None
    kinds = found.key[1]
    for index, piece in enumerate(found.pieces):
        before, after = kinds[index - 1 : index], kinds[index : index + 1]
        # 'a' 'b' is one string; e'a' is another kind of string; -1::text is -(1::text).
        if before == after == "s" and not piece.strip():
            return None
        if after == "s" and piece[-1:].isidentifier():
            return None
        if before.isupper() and piece.lstrip().startswith("::"):
            return None
    if any(token.kind == OP and token.value == ";" for token in tokens[:-1]):
        return None
    return text


def parameter_types(found: Cut) -> tuple[SqlType, ...]:
    """The types of the literals."""
    return tuple(_TYPES[kind] for kind in found.key[1])


_SIGNED = re.compile(r"[=(,<>+*/] ?$")


def matcher(found: Cut) -> Callable[[str], Any]:
    """The fullmatch of texts of this shape, with the literals as groups."""
    parts = [re.escape(found.pieces[0])]
    for index, kind in enumerate(found.key[1]):
        before, after = found.pieces[index], found.pieces[index + 1]
        sign = "-?" if _SIGNED.search(before) and not after.lstrip().startswith("::") else ""
        if kind == "s":
            parts.append("'([^']*)'")
        elif kind in "iI":
            parts.append(f"({sign}[0-9]{{1,9}})")
        elif kind in "bB":
            parts.append(f"({sign}[0-9]{{11,18}})")
        else:
            parts.append(rf"({sign}[0-9]+\.[0-9]+)")
        parts.append(re.escape(after))
    return re.compile("".join(parts)).fullmatch
