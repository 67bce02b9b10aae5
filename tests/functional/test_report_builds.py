"""`iceberg-stream report` shows builds: one that is not published, and one that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt

from tests.functional.builds import Shop, command, variables
from tests.unit.report.pages import Page

pytestmark = pytest.mark.manifest


class TestReportOfBuilds(Shop):
    def words(self, project: Any) -> str:
        """What the page says of builds."""
        output = Path(project.project_root) / "report.html"
        result = command(project, "report", "--output", str(output))
        assert result.exit_code == 0, result.output
        words = Page(output.read_text()).words
        assert "__dbt_build_" not in words
        return words.split(" Builds ")[2].split(" Last runs ")[0]

    def test_builds(self, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        schema = project.test_schema
        run_dbt(["build"])
        words = self.words(project)
        assert "Not published" not in words
        assert "2 tables" in words
        assert f"{schema}.orders 3 0 0 3" in words
        assert f"{schema}.totals 1 0 0 1" in words
        monkeypatch.setenv("ICEBERG_STREAM_BUILD", "pr-42")
        # A test fails, so that the page names it.
        run_dbt(["build", *variables(rows=5, version=2, least=1, most=1)], expect_pass=False)
        words = self.words(project)
        staged, published = words.split(" Published ")
        assert "pr-42 : 2 tables, 1 view" in staged
        assert "Failed or skipped: few_orders." in staged
        # Two rows are new, and three have another version.
        assert f"{schema}.orders changed 3 5 2 3 0" in staged
        assert f"{schema}.totals changed 1 1 1 0 1" in staged
        assert f"Views: {schema}.large (changed)." in staged
        assert f"{schema}.orders 3 0 0 3" in published
        assert command(project, "publish", "pr-42", "--force").exit_code == 0
        words = self.words(project)
        assert "Not published" not in words
        assert words.index("pr-42") < words.index(f"{schema}.orders 3 0 0 3")
