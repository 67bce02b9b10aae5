"""`iceberg-stream why` with a run that is missing, or that does not have the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dbt.adapters.iceberg_stream.cli import main


def results(*ids: str) -> str:
    nodes = [{"unique_id": unique_id, "status": "success", "message": ""} for unique_id in ids]
    metadata = {"generated_at": "2026-11-24T09:00:00Z"}
    return json.dumps({"metadata": metadata, "results": nodes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "where dbt describes its last run. Run `dbt build` first"),
        ("{", "is not valid JSON"),
        (
            results("model.shop.users"),
            "no model, seed, snapshot or data test orders; it had users.",
        ),
        (results("operation.shop.orders"), "or data test orders; it had nothing."),
        (
            results("model.shop.orders", "model.web.orders"),
            "Several nodes are named orders: model.shop.orders, model.web.orders.",
        ),
        (results("model.shop.orders"), "manifest.json does not describe model.shop.orders"),
    ],
)
def test_errors(tmp_path: Path, text: str | None, message: str) -> None:
    (tmp_path / "target").mkdir()
    if text is not None:
        (tmp_path / "target" / "run_results.json").write_text(text)
    result = CliRunner().invoke(main, ["why", "orders", "--project-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output
