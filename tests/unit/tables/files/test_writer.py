"""How rows become row groups and files, and how many wait in memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.files import writer as under_test
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter, _pieces
from tests.unit.local_tables import load, make_table

BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
# Ten rows of a whole number.
SIZE = 80


def batch(first: int, count: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(first, first + count), pa.int64())})


def sizes(rows: pa.RecordBatch, size: int) -> list[int]:
    return [piece.num_rows for piece in _pieces(rows, size)]


def test_pieces() -> None:
    assert sizes(batch(0, 100), SIZE) == [10] * 10
    assert sizes(batch(0, 25), SIZE) == [10, 10, 5]
    # A row may be larger, and may take no room at all.
    assert sizes(batch(0, 3), 1) == [1, 1, 1]
    assert sizes(pa.record_batch({"x": pa.nulls(3)}), 2) == [3]
    assert sizes(batch(0, 0), SIZE) == []
    assert pa.Table.from_batches(_pieces(batch(0, 25), SIZE))["id"].to_pylist() == list(range(25))


def writer(lake: IcebergCatalog, spec: PartitionSpec | None = None) -> DataFileWriter:
    size = {"write.parquet.row-group-size-bytes": str(SIZE)}
    make_table(lake, properties=size, **({} if spec is None else {"spec": spec}))
    base = load(lake)
    return DataFileWriter(WriteTarget.of(base.metadata, base.io), "test", "w")


def groups(files: list[DataFile]) -> list[int]:
    """Rows of each row group."""
    actual = []
    for file in files:
        with pq.ParquetFile(file.file_path.removeprefix("file://")) as opened:
            metadata = opened.metadata
            actual += [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    return actual


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each row group finds the lanes before it at work."""
    encode = DataFileWriter._encode

    def slowly(self: DataFileWriter, lane: Any, rows: pa.Table) -> None:
        time.sleep(0.02)
        encode(self, lane, rows)

    monkeypatch.setattr(DataFileWriter, "_encode", slowly)


def with_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """As the table has them: its texts are empty, but for their ends."""
    return rows.append_column("x", pa.nulls(rows.num_rows, pa.string()))


@pytest.mark.parametrize("lanes", [1, 2])
def test_row_groups_go_side_by_side(
    lake: IcebergCatalog, slow: None, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    monkeypatch.setattr(under_test, "LANES", lanes)
    with writer(lake) as opened:
        opened.write(with_texts(batch(10 * n)) for n in range(6))
        files = opened.close()
    assert len(files) == lanes
    assert sum(file.record_count for file in files) == opened.rows == 60
    # Each is full as soon as it holds what a row group may.
    assert len(groups(files)) >= 6


def test_a_partition_has_one_file(lake: IcebergCatalog, slow: None) -> None:
    with writer(lake, BY_ID) as opened:
        opened.write(with_texts(pa.record_batch({"id": [n % 2] * 20})) for n in range(6))
        files = opened.close()
    assert [file.record_count for file in files] == [60, 60]


def test_partitions_that_are_open_at_once(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "MAX_OPEN", 3)
    with writer(lake, BY_ID) as opened:
        for number in (1, 2, 3, 1, 4):
            opened.write([with_texts(batch(number, 1))])
            assert len(opened._open) <= 3
        # The one that was used longest ago has been finished.
        assert [one.key.partition[0] for one in opened._open.values()] == [1, 3, 4]  # type: ignore[union-attr]
        files = opened.close()
    assert sorted(file.partition[0] for file in files) == [1, 2, 3, 4]


def test_what_waits_in_memory(lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of many partitions, none of which has a row group."""
    monkeypatch.setattr(under_test, "LANES", 2)
    most = 0
    with writer(lake, BY_ID) as opened:
        for number in range(60):
            opened.write([with_texts(batch(number, 1))])
            held = sum(partition.pending_bytes for partition in opened._open.values())
            assert opened._pending_bytes == held
            most = max(most, held)
        files = opened.close()
    assert opened._pending_bytes == 0
    assert SIZE < most <= 2 * SIZE
    assert len(files) == 60


def test_names_are_in_order(lake: IcebergCatalog) -> None:
    with writer(lake, BY_ID) as opened:
        opened.write([with_texts(batch(0, 12))])
        names = [Path(file.file_path).name for file in opened.close()]
    assert names == [f"test-w-{n:05}.parquet" for n in range(12)]


def test_what_goes_wrong_while_it_is_encoded(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next row group, or the end, raises it; no thread waits for ever, no file is left."""

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    opened = writer(lake)
    monkeypatch.setattr(
        "dbt.adapters.iceberg_stream.tables.files.parquet.RollingWriter.write", fail
    )
    with pytest.raises(OSError, match="the disk is full"), opened:
        opened.write(with_texts(batch(10 * n)) for n in range(20))
        opened.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("files") and t.is_alive()]
    assert not list(
        Path(load(lake).metadata["location"].removeprefix("file://")).rglob("*.parquet")
    )
