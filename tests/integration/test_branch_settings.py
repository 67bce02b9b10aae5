"""What is set on a branch stays there when something is committed to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.writers import open_catalog

ROW = pa.table({"id": [1]})
SETTINGS = {"min-snapshots-to-keep": 7, "max-snapshot-age-ms": 86_400_000}


@pytest.fixture
def lake(place: dict[str, str]) -> Iterator[IcebergCatalog]:
    lake = open_catalog(place)
    lake.create_namespace("s")
    yield lake
    lake.close()


@pytest.mark.parametrize("settings", [SETTINGS, dict(list(SETTINGS.items())[:1]), {}])
def test_retention_survives_commits(lake: IcebergCatalog, settings: dict[str, Any]) -> None:
    name = ("s", f"t{len(settings)}")
    made = ingest(lake, name, ROW.to_reader(), Mode.CREATE)
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": made.snapshot_id}
    base = lake.load(name)
    assert base is not None
    lake.commit(base, (), (SetSnapshotRefUpdate.model_validate(reference | settings),))
    for mode in (Mode.APPEND, Mode.REPLACE):
        done = ingest(lake, name, ROW.to_reader(), mode)
        actual = lake.load(name)
        assert actual is not None
        main = actual.metadata["refs"]["main"]
        assert main == {"snapshot-id": done.snapshot_id, "type": "branch", **settings}
