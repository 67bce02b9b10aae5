from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dbt.tests.adapter.ephemeral.test_ephemeral import (
    BaseEphemeralErrorHandling,
    BaseEphemeralMulti,
    BaseEphemeralNested,
)
from dbt.tests.util import check_relations_equal, run_dbt


def without_digits_and_spaces(sql: str) -> str:
    return re.sub(r"[\d\s]+", "", sql)


def assert_sql_of_run(model: str, expected: str) -> None:
    sql = Path(f"target/run/test/models/{model}.sql").read_text()
    assert without_digits_and_spaces(sql) == without_digits_and_spaces(expected)


# Spark's `create view`, and its quotes.
class TestEphemeralMulti(BaseEphemeralMulti):
    def test_ephemeral_multi(self, project: Any) -> None:
        run_dbt(["seed"])
        results = run_dbt(["run"])
        assert len(results) == 3

        check_relations_equal(project.adapter, ["seed", "dependent"])
        check_relations_equal(project.adapter, ["seed", "double_dependent"])
        check_relations_equal(project.adapter, ["seed", "super_dependent"])
        assert_sql_of_run(
            "double_dependent",
            f"""
            create or replace view `{project.database}`.`{project.test_schema}`.`double_dependent`
            as
            with __dbt__cte__base as (
                select * from {project.test_schema}.seed
            ), __dbt__cte__base_copy as (
                select * from __dbt__cte__base
            )
            -- base_copy just pulls from base. Make sure the listed
            -- graph of CTEs all share the same dbt_cte__base cte
            select * from __dbt__cte__base where gender = 'Male'
            union all
            select * from __dbt__cte__base_copy where gender = 'Female'
            """,
        )


# Spark's `create view`, and its quotes.
class TestEphemeralNested(BaseEphemeralNested):
    def test_ephemeral_nested(self, project: Any) -> None:
        results = run_dbt(["run"])
        assert len(results) == 2
        schema = f"`{project.database}`.`{project.test_schema}`"
        assert_sql_of_run(
            "root_view",
            f"""
            create or replace view {schema}.`root_view`
            as
            with __dbt__cte__ephemeral_level_two as (
                select * from {schema}.`source_table`
            ), __dbt__cte__ephemeral as (
                select * from __dbt__cte__ephemeral_level_two
            )
            select * from __dbt__cte__ephemeral
            """,
        )


class TestEphemeralErrorHandling(BaseEphemeralErrorHandling):
    pass
