"""Statements made by chance, the same for the same seed: joins, groups, windows, sets, subqueries.

Every statement is ordered by all of its columns, so that its rows have one order only. What is
known to differ is not made: sums of doubles, which depend on the order of the rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

SETUP = """
create table ga (id int primary key, x int, y bigint, n numeric(8,2), t text, b boolean, d date);
create table gb (id int primary key, a_id int, x int, u numeric, s varchar(8), f float8);
create table gc (k text, v smallint, a_id int, primary key (k, v));
insert into ga values (1,1,10,1.50,'a',true,'2020-01-01'), (2,2,20,2.25,'b',false,'2020-02-01'),
    (3,2,null,null,'a',null,null), (4,null,40,-3.00,null,true,'1999-12-31'),
    (5,5,-7,0.00,'',false,'2024-02-29'), (6,1,10,1.50,'ab',true,'2020-01-01');
insert into gb values (1,1,1,1.5,'a',0.5), (2,1,null,2.25,'b',1.5), (3,2,3,null,null,null),
    (4,9,2,100,'zz',-2), (5,null,5,0.125,'a',2.25), (6,5,1,-1.50,'c',0), (7,6,2,3,'ab',1);
insert into gc values ('a',1,1), ('a',2,2), ('b',1,null), ('',3,5), ('c',-1,3)
""".strip().split(";\n")
CLEANUP = ("drop table ga", "drop table gb", "drop table gc")

# Columns by kind: number, text, other.
_NUMBERS = {"ga": ("id", "x", "y", "n"), "gb": ("id", "a_id", "x", "u"), "gc": ("v", "a_id")}
_TEXTS = {"ga": ("t",), "gb": ("s",), "gc": ("k",)}
_OTHERS = {"ga": ("b", "d"), "gb": ("f",), "gc": ()}


class Maker:
    """Makes statements from one source of chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def statement(self) -> str:
        """One SELECT."""
        makers: list[Callable[[], tuple[str, int]]] = [
            self.joined, self.joined, self.grouped, self.grouped, self.windowed, self.sets,
            self.with_query, self.derived,
        ]  # fmt: skip
        text, width = self.random.choice(makers)()
        return f"{text} order by {', '.join(map(str, range(1, width + 1)))}{self.cut()}"

    def cut(self) -> str:
        """Perhaps a LIMIT."""
        limits = ("", "", "", " limit 3", " limit 5 offset 1", " offset 2")
        return self.random.choice(limits)

    # Parts.

    def pick(
        self, names: list[tuple[str, str]], kinds: Mapping[str, tuple[str, ...]]
    ) -> str | None:
        """A column of one of the kinds, qualified."""
        found = [f"{alias}.{c}" for alias, table in names for c in kinds[table]]
        return self.random.choice(found) if found else None

    def number(self, names: list[tuple[str, str]], depth: int = 0) -> str:
        """An expression that is a number."""
        column = self.pick(names, _NUMBERS)
        assert column is not None
        roll = self.random.randrange(10 if depth < 2 else 5)
        if roll < 4:
            return column
        if roll == 4:
            return str(self.random.choice((0, 1, 2, -3, 1.5, 100)))
        left, right = self.number(names, depth + 1), self.number(names, depth + 1)
        if roll == 5:
            return f"coalesce({left}, {right})"
        if roll == 6:
            return f"case when {self.condition(names, depth + 1)} then {left} else {right} end"
        if roll == 7:
            return f"abs({left})"
        return f"({left} {self.random.choice('+-*')} {right})"

    def text(self, names: list[tuple[str, str]], depth: int = 0) -> str:
        """An expression that is a text."""
        column = self.pick(names, _TEXTS)
        assert column is not None
        roll = self.random.randrange(8 if depth < 2 else 4)
        if roll < 4:
            return column
        inner = self.text(names, depth + 1)
        made = (
            f"upper({inner})", f"({inner} || '-')", f"substring({inner}, 1, 1)",
            f"coalesce({inner}, 'none')",
        )  # fmt: skip
        return made[roll - 4]

    def condition(self, names: list[tuple[str, str]], depth: int = 0) -> str:
        """An expression that is true or false."""
        roll = self.random.randrange(12 if depth < 2 else 7)
        symbol = self.random.choice(("=", "<>", "<", "<=", ">", ">="))
        if roll < 3:
            return f"{self.number(names, 2)} {symbol} {self.number(names, 2)}"
        if roll == 3:
            value = self.random.choice(("'a'", "'b'", "''"))
            return f"{self.text(names, 2)} {symbol} {value}"
        if roll == 4:
            word = self.random.choice(("", "not "))
            return f"{self.number(names, 2)} is {word}null"
        if roll == 5:
            word = self.random.choice(("", "not "))
            return f"{self.number(names, 2)} {word}in (1, 2, 5)"
        if roll == 6:
            pattern = self.random.choice(("'a%'", "'%b'", "'_'"))
            return f"{self.text(names, 2)} like {pattern}"
        if roll == 7:
            return f"not ({self.condition(names, depth + 1)})"
        if roll == 8:
            return f"{self.number(names, 2)} in ({self.inner(names)})"
        if roll == 9:
            return f"exists ({self.inner(names)})"
        word = self.random.choice(("and", "or"))
        return f"({self.condition(names, depth + 1)} {word} {self.condition(names, depth + 1)})"

    def inner(self, names: list[tuple[str, str]]) -> str:
        """A subquery of one number, perhaps of the rows around it."""
        table = self.random.choice(("ga", "gb", "gc"))
        own = [("z", table)]
        around = self.pick(names, _NUMBERS)
        mine = self.pick(own, _NUMBERS)
        wanted = self.random.choice((f"{mine} = {around}", self.condition(own, 2), "true"))
        return f"select {mine} from {table} z where {wanted}"

    def source(self) -> tuple[str, list[tuple[str, str]]]:
        """FROM, and its tables by alias."""
        tables = self.random.sample(("ga", "gb", "gc"), self.random.choice((1, 2, 2, 3)))
        names = [("p", tables[0])]
        text = f"{tables[0]} p"
        for alias, table in zip("qr", tables[1:]):
            before = list(names)
            names.append((alias, table))
            kind = self.random.choice(("join", "left join", "right join", "full join", ","))
            left, right = self.pick(before, _NUMBERS), self.pick([(alias, table)], _NUMBERS)
            if kind == ",":
                text = f"{text} cross join {table} {alias}"
                continue
            on = f"{left} = {right}"
            # PostgreSQL takes nothing else for a full join.
            if kind != "full join" and self.random.random() < 0.4:
                on += f" and {self.condition(names, 2)}"
            text = f"{text} {kind} {table} {alias} on {on}"
        return text, names

    def where(self, names: list[tuple[str, str]]) -> str:
        """Perhaps a WHERE."""
        return f" where {self.condition(names)}" if self.random.random() < 0.6 else ""

    def columns(self, names: list[tuple[str, str]]) -> list[str]:
        """Some expressions for the list."""
        found = [self.number(names), self.text(names)]
        other = self.pick(names, _OTHERS)
        if other is not None and self.random.random() < 0.5:
            found.append(other)
        if self.random.random() < 0.3:
            found.append(f"({self.inner(names).replace('select ', 'select max(', 1)})".replace(
                " from ", ") from ", 1))  # fmt: skip
        if self.random.random() < 0.3:
            found.append(self.condition(names, 1))
        return found

    # Whole statements.

    def joined(self) -> tuple[str, int]:
        """Rows of joined tables."""
        text, names = self.source()
        columns = self.columns(names)
        word = self.random.choice(("", "", "distinct "))
        return f"select {word}{', '.join(columns)} from {text}{self.where(names)}", len(columns)

    def aggregate(self, names: list[tuple[str, str]]) -> str:
        """An aggregate."""
        number, text = self.number(names, 1), self.text(names, 1)
        found = self.random.choice((
            "count(*)", f"count({number})", f"count(distinct {number})", f"sum({number})",
            f"avg({number})", f"min({number})", f"max({text})", f"min({text})",
            f"bool_or({self.condition(names, 2)})", f"string_agg({text}, ',' order by {text})",
        ))  # fmt: skip
        if self.random.random() < 0.2:
            found += f" filter (where {self.condition(names, 2)})"
        return found

    def grouped(self) -> tuple[str, int]:
        """Groups of joined tables."""
        text, names = self.source()
        keys = [self.random.choice((self.pick(names, _NUMBERS), self.text(names, 2)))]
        if self.random.random() < 0.4:
            keys.append(self.pick(names, _TEXTS))
        columns = [str(key) for key in keys]
        columns += [self.aggregate(names) for _ in range(self.random.choice((1, 2, 3)))]
        group = ", ".join(map(str, range(1, len(keys) + 1)))
        having = (
            f" having {self.aggregate(names)} is not null" if self.random.random() < 0.3 else ""
        )
        return (
            f"select {', '.join(columns)} from {text}{self.where(names)} group by {group}{having}",
            len(columns),
        )

    def windowed(self) -> tuple[str, int]:
        """Windows over one table, whose key makes their order unique."""
        table = self.random.choice(("ga", "gb"))
        names = [("p", table)]
        partition = self.random.choice(("", f"partition by {self.text(names, 2)} "))
        order = f"order by {self.number(names, 2)} {self.random.choice(('asc', 'desc'))}, p.id"
        frame = self.random.choice(
            ("", " rows between 1 preceding and 1 following", " rows unbounded preceding")
        )
        number = self.number(names, 1)
        call = self.random.choice((
            "row_number()", "rank()", "dense_rank()", f"lag({number})", f"lead({number}, 2)",
            f"sum({number})", f"avg({number})", "count(*)", f"first_value({number})",
            f"last_value({number})", f"min({number})", f"max({self.text(names, 1)})", "ntile(2)",
        ))  # fmt: skip
        over = f"({partition}{order}{frame})"
        return f"select p.id, {call} over {over} from {table} p{self.where(names)}", 2

    def sets(self) -> tuple[str, int]:
        """Two lists of a number and a text put together."""
        word = self.random.choice(
            ("union", "union all", "intersect", "except", "intersect all", "except all")
        )
        # Where equal rows are counted, numerics are put down in one form: without trailing zeros.
        kind = "::int" if word in ("intersect all", "except all") else ""
        arms = []
        for _ in range(2):
            text, names = self.source()
            arms.append(
                f"select ({self.pick(names, _NUMBERS)} + 0){kind}, {self.text(names, 2)} || '' "
                f"from {text}{self.where(names)}"
            )
        return f"{arms[0]} {word} {arms[1]}", 2

    def with_query(self) -> tuple[str, int]:
        """A query of WITH, used twice."""
        text, names = self.source()
        body = f"select {self.number(names, 2)} as m, {self.text(names, 2)} as w from {text}"
        return (
            (
                f"with q as ({body}{self.where(names)}) "
                "select q1.m, q2.w, count(*) from q q1 join q q2 on q1.m = q2.m group by 1, 2"
            ),
            3,
        )

    def derived(self) -> tuple[str, int]:
        """A join with a grouped subquery."""
        text, names = self.source()
        key = self.pick(names, _NUMBERS)
        kind = self.random.choice(("join", "left join"))
        return (
            (
                f"select o.id, s.c, s.m from ga o {kind} (select {key} as k, count(*) as c, "
                f"max({self.number(names, 1)}) as m from {text}{self.where(names)} group by 1) s "
                "on s.k = o.id"
            ),
            3,
        )
