"""COPY FROM STDIN: pieces cut anywhere, escapes, CSV, and errors with their line."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compute.sql.copy import unescape_copy
from polarless.errors import PolarlessError
from tests.unit.sql.harness import database


@pytest.mark.parametrize("piece_bytes", [1, 3, 7, 1000])
@pytest.mark.parametrize("fresh", [True, False])
async def test_text_format(piece_bytes: int, fresh: bool) -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b text, c char(4), d timestamp)")
        if fresh:
            await client.run("begin")
            await client.run("truncate t")
        data = (
            "1\tplain\tab\t2020-01-01 10:00:00\n"
            "2\t\\N\t\\N\t\\N\n"
            "3\ttab\\tline\\nback\\\\slash\\x41\\101\t    \tinfinity\n"
            "4\tdelimiter\\\tinside\tx\t\\N\r\n"
            "5\täöü €\tü\t\\N\n"
            "\\.\n"
            "ignored\n"
        )
        tag = await client.copy("copy t from stdin", data, piece_bytes=piece_bytes)
        assert tag == "COPY 5"
        if fresh:
            await client.run("commit")
        assert await client.run("select * from t order by a") == [
            ("1", "plain", "ab  ", "2020-01-01 10:00:00"),
            ("2", None, None, None),
            ("3", "tab\tline\nback\\slashAA", "    ", "infinity"),
            ("4", "delimiter\tinside", "x   ", None),
            ("5", "äöü €", "ü   ", None),
        ]


async def test_columns_defaults_and_options() -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int, b text default 'dflt', c int not null)")
        await client.copy("copy t (c, a) from stdin", "1\t2\n3\t4")
        await client.copy("COPY public.t (c) FROM STDIN WITH (FORMAT text, DELIMITER '|')", "5\n")
        await client.copy("copy t(c, b) from stdin with csv header delimiter ';' null 'NIL'",
                          'x;y\n6;NIL\n7;"NIL"\n')  # fmt: skip
        await client.copy("copy t(c) from stdin (freeze)", "")
        assert await client.run("select a, b, c from t order by c") == [
            ("2", "dflt", "1"), ("4", "dflt", "3"), (None, "dflt", "5"), (None, None, "6"),
            (None, "NIL", "7"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "state", "line"),
    [
        ("1\t2\nx\t3\n", "22P02", "line 2, column a"),
        ("1\t2\n3\n", "22P04", "line 2"),
        ("1\t2\n3\t4\t5\n", "22P04", "line 2"),
        ("1\t2\n99999999999\t1\n", "22003", "line 2, column a"),
        ("1\t1_0\n", "22P02", "line 1, column b"),
        ("1\t2\n2\t3\n\\N\t3\n", "23502", "line 3"),
        ("1\t2\n1\t3\n", "23505", "Key (a)=(1)"),
        (b"1\t\xff\n", "22021", ""),
        ("1\t\n", "22P02", "line 1, column b"),
    ],
)
@pytest.mark.parametrize("fresh", [True, False])
async def test_what_is_wrong_with_a_line(
    data: str | bytes, state: str, line: str, fresh: bool
) -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int primary key, b int)")
        await client.run("begin")
        if fresh:
            await client.run("truncate t")
        with pytest.raises(PolarlessError) as caught:
            await client.copy("copy t from stdin", data)
        assert caught.value.sqlstate == state
        assert line in (caught.value.context or caught.value.detail or "")
        await client.run("rollback")
        assert await client.value("select count(*) from t") == "0"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("copy nosuch from stdin", "42P01"),
        ("copy t (nosuch) from stdin", "42703"),
        ("copy t (a, a) from stdin", "42701"),
        ("copy t from '/etc/passwd'", "0A000"),
        ("copy t from program 'x'", "0A000"),
        ("copy t from stdin with (format nosuch)", "22023"),
        ("copy t from stdin with (delimiter 'xx')", "0A000"),
        ("copy t from stdin with (nosuch on)", "42601"),
        ("copy t from", "42601"),
    ],
)
async def test_refused(text: str, state: str) -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int, b text)")
        assert await client.state(text) == state


@pytest.mark.parametrize("pending_bytes", [1 << 24, 3000])
async def test_fresh_table_with_rows_in_any_order(
    pending_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compute.sql.rebuild.PENDING_BYTES_MAX", pending_bytes)
    async with database() as db:
        client = db.client()
        await client.run("begin")
        await client.run("create table t(a text primary key, b int)")
        order = sorted(range(2000), key=lambda n: n * 7919 % 2003)
        data = "".join(f"key {n:05d}\t{n}\n" for n in order)
        assert await client.copy("copy t from stdin", data) == "COPY 2000"
        await client.run("commit")
        rows = await client.run("select b from t order by a")
        assert [int(row[0]) for row in rows] == list(range(2000))


texts = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.lists(st.tuples(st.none() | texts, st.none() | texts), min_size=1, max_size=6)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(values, st.integers(1, 50))
async def test_any_text_survives_text_format(rows: list[Any], piece_bytes: int) -> None:
    def escaped(value: str | None) -> str:
        if value is None:
            return "\\N"
        for char, code in (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
            value = value.replace(char, code)
        return value

    data = "".join("\t".join(map(escaped, row)) + "\n" for row in rows)
    await _round_trip("copy t (b, c) from stdin", data, rows, piece_bytes)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(values, st.integers(1, 50))
async def test_any_text_survives_csv_format(rows: list[Any], piece_bytes: int) -> None:
    def quoted(value: str | None) -> str:
        return "" if value is None else '"' + value.replace('"', '""') + '"'

    # What Python's reader takes for a line end inside of quotes is data here.
    data = "".join(",".join(map(quoted, row)) + "\n" for row in rows)
    assert list(csv.reader(io.StringIO(data, newline="")))
    await _round_trip("copy t (b, c) from stdin with csv", data, rows, piece_bytes)


async def _round_trip(text: str, data: str, rows: list[Any], piece_bytes: int) -> None:
    async with database() as db:
        client = db.client()
        await client.run("create table t(a int, b text, c text)")
        await client.copy(text, data, piece_bytes=piece_bytes)
        assert await client.run("select b, c from t") == rows


async def test_a_carriage_return_in_quotes_moves_no_quote_of_a_later_row() -> None:
    rows = [(None, "00\rx"), (None, "")]
    await _round_trip("copy t (b, c) from stdin with csv", ',"00\rx"\n,""\n', rows, 50)


def test_escapes() -> None:
    assert unescape_copy("a\\tb\\\\\\x4g\\7\\vend\\q") == "a\tb\\\x04g\x07\vendq"
