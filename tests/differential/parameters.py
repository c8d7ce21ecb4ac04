"""Statements with parameters, sent as text without types, over the tables of `generate`."""

from __future__ import annotations

# (text, parameters)
STATEMENTS: list[tuple[str, list[str]]] = [
    (
        (
            "select p.id, q.u from ga p join gb q on q.a_id=p.id where p.n > $1 and q.u < $2 "
            "order by 1,2"
        ),
        ["0", "50.5"],
    ),
    (
        "select p.id + $1, $2 || p.t from ga p join gb q on true where q.id = $3 order by 1,2",
        ["5", "x", "1"],
    ),
    ("select count(*) from ga p join gb q on p.d > $1", ["2020-01-15"]),
    (
        "select p.id from ga p join gb q on p.id = q.a_id where p.id = any($1) order by 1",
        ["{1,2,5}"],
    ),
    (
        "select p.id from ga p where p.t = any($1) and exists (select 1 from gb) order by 1",
        ["{a,b}"],
    ),
    ("select coalesce(p.x, $1) from ga p join gc q on true order by 1", ["42"]),
    (
        "select case when p.x > $1 then $2 else $3 end from ga p join gc q on true order by 1",
        ["1", "hi", "lo"],
    ),
    (
        "select p.n * $1, p.n + $2, p.y / $3 from ga p join gc q on q.v = $4 order by 1,2,3",
        ["1.25", "1", "3", "1"],
    ),
    ("select $1::int union all select id from ga order by 1 limit $2 offset $3", ["77", "3", "1"]),
    ("select sum(n) filter (where x > $1), avg(y + $2) from ga, gc", ["1", "0.5"]),
    ("select lag(id, $1, $2) over (order by id) from ga order by 1", ["2", "99"]),
    (
        (
            "select * from (values ($1::int, $2::text), (2, 'b')) v(a,b) join ga on ga.id = "
            "v.a order by 1"
        ),
        ["1", "zz"],
    ),
    ("select id from ga where (x, id) in (select x, id from ga where n >= $1) order by 1", ["1.5"]),
    (
        "with q as (select id from ga where id > $1) select count(*) from q, q q2 where q.id < $2",
        ["2", "6"],
    ),
    ("select generate_series from generate_series($1::int, $2::int) order by 1", ["2", "4"]),
    ("select p.b, q.f from ga p join gb q on p.b = $1 and q.f > $2 order by 1,2", ["t", "0.75"]),
    ("select $1 from ga, gb limit 1", ["plain"]),
    ("select nullif(p.t, $1) from ga p, gc order by 1", ["a"]),
    (
        (
            "select p.id from ga p join gb q on true where p.id in ($1,$2,$3) group by p.id "
            "having count(*) > $4 order by p.id"
        ),
        ["1", "2", "9", "3"],
    ),
    (
        "select p.id from ga p, gb q where p.id between $1 and $2 and q.s like $3 order by 1",
        ["1", "3", "a%"],
    ),
    ("select string_agg(t, $1 order by id) from ga", ["-"]),
    (
        (
            "insert into gb (id, a_id, u) select id + $1, x, n * $2 from ga where exists "
            "(select 1 from gc where v = $3) returning id, u"
        ),
        ["100", "2", "1"],
    ),
    (
        "update gb set x = ga.x + $1 from ga where ga.id = gb.a_id and gb.id > $2 returning gb.x",
        ["10", "1"],
    ),
    ("delete from gb using ga where ga.id = gb.a_id and ga.n < $1", ["1.6"]),
    ("select * from gb order by id", []),
    ("select p.id from ga p, gb q where p.id = $1", ["x"]),
    ("select p.id from ga p, gb q where p.id = $1 limit $2", ["1", "-1"]),
    ("select $1 + 1 from ga, gb where ga.id = $2 limit 1", ["9223372036854775807", "1"]),
    ("select ga.id from ga, gb where ga.d = $1::date", ["notadate"]),
]
