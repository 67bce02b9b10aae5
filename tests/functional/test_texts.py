r"""Texts that no layer may interpret: `${…}`, quotes and backslashes, in SQL, comments and fixtures."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.lake import rows, table

TEXTS = r"""
{{ config(materialized='table', persist_docs={'relation': true, 'columns': true}, %s) }}
select 'cost ${amount} EUR' as txt, '${env:HOME}' as home, '${spark.master}' as master, 'it\'s C:\\new' as path
"""
DESCRIPTION = r"Template with ${amount}, 'quotes' and a \\ in it"
SCHEMA = rf"""
models:
  - {{name: few, description: &text "{DESCRIPTION}", columns: [{{name: txt, description: *text}}]}}
  - {{name: by_spark, description: *text}}
unit_tests:
  - name: fixture
    model: copied
    given: [{{input: ref('few'), rows: [{{txt: "it's C:\\new ${{env:HOME}} \\' x"}}]}}]
    expect: {{rows: [{{txt: "it's C:\\new ${{env:HOME}} \\' x"}}]}}
"""
COPIED = "{{ config(materialized='incremental', unique_key='txt') }} select txt from {{ ref('few') }} where txt not like '%${x}%'"
SUBSTITUTED = """
{{ config(materialized='table', pre_hook='set spark.sql.variable.substitute = true') }}
select '${spark.sql.session.timeZone}' as zone
"""


class TestTexts:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "few.sql": TEXTS % "",
            # Spark writes a table with partitions.
            "by_spark.sql": TEXTS
            % "partition_by=['txt'], table_properties={'note': '${env:HOME}'}",
            "copied.sql": COPIED,
            "substituted.sql": SUBSTITUTED,
            "schema.yml": SCHEMA,
        }

    @pytest.mark.parametrize("run", ["first", "again"])
    def test_they_stay_as_they_are(self, project: Any, run: str) -> None:
        run_dbt(["build"])
        expected = ("cost ${amount} EUR", "${env:HOME}", "${spark.master}", "it's C:\\new")
        for name in ("few", "by_spark"):
            assert rows(project, f"select * from {{schema}}.{name}") == [expected]
            properties = table(project, name).properties
            assert properties["comment"] == "Template with ${amount}, 'quotes' and a \\ in it"
        assert table(project, "by_spark").properties["note"] == "${env:HOME}"
        field = table(project, "few").schema().find_field("txt")
        assert field.doc == "Template with ${amount}, 'quotes' and a \\ in it"
        assert rows(project, "select txt from {schema}.copied") == [("cost ${amount} EUR",)]

    def test_a_setting_turns_substitution_on(self, project: Any) -> None:
        assert rows(project, "select zone from {schema}.substituted") == [("UTC",)]
        connections = project.adapter.connections
        setting = "spark.sql.variable.substitute"
        assert connections.session_settings({})[setting] == "false"
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(connections.credentials.spark_conf, setting, True)
            assert connections.session_settings({})[setting] == "true"
