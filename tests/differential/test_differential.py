"""Every file of statements on both servers; generated statements; some of each in the short run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from bench import tpcc_load as tpcc
from bench import tpch_load as tpch
from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left
from tests.differential import compare, copying, generate, matrix, parameters, postgres

FILES = sorted(compare.FOLDER.glob("*.sql"))
SHORT = (
    *("joins", "subqueries", "sets", "windows", "grouping", "strings", "math", "dates", "json"),
    *("arrays", "dml", "constraints", "names", "generated", "indexes", "enums", "alters"),
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(postgres.bin_folder() is None, reason="PostgreSQL 15 is not installed"),
]


_serial = itertools.count(1)


class Pair(NamedTuple):
    theirs: psycopg.Connection[Any]
    ours: psycopg.Connection[Any]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    cluster = LocalCluster(tmp_path_factory.mktemp("differential") / "data", ro=0)
    with postgres.server() as url:
        try:
            cluster.start()
            yield url, cluster.url
        finally:
            cluster.stop()
        assert_nothing_left(cluster)


@pytest.fixture
def pair(servers: tuple[str, str]) -> Iterator[Pair]:
    """A connection to each, to databases without tables."""
    theirs, ours = servers
    name = f"d{next(_serial)}"
    with psycopg.connect(theirs, autocommit=True) as first:
        first.execute(f"create database {name}")
    with (
        psycopg.connect(theirs.rsplit("/", 1)[0] + "/" + name, autocommit=True) as there,
        psycopg.connect(ours, autocommit=True) as here,
    ):
        compare.clean(here)
        yield Pair(there, here)


@pytest.mark.parametrize("path", [p for p in FILES if p.stem in SHORT], ids=lambda p: p.stem)
def test_statements_have_the_same_answers(pair: Pair, path: Path) -> None:
    wrong = compare.run(*pair, path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in FILES if p.stem not in SHORT], ids=lambda p: p.stem)
def test_more_statements_have_the_same_answers(pair: Pair, path: Path) -> None:
    wrong = compare.run(*pair, path)
    assert not wrong, "\n".join(wrong)


def check_generated(pair: Pair, seeds: range) -> None:
    for text in generate.SETUP:
        for connection in pair:
            outcome = compare.ask(connection, text)
            assert not outcome.state, outcome.message
    wrong: list[str] = []
    for seed in seeds:
        statement = compare.Statement(generate.Maker(seed).statement(), seed)
        wrong += compare.run_one(*pair, statement, "seed")
    for text in generate.CLEANUP:
        compare.ask(pair.ours, text)
    assert not wrong, "\n".join(wrong)


def test_generated_statements_have_the_same_answers(pair: Pair) -> None:
    check_generated(pair, range(150))


def test_parameters_have_the_same_types_and_effects(pair: Pair) -> None:
    for text in generate.SETUP:
        for connection in pair:
            connection.execute(text)
    wrong = []
    for text, values in parameters.STATEMENTS:
        for binary in (False, True) if text.startswith(("select", "with")) else (False,):
            there, here = (
                compare.ask(connection, text, binary=binary, values=values) for connection in pair
            )
            found = compare.difference(text, there, here)
            if found:
                wrong.append(f"{text} {values}\n    {found}")
    for text in generate.CLEANUP:
        pair.ours.execute(text)
    assert not wrong, "\n".join(wrong)


def test_copy_has_the_same_answers(pair: Pair) -> None:
    wrong = []
    for text in copying.SETUP:
        for connection in pair:
            connection.execute(text.encode())
    for text in copying.OUT:
        there, here = (copying.ask(connection, text) for connection in pair)
        if there != here:
            wrong.append(f"{text}\n    {there}\n    {here}")
    for text, data in copying.IN:
        there, here = (copying.ask(connection, text, data) for connection in pair)
        rows = [c.execute("select * from cp order by a, b").fetchall() for c in pair]
        if there != here or rows[0] != rows[1]:
            wrong.append(f"{text} {data!r}\n    {there}\n    {here}\n    {rows}")
    for text in copying.CLEANUP:
        pair.ours.execute(text.encode())
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_many_generated_statements_have_the_same_answers(pair: Pair) -> None:
    check_generated(pair, range(150, 2000))


@pytest.mark.slow
def test_tpch_gives_the_same_answers(pair: Pair) -> None:
    data = tpch.rows()
    for connection in pair:
        for text in tpch.SCHEMA:
            connection.execute(text)
        for table, rows in data.items():
            with connection.cursor() as cursor, cursor.copy(f"copy {table} from stdin") as copy:
                for row in rows:
                    copy.write_row(row)
    pair.theirs.execute("analyze")
    statements = compare.read(tpch.QUERIES)
    assert len(statements) == 22
    wrong = []
    for statement in statements:
        wrong += compare.run_one(*pair, statement, "tpch.sql")
    for table in tpch.TABLES:
        pair.ours.execute(f"drop table {table}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_tpcc_gives_the_same_answers_and_stays_consistent(pair: Pair) -> None:
    terminals = []
    for connection in pair:
        for text in tpcc.SCHEMA:
            connection.execute(text)
        terminal = tpcc.Terminal(connection, seed=7)
        terminal.load()
        terminal.run(400)
        terminals.append(terminal)
    there, here = (terminal.seen for terminal in terminals)
    for left, right in zip(there, here, strict=True):
        assert left == right
    for table in tpcc.TABLES:
        text = f"select * from {table}"
        assert not compare.difference(
            text, compare.ask(pair.theirs, text), compare.ask(pair.ours, text)
        )
    for condition in tpcc.CONDITIONS:
        assert pair.ours.execute(condition).fetchall() == [], condition
    for table in tpcc.TABLES:
        pair.ours.execute(f"drop table {table}")


@pytest.mark.slow
def test_types_meet_as_in_postgresql(pair: Pair) -> None:
    wrong = []
    differing = 0
    for text in matrix.statements():
        outcomes = [compare.ask(connection, text) for connection in pair]
        found = compare.difference(text, *outcomes)
        if found and matrix.known(text):
            differing += 1
        elif found:
            wrong.append(f"{text}\n    {found}")
    assert not wrong, "\n".join(wrong)
    assert differing < 150
