"""Projects that write the SQL of `append` and `merge` themselves."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, run_dbt_and_capture

from tests.functional.lake import rows

INCREMENTAL = "{{ config(materialized='incremental', incremental_strategy='append') }}\n"
MERGED = INCREMENTAL.replace(
    "='append'", "='merge', unique_key='id', merge_engine=var('engine', 'auto')"
)
MODELS = {
    "appended.sql": INCREMENTAL + "select explode(array(1, 1)) as id",
    "merged.sql": MERGED + "select explode(array(1, 1)) as id",
}
STRATEGIES = ("append", "merge")
MERGE = """
{% macro NAME(target, source, unique_key, dest_columns, incremental_predicates=none) %}
  insert into {{ target }} select distinct id from {{ source }}
{% endmacro %}
"""
WRAPPED = """
{{ config(materialized='incremental', incremental_strategy='STRATEGY', unique_key='id') }}
select cast(null as int) as id, '{{ var("name", "a") }}' as name
"""
OWN = """
{{% macro get_incremental_own_{0}_sql(arg_dict) %}}
  {{{{ {1}(arg_dict['target_relation'], arg_dict['temp_relation'], arg_dict['unique_key'],
      arg_dict['dest_columns'], arg_dict['incremental_predicates']) }}}}
{{% endmacro %}}
"""
WRAPPERS = {"merge": "get_merge_sql", "replace": "get_delete_insert_merge_sql"}


class OverriddenStrategies:
    macro = """
{% macro get_incremental_STRATEGY_sql(arg_dict) %}
  insert into {{ arg_dict['target_relation'] }} select distinct id from {{ arg_dict['temp_relation'] }}
{% endmacro %}
"""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {
            f"{strategy}.sql": self.macro.replace("STRATEGY", strategy) for strategy in STRATEGIES
        }

    def test_their_sql_runs(self, project: Any) -> None:
        run_dbt(["run"])
        run_dbt(["run"])
        for name in ("appended", "merged"):
            assert rows(project, f"select count(*) from {{schema}}.{name}") == [(3,)]

    def test_a_rewrite_is_refused(self, project: Any) -> None:
        run_dbt(["run", "--select", "merged"])
        before = rows(project, "select count(*) from {schema}.merged")
        options = ["run", "--select", "merged", "--vars", "engine: rewrite"]
        _, output = run_dbt_and_capture(options, expect_pass=False)
        assert "merge_engine is rewrite, but the project has a macro" in " ".join(output.split())
        assert rows(project, "select count(*) from {schema}.merged") == before


class TestMacros(OverriddenStrategies):
    pass


class TestDispatchedMacros(OverriddenStrategies):
    macro = OverriddenStrategies.macro.replace("get_", "iceberg_stream__get_", 1)


class TestMacrosOfOtherAdapters:
    """Macros that dbt-spark's users override; `get_merge_sql` is dbt's own."""

    name = "spark__get_merge_sql"

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"merged.sql": MODELS["merged.sql"]}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"merge.sql": MERGE.replace("NAME", self.name)}

    def test_their_sql_runs(self, project: Any) -> None:
        run_dbt(["run"])
        run_dbt(["run"])
        assert rows(project, "select count(*) from {schema}.merged") == [(3,)]


class TestGetMergeSql(TestMacrosOfOtherAdapters):
    name = "get_merge_sql"


class TestStrategyOfTheProject:
    """A strategy that wraps dbt's macros gets the SQL of this adapter: null keys are matched."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {f"{name}.sql": WRAPPED.replace("STRATEGY", f"own_{name}") for name in WRAPPERS}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {f"{name}.sql": OWN.format(name, call) for name, call in WRAPPERS.items()}

    def test_it_changes_the_rows(self, project: Any) -> None:
        run_dbt(["run"])
        run_dbt(["run", "--vars", "name: b"])
        for name in WRAPPERS:
            assert rows(project, f"select * from {{schema}}.{name}") == [(None, "b")]
