"""Parts of statements that change or lock rows; FOR UPDATE over joins; temporary tables; paths."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from compute.sql.environment import current
from compute.sql.roles import load_access
from tests.unit.sql.harness import Database, database


@pytest.fixture
async def db() -> AsyncIterator[Database]:
    async with database() as found:
        await found.client().run("CREATE TABLE jobs (id int PRIMARY KEY, state text, owner int)")
        await found.client().run("CREATE TABLE people (id int PRIMARY KEY, name text)")
        await found.client().run(
            "INSERT INTO jobs VALUES (1,'new',1),(2,'new',1),(3,'new',2),(4,'done',null)"
        )
        await found.client().run("INSERT INTO people VALUES (1,'Ann'),(2,'Bob')")
        yield found


async def test_what_with_changes_is_given_to_the_statement(db: Database) -> None:
    client = db.client()
    text = "with gone as (delete from jobs where state = $1 returning id) select * from gone"
    assert await client.run(text, "done") == [("4",)]
    text = (
        "with a as (update jobs set state = 'x' where id = 1 returning id, owner), "
        "b as (select a.id, name from a join people p on p.id = a.owner) select * from b"
    )
    assert await client.run(text) == [("1", "Ann")]
    text = "with n as (insert into people values (9, 'Zed')) select count(*) from jobs"
    assert await client.value(text) == "3"
    text = "with n as (update people set name = 'q') select * from people"
    assert await client.state(text) == "0A000"
    assert await client.value("select name from people where id = 9") == "Zed"


async def test_a_queue_takes_what_nobody_has(db: Database) -> None:
    one, two = db.client(), db.client()
    text = (
        "update jobs set state = 'run' where id = (select id from jobs where state = 'new' "
        "order by id limit 1 for update skip locked) returning id"
    )
    await one.run("BEGIN")
    await two.run("BEGIN")
    assert await one.run(text) == [("1",)]
    assert await two.run(text) == [("2",)]
    await one.run("ROLLBACK")
    await two.run("COMMIT")
    assert await one.run(text) == [("1",)]


async def test_for_update_over_a_join(db: Database) -> None:
    one, two = db.client(), db.client()
    text = "select j.id, name from jobs j join people p on p.id = owner"
    await one.run("BEGIN")
    assert await one.run(f"{text} where j.id = 1 order by 1 for update of j") == [("1", "Ann")]
    assert await two.state(f"{text} order by 1 for update nowait") == "55P03"
    found = await two.run(f"{text} order by 1 limit 1 for update of j skip locked")
    assert found == [("2", "Ann")]
    await one.run("COMMIT")
    assert len(await two.run(f"{text} for update")) == 3
    outer = "select 1 from jobs j left join people p on p.id = owner for update"
    assert await two.state(outer) == "0A000"
    assert len(await two.run(f"{outer} of j")) == 4
    assert await two.state(f"{text} for update of nosuch") == "42P01"


async def test_temporary_tables_are_found_first(db: Database) -> None:
    client = db.client()
    await client.run("CREATE TEMP TABLE jobs2 (id serial PRIMARY KEY, x int)")
    schema = client.settings.show("polarless.temporary_schema")
    assert schema.startswith("pg_temp_")
    assert client.settings.environment is not None
    found = current.environment
    current.environment = client.settings.environment
    try:
        await client.run("INSERT INTO jobs2 (x) VALUES (5)")
        assert await client.run("select * from jobs2") == [("1", "5")]
        await client.run("ALTER TABLE jobs2 RENAME TO jobs3")
        await client.run("DROP TABLE jobs3")
    finally:
        current.environment = found
    assert await client.state("select * from jobs2") == "42P01"


async def test_a_table_like_another(db: Database) -> None:
    client = db.client()
    await client.run("CREATE TABLE other (LIKE jobs INCLUDING ALL, more int DEFAULT 7)")
    await client.run("INSERT INTO other (id) VALUES (1)")
    assert await client.run("select * from other") == [("1", None, None, "7")]
    assert await client.state("INSERT INTO other (id) VALUES (1)") == "23505"
    await client.run("CREATE TABLE bare (LIKE jobs)")
    await client.run("INSERT INTO bare (id) VALUES (1), (1)")
    assert await client.state("INSERT INTO bare (id) VALUES (NULL)") == "23502"


async def test_grants_go_with_their_table(db: Database) -> None:
    client = db.client()
    await client.run("CREATE ROLE bob")
    for kind, made in (("TABLE", "(id int)"), ("VIEW", "AS SELECT 1 AS one")):
        await client.run(f"CREATE {kind} thing {made}")
        await client.run("GRANT SELECT ON thing TO bob")
        assert load_access(db.engine).grants[("public", "thing")]
        await client.run(f"DROP {kind} thing")
        assert ("public", "thing") not in load_access(db.engine).grants
