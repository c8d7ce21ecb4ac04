"""Roles, their members, and what was granted to them, as PostgreSQL's catalogs show it.

While there are no roles whoever asks is shown as a superuser, which is what everybody is then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from compute.sql.analytics.leaves import current
from compute.sql.catalogs.objects import Objects, Relation, owner, quote, role_oid
from compute.sql.catalogs.relations import Row, maker
from compute.sql.roles import EVERYBODY, Role

_LETTERS: Final = {
    "insert": "a", "select": "r", "update": "w", "delete": "d", "truncate": "D",
    "references": "x", "trigger": "t",
}  # fmt: skip
_ALL: Final = "".join(_LETTERS.values())


def roles() -> list[Role]:
    """All roles; the session's user, if there are none."""
    known = current.access.roles if current.access is not None else {}
    found = list(known.values())
    if not any(role.name == current.session.user for role in found):
        user = str(current.session.user)
        everything = current.access is None or not current.access.restricted(user)
        found.append(Role(user, superuser=everything, login=True))
    return found


@maker("pg_catalog", "pg_roles", "pg_authid", "pg_user", "pg_shadow")
def role_rows(objects: Objects, session: Any) -> Iterable[Row]:
    for role in roles():
        oid, powerful = role_oid(current, role.name), role.superuser
        yield {
            "oid": oid, "rolname": role.name, "rolsuper": powerful, "rolinherit": True,
            "rolcreaterole": powerful, "rolcreatedb": powerful, "rolcanlogin": role.login,
            "rolconnlimit": -1, "rolpassword": "********", "rolbypassrls": powerful,
            "usename": role.name, "usesysid": oid, "usecreatedb": powerful, "usesuper": powerful,
            "usebypassrls": powerful, "passwd": "********",
        }  # fmt: skip


@maker("pg_catalog", "pg_auth_members")
def members(objects: Objects, session: Any) -> Iterable[Row]:
    for role in roles():
        for group in role.member_of:
            yield {
                "roleid": role_oid(current, group),
                "member": role_oid(current, role.name),
                "grantor": role_oid(current, owner(current)),
            }


def _grants(relation: Relation) -> Iterator[tuple[str, frozenset[str]]]:
    """(role, privileges) of a table."""
    access = current.access
    if access is not None and relation.table is not None:
        yield from sorted(access.grants.get((relation.schema, relation.name), {}).items())


def acl(relation: Relation) -> list[str] | None:
    """relacl: NULL while nothing was granted."""
    granted = list(_grants(relation))
    if not granted:
        return None
    name = quote(owner(current))
    found = [f"{name}={_ALL}/{name}"]
    for role, privileges in granted:
        letters = "".join(letter for word, letter in _LETTERS.items() if word in privileges)
        found.append(f"{'' if role == EVERYBODY else quote(role)}={letters}/{name}")
    return found


@maker("information_schema", "table_privileges", "role_table_grants")
def table_privileges(objects: Objects, session: Any) -> Iterable[Row]:
    name = owner(current)
    for relation in objects.tables():
        everything = frozenset(_LETTERS)
        for role, privileges in ((name, everything), *_grants(relation)):
            for word in sorted(privileges):
                yield {
                    "grantor": name,
                    "grantee": "PUBLIC" if role == EVERYBODY else role,
                    "table_catalog": session.database,
                    "table_schema": relation.schema,
                    "table_name": relation.name,
                    "privilege_type": word.upper(),
                    "is_grantable": "YES" if role == name else "NO",
                    "with_hierarchy": "YES" if word == "select" else "NO",
                }


@maker("information_schema", "enabled_roles", "applicable_roles")
def enabled_roles(objects: Objects, session: Any) -> Iterable[Row]:
    user = str(session.user)
    names = current.access.names_of(user) if current.access is not None else set()
    for name in sorted({user, *names}):
        yield {"role_name": name, "grantee": user, "is_grantable": "NO"}


__all__ = ["acl", "roles"]
