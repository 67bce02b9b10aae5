"""Schemas that two writers change at once, and schemas that come back, in both kinds of catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.integration.writers import open_catalog


@pytest.fixture
def lake(place: dict[str, str]) -> Iterator[IcebergCatalog]:
    lake = open_catalog(place)
    lake.create_namespace("s")
    yield lake
    lake.close()


@pytest.fixture
def name() -> Name:
    return "s", f"t{uuid.uuid4().hex[:8]}"


def test_a_column_of_another_writer_survives_the_claim_of_a_stream(
    lake: IcebergCatalog, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, name, pa.table({"id": [1]}).to_reader(), Mode.CREATE)
    load, others = lake.load, [lake.table(name)]

    def load_before_the_other(wanted: Name, history: bool = True) -> LoadedTable | None:
        actual = load(wanted, history)
        while others:
            with others.pop().update_schema() as update:
                update.add_column("theirs", StringType())
        return actual

    monkeypatch.setattr(lake, "load", load_before_the_other)
    sink = Sink(lake, name, Progress("sink"), ("id",))
    sink.claim(pa.schema([("id", pa.int64()), ("ours", pa.int64())]))
    schema = lake.table(name).schema()
    assert [f.name for f in schema.fields] == ["id", "theirs", "ours"]
    assert len({f.field_id for f in schema.fields}) == 3


def test_schemas_come_back(lake: IcebergCatalog, name: Name) -> None:
    for columns in ("ab", "a", "ab", "a"):
        data = pa.table({column: [1] for column in columns})
        ingest(lake, name, data.to_reader(), Mode.REPLACE)
    table = lake.table(name)
    assert [
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().column_names
        for snapshot in table.snapshots()
    ] == [["a", "b"], ["a"], ["a", "b"], ["a"]]
