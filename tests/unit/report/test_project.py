"""dbt's artifacts, of any age and in any state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.report.project import read_project
from tests.unit.report.lakes import model, write_artifacts


def test_nodes(tmp_path: Path) -> None:
    write_artifacts(tmp_path)
    project = read_project(tmp_path / "target")
    assert project is not None and project.name == "shop"
    kinds = {key: node.kind for key, node in project.nodes.items()}
    assert kinds == {
        "source.shop.kafka.events": "source",
        "model.shop.orders": "incremental",
        "model.shop.events": "stream",
        "model.shop.report": "table",
        "seed.shop.raw": "seed",
    }
    # The stream's table has the name of its source in Kafka.
    assert project.by_table["s", "events"].kind == "stream"


def test_no_manifest(tmp_path: Path) -> None:
    assert read_project(tmp_path / "nowhere") is None


def test_an_alias(tmp_path: Path) -> None:
    write_artifacts(tmp_path, {"model.shop.a": model("a", alias="b")})
    project = read_project(tmp_path / "target")
    assert project is not None and project.by_table.keys() == {("s", "b")}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", json.dumps({"nodes": {"a": 1}}), '{"nodes": [], "sources": {}}']
)
def test_files_that_are_no_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DbtRuntimeError, match="is not a manifest of dbt .* with `dbt parse`"):
        read_project(tmp_path)


@pytest.mark.parametrize("text", [None, "", "{}", '{"metadata": {}, "results": [1]}'])
def test_run_results_are_optional(tmp_path: Path, text: str | None) -> None:
    write_artifacts(tmp_path)
    path = tmp_path / "target" / "run_results.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    project = read_project(tmp_path / "target")
    assert project is not None and project.seconds == {}
