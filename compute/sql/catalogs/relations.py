"""The relations themselves: their columns as tables, and who makes their rows.

A maker gives rows as dicts of the columns that say something; the others get what PostgreSQL has
there for an object without the feature: 0, false, an empty name, or NULL. A relation of
PostgreSQL's that nobody makes rows for is there, and empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from compute.sql.arraytypes import ARRAYS, INT2VECTOR, OIDVECTOR
from compute.sql.catalog import Table
from compute.sql.catalogs.objects import Objects
from compute.sql.types import (
    BOOL,
    BYTEA,
    CHAR,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NAME,
    NUMERIC,
    OID,
    TEXT,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

Row = dict[str, Any]
Maker = Callable[[Objects, Any], Iterable[Row]]

TYPES: Final[dict[str, SqlType]] = {
    "2": INT2, "4": INT4, "8": INT8, "b": BOOL, "c": CHAR, "f": FLOAT8, "n": NAME, "o": OID,
    "p": OID, "r": FLOAT4, "t": TEXT, "u": NUMERIC, "v": VARCHAR, "w": VARCHAR, "x": OID,
    "y": BYTEA,
    "z": TIMESTAMPTZ, "2v": INT2VECTOR, "ov": OIDVECTOR, "t[]": ARRAYS[1009], "n[]": ARRAYS[1003],
    "2[]": ARRAYS[1005], "o[]": ARRAYS[1028], "b[]": ARRAYS[1000], "f[]": ARRAYS[1022],
    "r[]": ARRAYS[1021], "c[]": ARRAYS[1002],
}  # fmt: skip
_DEFAULTS: Final[dict[str, Any]] = {
    "2": 0, "4": 0, "8": 0, "b": False, "c": "", "f": 0.0, "n": "", "o": 0, "p": 0, "r": 0.0,
    "x": 0, "2v": [], "ov": [],
}  # fmt: skip
# Filled in by the modules that make rows: (schema, name) -> maker.
MAKERS: Final[dict[tuple[str, str], Maker]] = {}


def maker(schema: str, *names: str) -> Callable[[Maker], Maker]:
    """Registers a function as the maker of relations."""

    def register(function: Maker) -> Maker:
        for name in names:
            MAKERS[schema, name] = function
        return function

    return register


@dataclass(frozen=True, slots=True)
class Virtual:
    """A relation without a tree. ``codes`` are the short types of its columns."""

    table: Table
    codes: tuple[str, ...]
    make: Maker | None

    @property
    def live(self) -> bool:
        """Whether the rows tell of what changes from moment to moment: to be made in the loop."""
        return self.table.schema == "polarless" or self.table.name == "pg_stat_activity"

    def rows(self, objects: Objects, session: Any, wanted: list[int]) -> Iterable[list[Any]]:
        """Its rows: the wanted columns."""
        if self.make is None:
            return
        columns = self.table.columns
        picked = []
        for index in wanted:
            code = self.codes[index]
            default = _DEFAULTS.get(code) if self.table.schema == "pg_catalog" else None
            picked.append((columns[index].name, default))
        for row in self.make(objects, session):
            yield [row.get(name, default) for name, default in picked]
