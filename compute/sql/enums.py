"""Enums: CREATE TYPE ... AS ENUM.

A value is the place of its label in the order of the type, a number: it sorts, is stored and is
compared as one, and a label can be renamed. Places are far apart, so that labels can be put between
others. A type is made anew whenever its labels change, and once for each state of it: plans of one
version of the catalog share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from compute.sql.arraytypes import register_array
from compute.sql.environment import current, lookup_path
from compute.sql.mistakes import bad_binary
from compute.sql.types import (
    BINARY_INPUT,
    BINARY_OUTPUT,
    BY_OID,
    PARSERS,
    TEXT_OUTPUT,
    SqlType,
    decode_utf8,
)
from polarless.errors import CallerMistake

FUNCTIONS: Final = ("enum_first", "enum_last", "enum_range")
# Between the places of two labels.
GAP: Final = 4096
# The array type's oid is so far above the enum's.
ARRAY_OIDS: Final = 1 << 30

Labels = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class EnumType(SqlType):
    """An enum with its labels, (place, label) in their order."""

    schema: str = "public"
    labels: Labels = ()

    def __repr__(self) -> str:
        return f"<{self.schema}.{self.name}>"


_made: Final[dict[tuple[Any, ...], EnumType]] = {}


def enum_type(oid: int, schema: str, name: str, labels: Labels) -> EnumType:
    """The type in this state."""
    key = (oid, schema, name, labels)
    found = _made.get(key)
    if found is None:
        found = EnumType(name, oid, 4, "enum", oid + ARRAY_OIDS, schema, labels)
        _register(found)
        _made[key] = found
    # Who asks for an oid alone gets the state that was seen last.
    BY_OID[oid] = found
    return found


def _register(kind: EnumType) -> None:
    places = {label: place for place, label in kind.labels}
    texts = {place: label.encode() for place, label in kind.labels}

    def parse(text: str) -> int:
        place = places.get(text)
        if place is None:
            raise CallerMistake(
                f'invalid input value for enum {kind.name}: "{text}"', sqlstate="22P02"
            )
        return place

    def from_binary(data: bytes) -> int:
        if len(data) > 63:
            raise bad_binary(kind.name)
        return parse(decode_utf8(data))

    PARSERS[kind] = parse
    TEXT_OUTPUT[kind] = BINARY_OUTPUT[kind] = texts.__getitem__
    BINARY_INPUT[kind] = from_binary
    register_array(kind)


def find(name: str, schema: str | None = None) -> EnumType | None:
    """The enum of this name in the catalog of the statement that is planned."""
    types: Mapping[tuple[str, str], EnumType] = current.types
    if not types:
        return None
    for place in lookup_path() if schema is None else (schema,):
        found = types.get((place, name))
        if found is not None:
            return found
    return None


def place_between(labels: Labels, index: int) -> int:
    """A place for a label that comes before the one at ``index``. Raises 54000."""
    low = labels[index - 1][0] if index else 0
    high = labels[index][0] if index < len(labels) else low + 2 * GAP
    if high - low < 2:
        raise CallerMistake(
            "too many labels were put between these two",
            sqlstate="54000",
            hint="Make a new type, and change the columns to it.",
        )
    return (low + high) // 2
