"""COPY with its options, in and out: statements with the data that goes in."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

SETUP = (
    "create table cp (a int, b text, c varchar(10), d date)",
    "insert into cp values (1, 'x', null, '2024-01-01'), (2, 'a,b', 'q\"q', null)",
    "insert into cp values (3, '', E'tab\\tx', null)",
    "create view cpv as select a from cp",
)
CLEANUP = ("drop view cpv", "drop table cp")

OUT = (
    "copy cp to stdout",
    "copy cp (b, a) to stdout with (format csv)",
    "copy cp to stdout with (format csv, header)",
    "copy cp to stdout with (header)",
    "copy cp to stdout with (format csv, force_quote (b, d))",
    "copy cp to stdout with (format csv, force_quote *)",
    "copy cp to stdout csv force quote a, b",
    "copy cp to stdout with csv header delimiter as '|' null as 'N'",
    "copy cp to stdout with (format csv, quote '''', escape '*', delimiter ';')",
    "copy cp to stdout with (delimiter '|', null 'nil')",
    "copy cp to stdout with (format csv, encoding 'latin1')",
    "copy (select a, b from cp where a > 1 order by a) to stdout (format csv, force_quote (b))",
    "copy cp (a) to stdout with (format csv, force_quote (b))",
    "copy cp to stdout with (force_quote (b))",
    "copy cp to stdout with (format csv, force_null (b))",
    "copy cp to stdout with (format csv, force_not_null (b))",
    "copy cp to stdout with (format csv, header match)",
    "copy cp to stdout with (format csv, header nonsense)",
    "copy cp to stdout with (delimiter 'xx')",
    "copy cp to stdout with (delimiter 'a')",
    "copy cp to stdout with (quote '*')",
    "copy cp to stdout with (format csv, delimiter ',', quote ',')",
    "copy cp to stdout with (format csv, null 'a,b')",
    "copy cp to stdout with (format csv, format csv)",
    "copy cp to stdout with (nosuch)",
    "copy cp to stdout with (format xml)",
    "copy cp to stdout with (format binary, header)",
    "copy cp to stdout with (format csv, encoding 'nosuch')",
    "copy cpv to stdout",
    "copy nosuch to stdout",
    "copy cp (nosuch) to stdout",
)

IN = (
    ("copy cp from stdin", "10\tx\t\\N\t2024-01-01\n11\t\\\\\tz\t\\N\n"),
    ("copy cp (b, a) from stdin with (format csv)", 'x,12\n"a,b",13\n,14\n"",15\n'),
    ("copy cp (a, b) from stdin with (format csv, header)", "a,b\n16,h\n"),
    ("copy cp (a, b) from stdin with (format csv, header match)", "a,b\n17,h\n"),
    ("copy cp (a, b) from stdin with (format csv, header match)", "b,a\n17,h\n"),
    ("copy cp (a, b) from stdin with (format csv, header match)", "a\n17,h\n"),
    ("copy cp (a, b) from stdin with (header)", "anything\n18\th\n"),
    ("copy cp (a, b, c) from stdin with (format csv, force_null (b, c))", '19,"",""\n'),
    ("copy cp (a, b, c) from stdin with (format csv, force_not_null (b))", "20,,\n"),
    ("copy cp (a, b, c) from stdin with (format csv, force_null (b), null 'N')", '21,"N",N\n'),
    ("copy cp (a, b) from stdin with (format csv, force_not_null (c))", "22,x\n"),
    ("copy cp (a, b) from stdin with (format csv, force_quote (b))", "22,x\n"),
    ("copy cp (a, b) from stdin with (force_null (b))", "22\tx\n"),
    ("copy cp (a, b) from stdin csv force not null b", "23,\n"),
    ("copy cp (a, b) from stdin csv force null b", '24,""\n'),
    ("copy cp (a, b) from stdin (format csv, delimiter '|', quote '*', escape '!')", "25|*a!*|*\n"),
    ("copy cp (a, b) from stdin where a > 30", "29\tno\n31\tyes\n32\tyes\n"),
    ("copy cp (a, b) from stdin csv where b like 'y%' and a is not null", "33,y\n34,n\n,y\n"),
    ("copy cp (a, b) from stdin where nosuch = 1", "35\tx\n"),
    ("copy cp (a, b) from stdin where a", "35\tx\n"),
    ("copy cp (a, b) from stdin with (null 'nil', delimiter '|')", "36|nil\n"),
    ("copy cp (a, b) from stdin", "x\ty\n"),
    ("copy cp (a, b) from stdin", "40\n"),
    ("copy cp (a, b) from stdin", "40\tx\ty\n"),
    ("copy cp (a, c) from stdin", "40\tmuch too long for it\n"),
    ("copy cp (a, b) from stdin with (format csv)", '41,"open\n'),
    ("copy cp (a, b) from stdin with (encoding 'latin1')", "42\tx\n"),
    ("copy cp (a, a) from stdin", "42\t43\n"),
    ("copy cp (a, nosuch) from stdin", "42\t43\n"),
    ("copy cpv from stdin", "42\n"),
)


class Answer(NamedTuple):
    """What a COPY gave."""

    state: str
    tag: str = ""
    data: bytes = b""


def ask(connection: psycopg.Connection[Any], text: str, data: str | None = None) -> Answer:
    """Run one COPY, with the data that goes in or for what comes out."""
    cursor = connection.cursor()
    found = b""
    try:
        with cursor.copy(text.encode()) as copy:
            if data is not None:
                copy.write(data)
            else:
                found = b"".join(bytes(part) for part in copy)
    except psycopg.Error as error:
        return Answer(error.sqlstate or "?")
    return Answer("", cursor.statusmessage or "", found)
