"""Arrow streams into tables: what is there afterwards, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Ingested, Mode, ingest
from tests.servers.rest_catalog import rest_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module", params=["sqlite", "rest"])
def lake(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IcebergCatalog]:
    folder = tmp_path_factory.mktemp("ingest")
    if request.param == "sqlite":
        names = SqliteBackend("lake", folder)
        names.create_namespace("s")
        yield IcebergCatalog("lake", names)
        return
    with rest_catalog(folder) as server:
        settings = CatalogSettings("lake", {"type": "rest", "uri": server.uri})
        remote = RemoteBackend(settings, Identity(LiteralToken(server.token("wanda"))))
        remote.create_namespace("s")
        yield IcebergCatalog("lake", remote)


def stream(*rows: tuple[int, str | None], schema: pa.Schema = SCHEMA) -> pa.RecordBatchReader:
    batches = [pa.record_batch([[i], [n]], schema=schema) for i, n in rows]
    return pa.RecordBatchReader.from_batches(schema, batches)


def rows(lake: IcebergCatalog, name: str) -> list[tuple[object, ...]]:
    actual = lake.table(("s", name)).scan().to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in actual)


def files(lake: IcebergCatalog, name: str) -> set[str]:
    location = lake.load(("s", name)).metadata["location"].removeprefix("file://")
    return {str(path) for path in Path(location).rglob("*.parquet")}


def test_modes(lake: IcebergCatalog) -> None:
    made = ingest(lake, ("s", "modes"), stream((1, "a")), Mode.CREATE)
    assert (made.rows, made.files) == (1, 1)
    assert rows(lake, "modes") == [(1, "a")]
    ingest(lake, ("s", "modes"), stream((2, None)), Mode.APPEND)
    ingest(lake, ("s", "modes"), stream((3, "c")), Mode.CREATE_APPEND)
    assert rows(lake, "modes") == [(1, "a"), (2, None), (3, "c")]
    with pytest.raises(CatalogError, match=r"already exists\. Append to it, or replace it"):
        ingest(lake, ("s", "modes"), stream((4, "d")), Mode.CREATE)
    ingest(lake, ("s", "modes"), stream((5, "e")), Mode.REPLACE)
    assert rows(lake, "modes") == [(5, "e")]
    with pytest.raises(CatalogError, match="The table s.none does not exist"):
        ingest(lake, ("s", "none"), stream((1, "a")), Mode.APPEND)
    ingest(lake, ("s", "made"), stream((1, "a")), Mode.CREATE_APPEND)
    ingest(lake, ("s", "also_made"), stream((1, "a")), Mode.REPLACE)
    assert rows(lake, "made") == rows(lake, "also_made") == [(1, "a")]


def test_replacing_changes_the_schema(lake: IcebergCatalog) -> None:
    ingest(lake, ("s", "changes"), stream((1, "a")), Mode.CREATE)
    before = lake.load(("s", "changes"))
    other = pa.table({"name": ["x"], "n": pa.array([1.5])})
    ingest(lake, ("s", "changes"), other.to_reader(), Mode.REPLACE)
    assert rows(lake, "changes") == [("x", 1.5)]
    schema = lake.table(("s", "changes")).schema()
    assert [(f.field_id, f.name) for f in schema.fields] == [(2, "name"), (4, "n")]
    old = lake.table(("s", "changes")).scan(snapshot_id=before.metadata["current-snapshot-id"])
    assert old.to_arrow().to_pylist() == [{"id": 1, "name": "a"}]


def test_what_does_not_fit_leaves_nothing(lake: IcebergCatalog) -> None:
    ingest(lake, ("s", "fits"), stream((1, "a")), Mode.CREATE)
    before = files(lake, "fits")

    def breaks() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[2], ["b"]], schema=SCHEMA)
        raise KeyboardInterrupt

    for data, error in (
        (pa.table({"id": ["x"]}).to_reader(), ColumnError),
        (pa.table({"id": [1], "other": [1]}).to_reader(), ColumnError),
        (pa.RecordBatchReader.from_batches(SCHEMA, breaks()), KeyboardInterrupt),
    ):
        with pytest.raises(error):
            ingest(lake, ("s", "fits"), data)
    assert rows(lake, "fits") == [(1, "a")]
    assert files(lake, "fits") == before


def test_a_new_table_that_comes_to_nothing_is_not_made(lake: IcebergCatalog) -> None:
    def breaks() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[2], ["b"]], schema=SCHEMA)
        raise OSError("the source is gone")

    with pytest.raises(OSError):
        ingest(
            lake, ("s", "never"), pa.RecordBatchReader.from_batches(SCHEMA, breaks()), Mode.CREATE
        )
    assert lake.load(("s", "never")) is None


def test_nothing_to_ingest(lake: IcebergCatalog) -> None:
    done = ingest(lake, ("s", "empty"), pa.RecordBatchReader.from_batches(SCHEMA, []), Mode.CREATE)
    assert (done.rows, done.files) == (0, 0)
    assert rows(lake, "empty") == []


def test_a_dropped_table_is_told(lake: IcebergCatalog) -> None:
    ingest(lake, ("s", "dropped"), stream((1, "a")), Mode.CREATE)

    def drops() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([[2], ["b"]], schema=SCHEMA)
        drop_table(lake, ("s", "dropped"))

    with pytest.raises(CatalogError, match="was dropped while this write ran"):
        ingest(lake, ("s", "dropped"), pa.RecordBatchReader.from_batches(SCHEMA, drops()))


def test_progress(lake: IcebergCatalog) -> None:
    counts: list[int] = []
    done: Ingested = ingest(
        lake, ("s", "told"), stream((1, "a"), (2, "b")), Mode.CREATE, progress=counts.append
    )
    assert counts == [1, 2]
    assert lake.table(("s", "told")).current_snapshot().snapshot_id == done.snapshot_id
