"""Catalog queries of tools that are answered as a whole, recognised by their text.

What is here is asked by a program whose text never changes, and would need joins over pg_catalog:

* pgbench, before each run: how its accounts table is partitioned. It is not.
* `polarless.client`: the columns of a table's primary key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from compute.sql.catalog import Catalog
from compute.sql.plan import (
    BINARY_FORMAT,
    Bound,
    Column,
    Params,
    Plan,
    SessionLike,
    command_complete,
)
from compute.sql.rowcode import NULL_BYTES, length, pack_u32
from compute.sql.types import CHAR, INT4, INT8, NAME, decode_utf8

CatalogOf = Callable[[SessionLike], Catalog]

# Position of "public" in the search path, counting pg_catalog, which comes first.
_PUBLIC_POSITION: Final = 2


def plan_system(text: str, catalog_of: CatalogOf) -> Plan | None:
    """The plan of a known query, or None."""
    if "pg_partitioned_table" in text and "pg_inherits" in text and "partstrat" in text:
        return _pgbench_partitions(catalog_of)
    if "information_schema.key_column_usage" in text and "'PRIMARY KEY'" in text and "$1" in text:
        return _key_columns(catalog_of)
    return None


def _key_columns(catalog_of: CatalogOf) -> Plan:
    """(column name) for each column of a table's primary key, in the key's order."""

    def bind(plan: Plan, params: tuple[int, ...], results: tuple[int, ...]) -> Bound:
        def run(session: SessionLike, params: Params) -> bytes:
            name = params[0]
            table = None
            if name is not None:
                table = catalog_of(session).find(
                    name if isinstance(name, str) else decode_utf8(name)
                )
            rows = [] if table is None else [column.encode() for column in table.key_names]
            bodies = [b"\0\1" + length(len(row)) + row for row in rows]
            answer = b"".join(b"D" + pack_u32(len(body) + 4) + body for body in bodies)
            return answer + command_complete(f"SELECT {len(rows)}")

        return Bound(plan, results, run)

    columns = (Column("column_name", NAME.oid, 64, -1),)
    return Plan("query", (NAME.oid,), columns, fast=True, verb="SELECT", binder=bind)


def _pgbench_partitions(catalog_of: CatalogOf) -> Plan:
    """(position in the search path, partition strategy, number of partitions) of a table."""

    def bind(plan: Plan, params: tuple[int, ...], results: tuple[int, ...]) -> Bound:
        values = [
            number.to_bytes(size, "big") if form == BINARY_FORMAT else b"%d" % number
            for number, size, form in ((_PUBLIC_POSITION, 4, results[0]), (0, 8, results[2]))
        ]
        position, count = (length(len(raw)) + raw for raw in values)
        body = b"\0\3" + position + NULL_BYTES + count
        row = b"D" + pack_u32(len(body) + 4) + body

        def run(session: SessionLike, params: Params) -> bytes:
            name = params[0]
            known = name is not None and catalog_of(session).find(
                name if isinstance(name, str) else decode_utf8(name)
            )
            if not known:
                return command_complete("SELECT 0")
            return row + command_complete("SELECT 1")

        return Bound(plan, results, run)

    columns = (
        Column("n", INT4.oid, 4, -1),
        Column("partstrat", CHAR.oid, 1, -1),
        Column("count", INT8.oid, 8, -1),
    )
    return Plan("query", (NAME.oid,), columns, fast=True, verb="SELECT", binder=bind)
