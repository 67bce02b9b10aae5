"""What a catalog lets a principal do: probes of writes, drops without purge, orphans."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyiceberg.exceptions import NoSuchTableError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.cli import main
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.references import own_references
from tests.integration.writers import open_catalog
from tests.servers.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.servers.rest_catalog import RestCatalog

# Polaris 1.4.1, with its settings as they come.
NO_PURGE = {
    "error": {
        "message": "Unable to purge entity: t. To enable this feature, set the Polaris "
        "configuration DROP_WITH_PURGE_ENABLED or the catalog configuration "
        "polaris.config.drop-with-purge.enabled",
        "type": "ForbiddenException",
        "code": 403,
    }
}
NO_PROPERTIES = {
    "error": {
        "message": "Principal 'ada' is not authorized for op UPDATE_TABLE",
        "type": "ForbiddenException",
        "code": 403,
    }
}


@pytest.fixture(scope="module")
def proxy(catalog: RestCatalog) -> Iterator[FaultProxy]:
    with fault_proxy(catalog.port) as running:
        yield running


@pytest.fixture
def lake(catalog: RestCatalog, proxy: FaultProxy) -> Iterator[IcebergCatalog]:
    proxy.hits = 0
    opened = open_catalog({"uri": proxy.uri, "token": catalog.token("wanda")})
    opened.create_namespace("s")
    yield opened
    proxy.faults = []
    opened.close()


@pytest.fixture
def name(lake: IcebergCatalog) -> str:
    made = f"t{uuid.uuid4().hex[:8]}"
    ingest(lake, ("s", made), pa.table({"id": [1, 2]}).to_reader(), Mode.CREATE)
    return made


def purges(method: str, path: str) -> bool:
    return method == "DELETE" and "/tables/" in path and "purgerequested=true" in path.lower()


def commits(method: str, path: str) -> bool:
    return method == "POST" and "/tables/" in path


def more_than_rows(body: bytes) -> bool:
    """Whether a commit needs more than TABLE_ADD_SNAPSHOT and TABLE_SET_SNAPSHOT_REF."""
    actions = {update["action"] for update in json.loads(body)["updates"]}
    return not actions or not actions <= {"add-snapshot", "set-snapshot-ref"}


def test_a_catalog_that_does_not_purge(lake: IcebergCatalog, name: str, proxy: FaultProxy) -> None:
    """It is not asked to: the files that nobody else needs are removed here."""
    proxy.faults = [Fault(purges, 403, json.dumps(NO_PURGE).encode())]
    table = lake.load(("s", name))
    assert table is not None
    files = [local_path(file) for file in own_references(table)]
    assert all(file is not None and file.exists() for file in files)
    drop_table(lake, ("s", name))
    with pytest.raises(NoSuchTableError):
        lake.pyiceberg.load_table(("s", name))
    assert not any(file is not None and file.exists() for file in files)
    assert proxy.hits == 0


def test_a_refusal_that_names_the_setting(lake: IcebergCatalog, proxy: FaultProxy) -> None:
    proxy.faults = [Fault(lambda *_: _[0] == "DELETE", 403, json.dumps(NO_PURGE).encode())]
    with pytest.raises(
        CatalogError, match="administrator to enable DROP_WITH_PURGE_ENABLED"
    ) as raised:
        lake.unregister(("s", "viewed"))
    assert "privilege" not in str(raised.value)


def test_who_may_write_rows_only(lake: IcebergCatalog, name: str, proxy: FaultProxy) -> None:
    proxy.faults = [Fault(commits, 403, json.dumps(NO_PROPERTIES).encode(), of_body=more_than_rows)]
    before = lake.metadata(("s", name))
    lake.check_write(("s", name), rows_only=True)
    assert lake.metadata(("s", name)) == before
    ingest(lake, ("s", name), pa.table({"id": [3]}).to_reader(), Mode.APPEND)
    with pytest.raises(CatalogError, match="not authorized for op UPDATE_TABLE"):
        lake.check_write(("s", name))


def test_a_reader_is_refused_rows(catalog: RestCatalog, lake: IcebergCatalog, name: str) -> None:
    reader = open_catalog({"uri": catalog.uri, "token": catalog.token("rita", "reader")})
    with pytest.raises(CatalogError, match="refused to write to .* for rita"):
        reader.check_write(("s", name), rows_only=True)
    reader.close()


def test_a_schema_that_is_missing(lake: IcebergCatalog, proxy: FaultProxy) -> None:
    # The reference server makes it by itself.
    answer = {"message": "no", "type": "NoSuchNamespaceException", "code": 404}
    body = json.dumps({"error": answer}).encode()
    proxy.faults = [Fault(lambda _, path: path.endswith("/nowhere/tables"), 404, body)]
    with pytest.raises(CatalogError, match=r"create nowhere\.t: the schema does not exist"):
        ingest(lake, ("nowhere", "t"), pa.table({"id": [3]}).to_reader(), Mode.CREATE)


@pytest.mark.parametrize("rows_only", [True, False])
def test_a_probe_whose_connection_is_cut(
    lake: IcebergCatalog, name: str, proxy: FaultProxy, rows_only: bool
) -> None:
    proxy.faults = [Fault(commits, times=2, cuts=True)]
    lake.check_write(("s", name), rows_only)
    assert proxy.hits == 2
    proxy.faults = [Fault(commits, cuts=True)]
    with pytest.raises(CatalogError, match="does not answer"):
        lake.check_write(("s", name), rows_only)


def test_who_may_not_write_removes_no_orphans(
    catalog: RestCatalog, lake: IcebergCatalog, name: str, tmp_path: Path
) -> None:
    loaded: Any = lake.load(("s", name))
    folder = Path(loaded.metadata["location"].removeprefix("file://"))
    lost = folder / "data" / "lost.parquet"
    lost.write_bytes(b"x" * 1234)
    (tmp_path / "dbt_project.yml").write_text("{name: p, profile: p}")
    outputs = {
        who: {
            "type": "iceberg_stream",
            "schema": "s",
            "catalog_properties": {"uri": catalog.uri},
            "token": catalog.token(who, role),
        }
        for who, role in (("rita", "reader"), ("wanda", "writer"))
    }
    profiles = {"p": {"target": "rita", "outputs": outputs}}
    (tmp_path / "profiles.yml").write_text(json.dumps(profiles))

    def orphans(*arguments: str) -> str:
        command = ["orphans", f"s.{name}", "--older-than", "0", "--project-dir", str(tmp_path)]
        return CliRunner().invoke(main, [*command, *arguments]).output

    assert "1 orphans, 1,234 bytes." in orphans()
    assert f"refused to write to s.{name} for rita" in orphans("--remove")
    assert lost.exists()
    assert "1 removed." in orphans("--remove", "--target", "wanda")
    assert not lost.exists()
