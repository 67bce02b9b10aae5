"""`iceberg-stream check` on a project with a SQLite catalog."""

from __future__ import annotations

import contextvars
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.cli import main
from tests.unit.local_tables import load, make_table


def call(folder: Path, *arguments: str) -> Result:
    """Run the command as a fresh process would: dbt has left nothing in its context."""
    command = ["check", *arguments, "--project-dir", str(folder), "--profiles-dir", str(folder)]
    result: Result = contextvars.Context().run(CliRunner().invoke, main, command)
    return result


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "The metadata file that the catalog names is missing."),
        (b"{", "The metadata file that the catalog names cannot be read ("),
    ],
)
def test_a_lost_metadata_file_is_a_finding_and_hides_no_other_table(
    lake: IcebergCatalog, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    for name in ("gone", "t"):
        make_table(lake, name=("s", name))
    location = load(lake, ("s", "gone")).location
    file = Path(location.removeprefix("file://"))
    file.unlink() if content is None else file.write_bytes(content)
    result = call(tmp_path, "s")
    assert result.exit_code == 1, result.output
    assert "error: metadata-lost" in result.output
    assert sentence in result.output
    assert "Errno" not in result.output
    assert "s.t\n" in result.output
    (gone, other) = json.loads(call(tmp_path, "s", "--json").output)["tables"]
    assert [finding["code"] for finding in gone["findings"]] == ["metadata-lost"]
    assert content is not None or file.name in gone["findings"][0]["where"]
    assert other["findings"] == []
