"""Which queries give the same rows for the same tables."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.repeatable import normal_form, variable_part

REPEATABLE = [
    "select count(*), sum(a) filter (where b > 1), max(`c d`) from s.t group by e having count(*) > 1",
    "with a as (select lower(x) as x from s.t) select * from a where x in ('u', 'v') order by 1",
    "select row_number() over (partition by a order by b), cast(c as date), if(d, 1, 2) from s.t",
    "select /*+ broadcast(t) */ date_trunc('day', at), left(name, 2) from s.t limit 5",
    "select * from s.t version as of 'main' as t join s.u VERSION AS OF 12",
    "select * from s.t for version as of 12 where version = 5",
    "select unix_timestamp(a), unix_timestamp(b, 'yyyy') from s.t where c = '2026-11-27 10:00'",
    "with user as (select 1 as id), sample (a, b) as (select 1, 2) "
    "select user.id from user join sample on user.id = sample.a",
    "select * from (values (1, 2)) as t (a, b), (select 1) u(c), lateral explode(d) as e(f)",
    "with recursive t(n) as (values (1) union all select n + 1 from t) select n as user from t",
]
NOT = [
    "select rand() from s.t",
    "select current_date from s.t",
    "select current_timestamp() from s.t",
    "select * from s.t where at > NOW ( )",
    "select * from s.t where at > timestamp 'now'",
    "select * from s.t where d = date ' Yesterday UTC'",
    "select * from s.t where d = date 'today+05:00'",
    "select * from s.t where d > '${spark.cutoff}'",
    "select transform(a) using 'cat' as (x) from s.t",
    "select aes_encrypt(a, 'k') from s.t",
    "select spark_catalog.default.upper(a) from s.t",
    "select s.format(a) from s.t",
    "select uuid(), a from s.t",
    "select * from s.t tablesample (10 percent)",
    "select a as version, b as of from s.t",
    "select * from s.t timestamp as of '2026-01-01'",
    "select input_file_name() from s.t",
    "select reflect('java.util.UUID', 'randomUUID')",
    "select my_own_function(a) from s.t",
    "select `my own`(a) from s.t",
    "select lake.system.bucket_of_mine(4, a) from s.t",
    "select 'unclosed from s.t",
    "select unix_timestamp() from s.t",
    "select unix_timestamp ( ) as u from s.t",
    "select * from s.t where at > cast('10:00' as timestamp)",
    "select * from s.t where at > ' 9:05:01.5 Europe/Berlin'",
    "select timestamp 'T10:00'",
    "select extract(day from current_date) from s.t",
    "select trim(both 'a' from current_user) from s.t",
    "with user as (select 1) select user from s.t",
    "with t as (select mine(a) from s.t), mine as (select 1) select * from t",
    "with t as (select (a), rand(), mine(b) from s.t) select * from t",
    "select user as id, a from s.t",
]


@pytest.mark.parametrize("sql", REPEATABLE)
def test_repeatable(sql: str) -> None:
    assert normal_form(sql) is not None


@pytest.mark.parametrize("sql", NOT)
def test_not_repeatable(sql: str) -> None:
    assert normal_form(sql) is None


def test_comments_and_space_make_no_other_query() -> None:
    plain = normal_form("select a from s.t")
    assert normal_form('/* {"node": 1} */  SELECT a -- so\n FROM   s.t') != plain  # upper case
    assert normal_form('/* {"node": 1} */  select a -- so\n from   s.t') == plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("select 'a' from s.t", "select 'A' from s.t"),
        ("select a from s.t", "select A from s.t"),
        ("select 1.0 from s.t", "select 1.00 from s.t"),
        ("select 'a b' from s.t", "select 'a  b' from s.t"),
        ("select `a` from s.t", "select 'a' from s.t"),
        ("select r'\\n' from s.t", "select '\\n' from s.t"),
        ("select /*+ broadcast(a) */ 1 from s.t", "select /*+ merge(a) */ 1 from s.t"),
        ("select a b from s.t", "select a.b from s.t"),
        ('select "a" from s.t', "select 'a' from s.t"),
        ("select 0x1f from s.t", "select x'1f' from s.t"),
    ],
)
def test_other_queries_have_another_form(one: str, other: str) -> None:
    forms = normal_form(one), normal_form(other)
    assert None not in forms
    assert forms[0] != forms[1]


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("select lower(a), current_timestamp() from s.t", "current_timestamp"),
        ("select * from s.t where at > timestamp 'now'", "now"),
        ("select * from s.t timestamp as of '2026-01-01'", "as of"),
        ("select s.format(a) from s.t", "format"),
        ("select '${spark.cutoff}'", "${"),
        ("select f(1) /* non-deterministic */", "a function whose value changes from call to call"),
        ("select 'unclosed", "text that is no SQL"),
        ("select any(a), chr(65), decimal(1) from s.t", None),
        ("select t.user, random, uuid, 'user', t.of from s.t", None),
        ("select user from s.t", "user"),
        ("select t.user() from s.t", "user"),
        ("select `uuid`() from s.t", "uuid"),
        ("select current_timezone()", "current_timezone"),
        ("select percentile_cont(0.5) within group (order by a), len(b), mod(c, 2) from s.t", None),
        ("select a from s.t group by grouping sets ((a), ())", None),
    ],
)
def test_the_part_that_varies(sql: str, part: str | None) -> None:
    assert variable_part(sql) == part
