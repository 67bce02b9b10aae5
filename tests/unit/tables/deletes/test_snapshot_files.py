"""The deleted rows of data files, and some rows of one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.stream.sources.iceberg.first_read import plan_first_read
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    deleted_rows,
    read_rows_at,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    REFERENCED_DATA_FILE,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.unit.local_tables import commit, insert, live, load, make_table, rows

SCHEMA = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
# Much longer than the footer, which is read with the end of the file.
GROUP = 100_000


class CountedFiles:
    """A target whose files count the bytes that are read of them."""

    def __init__(self) -> None:
        self.bytes = 0

    def path_of(self, location: str) -> str:
        return location

    def filesystem(self) -> Any:
        return self

    def open_input_file(self, path: str) -> Any:
        files = self

        class Counted(io.FileIO):
            def read(self, size: int | None = -1) -> bytes:
                content = super().read(-1 if size is None else size) or b""
                files.bytes += len(content)
                return content

        return pa.PythonFile(Counted(path), mode="r")


@pytest.fixture
def location(tmp_path: Path) -> str:
    table = pa.table({"id": np.random.default_rng(1).permutation(4 * GROUP)}, SCHEMA)
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, row_group_size=GROUP, use_dictionary=False, compression="none")
    return str(path)


@pytest.mark.parametrize("at", [[3.5, 0.02, 0.99], [1], [1.99, 1], [3.99, 0], []])
def test_only_their_row_groups_are_read(location: str, at: list[float]) -> None:
    positions = [round(part * GROUP) for part in at]
    files: Any = CountedFiles()
    rows = read_rows_at(files, SCHEMA, location, np.array(positions, np.int64))
    whole = pq.read_table(location, filesystem=fs.LocalFileSystem())["id"].to_pylist()
    assert rows["id"].to_pylist() == [whole[position] for position in positions]
    groups = {position // GROUP for position in positions}
    assert 8 * GROUP * len(groups) <= files.bytes < 8 * GROUP * (len(groups) + 1)


@pytest.mark.parametrize("are_shared", [False, True])
def test_deletes_that_are_older_than_their_data_file(
    lake: IcebergCatalog, are_shared: bool
) -> None:
    """A file is removed, its deletes stay, and the file is added again: all of its rows live."""
    make_table(lake)
    insert(lake, pa.table({"id": [1, 2], "x": ["a", "b"]}))
    (again,) = live(lake)
    insert(lake, pa.table({"id": [3, 4], "x": ["c", "d"]}))
    (stays,) = (file.file_path for file in live(lake) if file.file_path != again.file_path)
    target = WriteTarget.of(load(lake).metadata, load(lake).io)
    positions = {again.file_path: [0]} | ({stays: [1]} if are_shared else {})
    delete = write_position_deletes(target, "p", positions)
    delete[REFERENCED_DATA_FILE] = None  # its bounds tell, and no writer has to remove it
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=(delete,)),)))
    commit(lake, Change(Operation.DELETE, removed=(again,)))
    commit(lake, append(again, properties={}))
    table = load(lake)
    files = snapshot_files(table)
    dead = {path: [*found] for path, found in deleted_rows(table, [*files.values()]).items()}
    assert dead == {again.file_path: [], stays: [1] if are_shared else []}
    if not are_shared:  # PyIceberg applies a delete file that one data file needs to others, too
        assert rows(lake) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    first = plan_first_read(table, table.metadata["snapshots"][::-1])
    assert first is not None
    read = {piece.location: piece.positions.to_pylist() for piece in first.pieces(0, 4)}
    assert read == dead
