"""`iceberg-stream report` of a REST catalog that knows its users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.writers import open_catalog
from tests.servers.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.servers.rest_catalog import RestCatalog
from tests.unit.report.pages import Page

NOT_AUTHORIZED = {
    "error": {
        "message": "Principal 'rita' is not authorized for op LOAD_TABLE",
        "type": "ForbiddenException",
        "code": 403,
    }
}


@pytest.fixture(scope="module")
def proxy(catalog: RestCatalog) -> Iterator[FaultProxy]:
    lake = open_catalog({"uri": catalog.uri, "token": catalog.token("wanda")})
    lake.create_namespace("s")
    for number in range(20):
        for mode in (Mode.CREATE, Mode.APPEND):
            rows = pa.table({"id": [1, 2]}).to_reader()
            ingest(lake, ("s", f"t{number:02}"), rows, mode)
    lake.close()
    with fault_proxy(catalog.port) as running:
        yield running


@pytest.fixture
def project(catalog: RestCatalog, proxy: FaultProxy, tmp_path: Path) -> Iterator[Path]:
    """A project of a user who may only read."""
    (tmp_path / "dbt_project.yml").write_text("{name: p, profile: p}")
    output = {
        "type": "iceberg_stream",
        "schema": "s",
        "catalog_properties": {"type": "rest", "uri": proxy.uri},
        "token": catalog.token("rita", "reader"),
    }
    profiles = {"p": {"target": "dev", "outputs": {"dev": output}}}
    (tmp_path / "profiles.yml").write_text(json.dumps(profiles))
    yield tmp_path
    proxy.faults = []


def report(folder: Path, *arguments: str) -> Result:
    place = ["--project-dir", str(folder), "--profiles-dir", str(folder)]
    output = str(folder / "report.html")
    return CliRunner().invoke(main, ["report", *arguments, "--output", output, *place])


def test_a_reader_may_report(project: Path, catalog: RestCatalog) -> None:
    result = report(project, "s")
    assert result.exit_code == 0, result.output
    html = (project / "report.html").read_text()
    words = Page(html).words
    assert "20 tables of the catalog lake" in words
    # Two snapshots of two rows each.
    assert "s.t07 4 " in words and "append" in words
    token = catalog.token("rita", "reader")
    assert token not in html and token.split(".")[-1] not in html


def test_a_table_that_the_catalog_refuses(project: Path, proxy: FaultProxy) -> None:
    def loads(method: str, path: str) -> bool:
        return method == "GET" and "/tables/t07" in path

    proxy.faults = [Fault(loads, 403, json.dumps(NOT_AUTHORIZED).encode())]
    result = report(project, "s")
    assert result.exit_code == 0, result.output
    assert "1 unreadable; the page says why." in result.output
    words = Page((project / "report.html").read_text()).words
    assert "19 tables of the catalog" in words
    assert "s.t07: The catalog `lake`" in words
    assert "Principal 'rita' is not authorized for op LOAD_TABLE" in words


def test_a_catalog_that_refuses_all(project: Path, proxy: FaultProxy) -> None:
    proxy.faults = [Fault(lambda *_: True, 403, json.dumps(NOT_AUTHORIZED).encode())]
    result = report(project)
    assert result.exit_code == 1
    assert "is not authorized" in result.output
    assert not (project / "report.html").exists()


def test_a_catalog_that_does_not_answer(project: Path, proxy: FaultProxy) -> None:
    def lists(method: str, path: str) -> bool:
        return path.split("?")[0].endswith("/tables")

    proxy.faults = [Fault(lists, cuts=True)]
    result = report(project, "s")
    assert result.exit_code == 1
    assert "does not answer" in result.output
