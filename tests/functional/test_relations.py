"""Tables and views that change their kind, docs, schemas, comments, contracts."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dbt.tests.util import run_dbt, run_dbt_and_capture
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.cli import main
from tests.functional.lake import rows, run, table

CHANGING = "{{ config(materialized=var('kind', 'view')) }} select 1 as id, '{{ var('kind', 'view') }}' as kind"
TABLE = "{{ config(materialized='table') }} select 1 as id, 'it''s' as name"
VIEW = "select id, name from {{ ref('a_table') }}"
DOCS = """
models:
  - name: a_table
    description: "It's a table with \\\\ and 'quotes'"
    config: {persist_docs: {relation: true, columns: true}}
    columns:
      - {name: id, description: "the id's comment"}
  - name: a_view
    description: a view
    config: {persist_docs: {relation: true, columns: true}}
    columns:
      - {name: name, description: the name}
"""


class TestKindChanges:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"changing.sql": CHANGING}

    @pytest.mark.parametrize("flags", [[], ["--full-refresh"]])
    def test_every_way(self, project: Any, flags: list[str]) -> None:
        for kind in ("view", "table", "view", "incremental", "view", "table"):
            run_dbt(["run", *flags, "--vars", f"kind: {kind}"])
            assert rows(project, "select kind from {schema}.changing") == [(kind,)]
            expected = "view" if kind == "view" else "table"
            assert project.adapter.catalog.relations(project.test_schema) == [
                ("changing", expected)
            ]


class TestKilledBetweenDropAndRename:
    """No catalog replaces a view by a table in one step."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"changing.sql": CHANGING}

    @pytest.mark.parametrize(("before", "after"), [("view", "table"), ("table", "view")])
    def test_the_next_run_finishes_it(
        self, project: Any, monkeypatch: pytest.MonkeyPatch, before: str, after: str
    ) -> None:
        run_dbt(["run", "--vars", f"kind: {before}"])
        with monkeypatch.context() as patch:
            patch.setattr(type(project.adapter), "rename_relation", fail)
            run_dbt(["run", "--vars", f"kind: {after}"], expect_pass=False)
        catalog = project.adapter.catalog
        ((left, kind),) = catalog.relations(project.test_schema)
        assert left.startswith("changing__dbt_staged_") and kind == after
        # It may be of a run that still runs.
        assert builds(project).startswith("All builds are published")
        assert left not in builds(project)
        monkeypatch.setattr("dbt.adapters.iceberg_stream.builds.leftovers.MIN_AGE", timedelta(0))
        assert f"{left}  left by a run that was killed" in builds(project)
        _, output = run_dbt_and_capture(["run", "--vars", f"kind: {after}"])
        assert "A run was killed while it replaced" in output
        assert catalog.relations(project.test_schema) == [("changing", after)]
        assert rows(project, "select kind from {schema}.changing") == [(after,)]

    def test_one_that_was_killed_before_the_drop(
        self, project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_dbt(["run", "--vars", "kind: table"])
        run(project, "create table {schema}.changing__dbt_staged_0123456789ab as select 1 as id")
        monkeypatch.setattr("dbt.adapters.iceberg_stream.builds.leftovers.MIN_AGE", timedelta(0))
        run_dbt(["run", "--vars", "kind: table"])
        assert project.adapter.catalog.relations(project.test_schema) == [("changing", "table")]


def fail(*_: Any) -> None:
    raise DbtRuntimeError("killed here")


def builds(project: Any) -> str:
    folder = str(project.project_root)
    command = ["builds", "--project-dir", folder, "--profiles-dir", str(project.profiles_dir)]
    return CliRunner().invoke(main, command).output


# As packages for dbt-spark make their temporary relations.
OPERATION = """
{% macro stage() %}
  {%- set staging = api.Relation.create(database=target.database, schema=target.schema, identifier='m')
      .incorporate(path={'schema': none, 'identifier': 'm__tmp'}, type='view') -%}
  {% do run_query(get_create_table_as_sql(True, staging, 'select 1 as id')) %}
  {% do log('columns: ' ~ adapter.get_columns_in_relation(staging), info=True) %}
  {% do log('rows: ' ~ run_query('select * from ' ~ staging).rows | length, info=True) %}
  {% do adapter.drop_relation(staging) %}
{% endmacro %}
"""


class TestTemporaryRelations:
    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"stage.sql": OPERATION}

    def test_without_a_schema(self, project: Any) -> None:
        _, output = run_dbt_and_capture(["run-operation", "stage"])
        assert "column='id', dtype='int'" in output
        assert "rows: 1" in output


class TestDocs:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"a_table.sql": TABLE, "a_view.sql": VIEW, "docs.yml": DOCS}

    @pytest.fixture(scope="class")
    def nodes(self, project: Any) -> dict[str, Any]:
        run_dbt(["run"])
        run_dbt(["run"])
        run_dbt(["docs", "generate"])
        actual = json.loads((Path(project.project_root) / "target/catalog.json").read_text())
        return {key.split(".")[-1]: node for key, node in actual["nodes"].items()}

    def test_views_and_tables_are_in_the_docs(self, nodes: dict[str, Any]) -> None:
        assert nodes["a_table"]["metadata"]["type"] == "table"
        assert nodes["a_view"]["metadata"]["type"] == "view"
        assert [c["name"] for c in nodes["a_view"]["columns"].values()] == ["id", "name"]
        assert nodes["a_view"]["columns"]["name"]["type"] == "string"

    def test_comments(self, nodes: dict[str, Any]) -> None:
        assert nodes["a_table"]["metadata"]["comment"] == "It's a table with \\ and 'quotes'"
        assert nodes["a_table"]["columns"]["id"]["comment"] == "the id's comment"
        assert nodes["a_view"]["columns"]["name"]["comment"] == "the name"

    def test_statistics(self, nodes: dict[str, Any]) -> None:
        stats = nodes["a_table"]["stats"]
        assert stats["num_rows"]["value"] == 1
        assert stats["bytes"]["value"] > 0
        assert stats["snapshot_id"]["include"]


CONTRACT = """
models:
  - name: kept
    config: {contract: {enforced: true}}
    constraints:
      - {type: check, expression: "n < 10"}
    columns:
      - name: id
        data_type: int
        constraints: [{type: not_null}]
      - {name: n, data_type: int}
"""
KEPT = """
{{ config(materialized=var('kind', 'table'), unique_key='id', incremental_strategy='merge',
    on_schema_change='append_new_columns') }}
select cast({{ var('id', 1) }} as int) as id, {{ var('n', 1) }} as n
"""


class TestContract:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"kept.sql": KEPT, "schema.yml": CONTRACT}

    @pytest.mark.parametrize("kind", ["table", "incremental"])
    @pytest.mark.parametrize("broken", ["id: 'null'", "n: 10"])
    def test_a_broken_row_leaves_the_table(self, project: Any, kind: str, broken: str) -> None:
        run_dbt(["run", "--full-refresh", "--vars", f"kind: {kind}"])
        results = run_dbt(["run", "--vars", f"{{kind: {kind}, {broken}}}"], expect_pass=False)
        assert "Contract of model.test.kept is broken" in results[0].message
        assert rows(project, "select id, n from {schema}.kept") == [(1, 1)]

    def test_other_writers_must_keep_not_null(self, project: Any) -> None:
        run_dbt(["run", "--full-refresh"])
        assert table(project, "kept").schema().find_field("id").required


class TestSchemas:
    def test_a_schema_is_dropped_with_all_that_is_in_it(self, project: Any) -> None:
        lake = project.adapter.catalog
        name = f"{project.test_schema}_full"
        lake.create_namespace(name)
        run(project, f"create table {name}.t using iceberg as select 1 as a")
        run(project, f"create view {name}.v as select * from {name}.t")
        files = Path(lake.table((name, "t")).location().removeprefix("file:"))
        assert list(files.rglob("*.parquet"))
        run(project, f"drop schema {name} cascade")
        assert not lake.namespace_exists(name)
        assert not list(files.rglob("*.parquet"))


FRESH = """
sources:
  - name: raw
    schema: "{{ target.schema }}"
    freshness: {error_after: {count: 1, period: hour}}
    tables: [{name: events}]
"""


class TestFreshness:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {"sources.yml": FRESH}

    def test_freshness_comes_from_the_snapshot(self, project: Any) -> None:
        run(project, "create table {schema}.events using iceberg as select 1 as id")
        committed = table(project, "events").current_snapshot().timestamp_ms
        (result,) = run_dbt(["source", "freshness"])
        assert result.status == "pass"
        assert int(result.max_loaded_at.timestamp() * 1000) == committed
