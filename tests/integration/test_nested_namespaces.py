"""Namespaces within namespaces of a server: who removes files must know their tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchNamespaceError

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.maintenance.orphans import find_orphans
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.writers import open_catalog
from tests.servers.rest_catalog import RestCatalog

ROW = pa.table({"id": pa.array([1], pa.int64())})
LATER = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.fixture
def lake(catalog: RestCatalog) -> Iterator[IcebergCatalog]:
    opened = open_catalog({"uri": catalog.uri, "token": catalog.token("wanda")})
    opened.create_namespace("outer")
    yield opened
    opened.close()


def test_a_table_of_an_inner_namespace_in_the_folder(lake: IcebergCatalog) -> None:
    ingest(lake, ("outer", "t"), ROW.to_reader(), Mode.CREATE)
    table: Any = lake.load(("outer", "t"))
    home = local_path(table.metadata["location"])
    assert home is not None
    client = lake.pyiceberg
    client.create_namespace(("outer", "within"))
    client.create_namespace(("outer", "within", "deep"))
    for number, levels in enumerate((("within",), ("within", "deep"))):
        inner = client.create_table(
            ("outer", *levels, "u"), ROW.schema, location=f"file:{home}/inner{number}"
        )
        inner.append(ROW)
    lost = home / "data" / "lost.parquet"
    lost.write_text("x")
    found = find_orphans(table, LATER, [lake])
    assert [Path(orphan.path) for orphan in found] == [lost]


def test_a_client_that_loads_few_snapshots(catalog: RestCatalog, lake: IcebergCatalog) -> None:
    """The files of the others would look like orphans."""
    for _ in range(2):
        ingest(lake, ("outer", "past"), ROW.to_reader(), Mode.REPLACE)
    few = open_catalog({"uri": catalog.uri, "token": catalog.token("wanda")})
    few.pyiceberg.properties["snapshot-loading-mode"] = "refs"
    table: Any = few.load(("outer", "past"))
    assert len(table.metadata["snapshots"]) == 2
    assert find_orphans(table, LATER, [few]) == []
    few.close()


@pytest.mark.parametrize("method", ["list_tables", "load_table"])
def test_what_a_server_lists_but_does_not_know(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As the namespace `a.b` of one level, on a server that separates levels by dots."""
    ingest(lake, ("outer", "known"), ROW.to_reader(), Mode.REPLACE)
    lake.create_namespace("strange")
    ingest(lake, ("strange", "t"), ROW.to_reader(), Mode.REPLACE)
    table: Any = lake.load(("outer", "known"))
    (local_path(table.metadata["location"]) / "lost.parquet").write_text("x")  # type: ignore[operator]
    if method == "list_tables":
        _list = lake.pyiceberg.list_tables

        def list_tables(namespace: Any) -> Any:
            if namespace == ("strange",):
                raise NoSuchNamespaceError("strange")
            return _list(namespace)

        monkeypatch.setattr(lake.pyiceberg, "list_tables", list_tables)
    else:
        backend, load, metadata = lake._backend, lake._backend.load, lake._backend.metadata
        unknown = "strange"
        monkeypatch.setattr(
            backend, "load", lambda s, n, history=True: None if s == unknown else load(s, n)
        )
        monkeypatch.setattr(
            backend, "metadata", lambda s, n, history=True: None if s == unknown else metadata(s, n)
        )
    with pytest.raises(CatalogError, match=r"(?s)(?=.*strange).*Nothing was removed"):
        find_orphans(table, LATER, [lake])
