"""uuid, json, jsonb, time and interval, as PostgreSQL 15 answers."""

from __future__ import annotations

import pytest

from compute.sql import scalars
from tests.unit.sql.harness import database

pytestmark = pytest.mark.asyncio

ANSWERS = [
    ("'{3F2504E04F8911D39A0C0305E82C3301}'::uuid", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
    (
        '\'{"b": 1, "a":[1,2.50, null,true], "b":"x"}\'::jsonb',
        '{"a": [1, 2.50, null, true], "b": "x"}',
    ),
    ('\'{"b": 1,  "a":1}\'::json', '{"b": 1,  "a":1}'),
    ("'[1e3, -0, 1.10]'::jsonb", "[1000, 0, 1.10]"),
    ("'04:05 pm'::time", "16:05:00"),
    ("'04:05:06.789'::time", "04:05:06.789"),
    ("'1 year 2 mons 3 days 04:05:06'::interval", "1 year 2 mons 3 days 04:05:06"),
    ("'P1Y2M3DT4H5M6S'::interval", "1 year 2 mons 3 days 04:05:06"),
    ("'-1 day +02:03'::interval", "-1 days +02:03:00"),
    ("'1.5 months'::interval", "1 mon 15 days"),
    ("interval '3' month", "3 mons"),
    ("timestamp '2024-01-31 10:00' + interval '1 month'", "2024-02-29 10:00:00"),
    ("date '2024-02-28' + interval '2 days'", "2024-03-01 00:00:00"),
    ("timestamp '2024-03-01' - timestamp '2024-02-01 12:30'", "28 days 11:30:00"),
    ("interval '1 day' * 2.5", "2 days 12:00:00"),
    ("-interval '1 day 1 hour'", "-1 days -01:00:00"),
    ("time '10:00' + interval '15 hours'", "01:00:00"),
    ("interval '1 day' > interval '23 hours'", "t"),
    ("'{\"a\": {\"b\": [10, 20]}}'::jsonb->'a'->'b'->1", "20"),
    ("'{\"t\": \"x\"}'::json->>'t'", "x"),
]
REFUSED = [
    ("'x'::uuid", "22P02"),
    ("'{a}'::json", "22P02"),
    ("'25:00'::time", "22008"),
    ("'abc'::interval", "22007"),
]


async def test_answers() -> None:
    async with database() as found:
        client = found.client()
        for text, answer in ANSWERS:
            assert await client.value(f"SELECT {text}") == answer, text
        for text, state in REFUSED:
            assert await client.state(f"SELECT {text}") == state, text


async def test_they_are_stored_sorted_and_found_by_index() -> None:
    async with database() as found:
        client = found.client()
        await client.run(
            "CREATE TABLE t (id uuid PRIMARY KEY, j jsonb, at time, long interval, d json)"
        )
        await client.run("CREATE INDEX t_long ON t (long)")
        for i, long in enumerate(("1 day", "-1 hour", "25 hours", "1 mon", "29 days")):
            await client.run(
                "INSERT INTO t VALUES ($1, $2, $3, $4, $2)",
                f"00000000-0000-0000-0000-00000000000{i}",
                f'{{"n": {i}}}',
                f"0{i}:00",
                long,
            )
        rows = await client.run("SELECT long, j->>'n' FROM t ORDER BY long")
        assert [row[0] for row in rows] == ["-01:00:00", "1 day", "25:00:00", "29 days", "1 mon"]
        assert (
            await client.value("SELECT at FROM t WHERE id = '00000000-0000-0000-0000-000000000003'")
            == "03:00:00"
        )
        assert await client.value("SELECT count(*) FROM t WHERE long > '1 day'") == "3"
        assert await client.run("SELECT max(at), min(long) FROM t") == [("04:00:00", "-01:00:00")]
        rows = await client.run("SELECT a.at FROM t a JOIN t b ON a.id = b.id WHERE b.at > '03:30'")
        assert rows == [("04:00:00",)]


async def test_binary_forms() -> None:
    value = scalars.parse_interval("1 year 3 days 00:00:01.5")
    assert scalars.interval_binary(value).hex() == "000000000016e360000000030000000c"
    assert scalars.interval_from_binary(scalars.interval_binary(value)) == value
    assert scalars.uuid_from_binary(bytes(range(16))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert scalars.jsonb_from_binary(b'\1{"a":1}') == '{"a": 1}'


async def test_arrays_are_columns() -> None:
    async with database() as found:
        client = found.client()
        await client.run("CREATE TABLE t (id serial PRIMARY KEY, a text[], n int[])")
        await client.run("INSERT INTO t (a, n) VALUES ('{x,\"y z\",NULL}', '{{1,2},{3,4}}')")
        await client.run("INSERT INTO t (a, n) VALUES (ARRAY['q'], ARRAY[5, 6])")
        assert await client.run("SELECT a, n FROM t ORDER BY id") == [
            ('{x,"y z",NULL}', "{{1,2},{3,4}}"),
            ("{q}", "{5,6}"),
        ]
        await client.run("DELETE FROM t WHERE id = 1")
        assert await client.run("SELECT id FROM t WHERE 5 = ANY (n)") == [("2",)]
        assert await client.state("INSERT INTO t (n) VALUES ('{1')") == "22P02"
        assert await client.state("CREATE INDEX ON t (a)") == "0A000"
