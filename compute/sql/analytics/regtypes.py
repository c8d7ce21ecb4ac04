"""``regclass``, ``regtype`` and their kin: an oid that is written and read as a name.

A value is the oid. Its name is looked up when it is printed, in the catalog of the statement at
hand (`leaves.current`).
"""

from __future__ import annotations

import struct
from typing import Any, Final

from sqlglot import exp

from compute.sql import binder as plain
from compute.sql import enums
from compute.sql.analytics.arrays import array_type
from compute.sql.analytics.carriers import element_of
from compute.sql.analytics.leaves import current
from compute.sql.casts import cast
from compute.sql.catalogs import objects
from compute.sql.expressions import Const, Node, Retyped, SessionCall
from compute.sql.types import (
    BINARY_INPUT,
    BINARY_OUTPUT,
    BY_NAME,
    INT2,
    INT4,
    INT8,
    NAME,
    OID,
    PARSERS,
    REGTYPE,
    STRINGS,
    TEXT,
    TEXT_OUTPUT,
    UNKNOWN,
    SqlType,
)
from polarless.errors import CallerMistake

_U4: Final = struct.Struct("!I")
_WORDS: Final = {
    "regclass": 2205, "regtype": 2206, "regproc": 24, "regprocedure": 2202, "regnamespace": 4089,
    "regrole": 4096,
}  # fmt: skip
_INTS: Final = (INT2, INT4, INT8, OID)


def _made(word: str, oid: int) -> SqlType:
    kind = SqlType(word, oid, 4, "reg")
    TEXT_OUTPUT[kind] = lambda value: objects.reg_name(current, word, value).encode()
    BINARY_OUTPUT[kind] = _U4.pack
    PARSERS[kind] = lambda text: objects.reg_oid(current, word, text)
    BINARY_INPUT[kind] = BINARY_INPUT[OID]
    return kind


REG_TYPES: Final = {word: _made(word, oid) for word, oid in _WORDS.items()}


def _type_oid(name: Any) -> bytes:
    kind = UNKNOWN if name == UNKNOWN.name else BY_NAME.get(str(name)) or enums.find(str(name))
    return _U4.pack(kind.oid if kind is not None else 0)


# What pg_typeof() gives outside of such queries is the name itself.
BINARY_OUTPUT[REGTYPE] = _type_oid


def type_of(tree: Any) -> tuple[SqlType, int]:
    """As `compute.sql.binder.type_of`, with arrays and reg types."""
    if isinstance(tree, exp.DataType):
        named = plain.enum_of(tree)
        if named is not None:
            return named, -1
        word = tree.this.name if hasattr(tree.this, "name") else str(tree.this)
        if word.lower() in REG_TYPES:
            return REG_TYPES[word.lower()], -1
        if word == "ARRAY" and tree.expressions:
            inner = type_of(tree.expressions[0])[0]
            return (inner if element_of(inner) is not None else array_type(inner)), -1
        kind: Any = tree.args.get("kind")
        if word == "USERDEFINED" and isinstance(kind, exp.Dot):
            return _named(kind.expression)
        if word == "USERDEFINED":
            name = str(kind.name if hasattr(kind, "name") else kind).lower()
            if name in REG_TYPES or name in ("int2vector", "oidvector") or name[0] == "_":
                return _by_name(name), -1
    else:
        name = str(getattr(tree, "name", None) or tree.this).lower().rpartition(".")[2]
        if name in REG_TYPES:
            return REG_TYPES[name], -1
    return plain.type_of(tree)


def output_name(tree: Any) -> str:
    """What a column is called that is only a cast to this type."""
    kind = type_of(tree)[0]
    kind = getattr(kind, "element", kind) if kind.name.endswith("[]") else kind
    return objects.TYPE_NAMES.get(kind.oid) or kind.name


def _named(node: Any) -> tuple[SqlType, int]:
    name = str(node.name)
    if isinstance(node, exp.Identifier) and node.args.get("quoted"):
        return _by_name(f'"{name}"'), -1
    return _by_name(name.lower()), -1


def _by_name(name: str) -> SqlType:
    found = REG_TYPES.get(name) or BY_NAME.get(name)
    if found is None and name.startswith("_") and name[1:] in BY_NAME:
        # An array by its internal name.
        return array_type(BY_NAME[name[1:]])
    if found is None:
        raise CallerMistake(f'type "{name}" does not exist', sqlstate="42704")
    return found


def is_reg(kind: SqlType) -> bool:
    """Whether it is one of these types."""
    return kind.family == "reg"


def cast_reg(node: Node, target: SqlType) -> Node | None:
    """A cast to or from a reg type; None if it is neither."""
    source = node.type
    if is_reg(target):
        word = target.name
        if source is target:
            return node
        if source in _INTS or is_reg(source):
            return Retyped(node, target)
        if source is UNKNOWN and isinstance(node, Const) and node.value is None:
            return Const(None, target)
        if source in STRINGS or source is UNKNOWN:
            return SessionCall(_looker(word), (cast(node, TEXT),), target, nullable=True)
        return None
    if not is_reg(source):
        return None
    if target in _INTS:
        return Retyped(node, target)
    if target in STRINGS:
        return SessionCall(_printer(source.name), (node,), TEXT if target is not NAME else NAME)
    return None


def comparable(left: Node, right: Node) -> tuple[Node, Node]:
    """Reg types compare as their oids; a literal beside one is a name."""
    if not (is_reg(left.type) or is_reg(right.type)):
        return left, right
    if left.type is UNKNOWN:
        left = cast_reg(left, right.type) or left
    if right.type is UNKNOWN:
        right = cast_reg(right, left.type) or right
    return _as_oid(left), _as_oid(right)


def _as_oid(node: Node) -> Node:
    if is_reg(node.type):
        return Retyped(node, OID)
    return node


def _looker(word: str) -> Any:
    def look(session: Any, text: str) -> int:
        return objects.reg_oid(current, word, text)

    look.__name__ = f"look_{word}"
    return look


def _printer(word: str) -> Any:
    def name(session: Any, value: int) -> str:
        return objects.reg_name(current, word, value)

    name.__name__ = f"name_{word}"
    return name
