"""pg_catalog: the rows of its relations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from compute.sql.analytics.leaves import current
from compute.sql.arraytypes import ArrayType
from compute.sql.catalog import GENERATED
from compute.sql.catalogs.access import acl
from compute.sql.catalogs.objects import (
    BTREE_OID,
    C_COLLATION,
    DATABASE_OID,
    DEFAULT_COLLATION,
    HEAP_OID,
    OWNER_OID,
    PG_CATALOG_OID,
    TYPE_NAMES,
    Objects,
    Relation,
    index_text,
    made_oid,
    owner,
)
from compute.sql.catalogs.pg_columns import PG_CATALOG
from compute.sql.catalogs.relations import TYPES, Row, maker
from compute.sql.enums import EnumType
from compute.sql.types import BPCHAR, BY_OID, NUMERIC, VARCHAR, SqlType

_TABLESPACE: Final = 1663


def type_name(kind: SqlType) -> str:
    """The name in pg_type."""
    if isinstance(kind, ArrayType) and kind.oid not in TYPE_NAMES:
        return "_" + type_name(kind.element)
    return TYPE_NAMES.get(kind.oid) or kind.name


def collation_of(kind: SqlType) -> int:
    """attcollation of a column of this type."""
    if kind.family != "text":
        return 0
    return C_COLLATION if kind.name in ("name", '"char"') else DEFAULT_COLLATION


def system_columns(relation: Relation) -> list[tuple[str, SqlType]]:
    """The columns of a relation of pg_catalog."""
    source = PG_CATALOG.get(relation.name, "") if relation.schema == "pg_catalog" else ""
    pairs = [part.rpartition(":") for part in source.split()]
    return [(name, TYPES[code]) for name, _, code in pairs]


@maker("pg_catalog", "pg_namespace")
def namespaces(objects: Objects, session: Any) -> Iterable[Row]:
    for name, oid in objects.schemas.items():
        yield {"oid": oid, "nspname": name, "nspowner": OWNER_OID}


@maker("pg_catalog", "pg_class")
def classes(objects: Objects, session: Any) -> Iterable[Row]:
    indexed = {index.table.oid for index in objects.indexes.values()}
    checks = Counter(c.table.oid for c in objects.constraints.values() if c.kind == "c")
    # Foreign keys are triggers on both sides.
    linked = {t.oid for c in objects.constraints.values() if c.other for t in (c.table, c.other)}
    for relation in objects.relations.values():
        count = len(relation.columns) or len(system_columns(relation))
        access = {"r": HEAP_OID, "i": BTREE_OID}.get(relation.kind, 0)
        yield {
            "oid": relation.oid,
            "relname": relation.name,
            "relnamespace": objects.schemas[relation.schema],
            "relowner": OWNER_OID,
            "relam": access,
            "relfilenode": relation.oid if access else 0,
            "reltuples": -1.0 if relation.kind == "r" else 0.0,
            "relhasindex": relation.oid in indexed,
            "relpersistence": "t" if relation.schema.startswith("pg_temp_") else "p",
            "relkind": relation.kind,
            "relnatts": count,
            "relhastriggers": relation.oid in linked,
            "relchecks": checks[relation.oid],
            "relispopulated": True,
            "relacl": acl(relation),
            "relreplident": "d" if relation.schema != "pg_catalog" else "n",
        }


@maker("pg_catalog", "pg_attribute")
def attributes(objects: Objects, session: Any) -> Iterable[Row]:
    for relation in objects.relations.values():
        if not relation.columns:
            for number, (name, kind) in enumerate(system_columns(relation), 1):
                yield _attribute(relation, number, name, kind, -1, not_null=False, default=False)
            continue
        for number, (name, kind, typmod, not_null, default) in enumerate(relation.columns, 1):
            row = _attribute(
                relation, number, name, kind, typmod,
                not_null=not_null, default=default is not None,
            )  # fmt: skip
            identity = relation.identities[number - 1] if relation.identities else ""
            if identity == GENERATED:
                row["attgenerated"] = GENERATED
            elif identity:
                row |= {"attidentity": identity, "atthasdef": False}
            yield row


def _attribute(
    relation: Relation,
    number: int,
    name: str,
    kind: SqlType,
    typmod: int,
    *,
    not_null: bool,
    default: bool,
) -> Row:
    fixed = kind.size > 0
    return {
        "attrelid": relation.oid,
        "attname": name,
        "atttypid": kind.oid,
        "attstattarget": -1,
        "attlen": kind.size,
        "attnum": number,
        "attndims": 1 if isinstance(kind, ArrayType) else 0,
        "attcacheoff": -1,
        "atttypmod": typmod,
        "attbyval": fixed and kind.size <= 8,
        "attalign": "i",
        "attstorage": "p" if fixed else "m" if kind is NUMERIC else "x",
        "attnotnull": not_null,
        "atthasdef": default,
        "attislocal": True,
        "attcollation": collation_of(kind),
    }


@maker("pg_catalog", "pg_attrdef")
def defaults(objects: Objects, session: Any) -> Iterable[Row]:
    for relation in objects.tables():
        for number, (name, kind, _, _, default) in enumerate(relation.columns, 1):
            if default is not None:
                yield {
                    "oid": made_oid("default", relation.schema, relation.name, name),
                    "adrelid": relation.oid,
                    "adnum": number,
                    "adbin": default_text(default, kind),
                }


def default_text(default: str, kind: SqlType) -> str:
    """A column's default as pg_get_expr prints it: a literal with its type."""
    if default in ("TRUE", "FALSE"):
        return default.lower()
    if default.startswith("'") and default.endswith("'"):
        return f"{default}::{'bpchar' if kind is BPCHAR else kind.name}"
    return default


def _types() -> list[SqlType]:
    """The types that PostgreSQL has too."""
    return [k for k in dict.fromkeys(BY_OID.values()) if "enum" not in (k.family, _family_of(k))]


def _family_of(kind: SqlType) -> str:
    return kind.element.family if isinstance(kind, ArrayType) else kind.family


@maker("pg_catalog", "pg_enum")
def enum_labels(objects: Objects, session: Any) -> Iterable[Row]:
    for kind in objects.types.values():
        if isinstance(kind, EnumType):
            for number, (_, label) in enumerate(kind.labels, 1):
                yield {
                    "oid": made_oid("label", kind.oid, label),
                    "enumtypid": kind.oid,
                    "enumsortorder": float(number),
                    "enumlabel": label,
                }


@maker("pg_catalog", "pg_type")
def types(objects: Objects, session: Any) -> Iterable[Row]:
    for kind in _types():
        yield _type(kind)
    for kind in objects.types.values():
        element = kind.element if isinstance(kind, ArrayType) else kind
        assert isinstance(element, EnumType)
        yield _type(kind) | {
            "typnamespace": objects.schemas[element.schema],
            "typtype": "e" if kind is element else "b",
            "typcategory": "E" if kind is element else "A",
        }
    pseudo = (("record", 2249), ("any", 2276), ("anyarray", 2277), ("trigger", 2279))
    for name, oid in pseudo:
        yield {
            "oid": oid, "typname": name, "typnamespace": PG_CATALOG_OID, "typowner": OWNER_OID,
            "typlen": 4, "typtype": "p", "typcategory": "P", "typisdefined": True,
            "typdelim": ",", "typtypmod": -1,
        }  # fmt: skip


_CATEGORIES: Final = {
    "bool": "B", "int": "N", "float": "N", "numeric": "N", "text": "S", "date": "D", "time": "D",
    "bytea": "U", "array": "A", "unknown": "X", "void": "P", "interval": "T",
}  # fmt: skip


def _type(kind: SqlType) -> Row:
    name = type_name(kind)
    array = isinstance(kind, ArrayType)
    prefix = "array_" if array else f"{name}"
    return {
        "oid": kind.oid,
        "typname": name,
        "typnamespace": PG_CATALOG_OID,
        "typowner": OWNER_OID,
        "typlen": kind.size,
        "typbyval": 0 < kind.size <= 8,
        "typtype": "p" if kind.family in ("void", "unknown") else "b",
        "typcategory": _CATEGORIES.get(kind.family, "U"),
        "typispreferred": kind.oid in (16, 25, 26, 701, 1184),
        "typisdefined": True,
        "typdelim": ",",
        # A name is an array of characters of old.
        "typelem": kind.element.oid if isinstance(kind, ArrayType) else 18 if name == "name" else 0,
        "typarray": kind.array_oid,
        "typinput": made_oid("proc", prefix + "in"),
        "typoutput": made_oid("proc", prefix + "out"),
        "typreceive": made_oid("proc", prefix + "recv"),
        "typsend": made_oid("proc", prefix + "send"),
        "typalign": "i",
        "typstorage": "p" if kind.size > 0 else "x",
        "typtypmod": -1,
        "typcollation": collation_of(kind),
    }


@maker("pg_catalog", "pg_index")
def indexes(objects: Objects, session: Any) -> Iterable[Row]:
    for index in objects.indexes.values():
        kinds = [kind for _, kind, _ in index.parts()][: len(index.columns)]
        expressions, where = index.expressions, index.source and index.source.where
        yield {
            "indexrelid": index.oid,
            "indrelid": index.table.oid,
            "indnatts": len(index.columns) + len(index.include),
            "indnkeyatts": len(index.columns),
            "indisunique": index.unique,
            "indisprimary": index.primary,
            "indimmediate": True,
            "indisvalid": True,
            "indisready": True,
            "indislive": True,
            "indkey": [max(i + 1, 0) for i in (*index.columns, *index.include)],
            "indcollation": [collation_of(kind) for kind in kinds],
            "indclass": [made_oid("opclass", type_name(kind)) for kind in kinds],
            "indoption": index.options(),
            "indexprs": ", ".join(expressions) if expressions else None,
            "indpred": where,
        }


@maker("pg_catalog", "pg_constraint")
def constraints(objects: Objects, session: Any) -> Iterable[Row]:
    for found in objects.constraints.values():
        foreign = found.other is not None
        yield {
            "oid": found.oid,
            "conname": found.name,
            "connamespace": objects.schemas[found.table.schema],
            "contype": found.kind,
            "convalidated": True,
            "conrelid": found.table.oid,
            "conindid": found.index.oid if found.index is not None else 0,
            "confrelid": found.other.oid if found.other is not None else 0,
            "confupdtype": found.actions[0] if foreign else " ",
            "confdeltype": found.actions[1] if foreign else " ",
            "confmatchtype": "s" if foreign else " ",
            "conislocal": True,
            "connoinherit": found.kind != "c",
            "conkey": [i + 1 for i in found.columns],
            "confkey": [i + 1 for i in found.other_columns] if foreign else None,
        }


@maker("pg_catalog", "pg_tables")
def tables(objects: Objects, session: Any) -> Iterable[Row]:
    indexed = {index.table.oid for index in objects.indexes.values()}
    for relation in objects.relations.values():
        if relation.kind == "r":
            yield {
                "schemaname": relation.schema,
                "tablename": relation.name,
                "tableowner": owner(current),
                "tablespace": None,
                "hasindexes": relation.oid in indexed,
            }


@maker("pg_catalog", "pg_indexes")
def index_views(objects: Objects, session: Any) -> Iterable[Row]:
    for index in objects.indexes.values():
        yield {
            "schemaname": index.table.schema,
            "tablename": index.table.name,
            "indexname": index.name,
            "tablespace": None,
            "indexdef": index_text(index),
        }


@maker("pg_catalog", "pg_database")
def databases(objects: Objects, session: Any) -> Iterable[Row]:
    yield {
        "oid": DATABASE_OID, "datname": session.database, "datdba": OWNER_OID, "encoding": 6,
        "datlocprovider": "c", "datallowconn": True, "datconnlimit": -1,
        "dattablespace": _TABLESPACE, "datcollate": "C", "datctype": "C",
    }  # fmt: skip


@maker("pg_catalog", "pg_tablespace")
def tablespaces(objects: Objects, session: Any) -> Iterable[Row]:
    yield {"oid": _TABLESPACE, "spcname": "pg_default", "spcowner": OWNER_OID}


@maker("pg_catalog", "pg_am")
def access_methods(objects: Objects, session: Any) -> Iterable[Row]:
    yield {"oid": HEAP_OID, "amname": "heap", "amtype": "t"}
    yield {"oid": BTREE_OID, "amname": "btree", "amtype": "i"}


@maker("pg_catalog", "pg_collation")
def collations(objects: Objects, session: Any) -> Iterable[Row]:
    for oid, name, provider in ((100, "default", "d"), (950, "C", "c"), (951, "POSIX", "c")):
        known = name != "default"
        yield {
            "oid": oid, "collname": name, "collnamespace": PG_CATALOG_OID,
            "collowner": OWNER_OID, "collprovider": provider, "collisdeterministic": True,
            "collencoding": -1, "collcollate": name if known else None,
            "collctype": name if known else None,
        }  # fmt: skip


@maker("pg_catalog", "pg_language")
def languages(objects: Objects, session: Any) -> Iterable[Row]:
    for oid, name in ((12, "internal"), (13, "c"), (14, "sql")):
        yield {"oid": oid, "lanname": name, "lanowner": OWNER_OID}


@maker("pg_catalog", "pg_opclass")
def operator_classes(objects: Objects, session: Any) -> Iterable[Row]:
    for kind in _types():
        name = type_name(kind)
        yield {
            "oid": made_oid("opclass", name), "opcmethod": BTREE_OID, "opcname": f"{name}_ops",
            "opcnamespace": PG_CATALOG_OID, "opcowner": OWNER_OID, "opcintype": kind.oid,
            "opcdefault": True,
        }  # fmt: skip


@maker("pg_catalog", "pg_settings")
def settings(objects: Objects, session: Any) -> Iterable[Row]:
    for name, value in session.settings.all():
        yield {
            "name": name, "setting": value, "category": "polarless", "context": "user",
            "vartype": "string", "source": "default", "boot_val": value, "reset_val": value,
            "pending_restart": False, "short_desc": "",
        }  # fmt: skip


@maker("pg_catalog", "pg_timezone_names")
def time_zones(objects: Objects, session: Any) -> Iterable[Row]:
    yield {"name": "UTC", "abbrev": "UTC", "utc_offset": "00:00:00", "is_dst": False}


def type_modifier(kind: SqlType, typmod: int) -> tuple[int | None, int | None, int | None]:
    """(length in characters, precision, scale) as information_schema shows them."""
    if kind in (VARCHAR, BPCHAR) and typmod >= 4:
        return typmod - 4, None, None
    if kind is NUMERIC and typmod >= 4:
        return None, (typmod - 4) >> 16, (typmod - 4) & 0xFFFF
    bits = {21: 16, 23: 32, 20: 64, 700: 24, 701: 53}.get(kind.oid)
    return None, bits, 0 if kind.oid in (20, 21, 23) else None


@maker("pg_catalog", "pg_views")
def views(objects: Objects, session: Any) -> Iterable[Row]:
    for relation in objects.relations.values():
        if relation.kind == "v" and relation.text:
            yield {
                "schemaname": relation.schema,
                "viewname": relation.name,
                "viewowner": owner(current),
                "definition": relation.text,
            }


@maker("pg_catalog", "pg_sequence", "pg_sequences")
def sequences(objects: Objects, session: Any) -> Iterable[Row]:
    for oid, found in objects.sequences.items():
        yield {
            "seqrelid": oid, "seqtypid": found.type.oid, "seqstart": found.start,
            "seqincrement": found.increment, "seqmax": found.high, "seqmin": found.low,
            "seqcache": 1, "seqcycle": found.cycle,
            "schemaname": found.schema, "sequencename": found.name,
            "sequenceowner": owner(current), "data_type": found.type.oid,
            "start_value": found.start, "min_value": found.low, "max_value": found.high,
            "increment_by": found.increment, "cycle": found.cycle, "cache_size": 1,
            "last_value": None,
        }  # fmt: skip


@maker("pg_catalog", "pg_depend")
def depends(objects: Objects, session: Any) -> Iterable[Row]:
    """Only what says whose a sequence is."""
    class_oid = made_oid("system", "pg_catalog", "pg_class")
    for oid, found in objects.sequences.items():
        if found.owner is None:
            continue
        table_id, name = found.owner
        relation = objects.relations.get(table_id)
        if relation is None or relation.table is None:
            continue
        place = relation.table.index.get(name)
        if place is not None:
            identity = bool(relation.identities[place])
            yield {
                "classid": class_oid, "objid": oid, "refclassid": class_oid,
                "refobjid": table_id, "refobjsubid": place + 1,
                "deptype": "i" if identity else "a",
            }  # fmt: skip


@maker("pg_catalog", "pg_description")
def descriptions(objects: Objects, session: Any) -> Iterable[Row]:
    for (oid, catalog, number), text in objects.comments.items():
        if catalog != "pg_database":
            yield {
                "objoid": oid,
                "classoid": made_oid("system", "pg_catalog", catalog),
                "objsubid": number,
                "description": text,
            }


@maker("pg_catalog", "pg_shdescription")
def shared_descriptions(objects: Objects, session: Any) -> Iterable[Row]:
    for (oid, catalog, _), text in objects.comments.items():
        if catalog == "pg_database":
            yield {
                "objoid": oid,
                "classoid": made_oid("system", "pg_catalog", catalog),
                "description": text,
            }
