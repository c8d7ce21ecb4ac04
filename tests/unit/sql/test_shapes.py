"""Texts that differ only in their literals share a plan; what means something else does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.sql import bulk_insert, shapes
from tests.unit.sql.harness import database


@pytest.mark.parametrize(
    ("text", "template", "values"),
    [
        ("select a from t where a = 5", "select a from t where a = $1", ["5"]),
        ("select a from t where a=-5;", "select a from t where a=$1;", ["-5"]),
        ("update t set b = b + -7 where a = 1", "update t set b = b + $1 where a = $2",
         ["-7", "1"]),
        ("select a - 5 from t", "select a - $1 from t", ["5"]),
        ("select a -5 from t", "select a -$1 from t", ["5"]),
        ("select t1.c2 from t1 where c2 = 'it''s'", "select t1.c2 from t1 where c2 = $1", ["it's"]),
        ("insert into t values (1.5, 'x', -2e3)", "insert into t values ($1, $2, $3)",
         ["1.5", "x", "-2e3"]),
    ],
)  # fmt: skip
def test_literals_become_parameters(text: str, template: str, values: list[str]) -> None:
    found = shapes.cut(text)
    assert found is not None
    # A blank follows each parameter, for sqlglot's sake.
    made = (shapes.template(found) or "").replace(" ", "")
    assert made == template.replace(" ", "")
    assert found.values == values
    match = shapes.matcher(found)(text)
    if "''" not in text and "e3" not in text:
        assert list(match.groups()) == values


@pytest.mark.parametrize(
    "text",
    [
        "select \"a'b\", 'x', \"c'd\" from t",  # quotes inside of identifiers
        "select 1 -- 2",
        "select 1 /* 2 */",
        "select 'a' 'b'",
        "select e'a\\'b', 5",
        "select -1::text",
        "select $1, 5",
        "select $$a 5 b$$",
        "select 1; select 2",
        'select "5 a" from t',
    ],
)
def test_what_the_cut_may_get_wrong_is_no_shape(text: str) -> None:
    found = shapes.cut(text)
    if found is not None and shapes.template(found) is not None:
        # Only harmless: the comment or identifier has no literal of the shape inside.
        assert all(value in text for value in found.values)
        assert "--" not in text
        assert "'" not in text.split(found.pieces[-1])[0].replace("'x'", "")


async def test_every_way_gives_the_same_answer() -> None:
    """Each text twice through the shapes (second time by prediction), once as written."""
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b int, c varchar(10), d numeric)")
        await client.run(
            "insert into t values (1, -5, 'x', 1.5), (2, 7, 'it''s', -0.25), (-3, 0, '', 0)"
        )
        texts = [
            "select * from t where a = 1",
            "select * from t where a = -3",
            "select a - 1, a -1, a - -1, a+-1, -1 - a from t order by 1",
            "select a from t order by 2 - 1, a",
            "select a, b from t order by 2",
            "select a, b from t order by 2 desc limit 1 offset 1",
            "select b % 2, count(*) from t group by 1 order by 1",
            "select c::varchar(2), cast(d as numeric(5,1)) from t order by a",
            "select 'a' || c from t where c = 'it''s'",
            "select a from t where d > -0.5 and d < 1.75 order by a",
            "select 2147483647, 2147483648, -2147483648, 9223372036854775808, 1e2, 1.",
            "select a from t where a in (1, 2, -3) order by a",
            "select a from t where a between -3 and 1 order by a desc",
            "select '1'::int + 1, date '2020-01-02', '2020-01-02'::timestamp",
            "select case when a > 1 then 'big' else 'small' end from t order by a",
            "select substring('hello', 2, 3), round(1.256, 2), left('abc', -1)",
            'select "a" from t where a = 1 -- 2',
            "select 1 /* 2 */ + 3",
            "select -1::int, - 1, 2 * -3",
        ]
        for text in texts:
            as_written = await client.run(f"/* x */ {text}")
            for _ in range(3):
                assert await client.run(text) == as_written, text
                assert (await client.run(text)).names == as_written.names, text
            client.sql.predicted = None


async def test_prediction_follows_a_script_in_turn() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b int)")
        await client.run("insert into t values (1, 0), (2, 0)")
        for number in range(1, 20):
            await client.run("begin")
            key = number % 2 + 1
            await client.run(f"update t set b = b + {number - 10} where a = {key}")
            before = client.sql.predicted
            assert await client.value(f"select a from t where a = {key}") == str(key)
            if number > 1:
                assert before.following is client.sql.predicted
            await client.run("commit")
        assert await client.value("select sum(b) from t") == str(sum(range(-9, 10)))
        assert len(db.planner._shapes) < 20


async def test_shapes_are_bounded() -> None:
    async with database() as db:
        client = db.client()
        planner = db.planner
        for cache in (planner._shapes, planner._exact, planner._plans):
            cache._count_max = 20
        for number in range(100):
            await client.run(f"select {number} as c{number}")
            await client.run(f'select 1 as "x{number}" -- {number}')
        assert len(planner._shapes) == len(planner._exact) == len(planner._plans) <= 40
        # What is in use is never forgotten.
        for number in range(100):
            await client.run("select 1 as kept")
            await client.run(f"select 1 as other{number}")
        assert any("kept" in key[0] for key in (*planner._shapes.young, *planner._shapes.old))


# ----------------------------------------------------------------------------------- long INSERTs


@pytest.mark.parametrize("count", [20, 1000])
async def test_insert_of_many_literal_rows(count: int) -> None:
    async with database() as db:
        client = db.client()
        await client.run(
            "create table t(a int primary key, b text not null, c char(4), d numeric(6,2), "
            "e bool, f float, g timestamp default '2020-01-01')"
        )
        rows = ", ".join(
            f"({i}, 'it''s {i}', {'NULL' if i % 2 else repr('ab')}, {i}.345, "
            f"{'true' if i % 3 else 'false'}, -1.5e{i % 9})"
            for i in range(count)
        )
        text = f"INSERT INTO t (a, b, c, d, e, f) VALUES {rows};"
        found = bulk_insert.recognise(text)
        assert found is not None
        assert found.width == 6
        assert (await client.run(text)).tag == f"INSERT 0 {count}"
        assert await client.value("select count(*) from t") == str(count)
        assert await client.run("select * from t where a = 7") == [
            ("7", "it's 7", None, "7.35", "t", "-15000000", "2020-01-01 00:00:00")
        ]
        error = await client.error(text)
        assert error.sqlstate == "23505"
        # A transaction of its own that creates the table first.
        await client.run("begin")
        await client.run("drop table t")
        await client.run("create table t(a int, b text, c text, d text, e text, f text)")
        assert (await client.run(text)).tag == f"INSERT 0 {count}"
        await client.run("commit")
        assert (await client.run("select d, e from t where a = 7")) == [("7.345", "true")]


@pytest.mark.parametrize("count", [30, 1000])
async def test_insert_of_many_rows_of_parameters(count: int) -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b varchar(9), c numeric, d bool)")
        rows = ",".join(f"(${3 * i + 1},${3 * i + 2},1.5,${3 * i + 3})" for i in range(count))
        text = f"insert into t(a, b, c, d) values {rows}"
        values: list[object] = []
        for i in range(count):
            values += [str(i), None if i % 2 else f"name {i}", b"\0" if i % 3 else "t"]
        if count == 30:
            values[0] = (0).to_bytes(4, "big")
        assert (await client.run(text, *values)).tag == f"INSERT 0 {count}"
        assert await client.value("select count(*) from t") == str(count)
        assert await client.run("select * from t where a in (6, 7) order by a") == [
            ("6", "name 6", "1.5", "t"),
            ("7", None, "1.5", "f"),
        ]
        assert await client.state(text, *values) == "23505"
        values[1] = "much too long"
        assert await client.state(text, *values) == "22001"
        # A parameter in columns of two types needs a conversion: the general way.
        both = ",".join("($1, $1, 1, true)" for _ in range(40))
        assert await client.state(f"insert into t values {both}", "5") in ("42804", "23505")


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ("(1, 'x', 3)", "42601"),
        ("(1)", "42601"),
        ("('x', 'y')", "22P02"),
        ("(99999999999, 'y')", "22003"),
        ("(true, 'y')", "42804"),
        ("(null, 'y')", "23502"),
        ("(1, 'y'), (1, 'z')", "23505"),
    ],
)
async def test_one_bad_row_among_many(row: str, state: str) -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b text)")
        rows = ", ".join(f"({i}, 'filler to make this a long text')" for i in range(100, 140))
        text = f"insert into t values {rows}, {row}, (2, 'last')"
        assert bulk_insert.recognise(text) is not None
        assert await client.state(text) == state
        assert await client.value("select count(*) from t") == "0"


@given(st.lists(st.text(alphabet="ab'(),; \\n-1", max_size=8), min_size=30, max_size=40))
def test_rows_are_cut_where_sql_cuts_them(texts: list[str]) -> None:
    literals = [text.replace("'", "''") for text in texts]
    rows = ",".join(f"('{literal}', 'long enough to be read row by row')" for literal in literals)
    found = bulk_insert.recognise(f"insert into t values {rows}")
    assert found is not None
    items = [
        bulk_insert._ITEM.findall(row.group())
        for row in bulk_insert._ROW.finditer(found.text, found.start)
    ]
    assert [item[0][1:-1].replace("''", "'") for item in items] == texts
