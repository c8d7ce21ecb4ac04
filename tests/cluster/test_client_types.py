"""Enums, generated columns, partial indexes and those on expressions, as the drivers meet them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.types.enum import EnumInfo, register_enum
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import create_async_engine

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left
from tests.cluster.test_clients import sqlalchemy_url

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


class Mood(enum.Enum):
    sad = 1
    ok = 2
    happy = 3


class Base(orm.DeclarativeBase):
    pass


class Person(Base):
    __tablename__ = "person"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    mood: orm.Mapped[Mood]
    grade: orm.Mapped[str | None] = orm.mapped_column(
        sa.Enum("a", "b", name="grade"), server_default="a"
    )
    past: orm.Mapped[list[Mood] | None] = orm.mapped_column(sa.ARRAY(sa.Enum(Mood, name="mood")))
    twice: orm.Mapped[int] = orm.mapped_column(sa.Integer, sa.Computed("id * 2", persisted=True))
    __table_args__ = (
        sa.Index("person_part", "mood", unique=True, postgresql_where=sa.text("id > 100")),
        sa.Index("person_twice", sa.text("(id * 3)")),
        sa.Index("person_more", sa.desc("id"), postgresql_include=["mood"]),
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = LocalCluster(tmp_path_factory.mktemp("types") / "data", ro=0)
    try:
        cluster.start()
        yield cluster.url
    finally:
        cluster.stop()
    assert_nothing_left(cluster)


@pytest.fixture
def feelings(url: str) -> Iterator[str]:
    """The URL, with a type and a table of it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create type feeling as enum ('sad', 'ok', 'happy')")
        connection.execute("create table felt (id int primary key, m feeling, ms feeling[])")
        yield url
        connection.execute("drop table felt")
        connection.execute("drop type feeling")


async def test_asyncpg_knows_enums(feelings: str) -> None:
    connection = await asyncpg.connect(feelings)
    try:
        await connection.execute("insert into felt values ($1, $2, $3)", 1, "ok", ["sad", "happy"])
        await connection.copy_records_to_table("felt", records=[(2, "sad", []), (3, "happy", None)])
        rows = [tuple(row) for row in await connection.fetch("select * from felt order by m")]
        assert rows == [(2, "sad", []), (1, "ok", ["sad", "happy"]), (3, "happy", None)]
        found = await connection.fetch(
            "select id from felt where m = any($1::feeling[])", ["ok", "happy"]
        )
        assert sorted(row["id"] for row in found) == [1, 3]
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await connection.execute("insert into felt values ($1, $2)", 4, "angry")
    finally:
        await connection.close()


def test_psycopg_knows_enums(feelings: str) -> None:
    with psycopg.connect(feelings, autocommit=True) as connection:
        info = EnumInfo.fetch(connection, "feeling")
        assert info is not None
        assert list(info.labels) == ["sad", "ok", "happy"]
        register_enum(info, connection, Mood)
        connection.execute("insert into felt values (1, %s, %s)", (Mood.sad, [Mood.ok, None]))
        with connection.cursor().copy("copy felt from stdin (format binary)") as copy:
            copy.set_types(["int4", "feeling", "feeling[]"])
            copy.write_row((2, Mood.happy, [Mood.ok]))
        for binary in (False, True):
            rows = connection.execute("select * from felt order by m", binary=binary).fetchall()
            assert rows == [(1, Mood.sad, [Mood.ok, None]), (2, Mood.happy, [Mood.ok])]


def use_models(connection: Any) -> None:
    """Make, fill, read, reflect and drop the model above."""
    Base.metadata.create_all(connection)
    Base.metadata.create_all(connection)
    with orm.Session(connection) as session:
        session.add(Person(mood=Mood.ok))
        session.flush()
        session.add(Person(mood=Mood.sad, grade="b", past=[Mood.ok, Mood.happy]))
        session.flush()
        rows = session.execute(
            sa.select(Person.mood, Person.grade, Person.past, Person.twice).order_by(Person.mood)
        ).all()
        assert [tuple(row) for row in rows] == [
            (Mood.sad, "b", [Mood.ok, Mood.happy], 4),
            (Mood.ok, "a", None, 2),
        ]
        wanted = sa.select(Person.id).where(Person.mood.in_([Mood.ok, Mood.happy]))
        assert session.scalars(wanted).all() == [1]
        session.commit()
    inspector = sa.inspect(connection)
    labels = {found["name"]: found["labels"] for found in inspector.get_enums()}
    assert labels == {"mood": ["sad", "ok", "happy"], "grade": ["a", "b"]}
    columns = {column["name"]: column for column in inspector.get_columns("person")}
    assert columns["twice"]["computed"] == {"sqltext": "(id * 2)", "persisted": True}
    assert columns["grade"]["default"] == "'a'::grade"
    indexes = {index["name"]: index for index in inspector.get_indexes("person")}
    assert indexes["person_part"]["dialect_options"]["postgresql_where"] == "(id > 100)"
    assert indexes["person_part"]["unique"]
    assert indexes["person_twice"]["expressions"] == ["(id * 3)"]
    assert indexes["person_more"]["dialect_options"]["postgresql_include"] == ["mood"]
    assert indexes["person_more"]["column_sorting"] == {"id": ("desc",)}
    Base.metadata.drop_all(connection)
    assert not sa.inspect(connection).get_enums()


def test_sqlalchemy_makes_and_reflects_them(url: str) -> None:
    engine = sa.create_engine(sqlalchemy_url(url, "psycopg"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        use_models(connection)


async def test_sqlalchemy_over_asyncpg_does_too(url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(url, "asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(use_models)
    await engine.dispose()
