"""COPY TO STDOUT: rows in text, CSV and binary; and binary coming back in, cut anywhere."""

from __future__ import annotations

import pytest

from compute.pgwire.backend import data_row
from compute.sql.catalog import Catalog
from compute.sql.copy_binary import SIGNATURE, BinaryRows
from compute.sql.copy_options import CopyOptions
from compute.sql.copy_out import (
    BINARY_TRAILER,
    BinaryEncoder,
    CopyOut,
    csv_line,
    encoder,
    header,
    plan_copy_out,
    text_line,
)
from compute.sql.syntax import scan
from polarless.errors import CallerMistake


def plan(text: str) -> CopyOut:
    made = plan_copy_out(text, scan(text), lambda: Catalog({}))
    assert made is not None
    assert made.kind == "copy_out"
    argument: CopyOut = made.argument
    return argument


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([b"1", None, b""], b"1\t\\N\t\n"),
        ([b"a\tb\nc\\d\re"], b"a\\tb\\nc\\\\d\\re\n"),
        ([b"\\N"], b"\\\\N\n"),
        ([b"\x08\x0c\x0b"], b"\\b\\f\\v\n"),
    ],
)
def test_text(values: list[bytes | None], line: bytes) -> None:
    assert text_line(CopyOptions())(values) == line


def test_text_with_another_delimiter() -> None:
    join = text_line(CopyOptions(delimiter="|", null="-"))
    assert join([b"a|b", None, b"\t"]) == b"a\\|b|-|\\t\n"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([b"1", None, b""], b'1,,""\n'),
        ([b'say "x"', b"a,b", b"a\nb"], b'"say ""x""","a,b","a\nb"\n'),
        ([b"\\."], b'"\\."\n'),
        ([b" a "], b" a \n"),
    ],
)
def test_csv(values: list[bytes | None], line: bytes) -> None:
    assert csv_line(CopyOptions(csv=True, delimiter=",", null=""))(values) == line


def test_csv_with_another_escape() -> None:
    join = csv_line(CopyOptions(csv=True, delimiter=",", null="", escape="\\"))
    assert join([b'a"b\\c,']) == b'"a\\"b\\\\c,"\n'


def test_one_message_a_row() -> None:
    rows = data_row([b"1", b"x"]) + data_row([None, b"y"])
    assert encoder(CopyOptions())(rows) == b"d\0\0\0\x081\tx\n" + b"d\0\0\0\x09\\N\ty\n"
    names = header(CopyOptions(header=True), ["a", "b"])
    assert names == b"d\0\0\0\x08a\tb\n"


def test_options() -> None:
    query, options = plan("copy t to stdout with (format csv, header, delimiter ';', null 'x')")
    assert query == "select * from t"
    assert (options.csv, options.header, options.delimiter, options.null) == (True, True, ";", "x")
    assert plan('COPY "S"."T" (a, "B") TO STDOUT')[0] == 'select a, "B" from "S"."T"'
    assert plan("copy (select (1), ')' from t) to stdout")[0] == "select (1), ')' from t"
    assert plan("copy binary t to stdout")[1].binary
    assert plan("copy t to stdout csv header")[1].header


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("copy t to '/tmp/x'", "0A000"),
        ("copy (drop table t) to stdout", "0A000"),
        ("copy (select 1 to stdout", "42601"),
        ("copy t to stdout with (format tar)", "22023"),
        ("copy t to stdout with (format binary, delimiter ';')", "42601"),
    ],
)
def test_what_is_refused(text: str, state: str) -> None:
    with pytest.raises(CallerMistake) as caught:
        plan(text)
    assert caught.value.sqlstate == state


def test_copy_from_is_not_this() -> None:
    assert (
        plan_copy_out("copy t from stdin", scan("copy t from stdin"), lambda: Catalog({})) is None
    )


# ---------------------------------------------------------------------------------------- binary


ROWS: list[list[bytes | None]] = [[b"\0\0\0\1", b"x"], [None, b""], []]


def binary(rows: list[list[bytes | None]]) -> bytes:
    encode = BinaryEncoder()
    messages = encode(b"".join(map(data_row, rows))) + encode.trailer()
    result, position = b"", 0
    while position < len(messages):
        size = int.from_bytes(messages[position + 1 : position + 5], "big")
        result += messages[position + 5 : position + 1 + size]
        position += 1 + size
    return result


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_binary_there_and_back_in_any_portions(step: int) -> None:
    data = binary(ROWS)
    assert data.startswith(SIGNATURE)
    assert data.endswith(BINARY_TRAILER)
    reader = BinaryRows(1000)
    found = []
    for start in range(0, len(data), step):
        found += reader.feed(data[start : start + step])
    assert reader.ended
    assert found == ROWS
    reader.finish()


def test_binary_without_rows() -> None:
    reader = BinaryRows(1000)
    assert reader.feed(binary([])) == []
    assert reader.ended


@pytest.mark.parametrize(
    "data",
    [
        b"1\tx\n",
        SIGNATURE + b"\0\1\0\0" + bytes(4),
        SIGNATURE + b"\0\2\0\0" + bytes(4),
        SIGNATURE + bytes(4) + b"\xff\0\0\0",
        SIGNATURE + bytes(8) + b"\0\1\x7f\xff\xff\xff",
    ],
)
def test_binary_that_is_none(data: bytes) -> None:
    with pytest.raises(CallerMistake) as caught:
        BinaryRows(1000).feed(data)
    assert caught.value.sqlstate == "22P04"


def test_binary_that_is_cut() -> None:
    reader = BinaryRows(1000)
    with pytest.raises(CallerMistake):
        reader.finish()
    reader.feed(SIGNATURE + bytes(8) + b"\0\1\0\0\0\4ab")
    with pytest.raises(CallerMistake, match="unexpected EOF"):
        reader.finish()


def test_a_binary_row_is_bounded() -> None:
    reader = BinaryRows(100)
    with pytest.raises(CallerMistake) as caught:
        reader.feed(
            SIGNATURE + bytes(8) + b"\0\3" + b"\0\0\0\x40" + bytes(64) + b"\0\0\0\x40" + b"a" * 60
        )
    assert caught.value.sqlstate == "54000"
