-- What is no SQL, what names nothing, what has the wrong type: the SQLSTATEs of mistakes.
selec 1;
select from from;
select 1 +;
select * frm t;
select (1;
select 1);
select 'abc;
select 1 2;
select 1 as;
select ,1;
select 1,;
insert into;
insert t values (1);
update set a = 1;
delete t;
create tabel x(a int);
-- differs: a table without parentheses is taken
create table x;
create table (a int);
-- differs: another SQLSTATE
create table x(a);
drop tabel x;
alter table;
select * from;
select * from t where;
select 1 limit 'x';
select 1 limit -1;
select 1 offset -1;
select 1 order by 2;
select 1 group by 3;
select 1 having false;
select 1 where 1;
select 1 where 'x';
select 1 where null;
select not 1;
select 1 and true;
select case when 1 then 2 end;
select case 1 when 'a' then 2 end;
select case when true then 1 else 'a' end;
select coalesce(1, 'a');
select coalesce(1, date '2020-01-01');
select greatest(1, true);
select 1 union select 'a';
select 1 union select 1, 2;
select 1 union select true;
select a from (select 1) x;
select x.a from (select 1 as b) x;
select * from (select 1 as a, 2 as a) x where a = 1;
select * from nosuch;
select * from nosuch.t;
select nosuch;
select t.a from pg_class c;
select pg_class.nosuch from pg_class;
select c.relname from pg_class c, pg_class d where relname = 'x';
select count(*) from pg_class where count(*) > 1;
select relname from pg_class group by relkind;
select relkind, count(*) from pg_class having relkind = 'r';
select sum(count(*)) from pg_class;
select rank() from pg_class;
select sum(1) over w;
select 1 where row_number() over () = 1;
select max('a'), min(true);
-- differs: an ambiguous operator is told otherwise
select sum('a');
select sum('a'::text);
select avg(true);
select nosuch(1);
select abs('a');
select abs('a'::text);
select abs();
select abs(1, 2);
select lower(1, 2);
select now(5);
select 1 = 'a';
select 1 = 'a'::text;
select 1 || 2;
select true + true;
-- differs: an ambiguous operator is told otherwise
select -'a';
select - 'a'::text;
select 'a' * 2;
-- differs: an ambiguous operator is told otherwise
select date '2020-01-01' + 'x';
select '1'::nosuch;
select 1::int::date;
select cast('x' as int);
select cast(null as nosuch);
select $1;
select :x;
select ?;
select 1 in ();
select 1 in (1, 'a');
select 1 in (select 1, 2);
select (select 1, 2);
select (select 1 union select 2);
select 1 = (select generate_series(1, 2));
select 1 = any(1);
select 1 = any(array['a']);
select (1, 2) = (1, 2, 3);
-- differs: records are not built
select (1, 2) < (1, 3), (1, 2) = (1, 2), (1, null) = (1, 2), (1, 2) <> (1, 3), row(1, 'a') = row(1, 'a');
-- differs: records are not built
select row(1, 2), (1, 'a', null), row();
select exists (select 1), exists (select 1 where false), not exists (select 1);
select distinct on (1) 1, 2;
select distinct 1 order by 2;
select distinct relkind from pg_class order by relname;
select 1 as a order by a;
select 1 as a order by a + 1;
select 1 as a, 2 as a order by a;
select 1 as "A b", 2 as "select", 3 as "é";
select 1 "a""b";
select "nosuch";
-- differs: reserved words are no labels
select 1 as select;
-- differs: reserved words are no labels
select 1 select;
select 1 a, 2 b, 3 "C";
select 1 as value, 2 as key, 3 as name, 4 as type, 5 as date, 6 as user_id;
select all 1, 2;
select 1 /* comment */ + /* nested /* deeper */ */ 1 -- end
;
select 1 -- only
+ 1;
select /* unterminated;
select '' as empty, ' ' as blank, 'a''b' as quote, E'\\' as backslash;
select 1.2.3;
select 1..2;
select 0x1F;
select 1_000;
select 1e;
select .5, 5., 1.e2, 00012;
select 12345678901234567890, 1234567890123456789, -9223372036854775808;
select +1, -+1, - - 1, +-+1;
select 1<2, 1<=2, 1>=2, 1<>2, 1!=2, 1=2;
select not true, not false and true, true or false and false, not true = false;
select 1 is null, null is null, 1 is not null, null isnull, 1 notnull, true is true, null is unknown, false is not true;
select 1 between 0 and 2 and true, 1 not between 2 and 3, 5 between 1 and 3 or true;
select null = null, null <> null, null and false, null or true, null and true, not null;
select 2 + 2 * 3 - 4 / 2, 2 * (3 + 4), 10 % 3 * 2, -2 * -3, 2 ^ 2 * 3;
select 'a' || 'b' = 'ab', 1 + 1 || 'x', 'a' || 1 + 1;
-- differs: comparisons may stand in a row
select 1 > 2 = false, (1 > 2) is false, 'a' like 'a' and true, not 'a' like 'b';
-- differs: comparisons may stand in a row
select 3 = 3 = true;
-- differs: comparisons may stand in a row
select 1 < 2 < 3;
values (1), (2);
values (1, 'a'), (2, 'b') order by 1 desc;
values (1), (2, 3);
values (1), ('a');
values (1), (2.5), (null);
-- differs: aclitem is text here
table pg_namespace limit 0;
table nosuch;
with a as (select 1) select * from b;
with a as (select 1), a as (select 2) select * from a;
with a(x, y) as (select 1) select * from a;
with a(x) as (select 1, 2) select * from a;
with a as (select 1 as x) select x from a union all select x + 1 from a;
with recursive r as (select 1 union all select n from r) select * from r;
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select sum(n) from r;
with recursive r(n) as (select 1 union select n % 3 + 1 from r) select * from r order by n;
create view v as select 1 as a, 2 as a;
create view v as select 1;
select * from v;
create view v as select 2;
create or replace view v as select 2;
create or replace view v as select 'x';
create or replace view v as select 3, 4 as b;
create view v2 as select * from nosuch;
create view v3(x, y) as select 1, 2;
select x + y from v3;
-- differs: views cannot be written to
insert into v3 values (1, 2);
drop table v;
drop view v;
drop view v, v3;
drop view if exists nosuch;
drop view nosuch;
create sequence sq start 10 increment 5;
select nextval('sq'), nextval('sq'), currval('sq'), lastval();
select setval('sq', 100), nextval('sq'), setval('sq', 7, false), nextval('sq');
select nextval('nosuch');
create sequence sq;
create sequence if not exists sq;
create sequence lim minvalue 1 maxvalue 2 cycle;
select nextval('lim'), nextval('lim'), nextval('lim');
create sequence fin maxvalue 2;
select nextval('fin'), nextval('fin');
select nextval('fin');
alter sequence sq restart with 50;
select nextval('sq');
alter sequence sq increment by 2;
-- differs: ALTER SEQUENCE keeps what was reserved
select nextval('sq');
-- differs: a sequence is no relation
select last_value, is_called from sq;
select sequence_name, start_value, increment from information_schema.sequences order by 1;
select setval('lim', 5);
drop sequence sq, lim, fin;
drop sequence nosuch;
create sequence bad increment 0;
create sequence bad minvalue 10 maxvalue 5;
create table ser(id bigserial primary key, small smallserial, v text);
insert into ser(v) values ('a'), ('b') returning id, small;
select pg_get_serial_sequence('ser', 'id'), pg_get_serial_sequence('ser', 'v');
select nextval('ser_id_seq'), currval(pg_get_serial_sequence('ser', 'id'));
drop table ser;
select currval('ser_id_seq');
create schema s1;
create schema s1;
create schema if not exists s1;
create table s1.t(a int);
select a from s1.t;
drop schema s1;
drop schema s1 cascade;
drop schema nosuch;
create type mood as enum ('sad', 'ok');
-- differs: not built
create domain posint as int check (value > 0);
create extension if not exists plpgsql;
create extension plpgsql;
drop extension if exists nosuch;
drop extension nosuch;
create extension if not exists nosuch;
create extension nosuch;
-- differs: not built
create function f() returns int language sql as 'select 1';
-- differs: not built
create trigger tr before insert on nosuch for each row execute function f();
create role r1;
create role r1;
-- differs: the first password needs a superuser
create user u1 password 'x';
-- differs: catalogs are not granted
grant select on pg_class to r1;
create table g(a int);
grant select, insert on g to r1;
grant all on g to nosuch;
grant select on nosuch to r1;
revoke insert on g from r1;
grant usage on schema public to r1;
select grantee, privilege_type from information_schema.role_table_grants where table_name = 'g' and grantee = 'r1';
drop role r1;
drop table g;
-- differs: a grant on a schema or a catalog keeps nothing
drop role r1;
-- differs: the first password needs a superuser
drop role u1;
drop role nosuch;
drop role if exists nosuch;
