"""Commands for tables of another catalog of the profile, by `--catalog` and by names of three parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.profile.project import open_catalogs
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest


@pytest.fixture
def partner(lake: IcebergCatalog, tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A second catalog of the profile, with a table `crm.customers` that the first lacks."""
    profiles = json.loads((tmp_path / "profiles.yml").read_text())
    place = {"warehouse": str(tmp_path / "partner")}
    profiles["p"]["outputs"]["dev"]["catalogs"] = {"partner": place}
    (tmp_path / "profiles.yml").write_text(json.dumps(profiles))
    rows = pa.table({"id": [1, 2]}).to_reader
    ingest(lake, ("s", "own"), rows(), Mode.CREATE)
    catalogs = open_catalogs(tmp_path, tmp_path)
    catalog = catalogs.get("partner")
    ingest(catalog, ("crm", "customers"), rows(), Mode.CREATE)
    ingest(catalog, ("crm", "customers"), rows(), Mode.APPEND)
    yield catalog
    catalogs.close()


def call(tmp_path: Path, *arguments: str) -> Result:
    folders = ("--project-dir", str(tmp_path), "--profiles-dir", str(tmp_path))
    return CliRunner().invoke(main, [*arguments, *folders])


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (("check",), "0 errors"),
        (("diff",), "rows"),
        (("doctor",), "1 examined"),
        (("orphans",), "0 orphans"),
        (("streams",), "No stream writes to"),
        (("resume",), "needs to be resumed"),
        (("maintain", "--dry-run", "--only", "expire_snapshots"), "expire_snapshots"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_names(
    partner: IcebergCatalog, tmp_path: Path, command: tuple[str, ...], output: str
) -> None:
    for place in (
        ("partner.crm.customers",),
        ("PARTNER.crm.customers",),
        ("crm.customers", "--catalog", "partner"),
        ("partner.crm.customers", "--catalog", "partner"),
    ):
        result = call(tmp_path, *command, *place)
        assert result.exit_code == 0 and output in result.output, (place, result.output)
    for wrong in (("other.crm.customers",), ("crm.customers", "--catalog", "other")):
        result = call(tmp_path, *command, *wrong)
        assert result.exit_code == 1
        assert "The profile has no catalog `other`. It has lake, partner." in result.output
    result = call(tmp_path, *command, "partner.crm.customers", "--catalog", "lake")
    assert result.exit_code == 1 and "Give one of them" in result.output
    # Without a catalog, a name is of the profile's own.
    result = call(tmp_path, *command, "crm.customers")
    assert result.exit_code == 1, result.output
    assert partner.load(("crm", "customers")) is not None


def test_namespaces_and_all_tables(partner: IcebergCatalog, tmp_path: Path) -> None:
    result = call(tmp_path, "check", "crm", "--catalog", "partner")
    assert result.exit_code == 0 and "crm.customers" in result.output
    result = call(tmp_path, "doctor", "--json", "--catalog", "partner")
    assert [t["table"] for t in json.loads(result.output)["tables"]] == ["crm.customers"]
    result = call(tmp_path, "doctor", "--json")
    assert [t["table"] for t in json.loads(result.output)["tables"]] == ["s.own"]
    output = tmp_path / "report.html"
    result = call(tmp_path, "report", "--catalog", "partner", "--output", str(output))
    assert result.exit_code == 0 and "crm.customers" in output.read_text(), result.output


def test_printed_commands_name_the_catalog(partner: IcebergCatalog, tmp_path: Path) -> None:
    manifest = partner.table(("crm", "customers")).current_snapshot().manifest_list
    Path(manifest.removeprefix("file://")).unlink()
    result = call(tmp_path, "doctor", "partner.crm.customers")
    assert result.exit_code == 1
    command = next(line for line in result.output.splitlines() if line.startswith("  command"))
    assert command.endswith("--catalog partner"), result.output
    arguments = command.split("iceberg-stream ")[1].split()
    assert "missing" in CliRunner().invoke(main, arguments).output
