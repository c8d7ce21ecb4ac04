"""Roles, grants, and the planner that looks at them."""

from __future__ import annotations

from typing import Any

import pytest

from compute.sql.guard import GuardedPlanner
from compute.sql.planner import Planner
from compute.sql.roles import Access, AccessCache, Role
from tests.unit.sql.harness import Client, Database, database

SECRET = "SCRAM-SHA-256$4096:MDEyMzQ1Njc4OWFiY2RlZg==$" + "A" * 43 + "=:" + "B" * 43 + "="


def boss_of(db: Database) -> Client:
    """Who may do everything, on a node that can make salts."""
    db.planner = Planner(db.engine, lambda count: b"s" * count)
    return db.client()


def as_role(db: Database, name: str) -> Client:
    """A session of a role."""
    guard: Any = GuardedPlanner(db.planner, AccessCache(db.engine), name)
    client = Client(db.engine, guard)
    client.user = name
    return client


async def test_roles_are_rows_of_the_catalog() -> None:
    async with database() as db:
        boss = boss_of(db)
        roles = AccessCache(db.engine)
        assert not roles.current().secured
        await boss.run("create role boss superuser login password 'x'")
        await boss.run("create user bob password 'y' in role boss")
        await boss.run(f"create role cid login password '{SECRET}'")
        access = roles.current()
        assert access.secured
        assert access.roles["boss"].superuser
        assert access.roles["cid"].verifier == SECRET
        assert access.roles["bob"] == Role(
            "bob", login=True, verifier=access.roles["bob"].verifier, member_of=("boss",)
        )
        assert "y" not in str(access.roles["bob"].verifier).partition("$")[2][:5]
        await boss.run("begin")
        await boss.run("drop role bob")
        await boss.run("rollback")
        assert "bob" in roles.current().roles
        await boss.run("alter role bob nologin password null")
        assert roles.current().roles["bob"].verifier is None
        await boss.run("drop role if exists nobody")
        await boss.run("drop role bob, cid")
        assert list(roles.current().roles) == ["boss"]


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("create role other login password 'x'", None),
        ("alter role boss nosuperuser", "55000"),
        ("alter role boss nologin", "55000"),
        ("drop role boss", "55000"),
        ("create role boss", "42710"),
        ("create role public", "42939"),
        ("create role pg_x", "42939"),
        ("create role x valid until 'tomorrow'", "0A000"),
        ("create role x password 'md5" + "0" * 32 + "'", "0A000"),
        ("create role x password ''", "22023"),
        ("create role x superpowers", "42601"),
        ("alter role nobody login", "42704"),
        ("drop role nobody", "42704"),
        ("grant select on nowhere to bob", "42P01"),
        ("grant select on t to nobody", "42704"),
        ("grant fly on t to bob", "42601"),
        ("grant select (a) on t to bob", "0A000"),
        ("grant select on t to bob with grant option", "0A000"),
        ("grant bob to boss, bob", "0LP01"),
        ("grant usage on schema public to bob", None),
        ("revoke all on t from bob", None),
    ],
)
async def test_statements(statement: str, state: str | None) -> None:
    async with database() as db:
        boss = boss_of(db)
        await boss.run("create table t (a int primary key)")
        await boss.run("create role boss superuser login password 'x'")
        await boss.run("create role bob login password 'x'")
        if state is None:
            await boss.run(statement)
        else:
            assert await boss.state(statement) == state


async def test_the_first_password_is_a_superusers() -> None:
    async with database() as db:
        boss = boss_of(db)
        assert await boss.state("create role bob login password 'x'") == "55000"
        # One that may not log in lets nobody in, and so locks nobody out.
        await boss.run("create role bob password 'x'")
        assert await boss.state("alter role bob login") == "55000"


def test_membership_is_inherited() -> None:
    roles = {
        "bob": Role("bob", member_of=("readers",)),
        "readers": Role("readers", member_of=("all",)),
        "all": Role("all"),
        "eve": Role("eve", member_of=("boss",)),
        "boss": Role("boss", superuser=True),
    }
    grants = {("public", "t"): {"all": frozenset({"select"}), "public": frozenset({"insert"})}}
    access = Access(roles, grants)
    assert access.names_of("bob") == {"bob", "readers", "all"}
    assert access.allows("bob", "public", "t", "select")
    assert access.allows("bob", "public", "t", "insert")
    assert not access.allows("bob", "public", "t", "update")
    assert not access.allows("bob", "other", "t", "select")
    assert access.restricted("bob")
    assert not access.restricted("eve")
    assert not access.restricted("nobody"), "while nobody has a password every name may come"


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("select * from open", True),
        ("select 1", True),
        ("select * from pg_class", True),
        ("insert into open values (5)", True),
        ("select * from secret", False),
        ('select * from "secret"', False),
        ("select (select max(a) from secret)", False),
        ("select 1 from open o join secret s on s.a = o.a", False),
        ("select * from open union all select * from secret", False),
        ("with x as (select * from secret) select * from x", False),
        ("with secret as (select * from secret) select * from secret", False),
        ("insert into open select a from secret", False),
        ("insert into open values (5) returning a", True),
        ("insert into open values (5) on conflict do nothing", True),
        ("insert into open values (5) on conflict (a) do update set a = 6", False),
        ("update open set a = 9", False),
        ("delete from open", False),
        ("explain select * from secret", False),
        ("explain (costs off) select * from secret", False),
        ("prepare p as select 1", True),
        ("truncate open", False),
        ("create table x (a int)", False),
        ("drop table open", False),
        ("grant select on secret to bob", False),
        ("create role x superuser", False),
        ("alter role bob superuser", False),
    ],
)
async def test_what_a_restricted_role_may(statement: str, allowed: bool) -> None:
    async with database() as db:
        boss = boss_of(db)
        await boss.run("create table open (a int primary key)")
        await boss.run("create table secret (a int primary key)")
        await boss.run("create role boss superuser login password 'x'")
        await boss.run("create role bob login password 'x'")
        await boss.run("grant select, insert on open to bob")
        guard: Any = as_role(db, "bob").planner
        client: Any = as_role(db, "bob")
        if allowed:
            guard.prepare(client, statement)
            guard.prepare_simple(client, statement)
        else:
            assert await as_role(db, "bob").state(statement) == "42501"


async def test_what_was_revoked_is_gone_at_once() -> None:
    async with database() as db:
        boss = boss_of(db)
        await boss.run("create table t (a int primary key)")
        await boss.run("create role boss superuser login password 'x'")
        await boss.run("create role bob login password 'x'")
        bob = as_role(db, "bob")
        assert await bob.state("select * from t") == "42501"
        await boss.run("grant select on t to public")
        assert await bob.run("select * from t") == []
        await boss.run("revoke select on t from public")
        assert await bob.state("select * from t") == "42501"
        await boss.run("alter role bob superuser")
        assert await bob.run("select * from t") == []
