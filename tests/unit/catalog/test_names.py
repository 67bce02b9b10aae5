"""Names become folders of a warehouse and paths of a URL, and never leave them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.names import is_path_part, table_folder
from dbt.adapters.iceberg_stream.catalog.rest_client import RestClient
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

BAD = ["", ".", "..", "../../../x", "a/b", "/etc", "a\\b", "a\x00b", "a\nb"]
VIEW: dict[str, Any] = {
    "current-version-id": 1,
    "versions": [{"version-id": 1, "schema-id": 0, "representations": []}],
    "schemas": [{"schema-id": 0, "fields": []}],
}


@pytest.fixture
def lake(tmp_path: Path) -> IcebergCatalog:
    lake = IcebergCatalog("lake", SqliteBackend("lake", tmp_path / "outer" / "lake"))
    lake.create_namespace("s")
    return lake


@pytest.mark.parametrize("name", [*(("s", bad) for bad in BAD), *((bad, "t") for bad in BAD)])
@pytest.mark.parametrize(
    "create",
    [
        lambda lake, name: ingest(lake, name, pa.table({"a": [1]}).to_reader(), Mode.CREATE),
        lambda lake, name: lake.stage(name, Schema(), UNPARTITIONED_PARTITION_SPEC, {}),
        lambda lake, name: lake.put_view(name, VIEW),
        lambda lake, name: lake.register(name, "file:///nowhere/x.metadata.json"),
    ],
)
def test_nothing_is_created_elsewhere(
    lake: IcebergCatalog, tmp_path: Path, create: Callable[[IcebergCatalog, Name], Any], name: Name
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CatalogError, match="cannot be the name of a"):
        create(lake, name)
    assert sorted(tmp_path.rglob("*")) == before
    assert not lake.relations(name[0])


@pytest.mark.parametrize("namespace", BAD)
def test_namespaces(lake: IcebergCatalog, namespace: str) -> None:
    with pytest.raises(CatalogError, match="cannot be the name of a schema"):
        lake.create_namespace(namespace)
    assert lake.namespaces() == ["s"]


@pytest.mark.parametrize(
    "name", ["t", "größe", "a b", "a.b", "..a", "t%2F..", "x#y?z", "pr-42", "'"]
)
def test_other_names(lake: IcebergCatalog, name: str) -> None:
    lake.put_view(("s", name), VIEW)
    assert lake.relations("s") == [(name, "view")]


@given(st.text(), st.text())
def test_folders_are_below_the_warehouse(namespace: str, name: str) -> None:
    try:
        folder = table_folder("/w", namespace, name)
    except CatalogError:
        return
    path = Path(folder)
    assert path.parts[:2] == ("/", "w")
    assert len(path.parts) == 4
    assert ".." not in path.parts


@pytest.mark.parametrize("bad", ["", ".", ".."])
def test_requests_of_a_rest_catalog(bad: str) -> None:
    """`DELETE …/namespaces/s/tables/..` would be `DELETE …/namespaces/s`."""
    client = RestClient.__new__(RestClient)
    client._namespace_separator = "\x1f"
    for identifier in (("s", bad), (bad, "t")):
        with pytest.raises(CatalogError, match="cannot be the name"):
            client._split_identifier_for_path(identifier)
    with pytest.raises(CatalogError, match="cannot be the name"):
        client._encode_namespace_path((bad,))
    assert client._split_identifier_for_path(("a", "b", "t")) == {
        "namespace": "a\x1fb",
        "table": "t",
    }


def test_parts_of_paths() -> None:
    assert is_path_part("...")
    assert not is_path_part("a/../b")
