"""Array types: a value is a list, nested for more dimensions; None is a NULL in it.

    text      {1,2,NULL} {"a b","c\\"d"} {{1,2},{3,4}}
    binary    dimensions, whether there are NULLs, the element's oid, then length and lower bound of
              each dimension, then the elements with their lengths

``int2vector`` and ``oidvector`` are arrays of the catalogs that begin at 0 and are printed without
braces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from compute.sql.mistakes import bad_binary
from compute.sql.types import (
    ALL_TYPES,
    BINARY_INPUT,
    BINARY_OUTPUT,
    BY_NAME,
    BY_OID,
    INT2,
    NAME_ARRAY,
    NUMERIC,
    OID,
    PARSERS,
    TEXT,
    TEXT_ARRAY,
    TEXT_OUTPUT,
    UNKNOWN,
    VOID,
    SqlType,
)
from polarless.errors import CallerMistake

DIMENSIONS_MAX: Final = 6
ELEMENTS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class ArrayType(SqlType):
    """The type of arrays of ``element``."""

    element: SqlType = TEXT
    lower_bound: int = 1

    def __repr__(self) -> str:
        return f"<{self.name}>"


# -------------------------------------------------------------------------------------------- text


def array_text(value: list[Any], element: SqlType) -> str:
    """As PostgreSQL prints it."""
    printer = TEXT_OUTPUT[element]
    return _print(value, printer)


_NUMERIC: Final = TEXT_OUTPUT[NUMERIC]


def _print(value: list[Any], printer: Callable[[Any], bytes]) -> str:
    parts = []
    for item in value:
        if item is None:
            parts.append("NULL")
        elif isinstance(item, list):
            parts.append(_print(item, printer))
        elif printer is _NUMERIC and type(item) is str:
            # As it is stored.
            parts.append(item)
        else:
            parts.append(_quoted(printer(item).decode()))
    return "{" + ",".join(parts) + "}"


_SPECIAL: Final = frozenset('{},"\\ \t\n\r\v\f')


def _quoted(text: str) -> str:
    if text and text.upper() != "NULL" and _SPECIAL.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_array(text: str, element: SqlType) -> list[Any]:
    """Text to a list. Raises 22P02."""
    body = text.strip()
    if body.startswith("["):
        # [1:3]={...}: bounds are read over.
        body = body.partition("=")[2].strip()
    reader = _Reader(body, text, PARSERS[element])
    if not body.startswith("{"):
        raise reader.wrong('Array value must start with "{" or dimension information.')
    found = reader.array(1)
    if body[reader.position :].strip():
        raise reader.wrong("Junk after closing right brace.")
    return found


class _Reader:
    def __init__(self, body: str, whole: str, parser: Callable[[str], Any]) -> None:
        self.body = body
        self.whole = whole
        self.parser = parser
        self.position = 0

    def wrong(self, detail: str) -> CallerMistake:
        return CallerMistake(
            f'malformed array literal: "{self.whole[:200]}"', sqlstate="22P02", detail=detail
        )

    def array(self, depth: int) -> list[Any]:
        if depth > DIMENSIONS_MAX:
            raise CallerMistake(
                f"number of array dimensions exceeds the maximum allowed ({DIMENSIONS_MAX})",
                sqlstate="54000",
            )
        self.position += 1
        found: list[Any] = []
        self._blanks()
        if self._at("}"):
            self.position += 1
            return found
        while True:
            self._blanks()
            found.append(self.array(depth + 1) if self._at("{") else self._element())
            self._blanks()
            if self._at(","):
                self.position += 1
            elif self._at("}"):
                self.position += 1
                break
            else:
                raise self.wrong("Unexpected end of input or character.")
        lists = [isinstance(item, list) for item in found]
        if any(lists) and (not all(lists) or len({len(item) for item in found}) > 1):
            raise self.wrong(
                "Multidimensional arrays must have sub-arrays with matching dimensions."
            )
        return found

    def _at(self, char: str) -> bool:
        return self.body.startswith(char, self.position)

    def _blanks(self) -> None:
        while self.position < len(self.body) and self.body[self.position].isspace():
            self.position += 1

    def _element(self) -> Any:
        body, parts = self.body, []
        if self._at('"'):
            self.position += 1
            while not self._at('"'):
                if self._at("\\"):
                    self.position += 1
                if self.position >= len(body):
                    raise self.wrong("Unexpected end of input.")
                parts.append(body[self.position])
                self.position += 1
            self.position += 1
            return self.parser("".join(parts))
        start = self.position
        while self.position < len(body) and body[self.position] not in ',{}"':
            if body[self.position] == "\\":
                self.position += 1
            parts.append(body[self.position : self.position + 1])
            self.position += 1
        word = "".join(parts).rstrip()
        if self.position == start or not word:
            raise self.wrong(f'Unexpected "{body[start : start + 1]}" character.')
        return None if word.upper() == "NULL" else self.parser(word)


# ------------------------------------------------------------------------------------------ binary

_HEAD: Final = struct.Struct("!iiI")
_DIMENSION: Final = struct.Struct("!ii")
_LENGTH: Final = struct.Struct("!i")


def array_binary(value: list[Any], kind: ArrayType) -> bytes:
    """As PostgreSQL sends it."""
    sizes: list[int] = []
    level: Any = value
    while isinstance(level, list):
        sizes.append(len(level))
        level = level[0] if level else None
    flat = value
    for _ in sizes[1:]:
        flat = [item for part in flat for item in part]
    if not flat:
        sizes = []
    parts = [_HEAD.pack(len(sizes), int(None in flat), kind.element.oid)]
    parts += [_DIMENSION.pack(size, kind.lower_bound) for size in sizes]
    writer = BINARY_OUTPUT[kind.element]
    for item in flat:
        if item is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            data = writer(item)
            parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


def parse_binary(data: bytes, kind: ArrayType) -> list[Any]:
    """The inverse of `array_binary`. Raises 22P03."""
    try:
        count, _, _ = _HEAD.unpack_from(data)
        if not 0 <= count <= DIMENSIONS_MAX:
            raise bad_binary(kind.name)
        position = _HEAD.size
        sizes = []
        total = 1 if count else 0
        for _ in range(count):
            size = _DIMENSION.unpack_from(data, position)[0]
            position += _DIMENSION.size
            sizes.append(size)
            total *= size
            if not 0 <= total <= ELEMENTS_MAX:
                raise bad_binary(kind.name)
        reader = BINARY_INPUT[kind.element]
        flat: list[Any] = []
        for _ in range(total):
            length = _LENGTH.unpack_from(data, position)[0]
            position += 4
            if length < 0:
                flat.append(None)
                continue
            flat.append(reader(data[position : position + length]))
            position += length
    except struct.error:
        raise bad_binary(kind.name) from None
    for size in reversed(sizes[1:]):
        flat = [flat[i : i + size] for i in range(0, len(flat), size)] if size else []
    return flat


# ------------------------------------------------------------------------------------ registration


def _register(kind: ArrayType, text: Callable[[list[Any]], bytes] | None = None) -> ArrayType:
    element = kind.element
    BY_OID[kind.oid] = kind
    TEXT_OUTPUT[kind] = text or (lambda value: array_text(value, element).encode())
    PARSERS[kind] = lambda source: parse_array(source, element)
    BINARY_OUTPUT[kind] = lambda value: array_binary(value, kind)
    BINARY_INPUT[kind] = lambda data: parse_binary(data, kind)
    BY_NAME.setdefault(kind.name, kind)
    return kind


def _make(element: SqlType) -> ArrayType:
    return _register(ArrayType(f"{element.name}[]", element.array_oid, -1, "array", 0, element))


ARRAYS: Final[dict[int, ArrayType]] = {
    element.array_oid: _make(element)
    for element in ALL_TYPES
    if element.array_oid and element not in (UNKNOWN, VOID)
}


_OF_ENUMS: Final[dict[SqlType, ArrayType]] = {}


def register_array(element: SqlType) -> None:
    """Make the array type of an enum known."""
    kind = ArrayType(f"{element.name}[]", element.array_oid, -1, "array", 0, element)
    named = BY_NAME.get(kind.name)
    _OF_ENUMS[element] = _register(kind)
    if named is None:
        # Its name means something within a catalog only.
        del BY_NAME[kind.name]


def array_of(element: SqlType) -> ArrayType | None:
    """The type of arrays of a type."""
    found = _OF_ENUMS.get(element) or BY_OID.get(element.array_oid)
    return found if isinstance(found, ArrayType) else None


def _vector(name: str, oid: int, element: SqlType) -> ArrayType:
    kind = ArrayType(name, oid, -1, "array", 0, element, 0)
    _register(kind, lambda value: " ".join(str(item) for item in value).encode())
    PARSERS[kind] = lambda source: [PARSERS[element](item) for item in source.split()]
    return kind


def _from_text(kind: ArrayType) -> Callable[[Any], bytes]:
    return lambda text: array_binary(parse_array(text, kind.element), kind)


# Arrays that functions of the session give as text.
BINARY_OUTPUT[TEXT_ARRAY] = _from_text(ARRAYS[1009])
BINARY_OUTPUT[NAME_ARRAY] = _from_text(ARRAYS[1003])

INT2VECTOR: Final = _vector("int2vector", 22, INT2)
OIDVECTOR: Final = _vector("oidvector", 30, OID)

__all__ = ["ARRAYS", "INT2VECTOR", "OIDVECTOR", "ArrayType", "array_of"]
