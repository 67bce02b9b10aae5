"""Whose fault it is when an ingest fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO, StorageError, storage_error
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

SCHEMA = pa.schema([("a", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    names = SqliteBackend("lake", tmp_path)
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    yield lake
    lake.close()


def test_errors_of_the_source_are_not_the_storages(lake: IcebergCatalog, tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": [1]})
        raise ConnectionError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    with pytest.raises(ConnectionError, match="the source is gone"):
        ingest(lake, ("s", "t"), reader, Mode.CREATE)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_storage_that_takes_nothing(lake: IcebergCatalog, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "t").write_text("a file where the table's folder would be")
    with pytest.raises(StorageError, match="cannot be written or read"):
        ingest(lake, ("s", "t"), pa.table({"a": [1]}).to_reader(), Mode.CREATE)
    with pytest.raises(StorageError, match="cannot be written or read"):
        ingest(lake, ("s", "t"), SCHEMA.empty_table().to_reader(), Mode.CREATE)


@pytest.mark.parametrize(
    ("io", "said", "cure"),
    [
        (CatalogFileIO({}), "AWS Error INTERNAL_FAILURE", "vends no storage credentials"),
        (CatalogFileIO({}), "AWS Error NETWORK_CONNECTION", ""),
        (
            CatalogFileIO({"s3.access-key-id": "k"}),
            "AWS Error ACCESS_DENIED",
            "refused the credentials",
        ),
        (PyArrowFileIO({}), "AWS Error ACCESS_DENIED", "refused the credentials"),
        (PyArrowFileIO({}), "AWS Error UNKNOWN (HTTP status 403)", "refused the credentials"),
        (PyArrowFileIO({}), "AWS Error UNKNOWN (HTTP status 503)", ""),
        (PyArrowFileIO({}), "AWS Error NO_SUCH_BUCKET", ""),
        (PyArrowFileIO({}), "[Errno 28] No space left on device", ""),
        (PyArrowFileIO({}), "curlCode: 28, Timeout was reached", ""),
    ],
)
def test_cures(io: PyArrowFileIO, said: str, cure: str) -> None:
    text = str(storage_error(OSError(said), io, "s3://b/t"))
    assert said in text
    assert cure in text
    assert bool(cure) == ("\n" in text)
    assert bool(cure) == ("refuses the files" in text)
