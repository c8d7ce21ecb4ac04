-- Which column a name means, what is refused rather than passed over, and what is refused for good.
create table t1(a int primary key, b text, c int);
create table t2(a int primary key, b text, d int);
insert into t1 select g, 'x' || g, g % 3 from generate_series(1, 10) g;
insert into t2 select g, 'y' || g, g * 2 from generate_series(1, 10) g;
select a from t1, t2;
select t1.a from t1, t2 where b = 'x';
select a as b, b from t1 order by b;
select a as b, b from t1 order by b desc limit 3;
select a, a from t1 order by a limit 2;
select a as x, a as x from t1 order by x limit 2;
select a, * from t1 order by a limit 2;
select *, c as a from t1 order by a;
select a + 1 as x, a + 1 as x from t1 order by x limit 2;
select a + 1 as x, a + 2 as x from t1 order by x limit 2;
select 1 as x, 1 as x from t1 order by x limit 1;
select a as b, b from t1 order by t1.b limit 3;
select a as b, b from t1 order by b || '';
select a as b, b from t1 order by 2 limit 3;
select count(*) as n, max(a) as n from t1 order by n;
select c as a, count(*) as a from t1 group by c order by a;
select t1.a as x, t2.d as x from t1 join t2 on t1.a = t2.a order by x;
select t1.a as x, t2.a as x from t1 join t2 on t1.a = t2.a order by t1.a limit 2;
select c as a from t1 group by a order by 1;
select distinct on (c) c, b from t1 order by c, a desc;
select c from t1 order by c, a fetch first row only;
select c from t1 order by c, a offset 1 row fetch next 2 rows only;
select c from t1 order by c fetch first 2 rows with ties;
select * from generate_series(1, 3) with ordinality as g(v, n);
select * from generate_series(5, 1, -2) with ordinality as g(v, n) where n > 1;
select * from generate_series(1, 3) with ordinality;
select v * n from generate_series(2, 4) with ordinality as g(v, n) order by n desc;
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select * from r;
-- differs: CYCLE is not built
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) cycle n set c using p select n from r;
-- differs: SEARCH is not built
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) search depth first by n set o select n from r;
select c, b, grouping(c, b), count(*) from t1 group by grouping sets ((c), (b), ()) order by 3, 1, 2;
select c, count(*) from t1 group by rollup (c) order by 1;
select c, b, count(*) from t1 group by cube (c, b) order by 1, 2 limit 5;
select t1.a, l.m from t1, lateral (select max(d) m from t2 where t2.a <= t1.a) l order by 1 limit 3;
select t1.a, l.* from t1 left join lateral (select t2.b, t2.d from t2 where t2.a > t1.a order by t2.a limit 2) l on true order by 1, 2 limit 5;
insert into t1 values (11, 'n', 1) returning a + 1 as a1, upper(b), *;
insert into t1 values (1, 'z', 5) on conflict (a) do update set b = excluded.b where t1.c < excluded.c returning *;
insert into t1 values (1, 'zz', 5) on conflict (a) do update set b = excluded.b where t1.c > 100 returning *;
insert into t1 as q values (1, 'zz', 5) on conflict on constraint t1_pkey do update set b = q.b || excluded.b returning b;
update t1 set c = c + 1 from t2 where t1.a = t2.a and t2.d > 15 returning t1.a, t2.d, t1.c;
delete from t1 using t2 where t1.a = t2.a and t2.d > 18 returning t1.*, t2.b;
with d as (delete from t1 where a = 9 returning *) insert into t1 select a + 10, b, c from d returning *;
with u as (update t1 set c = 0 where a = 2 returning a) select count(*) from u;
create table gen(a int, b int generated always as (a * 2) stored);
create index on t1 (lower(b));
create unique index on t1 (b) where c > 0;
create type mood as enum ('sad', 'ok', 'happy');
-- differs: domains are not built
create domain positive as int check (value > 0);
-- differs: type timetz is not built
select '10:00+02'::timetz;
