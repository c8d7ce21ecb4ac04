"""TLS, passwords, roles and grants, against a real cluster."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest
from typer.testing import CliRunner

from polarless.cli import app
from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    data = tmp_path_factory.mktemp("access") / "data"
    made = CliRunner().invoke(app, ["init", "--data", str(data), "--name", "db.example"])
    assert made.exit_code == 0, made.output
    cluster = LocalCluster(data, ro=1)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
    assert_nothing_left(cluster)


def url(cluster: LocalCluster, role: str = "rw") -> str:
    """The node's own URL: what a proxy in front of it does is another test's."""
    return cluster.sql_url(role)


def as_user(cluster: LocalCluster, user: str, password: str = "", role: str = "rw") -> str:
    name = f"{user}:{password}" if password else user
    return url(cluster, role).replace("postgresql://", f"postgresql://{name}@", 1)


def refused(state: str, call: Callable[[], object]) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        call()
    assert caught.value.sqlstate == state, caught.value
    return caught.value


def test_the_files_are_private_and_not_replaced(cluster: LocalCluster) -> None:
    folder = Path(cluster.data.root) / "tls"
    for name in ("server.crt", "server.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    before = (folder / "server.crt").read_bytes()
    again = CliRunner().invoke(app, ["init", "--data", str(cluster.data.root)])
    assert again.exit_code != 0
    assert (folder / "server.crt").read_bytes() == before


async def test_tls_with_asyncpg(cluster: LocalCluster) -> None:
    trusted = ssl.create_default_context(cafile=str(Path(cluster.data.root) / "tls/server.crt"))
    connection = await asyncpg.connect(url(cluster), ssl=trusted, user="u")
    try:
        assert await connection.fetchval("select $1::text", "x" * 300_000) == "x" * 300_000
        many = "select a.id from generate_series(1, 20000) a(id)"
        try:
            assert len(await connection.fetch(many)) == 20_000
        except asyncpg.PostgresError:
            pass  # another way to a large answer is above
    finally:
        await connection.close()


def test_tls_ends_at_the_proxy_too(cluster: LocalCluster) -> None:
    root = Path(cluster.data.root) / "tls/server.crt"
    made = f"{cluster.url}?sslmode=verify-full&sslrootcert={root}&user=u"
    with psycopg.connect(made, autocommit=True) as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("select repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)
        connection.cancel()


def test_tls_with_libpq(cluster: LocalCluster) -> None:
    root = Path(cluster.data.root) / "tls/server.crt"
    made = f"{url(cluster)}?sslmode=verify-full&sslrootcert={root}&user=u"
    with psycopg.connect(made) as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("select 1").fetchone() == (1,)
    with psycopg.connect(f"{url(cluster)}?sslmode=disable&user=u") as connection:
        assert not connection.pgconn.ssl_in_use


def test_roles_from_the_first_password_to_the_last(cluster: LocalCluster) -> None:
    with psycopg.connect(as_user(cluster, "anybody"), autocommit=True) as setup:
        setup.execute("create table secret (id int primary key, v text)")
        setup.execute("create table open (id int primary key, v text)")
        setup.execute("insert into secret values (1, 's')")
        refused("55000", lambda: setup.execute("create role bob login password 'x'"))
        setup.execute("create role boss superuser login password 'let''s go'")
        setup.execute("create role readers")
        setup.execute("create user bob password 'bob' in role readers")
        refused("42710", lambda: setup.execute("create role bob"))
        setup.execute("grant select on open to readers")

    refused_now = pytest.raises(psycopg.OperationalError)
    with refused_now:
        psycopg.connect(as_user(cluster, "anybody"))
    for user, password in (("bob", "wrong"), ("nobody", "bob"), ("readers", "bob")):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(as_user(cluster, user, password))

    # Through the proxy, which passes on what both sides say.
    through = cluster.url.replace("postgresql://", "postgresql://bob:bob@", 1)
    with psycopg.connect(through) as connection:
        assert connection.execute("select current_user").fetchone() == ("bob",)
        refused("42501", lambda: connection.execute("select * from secret"))
    with refused_now:
        psycopg.connect(through.replace("bob:bob", "bob:wrong"))

    _bob(cluster)
    _views(cluster)
    boss = psycopg.connect(as_user(cluster, "boss", "let's%20go"), autocommit=True)
    with boss:
        assert boss.execute("select v from secret").fetchone() == ("s",)
        refused("55000", lambda: boss.execute("drop role boss"))
        refused("55000", lambda: boss.execute("alter role boss password null"))
        refused("2BP01", lambda: boss.execute("drop role readers"))
        refused("42704", lambda: boss.execute("grant select on open to nobody"))
        boss.execute("drop role bob")
        boss.execute("revoke all on open from readers")
        boss.execute("drop role readers")
        # The last password may go: then everybody on this host may come again.
        boss.execute("drop role boss")
    with psycopg.connect(as_user(cluster, "anybody")) as anybody:
        assert anybody.execute("select v from secret").fetchone() == ("s",)


def _views(cluster: LocalCluster) -> None:
    """A view is granted for itself, and shows what its tables do not; catalogs say who may what."""
    boss = psycopg.connect(as_user(cluster, "boss", "let's%20go"), autocommit=True)
    bob = psycopg.connect(as_user(cluster, "bob", "bob"), autocommit=True)
    with boss, bob:
        boss.execute("create view peek as select upper(v) as v from secret")
        refused("42501", lambda: bob.execute("select * from peek"))
        # Queries that DuckDB runs are no way around either.
        refused("42501", lambda: bob.execute("select 1 from open o, secret s"))
        refused("42501", lambda: bob.execute("select (select count(*) from peek)"))
        boss.execute("grant select on peek to bob")
        # A grant follows the table, not its name.
        boss.execute("create table lent (k int)")
        boss.execute("grant select on lent to bob")
        with boss.transaction():
            boss.execute("grant insert on lent to bob")
            boss.execute("alter table lent rename to kept")
        boss.execute("create table lent (k int)")
        assert bob.execute("insert into kept values (1)").rowcount == 1
        assert bob.execute("select * from kept").fetchall() == [(1,)]
        refused("42501", lambda: bob.execute("select * from lent"))
        boss.execute("drop table lent, kept")
        assert bob.execute("select p.v from peek p join (select 1) o on true").fetchall() == [
            ("S",)
        ]
        found = bob.execute(
            "select has_table_privilege('open', 'select'), has_table_privilege('secret', 'select')"
        )
        assert found.fetchone() == (True, False)
        roles = bob.execute("select rolname from pg_roles where rolsuper").fetchall()
        assert roles == [("boss",)]
        boss.execute("revoke all on peek from bob")
        boss.execute("drop view peek")


def _bob(cluster: LocalCluster) -> None:
    """What one may do who was granted a little, on both nodes and by all ways."""
    boss = psycopg.connect(as_user(cluster, "boss", "let's%20go"), autocommit=True)
    reader = psycopg.connect(as_user(cluster, "bob", "bob", "ro"), autocommit=True)
    bob = psycopg.connect(as_user(cluster, "bob", "bob"), autocommit=True)
    with boss, reader, bob:
        assert bob.execute("select current_user, current_setting('is_superuser')").fetchone() == (
            "bob", "off",
        )  # fmt: skip
        for node in (bob, reader):
            assert node.execute("select count(*) from open").fetchone() == (0,)
            for statement in (
                "select * from secret",
                "select * from public.secret where id = 1",
                "select * from (select v from secret) x",
                "with secret as (select * from secret) select * from secret",
                "select (select v from secret limit 1)",
                "select 1 from open where exists (select 1 from secret)",
                "select e'\\'' from secret --'",
                "explain select * from secret",
                "copy secret to stdout",
                "copy (select * from secret) to stdout",
                "declare c cursor with hold for select * from secret",
                "prepare p as select * from secret",
                "table secret",
                "create table mine (a int)",
                "drop table open",
                "truncate open",
                "create role eve superuser",
                "alter role bob superuser",
                "grant select on secret to bob",
            ):
                with pytest.raises(psycopg.Error) as caught:
                    node.execute(statement)
                assert caught.value.sqlstate in ("42501", "0A000", "25006"), (statement, caught)
                if "secret" in statement and "table" not in statement:
                    assert caught.value.sqlstate == "42501", (statement, caught.value)
        refused("42501", lambda: bob.execute("insert into open values (1, 'x')"))
        with pytest.raises(psycopg.Error), bob.cursor().copy("copy open from stdin") as copy:
            copy.write("1\tx\n")
        bob.execute("prepare later as select count(*) from open")
        boss.execute("grant insert, update on open to bob")
        bob.execute("insert into open values (%s, %s)", (1, "x"))
        assert bob.execute("update open set v = 'y' where id = 1").rowcount == 1
        refused("42501", lambda: bob.execute("delete from open"))
        assert bob.execute("execute later").fetchone() == (1,)
        boss.execute("revoke select on open from readers")
        refused("42501", lambda: bob.execute("execute later"))
        refused("42501", lambda: bob.execute("insert into open values (2, '') returning v"))
        boss.execute("grant all on all tables in schema public to public")
        assert bob.execute("select v from secret").fetchone() == ("s",)
        boss.execute("revoke all on all tables in schema public from public")
        boss.execute("revoke all on open from bob")
        boss.execute("grant select on open to readers")
        assert bob.execute("select v from open").fetchone() == ("y",)
        refused("42501", lambda: bob.execute("select v from secret"))
