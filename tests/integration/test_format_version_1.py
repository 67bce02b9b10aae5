"""Tables of format version 1 in both kinds of catalog; on REST Iceberg's own parser reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.writers import merge, open_catalog


@pytest.fixture
def lake(place: dict[str, str]) -> Iterator[IcebergCatalog]:
    lake = open_catalog(place)
    lake.create_namespace("s")
    yield lake
    lake.close()


def test_writes_go_on(lake: IcebergCatalog) -> None:
    name, row = ("s", "version1"), pa.table({"writer": [1], "n": [1]})
    ingest(lake, name, row.to_reader(), Mode.CREATE, properties={"format-version": "1"})
    for mode in (Mode.APPEND, Mode.REPLACE, Mode.APPEND):
        ingest(lake, name, row.to_reader(), mode)
    merge(lake, name, pa.table({"writer": [1, 2], "n": [7, 7]}))
    table = lake.table(name)
    assert table.metadata.format_version == 1
    assert {snapshot.sequence_number for snapshot in table.snapshots()} <= {0, None}
    assert sorted(table.scan().to_arrow()["writer"].to_pylist()) == [1, 1, 2]
