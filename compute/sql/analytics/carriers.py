"""How the values of each type live in DuckDB: their carriers.

    integers, oid          SMALLINT, INTEGER, BIGINT
    real, double           DOUBLE
    boolean, text, bytea   BOOLEAN, VARCHAR, BLOB
    date, timestamp[tz]    INTEGER, BIGINT: our own day and microsecond numbers
    numeric                DECIMAL(p, s) while every value has one scale, else ``exact``: its text
    arrays                 a LIST of their elements' carriers
    anything else          ``printed``: its text

A carrier is ``plain`` when DuckDB compares, sorts and groups it as PostgreSQL would. The others are
compared by a key that is made of them (`udf`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from compute.sql import numerics
from compute.sql.types import (
    BYTEA,
    INT2,
    INT4,
    NUMERIC,
    PARSERS,
    TEXT_OUTPUT,
    SqlType,
)

DIGITS_MAX: Final = 38


class Carrier(NamedTuple):
    """``sql`` is DuckDB's name of it; ``type`` what a printed one is parsed as."""

    sql: str
    kind: str
    precision: int = 0
    scale: int = 0
    type: SqlType | None = None
    element: Any = None

    @property
    def plain(self) -> bool:
        """Whether DuckDB's own comparison is PostgreSQL's."""
        if self.kind == "list":
            return bool(self.element.plain)
        return self.kind not in ("exact", "printed")


BOOLEAN: Final = Carrier("BOOLEAN", "bool")
SMALLINT: Final = Carrier("SMALLINT", "int")
INTEGER: Final = Carrier("INTEGER", "int")
BIGINT: Final = Carrier("BIGINT", "int")
DOUBLE: Final = Carrier("DOUBLE", "float")
VARCHAR: Final = Carrier("VARCHAR", "text")
BLOB: Final = Carrier("BLOB", "blob")
EXACT: Final = Carrier("VARCHAR", "exact")

_BY_FAMILY: Final = {
    "bool": BOOLEAN, "float": DOUBLE, "text": VARCHAR, "time": BIGINT, "date": INTEGER,
    "int": BIGINT, "reg": BIGINT, "enum": BIGINT,
}  # fmt: skip


def decimal(precision: int, scale: int) -> Carrier:
    """A DECIMAL; beyond what DuckDB has, the exact text."""
    if scale > DIGITS_MAX or precision > DIGITS_MAX:
        return EXACT
    return Carrier(f"DECIMAL({precision},{scale})", "dec", precision, scale)


def carrier_of(kind: SqlType, typmod: int = -1, *, exact: bool = False) -> Carrier:
    """The carrier of a column of this type."""
    if kind is NUMERIC:
        if typmod < 4 or exact:
            return EXACT
        return decimal((typmod - 4) >> 16, (typmod - 4) & 0xFFFF)
    if kind is INT2:
        return SMALLINT
    if kind is INT4:
        return INTEGER
    if kind is BYTEA:
        return BLOB
    element = element_of(kind)
    if element is not None:
        return list_of(carrier_of(element, exact=True))
    found = _BY_FAMILY.get(kind.family)
    if found is not None:
        return found
    return Carrier("VARCHAR", "printed", type=kind)


def element_of(kind: SqlType) -> SqlType | None:
    """The type of an array's elements; None if it is no array."""
    return getattr(kind, "element", None)


def list_of(element: Carrier) -> Carrier:
    """Arrays of what the carrier carries."""
    return Carrier(f"{element.sql}[]", "list", element=element)


def common(carriers: Sequence[Carrier]) -> Carrier:
    """One carrier for values of one type that come from several places."""
    first = carriers[0]
    if all(found == first for found in carriers):
        return first
    if all(found.kind == "dec" and found.scale == first.scale for found in carriers):
        return decimal(max(found.precision for found in carriers), first.scale)
    if any(found.kind == "dec" for found in carriers):
        # One scale for all would show digits that a value does not have.
        return EXACT
    if any(found.kind == "exact" for found in carriers):
        return EXACT
    if all(found.kind == "int" for found in carriers):
        return max(carriers, key=lambda found: _WIDTH[found.sql])
    return first


_WIDTH: Final = {"SMALLINT": 2, "INTEGER": 4, "BIGINT": 8}


# -------------------------------------------------------------------------- at the edge to Python


def to_value(carrier: Carrier) -> Callable[[Any], Any] | None:
    """From what DuckDB gives, not NULL, to our value; None if it is that already."""
    if carrier.kind == "exact":
        return Decimal
    if carrier.kind == "printed":
        assert carrier.type is not None
        return PARSERS[carrier.type]
    if carrier.kind == "list":
        inner = to_value(carrier.element)
        if inner is None:
            return list
        return lambda items: [None if item is None else inner(item) for item in items]
    return None


def _exact_text(value: Any) -> str:
    # In an array of a table it is the text already.
    return value if type(value) is str else numerics.numeric_text(value)


def from_value(carrier: Carrier) -> Callable[[Any], Any] | None:
    """From our value, not NULL, to what DuckDB takes; None if it is that already."""
    if carrier.kind == "exact":
        return _exact_text
    if carrier.kind == "dec":
        return str
    if carrier.kind == "printed":
        assert carrier.type is not None
        printer = TEXT_OUTPUT[carrier.type]
        return lambda value: printer(value).decode()
    if carrier.kind == "list":
        inner = from_value(carrier.element)
        if inner is None:
            return list
        return lambda items: [None if item is None else inner(item) for item in items]
    return None
