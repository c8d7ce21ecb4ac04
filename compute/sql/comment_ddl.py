"""COMMENT ON: of a table, its columns, indexes and constraints in the table's row; of anything else
in a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from compute.sql import ddl
from compute.sql.catalog import Catalog, Table, comment_key
from compute.sql.definitions import Name, own_names
from compute.sql.environment import creation_schema
from compute.sql.mistakes import unknown_table, unknown_type
from compute.sql.plan import Plan, SessionLike
from compute.sql.syntax import STRING, near, string_value
from compute.sql.utility import Reader
from polarless.errors import CallerMistake

Action = Callable[[SessionLike, str | None], None]
# What can have a comment, and has none here: it is read and forgotten.
_FORGOTTEN: Final = frozenset(
    """access aggregate cast collation conversion domain event extension foreign function
    language large materialized operator policy procedure publication role routine rule server
    statistics subscription tablespace text transform trigger""".split()  # noqa: SIM905
)


def plan_comment(reader: Reader) -> Plan:
    """What stands behind COMMENT ON."""
    first = reader.next()
    what = first.value
    if what in _FORGOTTEN:
        while reader.peek is not None:
            reader.next()
        return ddl.ddl_plan("COMMENT", lambda session: "COMMENT")
    names = [reader.name()]
    while reader.accept("."):
        names.append(reader.name())
    if what == "constraint":
        reader.expect("on")
        target = [reader.name()]
        while reader.accept("."):
            target.append(reader.name())
        set_ = _constraint(names[-1], target)
    elif what == "column":
        set_ = _column(names)
    else:
        maker = _MAKERS.get(what)
        if maker is None:
            raise near(first)
        set_ = maker(names)
    reader.expect("is")
    token = reader.next()
    text = string_value(token) if token.kind == STRING else None
    if text is None and token.value != "null":
        raise near(token)
    reader.end()

    def action(session: SessionLike) -> str:
        set_(session, text or None)
        return "COMMENT"

    return ddl.ddl_plan("COMMENT", action)


def _name(parts: list[str]) -> Name:
    if len(parts) > 1:
        return Name(parts[-2], parts[-1], ".".join(parts))
    return Name(creation_schema(), parts[-1], parts[-1])


def _found(session: SessionLike, name: Name) -> Table:
    table = ddl.newest(session, ddl.located(session, name))
    if table is None:
        raise unknown_table(name.written)
    return table


def _keep(session: SessionLike, table: Table, key: str, text: str | None) -> None:
    comments = {k: v for k, v in table.comments.items() if k != key}
    if text is not None:
        comments[key] = text
    ddl.store(session, replace(table, comments=comments))


def _kind(catalog: Catalog, name: Name, wanted: str) -> None:
    kind = catalog.kind_of(name.name, name.schema)
    if kind is None:
        raise unknown_table(name.written)
    if kind != wanted:
        article = "an" if wanted == "index" else "a"
        raise CallerMistake(f'"{name.name}" is not {article} {wanted}', sqlstate="42809")


def _table(parts: list[str]) -> Action:
    name = _name(parts)

    def set_(session: SessionLike, text: str | None) -> None:
        place = ddl.located(session, name)
        _kind(ddl.current_catalog(session), place, "table")
        _keep(session, _found(session, place), "", text)

    return set_


def _column(parts: list[str]) -> Action:
    if len(parts) < 2:
        raise CallerMistake("column name must be qualified", sqlstate="42601")
    name, column = _name(parts[:-1]), parts[-1]

    def set_(session: SessionLike, text: str | None) -> None:
        place = ddl.located(session, name)
        if (place.schema, place.name) in ddl.current_catalog(session).views:
            keep_comment(session, "column", place.schema, f"{place.name}.{column}", text)
            return
        table = _found(session, place)
        if column not in table.index:
            raise CallerMistake(
                f'column "{column}" of relation "{table.name}" does not exist', sqlstate="42703"
            )
        _keep(session, table, column, text)

    return set_


def _constraint(name: str, target: list[str]) -> Action:
    def set_(session: SessionLike, text: str | None) -> None:
        table = _found(session, _name(target))
        if name not in own_names(table):
            raise CallerMistake(
                f'constraint "{name}" for table "{table.name}" does not exist', sqlstate="42704"
            )
        _keep(session, table, f"\0constraint {name}", text)

    return set_


def _index(parts: list[str]) -> Action:
    name = _name(parts)

    def set_(session: SessionLike, text: str | None) -> None:
        place = ddl.located(session, name)
        catalog = ddl.current_catalog(session)
        _kind(catalog, place, "index")
        for table in catalog.tables.values():
            names = {table.constraint, *(index.name for index in table.indexes)}
            if table.schema == place.schema and place.name in names:
                found = _found(session, Name(table.schema, table.name, table.name))
                _keep(session, found, f"\0index {place.name}", text)

    return set_


def _relation(wanted: str) -> Callable[[list[str]], Action]:
    def maker(parts: list[str]) -> Action:
        name = _name(parts)

        def set_(session: SessionLike, text: str | None) -> None:
            place = ddl.located(session, name)
            _kind(ddl.current_catalog(session), place, wanted)
            keep_comment(session, wanted, place.schema, place.name, text)

        return set_

    return maker


def _schema(parts: list[str]) -> Action:
    def set_(session: SessionLike, text: str | None) -> None:
        known = ddl.current_catalog(session).schemas
        if parts[0] not in known and parts[0] not in ("public", "polarless", "pg_catalog"):
            raise CallerMistake(f'schema "{parts[0]}" does not exist', sqlstate="3F000")
        keep_comment(session, "schema", parts[0], "", text)

    return set_


def _type(parts: list[str]) -> Action:
    name = _name(parts)

    def set_(session: SessionLike, text: str | None) -> None:
        from compute.sql.type_ddl import located_type

        kind = located_type(ddl.current_catalog(session), name)
        if kind is None:
            raise unknown_type(name.written)
        keep_comment(session, "type", kind.schema, kind.name, text)

    return set_


def _database(parts: list[str]) -> Action:
    return lambda session, text: keep_comment(session, "database", "", "", text)


def keep_comment(session: SessionLike, what: str, schema: str, name: str, text: str | None) -> None:
    """Write or remove the comment of something that is no table or part of one."""
    txn, tree = ddl.transaction_of(session), session.engine.catalog_tree
    key = comment_key(what, schema, name)
    txn.lock_and_get(tree, key)
    txn.put(tree, key, None if text is None else text.encode())
    ddl.changed(session)


_MAKERS: Final[dict[str, Callable[[list[str]], Action]]] = {
    "table": _table,
    "index": _index,
    "view": _relation("view"),
    "sequence": _relation("sequence"),
    "schema": _schema,
    "type": _type,
    "database": _database,
}
