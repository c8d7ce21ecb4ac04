"""``ycsb``: workloads A to F of the Yahoo! Cloud Serving Benchmark, beside PostgreSQL.

Rows of ten fields of 100 bytes; keys drawn from a zipfian distribution and scattered. pgbench is
the driver and its smallest exponent is 1.001, where YCSB has 0.99. D reads near the newest key,
which the client asks for in the same transaction; E scans up to 100 rows.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from bench.counters import Counters
from bench.load import script_tps
from bench.servers import Postgres
from bench.shapes import Result, Row, Tell
from polarless.local import LocalCluster

CLIENTS: Final = 16
FIELDS: Final = 10
KEY: Final = "\\set z random_zipfian(1, {rows}, 1.001)\n\\set key 1 + :z * 7919 % {rows}\n"
VALUE: Final = "md5(:key::text) || md5(:client_id::text) || md5('field') || 'four'"
READ: Final = KEY + "select * from usertable where ycsb_key = :key;\n"
UPDATE: Final = KEY + f"update usertable set field3 = {VALUE} where ycsb_key = :key;\n"
MODIFY: Final = KEY + (
    "begin;\nselect * from usertable where ycsb_key = :key;\n"
    f"update usertable set field3 = {VALUE} where ycsb_key = :key;\ncommit;\n"
)
INSERT: Final = (
    "\\set key random(1, 1000000)\ninsert into usertable select nextval('ycsb_keys'), "
    + ", ".join([VALUE] * FIELDS)
    + ";\n"
)
LATEST: Final = (
    "\\set back random_zipfian(1, {rows}, 1.001)\n"
    "select max(ycsb_key) as newest from usertable \\gset\n"
    "select * from usertable where ycsb_key = :newest::bigint - :back::bigint + 1;\n"
)
SCAN: Final = KEY + (
    "\\set length random(1, 100)\n"
    "select * from usertable where ycsb_key >= :key order by ycsb_key limit :length;\n"
)
# Name, what it is, and the scripts with their weights.
WORKLOADS: Final = (
    ("A", "half reads, half updates", ((READ, 50), (UPDATE, 50))),
    ("B", "95 % reads, 5 % updates", ((READ, 95), (UPDATE, 5))),
    ("C", "reads", ((READ, 100),)),
    ("D", "95 % reads of the newest, 5 % inserts", ((LATEST, 95), (INSERT, 5))),
    ("E", "95 % short scans, 5 % inserts", ((SCAN, 95), (INSERT, 5))),
    ("F", "half reads, half read-modify-writes", ((READ, 50), (MODIFY, 50))),
)


def run(*, quick: bool, tell: Tell, options: dict[str, Any]) -> Result:
    """Run it."""
    count = int(options.get("rows") or (2_000 if quick else 100_000))
    pairs = int(options.get("pairs") or (1 if quick else 3))
    seconds = float(options.get("seconds") or (1 if quick else 6))
    rows = []
    with Postgres() as postgres, LocalCluster(ro=0) as cluster:
        tell("loading", 0)
        ours = cluster.sql_url("rw")
        for url in (ours, postgres.url):
            fill(url, count)
        for index, (name, what, scripts) in enumerate(WORKLOADS):
            texts = [(text.replace("{rows}", str(count)), weight) for text, weight in scripts]
            row = Row(f"{name}: {what}", "transactions/s")
            for number in range(pairs):
                tell(name, (index + number / pairs) / len(WORKLOADS))
                order = [(ours, row.ours), (postgres.url, row.theirs)]
                for url, values in order if number % 2 == 0 else order[::-1]:
                    counters = Counters.of_role(cluster, "rw")
                    arguments = ("-M", "prepared", "-c", str(CLIENTS))
                    values.append(round(script_tps(url, texts, *arguments, seconds=seconds)[0], 1))
                    if url == ours:
                        row.notes = dict(counters.notes())
            rows.append(row)
        settings = {"rows": count, "pairs": pairs, "seconds": seconds, "clients": CLIENTS}
        return Result("ycsb", rows, {**settings, "postgres": postgres.version})


def fill(url: str, count: int) -> None:
    """The table, its rows, and the sequence that inserts take their keys from."""
    fields = ", ".join(f"field{n} varchar(100)" for n in range(FIELDS))
    values = ", ".join(f"repeat(md5((g + {n})::text), 3) || 'four'" for n in range(FIELDS))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create table usertable (ycsb_key bigint primary key, {fields})")
        for low in range(1, count + 1, 10_000):
            high = min(count, low + 9_999)
            connection.execute(
                f"insert into usertable select g, {values} from generate_series({low}, {high}) g"
            )
        connection.execute(f"create sequence ycsb_keys start {count + 1}")
