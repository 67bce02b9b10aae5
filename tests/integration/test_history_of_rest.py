"""Tables with a long history on a REST catalog: what is loaded for a write does not grow with it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.table.update import SetStatisticsUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.writers import merge, open_catalog

ROW = pa.table({"writer": [1], "n": [2]})


@pytest.fixture
def lake(rest_place: dict[str, str]) -> Iterator[IcebergCatalog]:
    lake = open_catalog(rest_place)
    lake.create_namespace("s")
    yield lake
    lake.close()


@pytest.fixture
def name(lake: IcebergCatalog) -> Name:
    """A table with five snapshots."""
    actual = "s", f"t{uuid.uuid4().hex[:8]}"
    for _ in range(5):
        ingest(lake, actual, ROW.to_reader(), Mode.CREATE_APPEND)
    return actual


def test_only_heads_are_loaded(lake: IcebergCatalog, name: Name) -> None:
    whole, head = lake.load(name), lake.load(name, history=False)
    assert whole is not None
    assert head is not None
    assert len(whole.metadata["snapshots"]) == 5
    assert head.metadata["snapshots"] == whole.metadata["snapshots"][-1:]
    assert head.metadata["refs"] == whole.metadata["refs"]
    assert lake.load(("s", "none"), history=False) is None


def test_writes_load_no_history(
    lake: IcebergCatalog, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    get = lake.pyiceberg._session.get  # type: ignore[attr-defined]

    def note(url: str, **more: object) -> object:
        asked.append(more.get("params"))
        return get(url, **more)

    monkeypatch.setattr(lake.pyiceberg._session, "get", note)  # type: ignore[attr-defined]
    ingest(lake, name, ROW.to_reader())
    assert asked == [{"snapshots": "refs"}]
    ingest(lake, name, ROW.to_reader(), Mode.REPLACE)
    assert asked == [{"snapshots": "refs"}] * 2
    actual = lake.load(name)
    assert actual is not None
    assert len(actual.metadata["snapshots"]) == 7
    merge(lake, name, pa.table({"writer": [1, 3], "n": [7, 7]}))
    assert lake.table(name).scan().to_arrow().sort_by("writer").to_pylist() == [
        {"writer": 1, "n": 7},
        {"writer": 3, "n": 7},
    ]


def test_an_older_snapshot_with_statistics(lake: IcebergCatalog, name: Name) -> None:
    """As Spark's `compute_table_stats` leaves them: the server fails to leave that snapshot out."""
    table = lake.load(name)
    assert table is not None
    oldest = table.metadata["snapshots"][0]["snapshot-id"]
    statistics = {
        "snapshot-id": oldest,
        "statistics-path": f"{table.metadata['location']}/metadata/x.stats",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    lake.commit(table, (), (SetStatisticsUpdate.model_validate({"statistics": statistics}),))
    ingest(lake, name, ROW.to_reader())
    assert lake.table(name).scan().to_arrow().num_rows == 6
