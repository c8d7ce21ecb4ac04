"""Roles and what they may do with tables: rows of the catalog's tree, as tables are.

    key      ("role", name)                     ("grant", schema, table, role)
    payload  msgpack map, see `Role`            msgpack list of privileges

While there is no role with a password everybody who reaches the node may do everything, under any
name. The first role with a password has to be a superuser, so that nobody is locked out, and the
last one cannot be taken away while there are others.

Only privileges on tables are granted. Whoever is no superuser makes and drops nothing: tables have
no owners. Membership in roles is inherited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack

from polarless.errors import CallerMistake
from polarless.kernel import keycode

if TYPE_CHECKING:
    from compute.txn.engine import Engine

EVERYBODY: Final = "public"
PRIVILEGES: Final = ("select", "insert", "update", "delete", "truncate", "references", "trigger")
ROLES_MAX: Final = 10_000

_pack = msgpack.Packer(use_bin_type=True).pack


@dataclass(frozen=True, slots=True)
class Role:
    """One role. ``verifier`` is a `scram.Verifier` as text, or None: no password."""

    name: str
    superuser: bool = False
    login: bool = False
    verifier: str | None = None
    member_of: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The payload of its row."""
        return bytes(
            _pack(
                {
                    "superuser": self.superuser,
                    "login": self.login,
                    "verifier": self.verifier,
                    "member_of": self.member_of,
                }
            )
        )


@dataclass(frozen=True, slots=True)
class Access:
    """All roles and grants at one version of the catalog."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    # (schema, table) -> role -> privileges
    grants: Mapping[tuple[str, str], Mapping[str, frozenset[str]]] = field(default_factory=dict)

    @property
    def secured(self) -> bool:
        """Whether somebody has a password, so that everybody needs one."""
        return any(role.verifier and role.login for role in self.roles.values())

    def restricted(self, user: str) -> bool:
        """Whether what this user may do has to be looked at."""
        role = self.roles.get(user)
        if role is None:
            return self.secured
        return not any(self.roles[name].superuser for name in self.names_of(user))

    def names_of(self, user: str) -> set[str]:
        """The user and all roles it is a member of."""
        found, todo = set(), [user]
        while todo:
            name = todo.pop()
            if name in self.roles and name not in found:
                found.add(name)
                todo += self.roles[name].member_of
        return found

    def allows(self, user: str, schema: str, table: str, privilege: str) -> bool:
        """Whether the privilege was granted to the user, a role of it, or everybody."""
        granted = self.grants.get((schema, table))
        if granted is None:
            return False
        return any(privilege in granted.get(name, ()) for name in (*self.names_of(user), EVERYBODY))


def role_key(name: str) -> bytes:
    """The key of a role's row."""
    return keycode.encode(("role", name))


def grant_key(schema: str, table: str, role: str) -> bytes:
    """The key of a grant's row."""
    return keycode.encode(("grant", schema, table, role))


def decode_role(name: str, payload: bytes) -> Role:
    """The inverse of `role_key` and `Role.encode`."""
    row: dict[str, Any] = msgpack.unpackb(payload, use_list=False)
    return Role(name, row["superuser"], row["login"], row["verifier"], row["member_of"])


def load_access(engine: Engine) -> Access:
    """Roles and grants as of the newest change on this node. May raise a `Suspend`."""
    roles: dict[str, Role] = {}
    grants: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
    for key, payload in _rows(engine, "role"):
        (_, name) = keycode.decode(key)
        roles[name] = decode_role(name, payload)
    for key, payload in _rows(engine, "grant"):
        _, schema, table, name = keycode.decode(key)
        granted = frozenset(msgpack.unpackb(payload))
        grants.setdefault((schema, table), {})[name] = granted
    return Access(roles, grants)


def _rows(engine: Engine, kind: str) -> list[tuple[bytes, bytes]]:
    low = keycode.encode((kind,))
    high = keycode.prefix_end(low)
    found: list[tuple[bytes, bytes]] = []
    position: Any = None
    while True:
        frame, keys, position = engine.catalog_tree.rows_in(position, low, high)
        for key in keys:
            payload = frame.rows[key][1]
            if type(payload) is tuple:
                payload = engine.fetcher.large(payload[1], payload[2], payload[0])
            if payload is not None:
                found.append((key, payload))
        if position is None:
            return found


class AccessCache:
    """`Access` for the engine's present version of the catalog."""

    __slots__ = ("_access", "_engine", "_version")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._access = Access()
        self._version = -2

    def current(self) -> Access:
        """May raise a `Suspend`."""
        version = self._engine.catalog_version
        if version != self._version:
            self._access = load_access(self._engine)
            self._version = version
        return self._access


def no_role(name: str) -> CallerMistake:
    """No role has this name."""
    return CallerMistake(f'role "{name}" does not exist', sqlstate="42704")
