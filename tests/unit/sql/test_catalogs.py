"""pg_catalog and information_schema over a database in memory; arrays and reg types on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from compute.sql.arraytypes import ARRAYS, array_binary, parse_array, parse_binary
from compute.sql.roles import Access, Role
from compute.sql.types import INT4, TEXT, TEXT_OUTPUT
from polarless.errors import CallerMistake
from tests.unit.sql.harness import Client, database


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with database() as db:
        found = db.client()
        await found.run(
            "create table a (id int, x int not null default 5, t varchar(20) default 'q', "
            "n numeric(10,2), primary key (x, id))"
        )
        yield found


async def test_classes_and_attributes(client: Client) -> None:
    text = "select relname, relkind from pg_class where relname ~ '^a(_pkey)?$' order by relname"
    assert await client.run(text) == [("a", "r"), ("a_pkey", "i")]
    text = (
        "select attname, atttypid::regtype, format_type(atttypid, atttypmod), attnotnull "
        "from pg_catalog.pg_attribute where attrelid = 'a'::regclass and attnum > 0 order by attnum"
    )
    assert await client.run(text) == [
        ("id", "integer", "integer", "t"),
        ("x", "integer", "integer", "t"),
        ("t", "character varying", "character varying(20)", "f"),
        ("n", "numeric", "numeric(10,2)", "f"),
    ]
    text = "select adnum, pg_get_expr(adbin, adrelid) from pg_attrdef order by 1"
    assert await client.run(text) == [("2", "5"), ("3", "'q'::character varying")]


async def test_indexes_and_constraints(client: Client) -> None:
    text = (
        "select pg_get_indexdef(indexrelid), indkey, indkey[1], indisprimary from pg_index i "
        "join pg_class c on c.oid = i.indrelid where c.relname = 'a'"
    )
    expected = "CREATE UNIQUE INDEX a_pkey ON public.a USING btree (x, id)"
    assert await client.run(text) == [(expected, "2 1", "1", "t")]
    text = "select conname, contype, conkey, pg_get_constraintdef(oid) from pg_constraint"
    assert await client.run(text) == [("a_pkey", "p", "{2,1}", "PRIMARY KEY (x, id)")]
    text = (
        "select k.column_name, k.ordinal_position from information_schema.table_constraints c "
        "join information_schema.key_column_usage k using (constraint_name) "
        "where c.constraint_type = 'PRIMARY KEY' order by 2"
    )
    assert await client.run(text) == [("x", "1"), ("id", "2")]


async def test_information_schema_columns(client: Client) -> None:
    text = (
        "select column_name, data_type, is_nullable, column_default, character_maximum_length, "
        "numeric_precision, numeric_scale from information_schema.columns "
        "where table_name = 'a' order by ordinal_position"
    )
    assert await client.run(text) == [
        ("id", "integer", "NO", None, None, "32", "0"),
        ("x", "integer", "NO", "5", None, "32", "0"),
        ("t", "character varying", "YES", "'q'::character varying", "20", None, None),
        ("n", "numeric", "YES", None, None, "10", "2"),
    ]
    assert await client.run("select table_name from information_schema.tables "
                            "where table_schema = 'public'") == [
        ("a",)
    ]  # fmt: skip


async def test_catalogs_show_a_transactions_own_tables(client: Client) -> None:
    await client.run("begin")
    await client.run("create table b (id int primary key)")
    assert await client.value("select count(*) from pg_tables where tablename = 'b'") == "1"
    assert await client.value("select 'b'::regclass") == "b"
    await client.run("rollback")
    assert await client.state("select 'b'::regclass") == "42P01"


async def test_what_is_unknown(client: Client) -> None:
    error = await client.error("select nosuch from pg_class")
    assert error.sqlstate == "42703"
    assert "nosuch" in error.message
    # A relation of the catalogs that is not known here is empty.
    assert await client.run("select * from pg_catalog.pg_nosuch") == []
    assert await client.run("select n.x from pg_catalog.pg_nosuch n where n.y is null") == []
    assert await client.run("select polname from pg_policy") == []
    assert await client.state("select * from public.pg_class") == "42P01"
    assert await client.state("select * from pg_nosuch") == "42P01"


async def test_reg_types(client: Client) -> None:
    text = "select 'a'::regclass, 'pg_class'::regclass::text, 23::regtype, to_regclass('nosuch')"
    assert await client.run(text) == [("a", "pg_class", "integer", None)]
    assert await client.value("select 'public.a'::regclass = 'a'::regclass::oid") == "t"
    oid = await client.value("select 'a'::regclass::oid")
    assert await client.run("select 'a'::regclass", formats=(1,)) == [
        (int(oid).to_bytes(4, "big"),)
    ]
    assert await client.state("select 'nosuch'::regtype") == "42704"
    assert await client.value("select 'public'::regnamespace") == "public"


async def test_functions_of_the_catalogs(client: Client) -> None:
    text = (
        "select pg_get_userbyid(10), pg_table_is_visible('a'::regclass), current_schemas(true), "
        "has_table_privilege('a', 'select'), obj_description('a'::regclass, 'pg_class'), "
        "pg_encoding_to_char(6), quote_ident('A b'), format('%I.%s=%L', 'S', 1, 'x''y')"
    )
    assert await client.run(text) == [
        ("me", "t", "{pg_catalog,public}", "t", None, "UTF8", '"A b"', "\"S\".1='x''y'")
    ]


async def test_what_the_node_tells_of_itself(client: Client) -> None:
    text = "select role, state, this, sessions from polarless.nodes"
    assert await client.run(text) == [("rw", "serving", "t", "1")]
    assert await client.value("select value > 0 from polarless.cache where name = 'bytes'") == "t"
    assert await client.value("select count(*) > 1 from polarless.pool") == "t"
    assert await client.value("select usename from polarless.sessions where pid = 42") == "me"
    text = (
        "select a.usename, r.rolsuper from pg_stat_activity a join pg_roles r on rolname = usename"
    )
    assert await client.run(text) == [("me", "t")]
    assert await client.state("select nosuch from polarless.nodes") == "42703"


async def test_arrays_in_queries(client: Client) -> None:
    text = (
        "select array[1,2] || 3, (array[5,6])[2], array_length(array[1,2,3], 1), 2 = any('{1,2}')"
    )
    assert await client.run(text) == [("{1,2,3}", "6", "3", "t")]
    assert await client.run("select * from unnest(array['a','b']) with ordinality u(v, n)") == [
        ("a", "1"), ("b", "2"),
    ]  # fmt: skip
    assert await client.value("select array(select g from generate_series(1, 3) g)") == "{1,2,3}"
    assert await client.value("select array(select 1 where false)") == "{}"
    assert await client.value("select array_to_string('{a,NULL,b}'::text[], '-', '?')") == "a-?-b"
    assert await client.run("select $1::int[]", "{1,NULL}") == [("{1,NULL}",)]
    assert await client.value("select 3 <> all (array[1, null])") is None
    assert await client.state("select '{1'::int[]") == "22P02"
    assert await client.state("select (1)[1]") == "42804"


async def test_regular_expressions(client: Client) -> None:
    text = "select 'abc' ~ '^a', 'abc' !~ 'b', 'ABC' ~* 'b', 'x1' ~ '[[:digit:]]$', 'a b' ~ '\\mb'"
    assert await client.run(text) == [("t", "f", "t", "t", "t")]
    operator = "select relname operator(pg_catalog.~) '^(a)$' collate pg_catalog.default "
    assert await client.value(operator + "from pg_class where relname = 'a'") == "t"
    assert await client.state("select 'a' ~ '('") == "2201B"


@pytest.mark.parametrize(
    "text", ["{}", "{1,2,NULL}", "{{1,2},{3,4}}", '{a,"b c","NULL",NULL,"","x\\"y","\\\\"}']
)
def test_arrays_read_what_they_print(text: str) -> None:
    kind = ARRAYS[1009] if "a" in text else ARRAYS[1007]
    value = parse_array(text, kind.element)
    assert TEXT_OUTPUT[kind](value).decode() == text
    assert parse_binary(array_binary(value, kind), kind) == value


@pytest.mark.parametrize(
    "text", ["", "1", "{1", "{1}}", "{1,}", "{,1}", "{{1},{2,3}}", '{"a}', "{a}"]
)
def test_malformed_arrays_are_refused(text: str) -> None:
    with pytest.raises(CallerMistake) as caught:
        parse_array(text, INT4)
    assert caught.value.sqlstate == "22P02"
    assert parse_array("[0:1]={1,2}", TEXT) == ["1", "2"]


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\1", b"\xff" * 12, b"\0\0\0\1" + b"\0" * 8 + b"\x7f" * 8]
)
def test_malformed_binary_arrays_are_refused(data: bytes) -> None:
    with pytest.raises(CallerMistake) as caught:
        parse_binary(data, ARRAYS[1007])
    assert caught.value.sqlstate == "22P03"


async def test_roles_and_what_was_granted_to_them(client: Client) -> None:
    access = Access(
        {
            "boss": Role("boss", superuser=True, login=True, verifier="x"),
            "me": Role("me", login=True, verifier="x", member_of=("staff",)),
            "staff": Role("staff"),
        },
        {("public", "a"): {"staff": frozenset({"select", "insert"})}},
    )
    cache = SimpleNamespace(current=lambda: access)
    client.host = SimpleNamespace(access=cache)  # type: ignore[attr-defined]
    text = "select rolname, rolsuper, rolcanlogin from pg_roles order by rolname"
    assert await client.run(text) == [("boss", "t", "t"), ("me", "f", "t"), ("staff", "f", "f")]
    text = (
        "select m.rolname, g.rolname from pg_auth_members a join pg_roles m on m.oid = a.member "
        "join pg_roles g on g.oid = a.roleid"
    )
    assert await client.run(text) == [("me", "staff")]
    text = "select relacl, pg_get_userbyid(relowner) from pg_class where relname = 'a'"
    assert await client.run(text) == [("{boss=arwdDxt/boss,staff=ar/boss}", "boss")]
    text = "select has_table_privilege('a', 'select'), has_table_privilege('boss', 'a', 'delete')"
    assert await client.run(text) == [("t", "t")]
    assert await client.value("select has_table_privilege('a'::regclass, 'delete')") == "f"
    text = (
        "select privilege_type from information_schema.role_table_grants where grantee = 'staff' "
        "order by 1"
    )
    assert await client.run(text) == [("INSERT",), ("SELECT",)]
