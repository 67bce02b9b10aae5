"""Row deltas on a storage that is far away, or refuses."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.sub_batch import DeltaPlan
from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions

FIELD_ID = {b"PARQUET:field_id": b"1"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), metadata=FIELD_ID),
        pa.field("name", pa.string(), metadata={b"PARQUET:field_id": b"2"}),
    ]
)
CHUNKS = 10


class Storage:
    """A folder that answers late, counts how many ask it at once, and refuses after a while."""

    def __init__(self, refuses_after: int = 1000) -> None:
        self._files = fs.LocalFileSystem()
        self._left = refuses_after
        self._asking = 0
        self._lock = threading.Lock()
        self.most_at_once = 0

    def open_output_stream(self, path: str) -> Any:
        with self._lock:
            self._left -= 1
            refuses = self._left < 0
            self._asking += 1
            self.most_at_once = max(self.most_at_once, self._asking)
        time.sleep(0.02)
        with self._lock:
            self._asking -= 1
        if refuses:
            raise OSError("the storage is full")
        return self._files.open_output_stream(path)

    def delete_file(self, path: str) -> None:
        self._files.delete_file(path)


def plan(storage: Storage, folder: Path, **settings: Any) -> DeltaPlan:
    return DeltaPlan(
        storage,  # type: ignore[arg-type]
        f"file://{folder}",
        str(folder),
        SCHEMA,
        ("id",),
        ParquetOptions(),
        "w",
        **settings,
    )


def batch(number: int, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array([1], pa.int64()),
            "name": [name],
            f"{ORDER}0": pa.array([number], pa.int64()),
            DELETED: [False],
        }
    )


def path_of(location: str) -> str:
    return location.removeprefix("file://")


def test_small_files_go_side_by_side_and_keep_their_order(tmp_path: Path) -> None:
    storage = Storage()
    updates = [batch(n, f"n{n}") for n in range(CHUNKS)]
    delta = write_changes(plan(storage, tmp_path, chunk_bytes=1), updates)
    assert len(delta.sub_batches) == CHUNKS
    names = [
        pq.read_table(path_of(new.file.location))["name"][0].as_py()
        for sub_batch in delta.sub_batches
        for new in sub_batch.data
    ]
    assert names == [f"n{n}" for n in range(CHUNKS)]
    for sub_batch in delta.sub_batches:
        for file, _ in sub_batch.equality_deletes:
            assert Path(path_of(file.location)).stat().st_size == file.size
    assert storage.most_at_once > 2


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
@pytest.mark.parametrize("others", [[], ["name"]])
@pytest.mark.parametrize("by_partition", [False, True])
@pytest.mark.parametrize(
    "bits",
    [
        [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000],
        [0x8000000000000000, 0x0000000000000000],
    ],
    ids=["nan", "zero"],
)
def test_floats_that_are_equal_are_one_key_whatever_their_bits_are(
    tmp_path: Path, chunk_bytes: int, others: list[str], by_partition: bool, bits: list[int]
) -> None:
    ids = pa.array(np.array(bits, np.uint64).view(np.float64))
    schema = SCHEMA.set(0, SCHEMA.field(0).with_type(pa.float64()))
    changes = [
        pa.record_batch(
            {
                "id": ids.slice(n, 1),
                "name": ["x"],
                f"{ORDER}0": pa.array([n], pa.int64()),
                DELETED: [False],
                PARTITION: pa.StructArray.from_arrays([ids.slice(n, 1)], ["f0"]),
            }
        )
        for n in range(len(bits))
    ]
    settings = {
        "chunk_bytes": chunk_bytes,
        "max_keys": 10,
        "deletes_by_partition": by_partition,
    }
    nan_plan = replace(plan(Storage(), tmp_path, **settings), schema=schema, keys=("id", *others))
    (sub_batch,) = write_changes(nan_plan, changes).sub_batches
    counts = [pq.read_metadata(path_of(new.file.location)).num_rows for new in sub_batch.data]
    assert sum(counts) - sum(len(new.dead) for new in sub_batch.data) == 1
    partitions = {str(new.partition) for new in sub_batch.data}
    assert len(partitions) == 1
    if by_partition:
        assert {str(partition) for _, partition in sub_batch.equality_deletes} == partitions
    deletes = [file.location for file, _ in sub_batch.equality_deletes]
    assert [pq.read_metadata(path_of(location)).num_rows for location in deletes] == [1]


@pytest.mark.parametrize("refuses_after", [0, 1, 7, 2 * CHUNKS - 1])
def test_no_file_is_left_where_the_storage_refuses(tmp_path: Path, refuses_after: int) -> None:
    storage = Storage(refuses_after)
    updates = [batch(n, f"n{n}") for n in range(CHUNKS)]
    with pytest.raises(OSError, match="full"):
        write_changes(plan(storage, tmp_path, chunk_bytes=1), updates)
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_left_where_changes_are_refused(tmp_path: Path) -> None:
    storage = Storage()
    wrong = pa.RecordBatch.from_pydict(
        batch(1, "b").to_pydict() | {f"{ORDER}0": pa.array([None], pa.int64())}
    )
    with pytest.raises(ValueError, match="have no value"):
        write_changes(plan(storage, tmp_path, chunk_bytes=1), [batch(0, "a"), wrong])
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_goes_out_while_it_is_made(tmp_path: Path) -> None:
    storage = Storage()
    many = 400_000
    rows = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(many), pa.int64()),
            "name": [f"{n * 7919 % 104729:06}{n}" for n in range(many)],
            f"{ORDER}0": pa.array(range(many), pa.int64()),
            DELETED: [False] * many,
        }
    )
    delta = write_changes(plan(storage, tmp_path), [rows])
    [sub_batch] = delta.sub_batches
    [new] = sub_batch.data
    assert new.file.size > 1024 * 1024
    assert Path(path_of(new.file.location)).stat().st_size == new.file.size
    assert pq.read_table(path_of(new.file.location)).num_rows == many
