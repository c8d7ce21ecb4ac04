"""CREATE, ALTER and DROP ROLE, GRANT and REVOKE: what changes the rows of `compute.sql.roles`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgpack

from compute.pgwire.scram import SALT_BYTES, make_verifier, parse_verifier
from compute.sql.catalog import PUBLIC
from compute.sql.ddl import changed, ddl_plan, transaction_of
from compute.sql.mistakes import not_supported, unknown_table
from compute.sql.plan import Plan, SessionLike
from compute.sql.roles import (
    EVERYBODY,
    PRIVILEGES,
    ROLES_MAX,
    Role,
    decode_role,
    grant_key,
    load_access,
    no_role,
    role_key,
)
from compute.sql.syntax import STRING, WORD, Token, near, string_value
from compute.sql.utility import Reader, nothing
from polarless.errors import CallerMistake, Overloaded

if TYPE_CHECKING:
    from compute.sql.catalog import Catalog

CatalogOf = Callable[[SessionLike], "Catalog"]
Tokens = Callable[[int], bytes]
_ROLE_WORDS: Final = frozenset({"role", "user", "group"})
# Options of roles that mean nothing here.
_IDLE_OPTIONS: Final = frozenset(
    {
        *("inherit", "noinherit", "createdb", "nocreatedb", "createrole", "nocreaterole"),
        *("replication", "noreplication", "bypassrls", "nobypassrls"),
    }
)


def plan_roles(tokens: list[Token], catalog_of: CatalogOf, salt_of: Tokens | None) -> Plan | None:
    """The plan, or None if it is about something else."""
    first = tokens[0].value if tokens[0].kind == WORD else ""
    reader = Reader(tokens)
    reader.position = 1
    if first in ("grant", "revoke"):
        return _grant(reader, catalog_of, give=first == "grant")
    second = tokens[1].value if len(tokens) > 1 and tokens[1].kind == WORD else ""
    if second not in _ROLE_WORDS or first not in ("create", "alter", "drop"):
        return None
    reader.next()
    if first == "create":
        return _create(reader, salt_of, login=second == "user")
    if first == "alter":
        return _alter(reader, salt_of)
    return _drop(reader)


# ------------------------------------------------------------------------------------------ roles


def _role_name(reader: Reader) -> str:
    token = reader.peek
    name = reader.name()
    if name in (EVERYBODY, "none") or name.startswith("pg_"):
        raise CallerMistake(f'role name "{name}" is reserved', sqlstate="42939")
    if token is not None and token.kind == WORD and name in ("current_user", "session_user"):
        raise not_supported(f"{name.upper()} as a role's name")
    return name


def _options(reader: Reader, salt_of: Tokens | None) -> dict[str, Any]:
    """Options as fields of a `Role`."""
    given: dict[str, Any] = {}
    reader.accept("with")
    while reader.peek is not None:
        if reader.accept("encrypted"):
            continue
        token = reader.next()
        word = token.value
        if word in ("superuser", "nosuperuser", "login", "nologin"):
            given[word.removeprefix("no")] = not word.startswith("no")
        elif word == "password":
            given["verifier"] = _password(reader, salt_of)
        elif word in _IDLE_OPTIONS:
            pass
        elif word == "in":
            if not (reader.accept("role") or reader.accept("group")):
                raise near(reader.next())
            given["member_of"] = tuple(_names(reader))
        elif word == "valid":
            raise not_supported("VALID UNTIL", hint="Change the password when its time is over.")
        elif word == "connection":
            raise not_supported("CONNECTION LIMIT of a role")
        else:
            raise near(token)
    return given


def _password(reader: Reader, salt_of: Tokens | None) -> str | None:
    if reader.accept("null"):
        return None
    token = reader.next()
    if token.kind != STRING:
        raise near(token)
    text = string_value(token)
    if parse_verifier(text) is not None:
        return text
    if text.startswith("md5") and len(text) == 35:
        raise not_supported("an MD5 password", hint="Give the password itself.")
    if not text:
        raise CallerMistake("the password is empty", sqlstate="22023")
    if salt_of is None:
        raise not_supported("a password on this node")
    return make_verifier(text, salt_of(SALT_BYTES)).to_text()


def _names(reader: Reader) -> list[str]:
    names = [reader.name()]
    while reader.accept(","):
        names.append(reader.name())
    return names


def _find(session: SessionLike, name: str) -> Role | None:
    """Lock the role's row and read it. May raise a `Suspend`."""
    txn = transaction_of(session)
    payload = txn.lock_and_get(session.engine.catalog_tree, role_key(name))
    return None if payload is None else decode_role(name, payload)


def _store(session: SessionLike, role: Role) -> None:
    for parent in role.member_of:
        if _find(session, parent) is None:
            raise no_role(parent)
    txn = transaction_of(session)
    txn.put(session.engine.catalog_tree, role_key(role.name), role.encode())
    changed(session)


def _others(session: SessionLike, name: str) -> tuple[bool, bool]:
    """Whether others have a password, and whether one of these is a superuser."""
    roles = [
        role
        for role in load_access(session.engine).roles.values()
        if role.verifier and role.login and role.name != name
    ]
    return bool(roles), any(role.superuser for role in roles)


def _keep_a_superuser(session: SessionLike, name: str, role: Role | None) -> None:
    """Somebody who may do everything has to be able to log in, if anybody needs a password."""
    others, superuser = _others(session, name)
    if superuser or (role is not None and role.superuser and role.login and role.verifier):
        return
    if others or (role is not None and role.login and role.verifier):
        raise CallerMistake(
            "no superuser with a password would be left",
            sqlstate="55000",
            hint="Begin with CREATE ROLE name SUPERUSER LOGIN PASSWORD '...': once a role has a "
            "password, everybody needs one.",
        )


def _create(reader: Reader, salt_of: Tokens | None, *, login: bool) -> Plan:
    name = _role_name(reader)
    role = Role(name, **({"login": login} | _options(reader, salt_of)))

    def action(session: SessionLike) -> str:
        if _find(session, name) is not None:
            raise CallerMistake(f'role "{name}" already exists', sqlstate="42710")
        if len(load_access(session.engine).roles) >= ROLES_MAX:
            raise Overloaded(f"there are {ROLES_MAX} roles already", hint="Drop some.")
        _keep_a_superuser(session, name, role)
        _store(session, role)
        return "CREATE ROLE"

    return ddl_plan("CREATE ROLE", action)


def _alter(reader: Reader, salt_of: Tokens | None) -> Plan:
    name = _role_name(reader)
    if reader.peek is not None and reader.peek.value in ("set", "reset", "rename"):
        raise not_supported(f"ALTER ROLE {reader.peek.value.upper()}")
    given = _options(reader, salt_of)

    def action(session: SessionLike) -> str:
        role = _find(session, name)
        if role is None:
            raise no_role(name)
        role = replace(role, **given)
        _keep_a_superuser(session, name, role)
        _store(session, role)
        return "ALTER ROLE"

    return ddl_plan("ALTER ROLE", action)


def _drop(reader: Reader) -> Plan:
    if_exists = reader.accept("if", "exists")
    names = _names(reader)
    reader.end()

    def action(session: SessionLike) -> str:
        txn, tree = transaction_of(session), session.engine.catalog_tree
        for name in names:
            if _find(session, name) is None:
                if not if_exists:
                    raise no_role(name)
                session.notice("NOTICE", "00000", f'role "{name}" does not exist, skipping')
                continue
            access = load_access(session.engine)
            if any(name in granted for granted in access.grants.values()):
                raise CallerMistake(
                    f'role "{name}" cannot be dropped because some objects depend on it',
                    sqlstate="2BP01",
                    hint="REVOKE what was granted to it.",
                )
            _keep_a_superuser(session, name, None)
            for role in access.roles.values():
                if name in role.member_of:
                    rest = tuple(parent for parent in role.member_of if parent != name)
                    _store(session, replace(role, member_of=rest))
            txn.put(tree, role_key(name), None)
            changed(session)
        return "DROP ROLE"

    return ddl_plan("DROP ROLE", action)


# ----------------------------------------------------------------------------------------- grants


def _grant(reader: Reader, catalog_of: CatalogOf, *, give: bool) -> Plan:
    verb = "GRANT" if give else "REVOKE"
    if not give and reader.accept("grant", "option", "for"):
        return nothing(verb)
    words = _names_or_all(reader)
    if not reader.accept("on"):
        return _membership(reader, words, give=give)
    if reader.peek is not None and reader.peek.value in _UNGUARDED:
        # Nothing of these kinds is guarded here, so nothing has to be granted.
        return nothing(verb)
    if reader.accept("all", "tables", "in", "schema"):
        schema = reader.name()
        tables: list[tuple[str, str]] | None = None
    else:
        reader.accept("table")
        schema, tables = "", [_table(reader)]
        while reader.accept(","):
            tables.append(_table(reader))
    for word in words:
        if word not in PRIVILEGES:
            raise CallerMistake(f'unrecognized privilege type "{word}"', sqlstate="42601")
    roles = _grantees(reader, give=give)

    def action(session: SessionLike) -> str:
        catalog = catalog_of(session)
        wanted = tables
        if wanted is None:
            wanted = [key for key in catalog.tables if key[0] == schema]
        for found_schema, table in wanted:
            view = catalog.views.get((found_schema or PUBLIC, table))
            if catalog.find(table, found_schema) is None and view is None:
                raise unknown_table(table)
        txn, tree = transaction_of(session), session.engine.catalog_tree
        for name in roles:
            if name != EVERYBODY and _find(session, name) is None:
                raise no_role(name)
            for found_schema, table in wanted:
                key = grant_key(found_schema, table, name)
                payload = txn.lock_and_get(tree, key)
                before = set(msgpack.unpackb(payload)) if payload else set()
                after = before | set(words) if give else before - set(words)
                if after != before:
                    txn.put(tree, key, bytes(msgpack.packb(sorted(after))) if after else None)
        changed(session)
        return verb

    return ddl_plan(verb, action)


_UNGUARDED: Final = frozenset(
    {"schema", "database", "sequence", "function", "language", "type", "domain", "tablespace",
     "procedure", "routine", "foreign", "large", "parameter"}
)  # fmt: skip


def _names_or_all(reader: Reader) -> list[str]:
    if reader.accept("all"):
        reader.accept("privileges")
        return list(PRIVILEGES)
    names = []
    while True:
        names.append(reader.name())
        if reader.accept("("):
            raise not_supported("a privilege on columns")
        if not reader.accept(","):
            return names


def _table(reader: Reader) -> tuple[str, str]:
    name = reader.name()
    return (name, reader.name()) if reader.accept(".") else (PUBLIC, name)


def _grantees(reader: Reader, *, give: bool) -> list[str]:
    reader.expect("to" if give else "from")
    names = []
    while True:
        reader.accept("group")
        names.append(reader.name())
        if not reader.accept(","):
            break
    if give and reader.accept("with", "grant", "option"):
        raise not_supported("WITH GRANT OPTION", hint="Superusers grant.")
    if not give and not reader.accept("cascade"):
        reader.accept("restrict")
    reader.end()
    return names


def _membership(reader: Reader, parents: list[str], *, give: bool) -> Plan:
    names = _grantees(reader, give=give)
    verb = "GRANT ROLE" if give else "REVOKE ROLE"

    def action(session: SessionLike) -> str:
        for name in names:
            role = _find(session, name)
            if role is None:
                raise no_role(name)
            for parent in parents:
                if _find(session, parent) is None:
                    raise no_role(parent)
                if give and name in load_access(session.engine).names_of(parent):
                    raise CallerMistake(
                        f'role "{parent}" is a member of role "{name}"', sqlstate="0LP01"
                    )
            rest = tuple(parent for parent in role.member_of if parent not in parents)
            _store(session, replace(role, member_of=(*rest, *parents) if give else rest))
        return verb

    return ddl_plan(verb, action)
