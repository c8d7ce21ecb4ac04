"""TPC-H: its tables at scale factor 0.01 with made-up rows, and its 22 queries.

The rows follow the benchmark's shape (keys, ranges, words that the queries look for), not its
generator's numbers: both servers get the same ones, and have to give the same answers. Intervals in
the queries are worked out: ``date '1998-12-01' - interval '90' day`` is written as a date.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = """
create table region (r_regionkey int primary key, r_name char(25), r_comment varchar(152));
create table nation (n_nationkey int primary key, n_name char(25), n_regionkey int,
    n_comment varchar(152));
create table supplier (s_suppkey int primary key, s_name char(25), s_address varchar(40),
    s_nationkey int, s_phone char(15), s_acctbal numeric(15,2), s_comment varchar(101));
create table part (p_partkey int primary key, p_name varchar(55), p_mfgr char(25), p_brand char(10),
    p_type varchar(25), p_size int, p_container char(10), p_retailprice numeric(15,2),
    p_comment varchar(23));
create table partsupp (ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15,2),
    ps_comment varchar(199), primary key (ps_partkey, ps_suppkey));
create table customer (c_custkey int primary key, c_name varchar(25), c_address varchar(40),
    c_nationkey int, c_phone char(15), c_acctbal numeric(15,2), c_mktsegment char(10),
    c_comment varchar(117));
create table orders (o_orderkey int primary key, o_custkey int, o_orderstatus char(1),
    o_totalprice numeric(15,2), o_orderdate date, o_orderpriority char(15), o_clerk char(15),
    o_shippriority int, o_comment varchar(79));
create table lineitem (l_orderkey int, l_partkey int, l_suppkey int, l_linenumber int,
    l_quantity numeric(15,2), l_extendedprice numeric(15,2), l_discount numeric(15,2),
    l_tax numeric(15,2), l_returnflag char(1), l_linestatus char(1), l_shipdate date,
    l_commitdate date, l_receiptdate date, l_shipinstruct char(25), l_shipmode char(10),
    l_comment varchar(44), primary key (l_orderkey, l_linenumber))
""".strip().split(";\n")
QUERIES = Path(__file__).with_name("tpch.sql")
TABLES = ("region", "nation", "supplier", "part", "partsupp", "customer", "orders", "lineitem")

_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0),
    ("FRANCE", 3), ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4),
    ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0), ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1),
    ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2), ("RUSSIA", 3),
    ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_COLORS = ("almond", "forest", "green", "ivory", "lemon", "navy", "peach", "rose", "tan", "white")
_TYPES = (
    ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"),
    ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"),
    ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER"),
)
_CONTAINERS = (("SM", "LG", "MED", "JUMBO", "WRAP"), ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK"))
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
_INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
_EPOCH = dt.date(1992, 1, 1)


def rows(seed: int = 1) -> dict[str, list[tuple[Any, ...]]]:
    """All rows, by table."""
    chance = random.Random(seed)
    choice, number = chance.choice, chance.randint

    def money(low: int, high: int) -> str:
        cents = number(low * 100, high * 100)
        return f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02d}"

    def phone(nation: int) -> str:
        return f"{nation + 10}-{number(100, 999)}-{number(100, 999)}-{number(1000, 9999)}"

    made: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}
    made["region"] = [(i, name, "words") for i, name in enumerate(_REGIONS)]
    made["nation"] = [(i, name, region, "words") for i, (name, region) in enumerate(_NATIONS)]
    for key in range(1, 101):
        nation = number(0, 24)
        note = "slow Customer with many Complaints" if key % 23 == 0 else "words"
        made["supplier"].append((
            key, f"Supplier#{key:09d}", f"street {key}", nation, phone(nation), money(-999, 9999),
            note,
        ))  # fmt: skip
    for key in range(1, 2001):
        made["part"].append((
            key, " ".join(chance.sample(_COLORS, 3)), f"Manufacturer#{number(1, 5)}",
            f"Brand#{number(1, 5)}{number(1, 5)}", " ".join(map(choice, _TYPES)), number(1, 50),
            " ".join(map(choice, _CONTAINERS)), money(900, 2000), "words",
        ))  # fmt: skip
        for supplier in chance.sample(range(1, 101), 4):
            made["partsupp"].append((key, supplier, number(1, 9999), money(1, 1000), "words"))
    for key in range(1, 1501):
        nation = number(0, 24)
        made["customer"].append((
            key, f"Customer#{key:09d}", f"road {key}", nation, phone(nation), money(-999, 9999),
            choice(_SEGMENTS), "words",
        ))  # fmt: skip
    for key in range(1, 15001):
        day = _EPOCH + dt.timedelta(number(0, 2405))
        lines = list(_lines(chance, key, day, made["partsupp"]))
        status = {line[9] for line in lines}
        made["lineitem"] += lines
        # A third of the customers never buys.
        customer = number(1, 1500) // 3 * 3 + 1
        note = "special handling of requests" if key % 40 == 0 else "words"
        made["orders"].append((
            key, min(customer, 1500), status.pop() if len(status) == 1 else "P",
            money(1000, 400000), day, choice(_PRIORITIES), f"Clerk#{number(1, 10):09d}", 0, note,
        ))  # fmt: skip
    return made


def _lines(
    chance: random.Random, key: int, day: dt.date, offers: list[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    choice, number = chance.choice, chance.randint
    for line in range(1, number(1, 7) + 1):
        offer = choice(offers)
        quantity = number(1, 50)
        ship = day + dt.timedelta(number(1, 121))
        commit = day + dt.timedelta(number(30, 90))
        receipt = ship + dt.timedelta(number(1, 30))
        past = receipt <= dt.date(1995, 6, 17)
        cents = quantity * number(90000, 200000)
        yield (
            key, offer[0], offer[1], line, f"{quantity}.00", f"{cents // 100}.{cents % 100:02d}",
            f"0.{number(0, 10):02d}", f"0.{number(0, 8):02d}", choice("RA") if past else "N",
            "F" if ship <= dt.date(1995, 6, 17) else "O", ship, commit, receipt,
            choice(_INSTRUCTIONS), choice(_MODES), "words",
        )  # fmt: skip
