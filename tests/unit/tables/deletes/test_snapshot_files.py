"""Some rows of a data file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import read_rows_at

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
