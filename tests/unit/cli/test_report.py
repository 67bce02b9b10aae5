"""`iceberg-stream report` on a project with a SQLite catalog."""

from __future__ import annotations

import contextvars
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.cli import main
from tests.unit.local_tables import make_table
from tests.unit.report.lakes import fill
from tests.unit.report.pages import Page


def call(folder: Path, *arguments: str) -> Result:
    """Run the command as a fresh process would: dbt has left nothing in its context."""
    command = ["report", *arguments, "--project-dir", str(folder), "--profiles-dir", str(folder)]
    result: Result = contextvars.Context().run(CliRunner().invoke, main, command)
    return result


def test_a_project(lake: IcebergCatalog, tmp_path: Path) -> None:
    fill(lake, tmp_path)
    output = tmp_path / "page.html"
    result = call(tmp_path, "--output", str(output), "--target", "dev")
    assert (result.exit_code, result.output) == (0, f"Wrote the report of 3 tables to {output}\n")
    words = Page(output.read_text()).words
    assert words.startswith("shop: tables") and "Lineage as a list" in words


def test_namespaces_and_unreadable_tables(lake: IcebergCatalog, tmp_path: Path) -> None:
    fill(lake, tmp_path)
    lake.create_namespace("other")
    make_table(lake, name=("other", "t"))
    output = tmp_path / "page.html"
    result = call(tmp_path, "s", "other", "s", "-o", str(output), "--target", "dev")
    assert result.exit_code == 0, result.output
    assert result.stderr == "1 unreadable; the page says why.\n"
    assert "the report of 7 tables" in result.stdout
    html = output.read_text()
    assert Page(html).words.startswith("other, s: tables")
    # Printed commands find the same catalog.
    command = f"convert_deletes --project-dir {tmp_path} --profiles-dir {tmp_path} --target dev"
    assert command in html


def test_the_manifest_is_where_dbt_writes_it(
    lake: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, tmp_path)
    output = tmp_path / "page.html"
    (tmp_path / "target").rename(tmp_path / "elsewhere")
    assert call(tmp_path, "-o", str(output)).exit_code == 0
    assert "There is no manifest" in output.read_text()
    elsewhere = str(tmp_path / "elsewhere")
    assert call(tmp_path, "-o", str(output), "--target-path", elsewhere).exit_code == 0
    assert "There is no manifest" not in output.read_text()
    with monkeypatch.context() as context:
        context.setenv("DBT_TARGET_PATH", "elsewhere")
        assert call(tmp_path, "-o", str(output)).exit_code == 0
    assert "There is no manifest" not in output.read_text()
    project = json.loads((tmp_path / "dbt_project.yml").read_text())
    configured = json.dumps({**project, "target-path": "elsewhere"})
    (tmp_path / "dbt_project.yml").write_text(configured)
    assert call(tmp_path, "-o", str(output)).exit_code == 0
    assert "There is no manifest" not in output.read_text()


def test_mistakes(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    result = call(tmp_path, "nowhere")
    assert result.exit_code == 1
    assert "The namespace nowhere does not exist. Give one or more of: s." in result.output
    result = call(tmp_path, "-o", str(tmp_path / "none" / "page.html"))
    assert result.exit_code == 1
    assert f"The folder {tmp_path / 'none'} does not exist. Set another --output." in result.output
    full = Path("/dev/full")
    if full.exists():
        result = call(tmp_path, "-o", str(full))
        assert result.exit_code == 1
        assert "/dev/full cannot be written: No space left on device." in result.output
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "manifest.json").write_text("{")
    result = call(tmp_path)
    assert result.exit_code == 1
    assert "manifest.json is not a manifest of dbt" in result.output
