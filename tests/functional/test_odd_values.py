"""Values that Spark stores and Python lacks, in tables and increments that dbt's process writes."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, snapshot_ids
from tests.functional.random_projects import model

SELECT = """
select {{ var('id', 1) }} as id, cast(X'FF61' as string) as s,
  date '9999-12-31' + 365 as d, timestamp_ntz '0001-01-01' - interval 400 days as t,
  named_struct('f', double('NaN'), 's', cast(X'FE' as string), 'd', date '9999-12-31' + 365) as st,
  array(float('NaN'), null) as fs
"""
INCREMENTAL = "{{ config(materialized='incremental', OPTIONS) }}\n" + SELECT
CASED = "{{ config(materialized='table') }} select named_struct('a', 1, 'A', 2) as st"
MODELS = {
    "built": "{{ config(materialized='table') }}\n" + SELECT,
    "merged": INCREMENTAL.replace("OPTIONS", "unique_key='id'"),
    "merged_by_date": INCREMENTAL.replace("OPTIONS", "unique_key=['d', 't', 's']"),
    "appended": INCREMENTAL.replace(
        "OPTIONS", "incremental_strategy='append', partition_by=['d', 'day(t)']"
    ),
}
ODD = """
select count(*), max(hex(s)), max(year(d)), max(year(t)), max(hex(st.s)), bool_and(isnan(st.f))
from {{schema}}.{}
"""


class TestOddValues:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {**{f"{name}.sql": sql for name, sql in MODELS.items()}, "cased.sql": CASED}

    @pytest.fixture(scope="class")
    def commits(self, project: Any) -> dict[str, list[int]]:
        """The number of snapshots of each model after each run."""
        found: dict[str, list[int]] = {name: [] for name in MODELS}
        for variables in ("{}", "{}", "id: 2"):
            run_dbt(["run", "--exclude", "cased", "--vars", variables])
            for name, numbers in found.items():
                numbers.append(len(snapshot_ids(project, name)))
        return found

    @pytest.mark.parametrize(
        ("name", "count"), {"built": 1, "merged": 2, "merged_by_date": 1, "appended": 3}.items()
    )
    def test_rows(self, project: Any, commits: Any, name: str, count: int) -> None:
        assert rows(project, ODD.format(name)) == [(count, "FF61", 10000, -1, "FE", True)]

    def test_equal_values_are_no_change(self, commits: dict[str, list[int]]) -> None:
        assert commits["merged"] == [1, 1, 2]
        assert commits["merged_by_date"] == [1, 1, 2]

    def test_fields_that_differ_by_case_only(self, project: Any) -> None:
        (result,) = run_dbt(["run", "--select", "cased"], expect_pass=False)
        assert "COLUMN_ALREADY_EXISTS" in result.message
        assert rows(project, "show tables in lake.{schema} like 'cased'") == []

    def test_results_of_queries(self, project: Any, commits: Any) -> None:
        shown = run_dbt(["show", "--inline", "select s, d from {{ ref('built') }}"])
        ((text, day),) = shown[0].agate_table.rows
        assert text == "\ufffda"
        assert "10000" in str(day)


NAMES = ("file", "pos", "updates", "inserts", "present", "row", "n")
NAMED = (
    "select id, "
    + ", ".join(f"id * {{{{ var('n', 1) }}}} as __dbt_{name}" for name in NAMES)
    + ", n as at, n as updates from (select explode(array(1, {{ var('n', 1) + 1 }})) as id, 1 as n)"
)
CONDITIONS = {
    "matched_condition": "DBT_INTERNAL_DEST.__dbt_pos > 0",
    "not_matched_condition": "DBT_INTERNAL_SOURCE.__dbt_pos > 0",
}


class TestNamesOfColumns:
    """Columns may have the names that merges use, or similar ones."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        configs: dict[str, dict[str, Any]] = {
            "rewritten": {"unique_key": ["__dbt_file", "id"], **CONDITIONS},
            "by_spark": {"unique_key": "id", "merge_engine": "spark", **CONDITIONS},
            "replaced": {"unique_key": "__dbt_row", "incremental_strategy": "delete+insert"},
        }
        return {
            f"{name}.sql": model({"materialized": "incremental", **config}, NAMED)
            for name, config in configs.items()
        }

    def test_rows(self, project: Any) -> None:
        for n in (1, 2):
            run_dbt(["run", "--vars", f"n: {n}"])
        query = "select id, __dbt_file, __dbt_present from {schema}.%s order by all"
        found = {name: rows(project, query % name) for name in ("rewritten", "by_spark")}
        assert found["rewritten"] == [(1, 1, 1), (1, 2, 2), (2, 2, 2), (3, 6, 6)]
        assert found["by_spark"] == [(1, 2, 2), (2, 2, 2), (3, 6, 6)]
        assert rows(project, query % "replaced") == [(1, 1, 1), (1, 2, 2), (3, 6, 6)]
