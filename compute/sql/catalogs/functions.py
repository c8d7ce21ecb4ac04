"""Functions over the catalogs: pg_get_indexdef(), format_type(), has_table_privilege(), ...

They are called by tools, which know PostgreSQL's own answers; where there is nothing to tell
(rules, triggers, tablespaces) they say so as PostgreSQL does for an object that has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from compute.sql.analytics.leaves import current
from compute.sql.arraytypes import ARRAYS
from compute.sql.casts import cast
from compute.sql.catalogs import objects
from compute.sql.catalogs.deparse import full
from compute.sql.catalogs.objects import quote
from compute.sql.expressions import Const, Node, Retyped, SessionCall
from compute.sql.types import (
    BOOL,
    BY_OID,
    INT2,
    INT4,
    INT8,
    NAME,
    OID,
    STRINGS,
    TEXT,
    TIMESTAMPTZ,
    UNKNOWN,
    SqlType,
    display,
)
from polarless.errors import CallerMistake

Function = Callable[..., Any]


def _format_type(session: Any, oid: int | None, typmod: int | None) -> str | None:
    if oid is None:
        return None
    made = objects.of(current).types.get(oid)
    if made is not None:
        return objects.shown_type(made)
    kind = BY_OID.get(oid)
    if kind is None:
        return "-" if oid == 0 else objects.TYPE_NAMES.get(oid, "???")
    return display(kind, -1 if typmod is None else typmod)


def _expr(session: Any, text: str | None, *rest: Any) -> str | None:
    # As it is kept, it is pretty.
    return text if text is None or rest[1:] == (True,) else full(text)


def _index_text(session: Any, oid: int, column: int = 0, pretty: bool = False) -> str | None:
    index = objects.of(current).indexes.get(oid)
    if index is None:
        return None
    if column:
        place = column - 1 - len(index.columns)
        if 0 <= place < len(index.include):
            return quote(index.table.columns[index.include[place]][0])
        inside = 0 < column <= len(index.columns)
        return objects.index_part(index, column - 1) if inside else ""
    return objects.index_text(index, pretty=pretty)


def _constraint_text(session: Any, oid: int, pretty: bool = False) -> str | None:
    found = objects.of(current).constraints.get(oid)
    if found is None:
        return None
    return found.text if found.kind != "c" or not pretty else f"CHECK ({found.source})"


def _user(session: Any, oid: int) -> str:
    return objects.role_name(current, oid) or f"unknown (OID={oid})"


def _may_use_table(session: Any, *args: Any) -> bool | None:
    """has_table_privilege([user,] table, privileges)."""
    user = str(session.user) if len(args) == 2 else _role(args[0])
    table, wanted = args[-2:]
    if isinstance(table, str):
        table = objects.reg_oid(current, "regclass", table)
    relation = objects.of(current).relations.get(table)
    if relation is None:
        return None
    access = current.access
    if access is None or not access.restricted(user) or relation.table is None:
        return True
    names = [word.strip().lower().removesuffix(" with grant option") for word in wanted.split(",")]
    return any(access.allows(user, relation.schema, relation.name, name) for name in names)


def _role(who: Any) -> str:
    return who if isinstance(who, str) else objects.role_name(current, who) or ""


def _relation(which: Any) -> objects.Relation | None:
    oid = objects.find_oid(current, "regclass", which) if isinstance(which, str) else which
    return objects.of(current).relations.get(oid) if oid is not None else None


def _view_text(session: Any, which: Any, *rest: Any) -> str | None:
    relation = _relation(which)
    return relation.text if relation is not None and relation.text else None


def _serial(session: Any, table: str, column: str) -> str | None:
    relation = _relation(table)
    if relation is None:
        raise CallerMistake(f'relation "{table}" does not exist', sqlstate="42P01")
    for found in objects.of(current).sequences.values():
        if found.owner == (relation.oid, column):
            return f"{quote(found.schema)}.{quote(found.name)}"
    return None


def _comment(session: Any, oid: int, catalog: str = "pg_class") -> str | None:
    return objects.of(current).comments.get((oid, catalog, 0))


def _column_comment(session: Any, oid: int, number: int) -> str | None:
    return objects.of(current).comments.get((oid, "pg_class", number)) if number > 0 else None


def _visible(session: Any, oid: int) -> bool | None:
    relation = objects.of(current).relations.get(oid)
    return None if relation is None else objects.is_visible(relation)


def _true(session: Any, *args: Any) -> bool:
    return True


def _false(session: Any, *args: Any) -> bool:
    return False


def _nothing(session: Any, *args: Any) -> None:
    return None


def _empty(session: Any, *args: Any) -> str:
    return ""


def _zero(session: Any, *args: Any) -> int:
    return 0


def _schemas(session: Any, implicit: bool) -> list[str]:
    return ["pg_catalog", "public"] if implicit else ["public"]


def _to_reg(word: str) -> Function:
    def look(session: Any, text: str) -> int | None:
        return objects.find_oid(current, word, text)

    look.__name__ = f"to_{word}"
    return look


def _pretty_size(session: Any, size: int) -> str:
    number, unit = float(size), "bytes"
    for name in ("kB", "MB", "GB", "TB", "PB"):
        if abs(number) < 10 * 1024:
            break
        number, unit = number / 1024, name
    return f"{round(number)} {unit}"


def _property(session: Any, oid: int, column: int, name: str) -> bool | None:
    known = {
        "asc": True, "desc": False, "nulls_first": False, "nulls_last": True, "orderable": True,
        "distance_orderable": False, "returnable": True, "search_array": True,
        "search_nulls": True,
    }  # fmt: skip
    return known.get(name)


def _quote_ident(session: Any, text: str) -> str:
    return quote(text) if text else '""'


def _quote_literal(session: Any, text: str) -> str:
    body = text.replace("'", "''")
    return f"E'{body}'".replace("\\", "\\\\") if "\\" in text else f"'{body}'"


def _quote_nullable(session: Any, text: str | None) -> str:
    return "NULL" if text is None else _quote_literal(session, text)


def _started(session: Any) -> int:
    return int(session.now_us) - 946_684_800_000_000


def _format(session: Any, text: str | None, *values: Any) -> str | None:
    """format(): %s, %I, %L with positions; widths are not supported."""
    if text is None:
        return None
    parts: list[str] = []
    following = 0
    position = 0
    for found in re.finditer(r"%(?:(\d+)\$)?([sIL%])", text):
        parts.append(text[position : found.start()])
        position = found.end()
        if found[2] == "%":
            parts.append("%")
            continue
        index = int(found[1]) - 1 if found[1] else following
        following = index + 1
        if index >= len(values):
            raise CallerMistake("too few arguments for format()", sqlstate="22023")
        value = values[index]
        if found[2] == "s":
            parts.append(value or "")
        elif found[2] == "L":
            parts.append(_quote_nullable(session, value))
        elif value is None:
            raise CallerMistake(
                "null values cannot be formatted as an SQL identifier", sqlstate="22004"
            )
        else:
            parts.append(quote(value))
    return "".join((*parts, text[position:]))


# Name -> ways to call it: argument types, result type, function, and whether NULLs are its own.
_ANY: Final = SqlType("any", 2276, 4, "any")
_Way = tuple[tuple[SqlType, ...], SqlType, Function]
_O, _T, _4, _B = OID, TEXT, INT4, BOOL


def _privilege() -> tuple[_Way, ...]:
    """has_..._privilege([user,] object, [column,] privilege)."""
    return tuple(((_ANY,) * count, _B, _true) for count in range(1, 5))


_FUNCTIONS: Final[dict[str, tuple[_Way, ...]]] = {
    "format_type": (((_O, _4), _T, _format_type),),
    "pg_get_expr": (((_T, _O), _T, _expr), ((_T, _O, _B), _T, _expr)),
    "pg_get_indexdef": (((_O,), _T, _index_text), ((_O, _4, _B), _T, _index_text)),
    "pg_get_constraintdef": (((_O,), _T, _constraint_text), ((_O, _B), _T, _constraint_text)),
    "pg_get_viewdef": (((_ANY,), _T, _view_text), ((_ANY, _ANY), _T, _view_text)),
    "pg_get_ruledef": (((_O,), _T, _nothing), ((_O, _B), _T, _nothing)),
    "pg_get_triggerdef": (((_O,), _T, _nothing), ((_O, _B), _T, _nothing)),
    "pg_get_partkeydef": (((_O,), _T, _nothing),),
    "pg_get_partition_constraintdef": (((_O,), _T, _nothing),),
    "pg_get_statisticsobjdef": (((_O,), _T, _nothing),),
    "pg_get_statisticsobjdef_columns": (((_O,), _T, _nothing),),
    "pg_get_functiondef": (((_O,), _T, _nothing),),
    "pg_get_function_result": (((_O,), _T, _nothing),),
    "pg_get_function_arguments": (((_O,), _T, _empty),),
    "pg_get_function_identity_arguments": (((_O,), _T, _empty),),
    "pg_get_function_sqlbody": (((_O,), _T, _nothing),),
    "pg_get_serial_sequence": (((_T, _T), _T, _serial),),
    "pg_get_userbyid": (((_O,), NAME, _user),),
    "pg_table_is_visible": (((_O,), _B, _visible),),
    **{
        f"pg_{word}_is_visible": (((_O,), _B, _true),)
        for word in ("type", "function", "operator", "opclass", "opfamily", "collation",
                     "conversion", "statistics_obj", "ts_config", "ts_dict", "ts_parser",
                     "ts_template")
    },
    "obj_description": (((_O, NAME), _T, _comment), ((_O,), _T, _comment)),
    "shobj_description": (((_O, NAME), _T, _comment),),
    "col_description": (((_O, _4), _T, _column_comment),),
    **{
        f"has_{word}_privilege": _privilege()
        for word in ("schema", "database", "column", "any_column", "sequence", "function",
                     "language", "tablespace", "type", "server", "foreign_data_wrapper")
    },
    "has_table_privilege": tuple(
        ((_ANY,) * count, _B, _may_use_table) for count in (2, 3)
    ),
    "pg_has_role": _privilege(),
    "current_schemas": (((_B,), ARRAYS[1003], _schemas),),
    "pg_relation_size": (((_ANY,), INT8, _zero), ((_ANY, _T), INT8, _zero)),
    **dict.fromkeys(
        ("pg_total_relation_size", "pg_table_size", "pg_indexes_size", "pg_database_size",
         "pg_tablespace_size", "pg_stat_get_live_tuples", "pg_stat_get_dead_tuples",
         "pg_stat_get_numscans", "pg_stat_get_tuples_inserted"),
        (((_ANY,), INT8, _zero),),
    ),
    "pg_size_pretty": (((INT8,), _T, _pretty_size),),
    "pg_relation_is_publishable": (((_ANY,), _B, _false),),
    "pg_is_other_temp_schema": (((_O,), _B, _false),),
    "pg_my_temp_schema": (((), OID, _zero),),
    "pg_tablespace_location": (((_O,), _T, _empty),),
    "pg_relation_filenode": (((_ANY,), OID, _zero),),
    "pg_index_column_has_property": (((_O, _4, _T), _B, _property),),
    "pg_index_has_property": (((_O, _T), _B, _false),),
    "pg_indexam_has_property": (((_O, _T), _B, _true),),
    "pg_postmaster_start_time": (((), TIMESTAMPTZ, _started),),
    "pg_conf_load_time": (((), TIMESTAMPTZ, _started),),
    "inet_server_addr": (((), _T, _nothing),),
    "inet_server_port": (((), _4, _nothing),),
    "inet_client_addr": (((), _T, _nothing),),
    "inet_client_port": (((), _4, _nothing),),
    "pg_blocking_pids": (((_4,), ARRAYS[1007], lambda session, pid: []),),
    "age": (((OID,), _4, _zero), ((INT8,), _4, _zero)),
    "pg_is_wal_replay_paused": (((), _B, _false),),
    "pg_last_xact_replay_timestamp": (((), TIMESTAMPTZ, _nothing),),
    "pg_sequence_last_value": (((_ANY,), INT8, _nothing),),
    "pg_char_to_encoding": (((NAME,), _4, lambda session, name: 6 if "UTF" in name else -1),),
    "getdatabaseencoding": (((), NAME, lambda session: "UTF8"),),
    "pg_client_encoding": (((), NAME, lambda session: "UTF8"),),
    "quote_ident": (((_T,), _T, _quote_ident),),
    "quote_literal": (((_T,), _T, _quote_literal),),
    "quote_nullable": (((_T,), _T, _quote_nullable),),
    "pg_filenode_relation": (((_O, _O), OID, _nothing),),
}  # fmt: skip
_OWN_NULLS: Final = frozenset({"format", "format_type", "pg_get_expr", "quote_nullable"})
_TO_REG: Final = {"to_regclass": "regclass", "to_regtype": "regtype",
                  "to_regnamespace": "regnamespace", "to_regrole": "regrole",
                  "to_regproc": "regproc"}  # fmt: skip


def _fits(node: Node, kind: SqlType) -> Node | None:
    """The argument as the type, if it can be one."""
    source = node.type
    if kind is _ANY or source is kind:
        return cast(node, TEXT) if source is UNKNOWN else node
    if source is UNKNOWN:
        if kind is OID and isinstance(node, Const) and node.value is not None:
            return None
        return cast(node, kind)
    if kind is OID and (source in (INT2, INT4, INT8) or source.family == "reg"):
        return Retyped(node, OID)
    if kind in STRINGS and source in STRINGS:
        return cast(node, kind)
    if kind in (INT4, INT8) and source in (INT2, INT4):
        return cast(node, kind)
    return None


def make(name: str, args: list[Node]) -> Node | None:
    """The call of a function of the catalogs; None if it is none of them."""
    word = _TO_REG.get(name)
    if word is not None and len(args) == 1:
        from compute.sql.analytics.regtypes import REG_TYPES

        return SessionCall(_to_reg(word), (cast(args[0], TEXT),), REG_TYPES[word], nullable=True)
    if name == "pg_typeof" and len(args) == 1:
        from compute.sql.analytics.regtypes import REG_TYPES

        return Const(args[0].type.oid, REG_TYPES["regtype"])
    if name == "format" and args:
        from compute.sql.analytics.regtypes import cast_reg

        texts = tuple(cast_reg(arg, TEXT) or cast(arg, TEXT, strength=1) for arg in args)
        return _call(name, _format, texts, TEXT)
    for takes, gives, function in _FUNCTIONS.get(name, ()):
        if len(takes) != len(args):
            continue
        fitted = [_fits(arg, kind) for arg, kind in zip(args, takes)]
        if all(found is not None for found in fitted):
            return _call(name, function, tuple(f for f in fitted if f is not None), gives)
    return None


def _call(name: str, function: Function, args: tuple[Node, ...], gives: SqlType) -> Node:
    def called(session: Any, *values: Any) -> Any:
        return function(session, *values)

    called.__name__ = f"catalog_{name}"
    node = SessionCall(called, args, gives, nullable=True)
    return OwnNulls(called, args, gives, nullable=True) if name in _OWN_NULLS else node


class OwnNulls(SessionCall):
    """A function that sees NULLs itself."""

    __slots__ = ()

    def emit(self, out: Any) -> str:
        sources = [arg.emit(out) for arg in self.args]
        result: str = out.temp()
        name = f"{self.function.__name__}_s"
        out.names[name] = self.function
        out.line(f"{result} = {name}({', '.join(('session', *sources))})")
        return result
