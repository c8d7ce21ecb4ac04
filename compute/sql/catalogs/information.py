"""information_schema: the rows of its views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from compute.sql.analytics.leaves import current
from compute.sql.arraytypes import ArrayType
from compute.sql.catalog import GENERATED
from compute.sql.catalogs.deparse import full
from compute.sql.catalogs.objects import Constraint, Objects, Relation, owner
from compute.sql.catalogs.pg import default_text, type_modifier, type_name
from compute.sql.catalogs.relations import Row, maker
from compute.sql.enums import EnumType
from compute.sql.types import NUMERIC, SqlType

_SCHEMA: Final = "information_schema"
_OWN: Final = ("r", "v")


def _visible(objects: Objects) -> list[Relation]:
    return [r for r in objects.relations.values() if r.kind in _OWN]


@maker(_SCHEMA, "schemata")
def schemata(objects: Objects, session: Any) -> Iterable[Row]:
    for name in objects.schemas:
        yield {
            "catalog_name": session.database,
            "schema_name": name,
            "schema_owner": owner(current),
        }


@maker(_SCHEMA, "information_schema_catalog_name")
def catalog_name(objects: Objects, session: Any) -> Iterable[Row]:
    yield {"catalog_name": session.database}


@maker(_SCHEMA, "tables")
def tables(objects: Objects, session: Any) -> Iterable[Row]:
    for relation in _visible(objects):
        base = relation.kind == "r"
        yield {
            "table_catalog": session.database,
            "table_schema": relation.schema,
            "table_name": relation.name,
            "table_type": "BASE TABLE" if base else "VIEW",
            "is_insertable_into": "YES" if base else "NO",
            "is_typed": "NO",
        }


@maker(_SCHEMA, "columns")
def columns(objects: Objects, session: Any) -> Iterable[Row]:
    for relation in _visible(objects):
        for number, column in enumerate(relation.columns, 1):
            row = _column(session, relation, number, *column)
            identity = relation.identities[number - 1] if relation.identities else ""
            if identity == GENERATED:
                row |= {
                    "is_generated": "ALWAYS",
                    "generation_expression": full(row["column_default"]),
                    "column_default": None,
                }
            elif identity:
                row |= {
                    "is_identity": "YES",
                    "identity_generation": "ALWAYS" if identity == "a" else "BY DEFAULT",
                    "column_default": None,
                }
            yield row


def _column(
    session: Any,
    relation: Relation,
    number: int,
    name: str,
    kind: SqlType,
    typmod: int,
    not_null: bool,
    default: str | None,
) -> Row:
    length, precision, scale = type_modifier(kind, typmod)
    is_number = kind.family in ("int", "float", "numeric") and kind.oid != 26
    is_time = kind.family in ("time", "date")
    element = kind.element if isinstance(kind, ArrayType) else kind
    return {
        "table_catalog": session.database,
        "table_schema": relation.schema,
        "table_name": relation.name,
        "column_name": name,
        "ordinal_position": number,
        "column_default": full(default_text(default, kind)) if default is not None else None,
        "is_nullable": "NO" if not_null else "YES",
        "data_type": _data_type(kind),
        "character_maximum_length": length,
        "character_octet_length": (
            length * 4 if length else 1 << 30 if kind.family == "text" else None
        ),
        "numeric_precision": precision if is_number else None,
        "numeric_precision_radix": (10 if kind is NUMERIC else 2) if is_number else None,
        "numeric_scale": scale if is_number else None,
        "datetime_precision": (0 if kind.family == "date" else 6) if is_time else None,
        "udt_catalog": session.database,
        "udt_schema": element.schema if isinstance(element, EnumType) else "pg_catalog",
        "udt_name": type_name(kind),
        "dtd_identifier": str(number),
        "is_self_referencing": "NO",
        "is_identity": "NO",
        "identity_cycle": "NO",
        "is_generated": "NEVER",
        "is_updatable": "YES" if relation.kind == "r" else "NO",
    }


def _data_type(kind: SqlType) -> str:
    if isinstance(kind, ArrayType):
        return "ARRAY"
    return "USER-DEFINED" if kind.family == "enum" else kind.name


_KINDS: Final = {"p": "PRIMARY KEY", "u": "UNIQUE", "f": "FOREIGN KEY", "c": "CHECK"}


@maker(_SCHEMA, "table_constraints")
def table_constraints(objects: Objects, session: Any) -> Iterable[Row]:
    for found in objects.constraints.values():
        yield {
            **_of(session, found),
            "table_catalog": session.database,
            "table_schema": found.table.schema,
            "table_name": found.table.name,
            "constraint_type": _KINDS[found.kind],
            "is_deferrable": "NO",
            "initially_deferred": "NO",
            "enforced": "YES",
            "nulls_distinct": "YES" if found.kind == "u" else None,
        }


def _of(session: Any, found: Constraint) -> Row:
    return {
        "constraint_catalog": session.database,
        "constraint_schema": found.table.schema,
        "constraint_name": found.name,
    }


@maker(_SCHEMA, "key_column_usage")
def key_column_usage(objects: Objects, session: Any) -> Iterable[Row]:
    for found in objects.constraints.values():
        if found.kind == "c":
            continue
        for place, index in enumerate(found.columns, 1):
            yield {
                **_of(session, found),
                "table_catalog": session.database,
                "table_schema": found.table.schema,
                "table_name": found.table.name,
                "column_name": found.table.columns[index][0],
                "ordinal_position": place,
                "position_in_unique_constraint": place if found.kind == "f" else None,
            }


@maker(_SCHEMA, "constraint_column_usage")
def constraint_column_usage(objects: Objects, session: Any) -> Iterable[Row]:
    for found in objects.constraints.values():
        target = found.other or found.table
        for index in found.other_columns or found.columns:
            yield {
                **_of(session, found),
                "table_catalog": session.database,
                "table_schema": target.schema,
                "table_name": target.name,
                "column_name": target.columns[index][0],
            }


_RULES: Final = {"a": "NO ACTION", "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL",
                 "d": "SET DEFAULT"}  # fmt: skip


@maker(_SCHEMA, "referential_constraints")
def referential_constraints(objects: Objects, session: Any) -> Iterable[Row]:
    unique = {
        (c.table.oid, frozenset(c.columns)): c.name
        for c in objects.constraints.values()
        if c.kind in ("p", "u")
    }
    for found in objects.constraints.values():
        if found.other is None:
            continue
        yield {
            **_of(session, found),
            "unique_constraint_catalog": session.database,
            "unique_constraint_schema": found.other.schema,
            "unique_constraint_name": unique.get((found.other.oid, frozenset(found.other_columns))),
            "match_option": "NONE",
            "update_rule": _RULES[found.actions[0]],
            "delete_rule": _RULES[found.actions[1]],
        }


@maker(_SCHEMA, "character_sets")
def character_sets(objects: Objects, session: Any) -> Iterable[Row]:
    yield {
        "character_set_name": "UTF8",
        "character_repertoire": "UCS",
        "form_of_use": "UTF8",
        "default_collate_catalog": session.database,
        "default_collate_schema": "pg_catalog",
        "default_collate_name": "C",
    }


@maker(_SCHEMA, "views")
def views(objects: Objects, session: Any) -> Iterable[Row]:
    for relation in objects.relations.values():
        if relation.kind == "v" and relation.text:
            yield {
                "table_catalog": session.database,
                "table_schema": relation.schema,
                "table_name": relation.name,
                "view_definition": relation.text,
                "check_option": "NONE",
                "is_updatable": "NO",
                "is_insertable_into": "NO",
                "is_trigger_updatable": "NO",
                "is_trigger_deletable": "NO",
                "is_trigger_insertable_into": "NO",
            }


@maker(_SCHEMA, "sequences")
def sequences(objects: Objects, session: Any) -> Iterable[Row]:
    for found in objects.sequences.values():
        bits = {21: 16, 23: 32}.get(found.type.oid, 64)
        yield {
            "sequence_catalog": session.database,
            "sequence_schema": found.schema,
            "sequence_name": found.name,
            "data_type": found.type.name,
            "numeric_precision": bits,
            "numeric_precision_radix": 2,
            "numeric_scale": 0,
            "start_value": str(found.start),
            "minimum_value": str(found.low),
            "maximum_value": str(found.high),
            "increment": str(found.increment),
            "cycle_option": "YES" if found.cycle else "NO",
        }


@maker(_SCHEMA, "check_constraints")
def check_constraints(objects: Objects, session: Any) -> Iterable[Row]:
    for found in objects.constraints.values():
        if found.kind == "c":
            yield {**_of(session, found), "check_clause": found.text.removeprefix("CHECK ")}
