"""Finds the relations of the catalogs by name, with whoever makes their rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from compute.sql.catalog import TableColumn, make_table
from compute.sql.catalogs import access, information, own, pg
from compute.sql.catalogs.information_columns import INFORMATION_SCHEMA
from compute.sql.catalogs.objects import POLARLESS
from compute.sql.catalogs.pg_columns import PG_CATALOG
from compute.sql.catalogs.relations import MAKERS, TYPES, Virtual

# Importing them is what registers their makers.
MODULES: Final = (access, information, own, pg)
_SCHEMAS: Final = {
    "pg_catalog": PG_CATALOG,
    "information_schema": INFORMATION_SCHEMA,
    "polarless": POLARLESS,
}


@lru_cache(maxsize=512)
def find(name: str, schema: str | None) -> Virtual | None:
    """The relation of this name. Without a schema only pg_catalog is looked in."""
    schema = schema or "pg_catalog"
    source = _SCHEMAS.get(schema, {}).get(name)
    if source is None:
        return None
    pairs = [part.rpartition(":") for part in source.split()]
    # "w" is yes_or_no, a varchar(3).
    columns = tuple(
        TableColumn(column, TYPES[code], 7 if code == "w" else -1) for column, _, code in pairs
    )
    table = make_table(0, schema, name, columns, (), "", None)
    return Virtual(table, tuple(code for _, _, code in pairs), MAKERS.get((schema, name)))


def is_system(schema: str | None) -> bool:
    """Whether a schema holds only such relations."""
    return schema in _SCHEMAS
