"""What a function takes and gives, and which of several signatures a call means.

PostgreSQL's rule: the signature with the most arguments of exactly its types, among those that all
arguments can be converted to implicitly; of several the one that comes first in the table, where
what PostgreSQL prefers (double precision, text, timestamp with time zone) comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from compute.sql.casts import can_cast, cast
from compute.sql.expressions import Body, Node, Strict, call, template
from compute.sql.operators import AlwaysKnown
from compute.sql.types import STRINGS, UNKNOWN, SqlType


class Signature(NamedTuple):
    """Argument types, result type, and what computes it from values that are not NULL.

    ``nullable``: the result may be NULL though no argument is. ``loose``: it sees NULLs itself.
    """

    args: tuple[SqlType, ...]
    result: SqlType
    body: Body
    nullable: bool = False
    loose: bool = False


Table = dict[str, tuple[Signature, ...]]


def plain(args: Sequence[SqlType], result: SqlType, what: Callable[..., Any] | str) -> Signature:
    """A signature computed by a function, or by an expression of Python."""
    return Signature(tuple(args), result, template(what) if isinstance(what, str) else call(what))


def maybe(args: Sequence[SqlType], result: SqlType, function: Callable[..., Any]) -> Signature:
    """The same of a function that may give None."""
    return Signature(tuple(args), result, call(function), nullable=True)


def loose(args: Sequence[SqlType], result: SqlType, function: Callable[..., Any]) -> Signature:
    """The same of a function that is called with None too."""
    return Signature(tuple(args), result, call(function), nullable=True, loose=True)


def matching(signatures: Sequence[Any], args: list[Node]) -> tuple[Any, tuple[Node, ...]] | None:
    """The signature to call and the converted arguments; None if there is none."""
    best: Any = None
    best_rank = (-1, -1)
    for found in signatures:
        if len(found.args) != len(args):
            continue
        exact = texts = 0
        for arg, kind in zip(args, found.args):
            if arg.type is kind:
                exact += 1
            elif arg.type is UNKNOWN:
                texts += kind in STRINGS
            elif not can_cast(arg, kind):
                break
        else:
            if (exact, texts) > best_rank:
                best, best_rank = found, (exact, texts)
    if best is None:
        return None
    return best, tuple(cast(arg, kind) for arg, kind in zip(args, best.args))


def make(signature: Signature, args: tuple[Node, ...]) -> Node:
    """The call of a signature."""
    if signature.loose:
        node: Node = AlwaysKnown(args, signature.body, signature.result)
        node.nullable = True
        return node
    nullable = True if signature.nullable else None
    return Strict(args, signature.body, signature.result, nullable=nullable)
