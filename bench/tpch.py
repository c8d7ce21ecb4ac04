"""``tpch``: the 22 queries of TPC-H beside PostgreSQL, at scale factor 0.01.

Rows follow the benchmark's shape, not its generator's numbers. Values are queries per second of one
client, so that a ratio above 1 is in our favour.
"""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg

from bench import tpch_load
from bench.servers import Postgres
from bench.shapes import Result, Row, Tell
from polarless.local import LocalCluster

SECONDS_MIN: Final = 0.05


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    pairs = int(options.get("pairs") or (1 if quick else 5))
    text = "\n".join(
        line for line in tpch_load.QUERIES.read_text().splitlines() if not line.startswith("--")
    )
    queries = [query.strip() for query in text.split(";\n") if query.strip()]
    rows = [Row(f"Q{number}", "queries/s") for number in range(1, len(queries) + 1)]
    with (
        Postgres() as postgres,
        LocalCluster(ro=0) as cluster,
        psycopg.connect(cluster.sql_url("rw"), autocommit=True) as ours,
        psycopg.connect(postgres.url, autocommit=True) as theirs,
    ):
        tell("loading", 0)
        data = tpch_load.rows()
        for connection in (ours, theirs):
            load(connection, data)
        for index, (row, query) in enumerate(zip(rows, queries, strict=True)):
            for number in range(pairs):
                tell(row.name, (index + number / pairs) / len(rows))
                order = [(ours, row.ours), (theirs, row.theirs)]
                for connection, values in order if number % 2 == 0 else order[::-1]:
                    values.append(rate(connection, query))
        return Result("tpch", rows, {"pairs": pairs, "scale factor": 0.01, "clients": 1})


def load(connection: psycopg.Connection[Any], data: dict[str, list[tuple[Any, ...]]]) -> None:
    """Create the tables and copy the rows in."""
    for text in tpch_load.SCHEMA:
        connection.execute(text.rstrip(";"))
    for table, made in data.items():
        with connection.cursor().copy(f"copy {table} from stdin") as copy:
            for values in made:
                copy.write_row(values)
    connection.execute("analyze")


def rate(connection: psycopg.Connection[Any], query: str) -> float:
    """Queries per second, over at least one and a short while."""
    count, began = 0, time.perf_counter()
    while not count or time.perf_counter() - began < SECONDS_MIN:
        connection.execute(query).fetchall()
        count += 1
    return round(count / (time.perf_counter() - began), 2)
