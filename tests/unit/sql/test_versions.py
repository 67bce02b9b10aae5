"""Snapshots in the text of a query."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.sql.versions import at_snapshots, tables_without_version


def with_version(sql: str, name: tuple[str, ...]) -> str:
    offsets = tables_without_version(sql).get(name, [])
    return at_snapshots(sql, dict.fromkeys(offsets, 7))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from s.t", "select * from s.t version as of 7"),
        ("select * from `s`.`t` as x", "select * from `s`.`t` version as of 7 as x"),
        (
            "select to_char(a, 'yyyy') from s.t x join s.t y on x.a = y.a",
            "select to_char(a, 'yyyy') from s.t version as of 7 x "
            "join s.t version as of 7 y on x.a = y.a",
        ),
        (
            "with t as (select * from s.t) select * from t where a in (select a from s.t)",
            "with t as (select * from s.t version as of 7) select * from t "
            "where a in (select a from s.t version as of 7)",
        ),
        (
            "-- s.t\nselect 's.t' from s.t -- s.t",
            "-- s.t\nselect 's.t' from s.t version as of 7 -- s.t",
        ),
        (
            "select * from s.t union all select * from s.u",
            "select * from s.t version as of 7 union all select * from s.u",
        ),
        ("select 'ü😀' from s.t", "select 'ü😀' from s.t version as of 7"),
    ],
)
def test_a_version_behind_each_mention(sql: str, expected: str) -> None:
    assert with_version(sql, ("s", "t")) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "select * from s.t version as of 3",
        "select * from s.t for system_time as of '2026-01-01'",
        "select * from s.t timestamp as of '2026-01-01'",
        "with t as (select 1) select * from t",
        "select * from range(3)",
        "select from from",
        "call lake.system.rewrite_data_files('s.t')",
    ],
)
def test_queries_that_stay(sql: str) -> None:
    assert with_version(sql, ("s", "t")) == sql
    assert with_version(sql, ("t",)) == sql


def test_three_part_names() -> None:
    sql = "select * from `lake`.`s`.`t`"
    assert with_version(sql, ("lake", "s", "t")) == f"{sql} version as of 7"
