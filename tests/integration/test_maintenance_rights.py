"""Maintenance by users who may not write: refused in their name, and nothing is left behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.writers import open_catalog
from tests.servers.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.servers.rest_catalog import RestCatalog

REFUSAL = {
    "error": {
        "message": "Principal 'wanda' is not authorized for op ADD_TABLE_SNAPSHOT",
        "type": "ForbiddenException",
        "code": 403,
    }
}
FILES = 12


@pytest.fixture(scope="module")
def proxy(catalog: RestCatalog) -> Iterator[FaultProxy]:
    with fault_proxy(catalog.port) as running:
        yield running


@pytest.fixture
def lake(catalog: RestCatalog) -> Iterator[IcebergCatalog]:
    opened = open_catalog({"uri": catalog.uri, "token": catalog.token("wanda")})
    yield opened
    opened.close()


@pytest.fixture
def namespace(lake: IcebergCatalog) -> str:
    """Two tables of small files, `a` and `b`."""
    namespace = f"n{uuid.uuid4().hex[:8]}"
    lake.create_namespace(namespace)
    for name in ("a", "b"):
        for number in range(FILES):
            rows = pa.table({"id": [number]})
            mode = Mode.APPEND if number else Mode.CREATE
            ingest(lake, (namespace, name), rows.to_reader(), mode)
    return namespace


@pytest.fixture
def maintain(
    tmp_path: Path, engine_home: Path, catalog: RestCatalog, proxy: FaultProxy
) -> Iterator[Callable[..., Result]]:
    """Runs `iceberg-stream maintain` as a target: `writer` or `reader`."""
    tokens = {"writer": catalog.token("wanda"), "reader": catalog.token("rita", "reader")}
    common = {
        "type": "iceberg_stream",
        "schema": "s",
        "database": "lake",
        "engine_home": str(engine_home),
        "keep_alive": 120,
        "catalog_properties": {"uri": proxy.uri},
    }
    outputs = {name: {**common, "token": token} for name, token in tokens.items()}
    profiles = {"p": {"target": "writer", "outputs": outputs}}
    (tmp_path / "profiles.yml").write_text(json.dumps(profiles))
    project = {"name": "p", "profile": "p", "config-version": 2}
    (tmp_path / "dbt_project.yml").write_text(json.dumps(project))

    def run(name: str, *arguments: str) -> Result:
        place = ["--project-dir", str(tmp_path), "--profiles-dir", str(tmp_path)]
        return CliRunner().invoke(main, ["maintain", name, *arguments, *place])

    yield run
    proxy.faults = []


def files(catalog: RestCatalog) -> set[Path]:
    """The files of all tables; a probe of a write leaves none either."""
    return {p for p in catalog.folder.rglob("*") if p.suffix in (".parquet", ".avro", ".stats")}


def data_files(lake: IcebergCatalog, namespace: str, name: str) -> int:
    return int(next(lake.snapshots((namespace, name))).properties["total-data-files"])


def adds_snapshot(body: bytes) -> bool:
    return any(update["action"] == "add-snapshot" for update in json.loads(body)["updates"])


def test_a_reader_is_refused_at_each_table(
    namespace: str, maintain: Callable[..., Result], catalog: RestCatalog, lake: IcebergCatalog
) -> None:
    before = files(catalog)
    done = maintain(namespace, "--target", "reader")
    assert done.exit_code == 1
    for name in ("a", "b"):
        assert f"refused to write to {namespace}.{name} for rita" in done.output
        assert data_files(lake, namespace, name) == FILES
    assert files(catalog) == before


def test_a_reader_sees_what_would_be_done(namespace: str, maintain: Callable[..., Result]) -> None:
    done = maintain(namespace, "--target", "reader", "--dry-run")
    assert done.exit_code == 0
    assert done.output.count(f"planned: {FILES} small files to merge") == 2


def test_the_other_tables_are_maintained(
    namespace: str,
    maintain: Callable[..., Result],
    proxy: FaultProxy,
    lake: IcebergCatalog,
) -> None:
    path = f"/namespaces/{namespace}/tables/a"
    fault = Fault(lambda m, p: m == "POST" and p.endswith(path), 403, json.dumps(REFUSAL).encode())
    proxy.faults = [fault]
    done = maintain(namespace)
    assert done.exit_code == 1
    assert f"refused to write to {namespace}.a for wanda" in done.output
    assert data_files(lake, namespace, "a") == FILES
    assert data_files(lake, namespace, "b") == 1


@pytest.mark.parametrize("step", ["compact", "rewrite_manifests"])
def test_a_refused_commit_leaves_no_files(
    namespace: str,
    maintain: Callable[..., Result],
    proxy: FaultProxy,
    catalog: RestCatalog,
    lake: IcebergCatalog,
    step: str,
) -> None:
    """A catalog that refuses only the commit itself: the files of the rewrite are written then."""
    before = files(catalog)

    refused = json.dumps(REFUSAL).encode()
    proxy.faults = [
        Fault(lambda m, p: m == "POST" and "/tables/a" in p, 403, refused, of_body=adds_snapshot)
    ]
    proxy.hits = 0
    done = maintain(f"{namespace}.a", "--only", step)
    assert proxy.hits >= 1
    assert done.exit_code == 1
    assert "not authorized for op ADD_TABLE_SNAPSHOT" in done.output
    assert "The request to the catalog was made as wanda" in done.output
    assert data_files(lake, namespace, "a") == FILES
    assert {path.name for path in files(catalog) - before} == set()
