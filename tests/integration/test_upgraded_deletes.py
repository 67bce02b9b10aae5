"""Deletes of the time before a table came to format version 3, under vectors that come later."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertCreate
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import (
    BatchRange,
    TargetDeletes,
    WrittenBatch,
)
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    REFERENCED_DATA_FILE,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.tables import duckdb_rows, write
from tests.unit.local_tables import live_deletes

NAME = ("s", "t")
FILE_FORMAT = 2


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    names = SqliteBackend("lake", tmp_path)
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    staged = lake.stage(NAME, schema, PartitionSpec(), {"format-version": "2"})
    lake.commit(staged, (AssertCreate(),), ())
    yield lake
    lake.close()


def commit(lake: IcebergCatalog, change: Change) -> None:
    base = lake.load(NAME)
    assert base is not None
    Committer(lake, NAME, change, base).commit()


def insert(lake: IcebergCatalog, *ids: int) -> DataFile:
    files = write(lake, "t", pa.record_batch({"id": pa.array(ids, pa.int64())}))
    commit(lake, append(*files, properties={}))
    return files[0]


def position_deletes(lake: IcebergCatalog, positions: dict[str, list[int]]) -> DataFile:
    base = lake.load(NAME)
    assert base is not None
    name = f"d{uuid.uuid4().hex[:8]}"
    return write_position_deletes(WriteTarget.of(base.metadata, base.io), name, positions)


def delete(lake: IcebergCatalog, file: DataFile) -> None:
    commit(lake, Change(Operation.DELETE, (AddedFiles((), (file,)),)))


def upgraded(lake: IcebergCatalog, folder: Path) -> IcebergCatalog:
    """As another engine does it: PyIceberg does not."""
    path = Path(lake.table(NAME).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | {"format-version": 3, "next-row-id": 0}))
    lake.close()
    return IcebergCatalog("lake", SqliteBackend("lake", folder))


def stream_deletes(lake: IcebergCatalog, positions: dict[str, list[int]]) -> None:
    """What a stream with `delete_encoding: position` commits of rows that it has found."""
    sink = Sink(lake, NAME, Progress("model.shop.t"), ("id",))
    sink.claim()
    actual = {path: pa.array(rows, pa.int64()) for path, rows in positions.items()}
    snapshot = current_snapshot_id(sink.table().metadata)
    batch = WrittenBatch(BatchRange(None, {"offset": 1}), [])
    sink.commit(uuid.uuid4().hex, [batch.by_position(TargetDeletes(snapshot, actual))])


def deletes(lake: IcebergCatalog) -> list[tuple[str, int]]:
    base = lake.load(NAME)
    assert base is not None
    actual = live_deletes(base.io, base.metadata)
    return sorted((file.file_format.value, file.record_count) for file in actual)


def test_deleted_rows_stay_deleted(lake: IcebergCatalog, tmp_path: Path) -> None:
    one, two = insert(lake, 1, 2, 3, 4), insert(lake, 5, 6, 7, 8)
    delete(lake, position_deletes(lake, {one.file_path: [0], two.file_path: [0]}))
    only = position_deletes(lake, {one.file_path: [1]})
    # Spark tells by its bounds alone that a file is of one data file.
    only[REFERENCED_DATA_FILE] = None
    delete(lake, only)
    lake = upgraded(lake, tmp_path)
    assert duckdb_rows(lake, "t") == [(3,), (4,), (6,), (7,), (8,)]
    stream_deletes(lake, {one.file_path: [2]})
    assert duckdb_rows(lake, "t") == [(4,), (6,), (7,), (8,)]
    # The file of one data file is in its vector; that of two is still needed for the other.
    assert deletes(lake) == [("PARQUET", 2), ("PUFFIN", 3)]
    stream_deletes(lake, {one.file_path: [3], two.file_path: [1]})
    assert duckdb_rows(lake, "t") == [(7,), (8,)]
    assert deletes(lake) == [("PARQUET", 2), ("PUFFIN", 2), ("PUFFIN", 4)]


def test_deletes_that_cannot_be_read(lake: IcebergCatalog, tmp_path: Path) -> None:
    one, two = insert(lake, 1, 2, 3, 4), insert(lake, 5, 6, 7, 8)
    both = position_deletes(lake, {one.file_path: [0], two.file_path: [0]})
    both[FILE_FORMAT] = FileFormat.ORC
    delete(lake, both)
    lake = upgraded(lake, tmp_path)
    with pytest.raises(StreamError, match="position deletes in ORC"):
        stream_deletes(lake, {one.file_path: [2]})
