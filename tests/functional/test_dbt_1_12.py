"""What dbt 1.12 adds, and what the adapter makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file
from dbt.version import get_installed_version
from dbt_common.semver import VersionSpecifier

from tests.functional.lake import rows

pytestmark = pytest.mark.skipif(
    get_installed_version().compare(VersionSpecifier.from_version_string("1.12.0")) < 0,
    reason="the features are new in dbt 1.12",
)

ITEMS = """
{{ config(materialized='incremental', unique_key='id', partition_by=['id'], read_at=none) }}
select 1 as id, 'v1' as x
"""
VERSIONS = """
models:
  - name: items
    latest_version: 2
    config: {latest_version_pointer: {enabled: true}}
    versions: [{v: 1}, {v: 2}]
"""


class TestLatestVersionPointer:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "items_v1.sql": ITEMS,
            "items_v2.sql": ITEMS.replace("v1", "v2"),
            "versions.yml": VERSIONS,
        }

    @pytest.mark.parametrize("publish", ["immediately", "atomic"])
    @pytest.mark.parametrize("skip", ["false", "true"])
    @pytest.mark.variants(2)
    def test_it_is_a_view_of_the_latest_version(
        self, project: Any, publish: str, skip: str
    ) -> None:
        variables = f"{{iceberg_stream_publish: {publish}, iceberg_stream_skip_unchanged: {skip}}}"
        for text in ("v2", "changed", "changed", "v2"):
            write_file(ITEMS.replace("v1", text), project.project_root, "models", "items_v2.sql")
            run_dbt(["run", "--vars", variables])
            assert rows(project, "select * from {schema}.items") == [(1, text)]
        assert dict(project.adapter.catalog.relations(project.test_schema)) == {
            "items": "view",
            "items_v1": "table",
            "items_v2": "table",
        }

    def test_it_reads_no_earlier_version(self, project: Any) -> None:
        run_dbt(["run"])
        model = ITEMS.replace("v1", "later").replace("none", "'2026-01-01'")
        write_file(model, project.project_root, "models", "items_v2.sql")
        run_dbt(["run"])
        assert rows(project, "select x from {schema}.items") == [("later",)]


class TestSqlHeaderOfTests:
    """Data tests and unit tests may have a `sql_header`, by a flag of the project."""

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        return {"flags": {"require_sql_header_in_test_configs": True}}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"days.sql": "select date '2026-03-01' as day union all select date '2026-04-01'"}

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return {
            "late_days.sql": """
            {% call set_sql_header(config) %}
            create or replace temporary view first_days as select date '2026-04-01' as day;
            {% endcall %}
            select * from {{ ref('days') }} where day >= (select max(day) from first_days)
            """
        }

    @pytest.mark.parametrize("store_failures", [(), ("--store-failures",)])
    def test_it_runs_before_the_test(self, project: Any, store_failures: tuple[str, ...]) -> None:
        results = run_dbt(["build", *store_failures], expect_pass=False)
        assert {result.node.name: result.failures for result in results} == {
            "days": None,
            "late_days": 1,
        }


class TestOnErrorContinue:
    """`on_error: continue` builds the models below one that fails."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "rates.sql": "{{ config(on_error='continue') }} select {{ var('rate', '1') }} as rate",
            "prices.sql": "select rate * {{ var('price', 2) }} as price from {{ ref('rates') }}",
        }

    def test_models_below_read_the_last_rows(self, project: Any) -> None:
        run_dbt(["run"])
        changed = ["run", "--vars", "{rate: no_such_column, price: 3}"]
        results = run_dbt(changed, expect_pass=False)
        assert {result.node.name: str(result.status) for result in results} == {
            "rates": "error",
            "prices": "success",
        }
        assert rows(project, "select * from {schema}.prices") == [(3,)]

    def test_an_atomic_run_publishes_nothing(self, project: Any) -> None:
        run_dbt(["run"])
        changed = "{rate: no_such_column, price: 4, iceberg_stream_publish: atomic}"
        run_dbt(["run", "--vars", changed], expect_pass=False)
        assert rows(project, "select * from {schema}.prices") == [(2,)]


NOTE_WRITES = """
{% macro iceberg_stream__on_write(relation, snapshot_id) %}
  {% if relation.identifier == 'ids' %}
    {% do run_query('create or replace table ' ~ relation.schema ~ '.written as select '
                    ~ snapshot_id ~ ' as snapshot_id') %}
  {% endif %}
{% endmacro %}
"""


class TestSqlOfRunOperation:
    """`dbt run-operation --sql` runs SQL without a macro."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"ids.sql": "{{ config(materialized='table') }} select 1 as id union all select 2"}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"on_write.sql": NOTE_WRITES}

    @pytest.mark.parametrize("relation", ["{{ ref('ids') }}", "{schema}.ids"])
    def test_it_commits_and_calls_the_hook(self, project: Any, relation: str) -> None:
        run_dbt(["run"])
        sql = f"delete from {relation.replace('{schema}', project.test_schema)} where id = 1"
        run_dbt(["run-operation", "--sql", sql])
        assert rows(project, "select * from {schema}.ids") == [(2,)]
        current = project.adapter.catalog.table((project.test_schema, "ids")).current_snapshot()
        assert rows(project, "select * from {schema}.written") == [(current.snapshot_id,)]
