"""Fields of structs: they are matched by their names, and none becomes null in silence."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows

CONFIGS = {
    "appended": "incremental_strategy='append'",
    "overwritten": "incremental_strategy='insert_overwrite'",
    "of_partitions": "incremental_strategy='insert_overwrite', partition_by=['day']",
    "deleted": "incremental_strategy='delete+insert', unique_key='id'",
    "merged": "incremental_strategy='merge', unique_key='id'",
    "merged_by_spark": (
        "incremental_strategy='merge', unique_key='id', merge_engine='spark', "
        "sql_header='set spark.sql.shuffle.partitions = 2; -- as a comment'"
    ),
    "of_batches": (
        "incremental_strategy='microbatch', event_time='day', begin='2026-01-01', batch_size='day', "
        "partition_by=['day']"
    ),
}
FIELDS = {
    "full": "'x', {n}, 'y', 'y{n}'",
    "swapped": "'y', 'y{n}', 'x', {n}",
    "less": "'y', 'y{n}'",
    "more": "'y', 'y{n}', 'z', 'z{n}', 'x', {n}",
}
QUERY = """
{{{{ config(materialized='incremental', on_schema_change=var('change', 'ignore'), {config}) }}}}
{{% set fields = var('fields') if is_incremental() else {full!r} %}}
{{% set n = 20 if is_incremental() else 10 %}}
select {{{{ n }}}} as id, named_struct({{{{ fields.format(n=n) }}}}) as st,
  array(named_struct({{{{ fields.format(n=n) }}}})) as sts, date'2026-01-01' as day
"""
DAY = ["--event-time-start", "2026-01-01", "--event-time-end", "2026-01-02"]


def run_with(fields: str, *arguments: str, passes: bool = True, change: str = "ignore") -> Any:
    variables = {"fields": FIELDS[fields], "change": change}
    return run_dbt(["run", *DAY, "--vars", str(variables), *arguments], expect_pass=passes)


class Fields:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            f"{name}.sql": QUERY.format(config=config, full=FIELDS["full"])
            for name, config in CONFIGS.items()
        }

    def test_fields_in_another_order(self, project: Any) -> None:
        run_with("full", "--full-refresh")
        run_with("swapped")
        for name in CONFIGS:
            query = f"select st.x, st.y, sts[0].x, sts[0].y from {{schema}}.{name} where id = 20"
            assert (name, rows(project, query)) == (name, [(20, "y20", 20, "y20")])

    def test_a_field_that_the_increment_lacks(self, project: Any) -> None:
        run_with("full", "--full-refresh")
        results = run_with("less", passes=False)
        assert {(r.node.name, str(r.status)) for r in results} == {
            (name, "error") for name in CONFIGS
        }
        for name in CONFIGS:
            assert rows(project, f"select id, st.x from {{schema}}.{name}") == [(10, 10)]


class TestFewRows(Fields):
    def test_a_field_that_the_table_lacks(self, project: Any) -> None:
        """It is added if the config says so, and never left out in silence."""
        run_with("full", "--full-refresh")
        for result in run_with("more", "--exclude", "of_batches", passes=False):
            assert "`st.z`, which its table does not have. Set `on_schema_change" in result.message
        run_with("more", change="append_new_columns")
        for name in CONFIGS:
            query = f"select st.x, st.y, st.z, sts[0].z from {{schema}}.{name} where id = 20"
            assert (name, rows(project, query)) == (name, [(20, "y20", "z20", "z20")])


class TestManyRows(Fields):
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: Any) -> dict[str, object]:
        return {**dbt_profile_target, "small_table_rows": 0}
