"""What a statement reads, told from its text."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.queries import (
    TemporaryView,
    multiplies_rows,
    reads,
    temporary_view,
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("merge into lake.s.t as d using `x__dbt_tmp` as n on n.id <=> d.id when matched then delete", {("x__dbt_tmp",)}),
        ("merge into s.t using (select * from s.a union all select * from s.b) n on true when matched then delete", {("s", "a"), ("s", "b")}),
        ("/* {} */ insert overwrite table lake.s.t (a) select a from lake.s.u", {("lake", "s", "u")}),
        ("/* {'a': 'with (b)'} */ insert overwrite table `s`.`t (with (x)`.`branch_b` with ('overwrite-mode' = 'static', 'b' = 'with (x)') (a) select a from s.u where b in ('with ()')", {("s", "u")}),
        ("insert into s.t WITH(fanout = 'x') select * from s.u", {("s", "u")}),
        ("insert into s.t replace where a > 1 and d < timestamp'2020-01-01' select * from x", {("x",)}),
        ("insert into s.t values (1)", set()),
        ("create or replace table s.t using iceberg as with c as (select * from s.a) select * from c join range(3)", {("s", "a")}),
        ("create table s.t (id int)", set()),
        ("delete from s.t where id in (select id from s.gone)", {("s", "gone")}),
        ("update s.t set a = (select max(a) from s.u) where b = 2", {("s", "u")}),
        ("update s.t set a = 1", set()),
        ("insert into s.t with source as (select * from source) select * from source", {("source",)}),
        ("merge into s.t as d using x on d.id in (select id from s.u) when matched then delete", {("x",), ("s", "u")}),
        ("merge into s.t as d using x on d.id = x.id when not matched then insert *", {("x",), ("s", "t")}),
        ("merge into s.t as d using x on d.id = x.id when not matched and x.a > 1 then insert (id) values (x.id)"
         " when not matched then insert *", {("x",), ("s", "t")}),
        ("merge into s.t d using x on d.id = x.id when not matched then insert * when matched then update set *", {("x",)}),
        ("merge into s.t d using x on d.id = x.id when not matched then insert * when not matched by source then delete", {("x",)}),
        ("select * from parquet.`/data/x`", {("parquet", "/data/x")}),
        ("select /*+ broadcast(x), merge(s.t) */ * from s.t x join s.u y on x.a = y.a", {("s", "t"), ("s", "u")}),
        ("with c as (select 1 as a) select * from c, s.t lateral view explode(x) y as z", {("s", "t")}),
    ],
)  # fmt: skip
def test_reads(sql: str, expected: set[tuple[str, ...]]) -> None:
    actual = reads(sql)
    assert actual is not None
    assert actual.relations == expected


def test_versions() -> None:
    actual = reads(
        "with c as (select * from s.t version as of 'it\\'s') select * from c join s.t version as of 5"
        " join s.t as now join s.u version as of '7' join s.v timestamp as of '2026-01-01' join s.w"
    )
    assert actual is not None
    assert actual.relations == {("s", name) for name in "tuvw"}
    assert actual.versions == {("s", "t"): {"it's", 5, None}, ("s", "u"): {7}}


@pytest.mark.parametrize(
    "sql", ["call lake.system.expire_snapshots('s.t')", "not ( sql", "set a = b"]
)
def test_what_is_not_understood_is_not_guessed(sql: str) -> None:
    assert reads(sql) is None


@pytest.mark.parametrize(
    ("sql", "name", "relations"),
    [
        ("create or replace temporary view `V` as select * from s.a", "V", {("s", "a")}),
        ("create temporary view v (a comment 'x') as select * from s.a", "v", {("s", "a")}),
        ("cache table v as select * from s.a where t > (select max(t) from s.t)", "v", {("s", "a"), ("s", "t")}),
    ],
)  # fmt: skip
def test_temporary_views(sql: str, name: str, relations: set[tuple[str, ...]]) -> None:
    view = temporary_view(sql)
    assert view is not None and view.reads is not None
    assert (view.name, view.reads.relations) == (name, relations)


@pytest.mark.parametrize(
    ("sql", "name", "is_cached"),
    [
        ("create temporary view v as table t", "v", False),
        ("/* x */ create or replace global temp view `a``b` as table t", "a`b", False),
        ("cache lazy table v as table t", "v", True),
    ],
)
def test_temporary_views_that_are_not_understood(sql: str, name: str, is_cached: bool) -> None:
    assert temporary_view(sql) == TemporaryView(name, None, is_cached)


@pytest.mark.parametrize(
    "sql", ["create view s.v as select 1", "create table s.t as select 1", "select 1"]
)
def test_other_statements_define_no_temporary_view(sql: str) -> None:
    assert temporary_view(sql) is None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from a join b on a.x = b.x left join c using (x) natural join d", False),
        ("select * from a where exists (select 1 from b where b.y = a.y)", False),
        ("select * from a join b on a.x <=> b.x and a.y > b.y", False),
        ("select item from a lateral view explode(items) as item", False),
        ("select * from range(100) join range(5, 200) as b using (id)", False),
        ("select * from values (1), (2)", False),
        ("select * from a, b where a.x = b.x", True),
        ("select * from a cross join b", True),
        ("select * from a join b on a.x < b.x", True),
        ("select * from a join lateral (select 1) on true", True),
        ("select * from (select * from a where x in (select b.x from b join c))", True),
        ("select explode(sequence(date '2020-01-01', date '2021-01-01'))", True),
        ("select explode(array_repeat(x, 1000)) from a", True),
        ("select * from range(1000000)", True),
        ("select * from range(0, 10, 1, 4)", True),
        ("with recursive t as (select 1) select * from t", True),
        ("select from from", True),
    ],
)
def test_queries_that_multiply_rows(sql: str, expected: bool) -> None:
    assert multiplies_rows(sql) == expected
