"""TPC-C, small: its nine tables for one warehouse, its five transactions, its conditions.

Chance comes from a seed and times are arguments, so two servers that are given the same sequence
have to answer the same, statement by statement, and hold the same rows in the end.
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import psycopg

DISTRICTS, CUSTOMERS, ITEMS, ORDERS = 10, 30, 100, 30
SCHEMA = """
create table warehouse (w_id int primary key, w_name varchar(10), w_tax numeric(4,4),
    w_ytd numeric(12,2));
create table district (d_w_id int, d_id int, d_name varchar(10), d_tax numeric(4,4),
    d_ytd numeric(12,2), d_next_o_id int, primary key (d_w_id, d_id));
create table customer (c_w_id int, c_d_id int, c_id int, c_last varchar(16), c_first varchar(16),
    c_credit char(2), c_discount numeric(4,4), c_balance numeric(12,2), c_ytd_payment numeric(12,2),
    c_payment_cnt int, c_delivery_cnt int, c_data varchar(500), primary key (c_w_id, c_d_id, c_id));
create table history (h_id int primary key, h_c_id int, h_c_d_id int, h_d_id int, h_date timestamp,
    h_amount numeric(6,2));
create table new_order (no_w_id int, no_d_id int, no_o_id int,
    primary key (no_w_id, no_d_id, no_o_id));
create table orders (o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamp,
    o_carrier_id int, o_ol_cnt int, primary key (o_w_id, o_d_id, o_id));
create table order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int,
    ol_delivery_d timestamp, ol_quantity int, ol_amount numeric(6,2), ol_dist_info char(24),
    primary key (ol_w_id, ol_d_id, ol_o_id, ol_number));
create table item (i_id int primary key, i_name varchar(24), i_price numeric(5,2),
    i_data varchar(50));
create table stock (s_w_id int, s_i_id int, s_quantity int, s_dist char(24), s_ytd int,
    s_order_cnt int, s_data varchar(50), primary key (s_w_id, s_i_id))
""".strip().split(";\n")
TABLES = ("warehouse", "district", "customer", "history", "new_order", "orders", "order_line",
          "item", "stock")  # fmt: skip
NAMES = ("BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING")
_START = dt.datetime.fromisoformat("2024-01-01")

# What has to hold at any time, as queries that give no row.
CONDITIONS = (
    "select w_id from warehouse where w_ytd <> (select sum(d_ytd) from district)",
    (
        "select d_id from district where d_next_o_id - 1 <> "
        "(select max(o_id) from orders where o_w_id = d_w_id and o_d_id = d_id)"
    ),
    (
        "select no_d_id from new_order group by no_w_id, no_d_id "
        "having max(no_o_id) - min(no_o_id) + 1 <> count(*)"
    ),
    (
        "select o_d_id, sum(o_ol_cnt) from orders group by o_w_id, o_d_id having sum(o_ol_cnt) <> "
        "(select count(*) from order_line where ol_w_id = o_w_id and ol_d_id = o_d_id)"
    ),
    (
        "select o_id from orders left join new_order on no_w_id = o_w_id and no_d_id = o_d_id and "
        "no_o_id = o_id where (o_carrier_id is null) <> (no_o_id is not null)"
    ),
    (
        "select o_id from orders join order_line on ol_w_id = o_w_id and ol_d_id = o_d_id and "
        "ol_o_id = o_id where (o_carrier_id is null) <> (ol_delivery_d is null)"
    ),
)


class Terminal:
    """Runs transactions on one connection. ``seen`` collects what was answered."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self.connection = connection
        self.random = random.Random(seed)
        self.seen: list[Any] = []
        self.now = _START
        self.payments = 0

    def ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement; its rows."""
        cursor = self.connection.execute(text, values)
        found = cursor.fetchall() if cursor.description else []
        self.seen.append((text[:30], found, cursor.rowcount))
        return found

    def load(self) -> None:
        """Fill the tables."""
        chance, ask = self.random, self.ask
        ask("insert into warehouse values (1, 'W', 0.1, 0)")
        for item in range(1, ITEMS + 1):
            price = f"{chance.randint(100, 9999) / 100:.2f}"
            ask("insert into item values (%s, %s, %s, 'data')", item, f"item {item}", price)
            ask("insert into stock values (1, %s, %s, 'dist', 0, 0, 'd')", item, item % 90 + 10)
        for district in range(1, DISTRICTS + 1):
            ask("insert into district values (1, %s, 'D', 0.05, 0, 1)", district)
            for customer in range(1, CUSTOMERS + 1):
                last = NAMES[customer % 10] + NAMES[customer % 7]
                credit = "BC" if customer % 10 == 0 else "GC"
                ask(
                    "insert into customer values (1,%s,%s,%s,%s,%s,0.1,-10,10,1,0,'')",
                    district, customer, last, f"first{customer}", credit,
                )  # fmt: skip

    def run(self, count: int) -> None:
        """So many transactions, in the benchmark's mix."""
        kinds = (self.new_order, self.payment, self.order_status, self.delivery, self.stock_level)
        for _ in range(count):
            self.now += dt.timedelta(seconds=1)
            (kind,) = self.random.choices(kinds, (45, 43, 4, 4, 4))
            with self.connection.transaction():
                kind()

    # The transactions.

    def new_order(self) -> None:
        chance, ask = self.random, self.ask
        district, customer = chance.randint(1, DISTRICTS), chance.randint(1, CUSTOMERS)
        lines = [(n, chance.randint(1, ITEMS), chance.randint(1, 10)) for n in range(1, 8)]
        ask(
            "select c_discount, c_last, c_credit, w_tax from customer, warehouse "
            "where w_id = 1 and c_w_id = w_id and c_d_id = %s and c_id = %s", district, customer,
        )  # fmt: skip
        ((number, _),) = ask(
            "update district set d_next_o_id = d_next_o_id + 1 where d_w_id = 1 and d_id = %s "
            "returning d_next_o_id - 1, d_tax", district,
        )  # fmt: skip
        ask(
            "insert into orders values (1, %s, %s, %s, %s, null, %s)",
            district, number, customer, self.now, len(lines),
        )  # fmt: skip
        ask("insert into new_order values (1, %s, %s)", district, number)
        for line, item, quantity in lines:
            ((price,),) = ask("select i_price from item where i_id = %s", item)
            ask(
                "update stock set s_quantity = case when s_quantity >= %s + 10 then s_quantity - "
                "%s else s_quantity - %s + 91 end, s_ytd = s_ytd + %s, s_order_cnt = s_order_cnt "
                "+ 1 where s_w_id = 1 and s_i_id = %s returning s_quantity, s_dist",
                quantity, quantity, quantity, quantity, item,
            )  # fmt: skip
            ask(
                "insert into order_line values (1, %s, %s, %s, %s, null, %s, %s, 'dist')",
                district, number, line, item, quantity, price * quantity,
            )  # fmt: skip

    def payment(self) -> None:
        chance, ask = self.random, self.ask
        district, amount = chance.randint(1, DISTRICTS), f"{chance.randint(100, 500000) / 100:.2f}"
        ask("update warehouse set w_ytd = w_ytd + %s where w_id = 1 returning w_name", amount)
        ask(
            "update district set d_ytd = d_ytd + %s where d_w_id = 1 and d_id = %s "
            "returning d_name",
            amount, district,
        )  # fmt: skip
        customer = self.by_name(district) if chance.random() < 0.6 else chance.randint(1, CUSTOMERS)
        ask(
            "update customer set c_balance = c_balance - %s, c_ytd_payment = c_ytd_payment + %s, "
            "c_payment_cnt = c_payment_cnt + 1, c_data = case when c_credit = 'BC' then "
            "left(%s || c_data, 500) else c_data end where c_w_id = 1 and c_d_id = %s and "
            "c_id = %s returning c_balance, c_credit, c_data",
            amount, amount, f"{customer} {district} {amount}|", district, customer,
        )  # fmt: skip
        self.payments += 1
        ask(
            "insert into history values (%s, %s, %s, %s, %s, %s)",
            self.payments, customer, district, district, self.now, amount,
        )  # fmt: skip

    def by_name(self, district: int) -> int:
        """The customer in the middle of those with a last name."""
        number = self.random.randint(1, CUSTOMERS)
        found = self.ask(
            "select c_id from customer where c_w_id = 1 and c_d_id = %s and c_last = %s "
            "order by c_first", district, NAMES[number % 10] + NAMES[number % 7],
        )  # fmt: skip
        return int(found[len(found) // 2][0])

    def order_status(self) -> None:
        district = self.random.randint(1, DISTRICTS)
        customer = self.by_name(district)
        self.ask(
            "select o_id, o_entry_d, o_carrier_id, ol_i_id, ol_quantity, ol_amount, ol_delivery_d "
            "from orders join order_line on ol_w_id = o_w_id and ol_d_id = o_d_id and "
            "ol_o_id = o_id where o_w_id = 1 and o_d_id = %s and o_id = (select max(o_id) from "
            "orders where o_w_id = 1 and o_d_id = %s and o_c_id = %s) order by ol_number",
            district, district, customer,
        )  # fmt: skip

    def delivery(self) -> None:
        ask, carrier = self.ask, self.random.randint(1, 10)
        for district in range(1, DISTRICTS + 1):
            found = ask(
                "delete from new_order where no_w_id = 1 and no_d_id = %s and no_o_id = (select "
                "min(no_o_id) from new_order where no_w_id = 1 and no_d_id = %s) returning no_o_id",
                district, district,
            )  # fmt: skip
            if not found:
                continue
            number = found[0][0]
            ((customer,),) = ask(
                "update orders set o_carrier_id = %s where o_w_id = 1 and o_d_id = %s and o_id = "
                "%s returning o_c_id", carrier, district, number,
            )  # fmt: skip
            ask(
                "update order_line set ol_delivery_d = %s where ol_w_id = 1 and ol_d_id = %s and "
                "ol_o_id = %s", self.now, district, number,
            )  # fmt: skip
            ask(
                "update customer set c_balance = c_balance + t.total, c_delivery_cnt = "
                "c_delivery_cnt + 1 from (select sum(ol_amount) as total from order_line where "
                "ol_w_id = 1 and ol_d_id = %s and ol_o_id = %s) t where c_w_id = 1 and c_d_id = %s "
                "and c_id = %s", district, number, district, customer,
            )  # fmt: skip

    def stock_level(self) -> None:
        district, threshold = self.random.randint(1, DISTRICTS), self.random.randint(10, 20)
        self.ask(
            "select count(distinct s_i_id) from district join order_line on ol_w_id = d_w_id and "
            "ol_d_id = d_id and ol_o_id < d_next_o_id and ol_o_id >= d_next_o_id - 20 join "
            "stock on s_w_id = d_w_id and s_i_id = ol_i_id where d_w_id = 1 and d_id = %s and "
            "s_quantity < %s", district, threshold,
        )  # fmt: skip
