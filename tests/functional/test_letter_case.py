"""Names in another letter case: increments write them to the columns that the table has."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, table

CHANGES = ("ignore", "fail", "append_new_columns", "sync_all_columns")
STRATEGIES = {
    "merge": ", unique_key='Id', merge_exclude_columns=['KEPT']",
    "delete+insert": ", unique_key='ID'",
    "append": "",
    "insert_overwrite": ", partition_by=['iD']",
}
MODEL = """
{{{{ config(materialized='incremental', incremental_strategy='{strategy}',
    on_schema_change='{change}'{more}) }}}}
{{% if is_incremental() %}}
select 2 as kept, named_struct('a', 2, 'B', 'y') as st, 2 as ID
{{% else %}}
select 1 as id, named_struct('A', 1, 'b', 'x') as St, 1 as Kept
{{% endif %}}
"""
MODELS = {
    f"{strategy.replace('+', '_')}_{change}": (strategy, change)
    for strategy in STRATEGIES
    for change in CHANGES
}


class LetterCase:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            f"{name}.sql": MODEL.format(strategy=strategy, change=change, more=STRATEGIES[strategy])
            for name, (strategy, change) in MODELS.items()
        }

    @pytest.fixture(scope="class")
    def messages(self, project: Any) -> dict[str, str]:
        run_dbt(["run"])
        results = run_dbt(["run"], expect_pass=None)
        return {r.node.name: r.message for r in results if r.status != "success"}

    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.variants(6)
    def test_rows(self, project: Any, messages: dict[str, str], name: str) -> None:
        assert messages.get(name) is None
        actual = rows(project, f"select id, st.a, st.b, kept from {{schema}}.{name} order by id")
        assert actual == [(1, 1, "x", 1), (2, 2, "y", 2)]
        assert [field.name for field in table(project, name).schema().fields] == [
            "id",
            "St",
            "Kept",
        ]


class TestFewRows(LetterCase):
    pass


class TestManyRows(LetterCase):
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: Any) -> dict[str, object]:
        return {**dbt_profile_target, "small_table_rows": 0}


PARTS = """
{{ config(materialized='incremental', unique_key=['ID', 'part'], merge_engine='spark') }}
select {% if is_incremental() %}{{ var('columns') }}{% else %}1 as id, 'a' as part, 1 as n{% endif %}
"""


class TestMergesBySpark:
    """In a MERGE, Spark does not find columns of cached rows that are spelled in another way."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"parts.sql": PARTS}

    @pytest.mark.parametrize(
        "columns",
        [
            "1 as id, 'a' as part, 2 as n",
            "1 as ID, 'a' as part, 2 as n",
            "2 as N, 'a' as Part, 1 as ID",
        ],
    )
    @pytest.mark.variants(6)
    def test_rows(self, project: Any, columns: str) -> None:
        run_dbt(["run", "--full-refresh"])
        run_dbt(["run", "--vars", str({"columns": columns})])
        assert rows(project, "select id, part, n from {schema}.parts") == [(1, "a", 2)]
