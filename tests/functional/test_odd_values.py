"""Values that Spark stores and Python lacks, in tables and increments that dbt's process writes."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, snapshot_ids

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
