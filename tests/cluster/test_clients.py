"""The clients that people have, unchanged: SQLAlchemy with both drivers, pandas, psycopg, psql."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import asyncpg
import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.types import TypeInfo
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import create_async_engine

from polarless.local import LocalCluster
from tests.cluster.conftest import assert_nothing_left

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

PSQL = shutil.which("psql") or shutil.which("/usr/lib/postgresql/15/bin/psql")


class Base(orm.DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "author"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(30))
    fee: orm.Mapped[float | None] = orm.mapped_column(sa.Numeric(10, 2))


class Book(Base):
    __tablename__ = "book"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    author_id: orm.Mapped[int]
    title: orm.Mapped[str] = orm.mapped_column(sa.Text)


class Parent(Base):
    __tablename__ = "parent"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(20), unique=True)
    rank: orm.Mapped[int] = orm.mapped_column(sa.Integer, index=True, server_default="1")
    children: orm.Mapped[list[Child]] = orm.relationship(back_populates="parent")
    __table_args__ = (sa.CheckConstraint("rank > 0", name="rank_is_positive"),)


class Child(Base):
    __tablename__ = "child"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    parent_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("parent.id", ondelete="CASCADE"))
    name: orm.Mapped[str]
    parent: orm.Mapped[Parent] = orm.relationship(back_populates="children")


BY_AUTHOR = (
    sa.select(Author.name, sa.func.count(Book.id))
    .join(Book, Book.author_id == Author.id, isouter=True)
    .group_by(Author.id, Author.name)
    .order_by(Author.id)
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("clients") / "data", ro=1)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
    assert_nothing_left(cluster)


@pytest.fixture(scope="module")
def filled(running: LocalCluster) -> str:
    """The cluster's URL, with the tables of the models above, made and filled by SQLAlchemy."""
    engine = sa.create_engine(sqlalchemy_url(running.url, "psycopg"), poolclass=sa.NullPool)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    # Everything is there now, so this makes nothing.
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session, session.begin():
        session.add_all([Author(id=1, name="Ann", fee=1.5), Author(id=2, name="Bob", fee=None)])
        session.add_all([Book(id=i, author_id=1, title=f"t{i}") for i in range(1, 4)])
    engine.dispose()
    return running.url


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://root@", 1)


def check_reflection(connection: Any) -> None:
    """What the inspector says of the models' tables."""
    inspector = sa.inspect(connection)
    assert {"author", "book"} <= set(inspector.get_table_names())
    assert inspector.has_table("author")
    assert not inspector.has_table("nosuch")
    columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns("author")}
    assert columns == {
        "id": ("INTEGER", False),
        "name": ("VARCHAR(30)", False),
        "fee": ("NUMERIC(10, 2)", True),
    }
    key = inspector.get_pk_constraint("author")
    assert (key["name"], key["constrained_columns"]) == ("author_pkey", ["id"])
    assert inspector.get_foreign_keys("book") == []
    assert inspector.get_indexes("book") == []
    assert inspector.get_unique_constraints("book") == []
    assert inspector.get_check_constraints("book") == []
    assert "public" in inspector.get_schema_names()
    metadata = sa.MetaData()
    metadata.reflect(connection, only=["author", "book"])
    assert [c.name for c in metadata.tables["book"].columns] == ["id", "author_id", "title"]


def test_sqlalchemy_with_psycopg(filled: str) -> None:
    engine = sa.create_engine(sqlalchemy_url(filled, "psycopg"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        assert connection.execute(BY_AUTHOR).all() == [("Ann", 3), ("Bob", 0)]
        check_reflection(connection)
    with orm.Session(engine) as session:
        ann = session.scalars(sa.select(Author).where(Author.name == "Ann")).one()
        assert str(ann.fee) == "1.50"
        # A savepoint that is taken back, inside a transaction that is not.
        with session.begin_nested() as nested:
            ann.name = "Anna"
            session.flush()
            nested.rollback()
        assert session.scalar(sa.select(Author.name).where(Author.id == 1)) == "Ann"
        newest = sa.select(sa.func.max(Book.id)).where(Book.author_id == Author.id)
        rows = session.execute(sa.select(Author.id, newest.scalar_subquery()).order_by(Author.id))
        assert rows.all() == [(1, 3), (2, None)]
        has_book = sa.exists().where(Book.author_id == Author.id)
        assert session.scalars(sa.select(Author.id).where(has_book)).all() == [1]
    engine.dispose()


def test_sqlalchemy_relationships_and_constraints(filled: str) -> None:
    engine = sa.create_engine(sqlalchemy_url(filled, "psycopg"), poolclass=sa.NullPool)
    with orm.Session(engine) as session, session.begin():
        session.add_all(
            Parent(name=f"p{i}", children=[Child(name=f"c{i}{j}") for j in range(i)])
            for i in range(3)
        )
    with orm.Session(engine) as session:
        for load in (orm.selectinload, orm.joinedload, orm.subqueryload, orm.lazyload):
            query = sa.select(Parent).options(load(Parent.children)).order_by(Parent.name)
            found = session.scalars(query).unique().all()
            names = [sorted(c.name for c in p.children) for p in found]
            assert names == [[], ["c10"], ["c20", "c21"]]
            session.expunge_all()
        text = sa.select(Parent.name).where(Parent.children.any(Child.name == "c21"))
        assert session.scalars(text).all() == ["p2"]
        # Bulk changes by a query.
        ids = sa.select(Child.parent_id).group_by(Child.parent_id).having(sa.func.count() > 1)
        session.execute(sa.update(Parent).where(Parent.id.in_(ids)).values(rank=7))
        assert session.scalars(sa.select(Parent.rank).order_by(Parent.name)).all() == [1, 1, 7]
        session.execute(sa.delete(Parent).where(Parent.name == "p2"))
        assert session.scalar(sa.select(sa.func.count(Child.id))) == 1
        session.rollback()
    for wrong, state in (({"name": "p1"}, "23505"), ({"name": "q", "rank": -1}, "23514")):
        with orm.Session(engine) as session, pytest.raises(sa.exc.IntegrityError) as caught:
            session.execute(sa.insert(Parent).values(**wrong))
        assert getattr(caught.value.orig, "sqlstate", "") == state
    inspector = sa.inspect(engine)
    (key,) = inspector.get_foreign_keys("child")
    assert (key["constrained_columns"], key["referred_table"]) == (["parent_id"], "parent")
    assert key["options"] == {"ondelete": "CASCADE"}
    assert {i["name"]: i["unique"] for i in inspector.get_indexes("parent")} == {
        "ix_parent_rank": False, "parent_name_key": True,
    }  # fmt: skip
    assert [u["column_names"] for u in inspector.get_unique_constraints("parent")] == [["name"]]
    assert [c["name"] for c in inspector.get_check_constraints("parent")] == ["rank_is_positive"]
    assert "nextval" in str(inspector.get_columns("parent")[0]["default"])
    engine.dispose()


async def test_sqlalchemy_with_asyncpg(filled: str) -> None:
    engine = create_async_engine(sqlalchemy_url(filled, "asyncpg"))
    async with engine.connect() as connection:
        assert (await connection.execute(BY_AUTHOR)).all() == [("Ann", 3), ("Bob", 0)]
        await connection.run_sync(check_reflection)
    await engine.dispose()


def test_pandas_reads_queries_and_tables(filled: str) -> None:
    engine = sa.create_engine(sqlalchemy_url(filled, "psycopg"), poolclass=sa.NullPool)
    text = (
        "select a.name, count(b.id) as books, sum(b.id) over_all, a.fee from author a "
        "left join book b on b.author_id = a.id group by a.id order by a.id"
    )
    frame = pd.read_sql(text, engine)
    assert list(frame.columns) == ["name", "books", "over_all", "fee"]
    assert frame["books"].tolist() == [3, 0]
    table = pd.read_sql("book", engine, index_col="id")
    assert table["title"].tolist() == ["t1", "t2", "t3"]
    engine.dispose()


def test_psycopg_knows_types_and_prepares(filled: str) -> None:
    with psycopg.connect(filled) as connection:
        for name in ("text", "int4", "numeric"):
            info = TypeInfo.fetch(connection, name)
            assert info is not None
            assert info.array_oid
        assert TypeInfo.fetch(connection, "nosuch") is None
        text = (
            "select a.name, b.title from author a join book b on b.author_id = a.id "
            "where b.id = any(%s) order by b.id"
        )
        for _ in range(7):
            rows = connection.execute(text, ([1, 3],), prepare=True).fetchall()
            assert rows == [("Ann", "t1"), ("Ann", "t3")]
        found = connection.execute("select array_agg(title order by id) from book", binary=True)
        assert found.fetchone() == (["t1", "t2", "t3"],)


async def test_asyncpg_introspects_and_fetches(filled: str) -> None:
    connection = await asyncpg.connect(filled)
    try:
        text = "select b.id, a.name, array[b.id, $2] as pair from author a join book b on b.id = $1"
        row = await connection.fetchrow(text + " where a.id = 1", 2, 7)
        assert tuple(row) == (2, "Ann", [2, 7])
        # int2vector and "char" are types that asyncpg asks the catalogs about.
        row = await connection.fetchrow(
            "select indkey, relkind from pg_index i join pg_class c on c.oid = i.indrelid "
            "where c.relname = 'author'"
        )
        assert row["relkind"] == b"r"
        async with connection.transaction():
            cursor = await connection.cursor(
                "select b.id from book b join author a on true order by b.id, a.id"
            )
            assert [r["id"] for r in await cursor.fetch(3)] == [1, 1, 2]
    finally:
        await connection.close()


def test_which_node_is_the_writer_can_be_told(running: LocalCluster) -> None:
    hosts = [node.sql_url.split("//")[1].split("/")[0] for node in running.nodes() if node.sql_url]
    assert len(hosts) == 2
    url = f"postgresql://{','.join(hosts)}/postgres"
    for attributes, recovery in (("read-write", False), ("read-only", True)):
        with psycopg.connect(url, target_session_attrs=attributes) as connection:
            assert connection.execute("select pg_is_in_recovery()").fetchone() == (recovery,)
            shown = connection.execute("show transaction_read_only").fetchone()
            assert shown == ("on" if recovery else "off",)
            standby = connection.execute("show in_hot_standby").fetchone()
            assert standby == ("on" if recovery else "off",)


SCRIPT = """
\\d
\\dt
\\di
\\dv
\\ds
\\d book
\\d+ author
\\d author_pkey
\\d parent
\\d+ child
\\d pg_class
\\l
\\du
\\dn
\\dn+
\\df
\\dT
\\dx
\\dp
\\db
\\da
\\do
\\dC
\\dc
\\dO
\\dA
\\dL
\\dg
\\dF
\\det
\\des
\\dew
\\deu
\\dy
\\dRp
\\dRs
\\dX
\\dd
\\conninfo
select count(*) from author natural join book;
"""


@pytest.mark.skipif(PSQL is None, reason="psql is not installed")
def test_psql_runs_a_script_of_backslash_commands(filled: str) -> None:
    assert PSQL is not None
    done = subprocess.run(
        [PSQL, filled, "-X", "-v", "ON_ERROR_STOP=1", "-f", "-"],
        input=SCRIPT, text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    # \dv and \ds say that there is none, as an error, and psql goes on.
    errors = [line for line in done.stderr.splitlines() if "Did not find any" not in line]
    assert not errors, errors
    assert done.returncode == 0
    for expected in (
        '"book_pkey" PRIMARY KEY, btree (id)',
        " author_pkey ",
        " name   | character varying(30) |           | not null |",
        'primary key, btree, for table "public.author"',
        'Table "pg_catalog.pg_class"',
        'TABLE "child" CONSTRAINT "child_parent_id_fkey" FOREIGN KEY (parent_id)',
        '"rank_is_positive" CHECK (rank > 0)',
        '"child_parent_id_fkey" FOREIGN KEY (parent_id) REFERENCES parent(id) ON DELETE CASCADE',
    ):
        assert expected in done.stdout, expected
