"""`iceberg-stream report` of a project that dbt has run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dbt.tests.util import run_dbt

from dbt.adapters.iceberg_stream.cli import main
from tests.functional.lake import run
from tests.unit.report.pages import Page

pytestmark = pytest.mark.manifest

ORDERS = """
{{ config(materialized='incremental', unique_key='id', merge_engine='spark') }}
select id, id * {{ var('factor', 1) }} as amount from {{ ref('raw_orders') }}
"""
CUSTOMERS = "select id, count(*) as orders from {{ ref('orders') }} group by id"


class TestReport:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "orders.sql": ORDERS,
            "customers.sql": "{{ config(materialized='table') }}" + CUSTOMERS,
        }

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"raw_orders.csv": "id\n1\n2\n3\n"}

    def page(self, project: Any) -> str:
        place = ["--project-dir", project.project_root, "--profiles-dir", project.profiles_dir]
        output = Path(project.project_root) / "report.html"
        result = CliRunner().invoke(main, ["report", "--output", str(output), *place])
        assert result.exit_code == 0, result.output
        return Page(output.read_text()).words

    def test_what_runs_have_changed(self, project: Any) -> None:
        run_dbt(["build"])
        run_dbt(["run", "--vars", "{factor: 2}"])
        run(project, "insert into {schema}.orders values (9, 9)")
        words = self.page(project)
        schema = project.test_schema
        assert "3 tables of the catalog" in words
        # The list of the lineage.
        assert "orders incremental raw_orders customers" in words
        assert "raw_orders seed orders" in words
        # The second run has merged three rows and built a table again; the insert was in it.
        second = words.split("Last runs")[2].split("3 tables")[0]
        lines = dict(part.split(" ", 1) for part in second.split(f"{schema}.")[1:])
        assert lines["orders"].startswith("2 1 3 0 ")
        assert lines["customers"].startswith("1 3 0 3 ")
        rows_and_seconds = {name: line.split()[6:9] for name, line in lines.items()}
        assert rows_and_seconds["orders"][:2] == ["3", "4"]
        assert rows_and_seconds["customers"][:2] == ["3", "3"]
        # dbt's artifacts have the seconds of the last run.
        assert all(float(seconds) > 0 for _, _, seconds in rows_and_seconds.values())
        # A statement outside of the models.
        assert "append Spark local-" in words or "append Spark app-" in words
