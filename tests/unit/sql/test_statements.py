import pytest

from dbt.adapters.iceberg_stream.sql.statements import (
    called_names,
    classify,
    dropped_namespace,
    replacing_query,
    split,
    with_target,
)


@pytest.mark.parametrize(
    ("sql", "verb", "target"),
    [
        ("/* {\"app\": \"dbt\"} */ create or replace table `l`.`a`.`b` as select 1", "create", ("l", "a", "b")),
        ("merge into a.b as t using s on true when matched then delete", "merge", ("a", "b")),
        ("merge with schema evolution into a.b using s on true when matched then delete", "merge", ("a", "b")),
        ("delete from schema.with", "delete", ("schema", "with")),
        ("with x as (select 1) insert into l.a.b select * from x", "insert", ("l", "a", "b")),
        ("from s insert into b select *", "insert", ("b",)),
        ("insert overwrite table `a` select 1", "insert", ("a",)),
        ("drop table if exists l.s.`table`", "drop", ("l", "s", "table")),
        ("alter table x.y add column z int", "alter", ("x", "y")),
        ("delete from a.b.`c d` where true", "delete", ("a", "b", "c d")),
        ("create view if not exists a.b as select 1", "create", ("a", "b")),
        ("create or replace temporary view v as select 1", "create", None),
        ("create schema s", "create", None),
        ("select 'insert into a.b'", "select", None),
        ("with insert_me as (select 1) select * from insert_me", "select", None),
        ("cache table v as select 1", "cache", None),
        ("select 'not closed", "unknown", None),
        ("", "unknown", None),
    ],
)  # fmt: skip
def test_classify(sql: str, verb: str, target: tuple[str, ...] | None) -> None:
    statement = classify(sql)
    assert (statement.verb, statement.target) == (verb, target)
    assert statement.writes == (target is not None)


def test_split() -> None:
    assert split("select 1") == ["select 1"]
    assert split("set a = 1;\nselect ';' as x; -- end; of it\n") == [
        "set a = 1",
        "select ';' as x",
    ]


@pytest.mark.parametrize(
    ("sql", "namespace"),
    [
        ("drop schema if exists l.s cascade", ("l", "s")),
        ("/* c */ DROP NAMESPACE s CASCADE", ("s",)),
        ("drop schema l.`a.b` cascade", ("l", "a.b")),
        ("drop schema s", None),
        ("drop table s.t", None),
    ],
)
def test_dropped_namespace(sql: str, namespace: tuple[str, ...] | None) -> None:
    assert dropped_namespace(sql) == namespace


@pytest.mark.parametrize(
    ("sql", "query"),
    [
        ("create or replace table l.a.b using iceberg as select 1", "select 1"),
        ("/* {} */ -- x\n CREATE OR REPLACE TABLE `l`.`a b`.`c``d` USING iceberg\n  AS\n-- y\nwith q", None),
        ("/* {} */ -- x\n CREATE OR REPLACE TABLE `l`.`a b`.`c` USING iceberg\n  AS\n-- y\nwith q", "-- y\nwith q"),
        ("create or replace table a.b using iceberg tblproperties ('x'='y') as select 1", None),
        ("create or replace table a.b using iceberg partitioned by (x) as select 1 as x", None),
        ("create or replace table a.b using parquet as select 1", None),
        ("create table a.b using iceberg as select 1", None),
        ("create or replace temporary view v as select 1", None),
        ("create or replace table a.b (using iceberg as select 1", None),
        ("insert into a.b select 'create or replace table a.b using iceberg as select 1'", None),
    ],
)  # fmt: skip
def test_replacing_query(sql: str, query: str | None) -> None:
    actual = replacing_query(sql)
    assert (actual and actual.strip()) == query
    if actual is not None:
        # Errors name the line and position in the statement.
        assert len(actual) == len(sql) and actual.count("\n") == sql.count("\n")
        assert actual.index(query or "") == sql.index(query or "")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("insert into a.b select * from a.b", "insert into `x` select * from a.b"),
        ("INSERT INTO TABLE `a`.`b` (c) select 1", "INSERT INTO TABLE `x` (c) select 1"),
        (
            "/* a.b */ merge into l.a.b.branch_q as t using s",
            "/* a.b */ merge into `x` as t using s",
        ),
        (
            "with a as (select 1) insert overwrite a.b select 1",
            "with a as (select 1) insert overwrite `x` select 1",
        ),
    ],
)
def test_statements_with_another_target(sql: str, expected: str) -> None:
    assert with_target(sql, "`x`") == expected


def test_names_in_calls() -> None:
    assert called_names("/* it's */ call l.system.f('s.t', where => 'a = 1'); select 's.u'") == [
        ("s", "t"),
        ("a = 1",),
    ]
    assert called_names("call f(table => '`l`.`s`.`t`')") == [("l", "s", "t")]
