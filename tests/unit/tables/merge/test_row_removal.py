"""What a task of Spark says of files that it writes without rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pytest

from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions, WrittenFile
from dbt.adapters.iceberg_stream.tables.merge import file_rewrite
from dbt.adapters.iceberg_stream.tables.merge.row_removal import (
    ROWS_TO_REMOVE,
    RowRemoval,
    RowsToRemove,
    run_task,
)

SCHEMA = pa.schema([("id", pa.int64())])
LOSS = RowsToRemove("s3://b/f.parquet", "b/f.parquet", pa.array([0]))


@dataclass(frozen=True)
class Flaky(RowRemoval):
    """A storage that refuses a few times."""

    refusals: list[str] = field(default_factory=list)

    def run(self, item: RowsToRemove) -> WrittenFile | None:
        if self.refusals:
            raise OSError(self.refusals.pop())
        return None


@pytest.mark.parametrize(("refusals", "failed"), [(2, None), (3, "slow down")])
def test_a_storage_that_refuses(
    refusals: int, failed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task tries again by itself: were it to fail, others would go on to write files."""
    monkeypatch.setattr(file_rewrite.time, "sleep", lambda seconds: None)
    removal = Flaky(fs.LocalFileSystem(), SCHEMA, ParquetOptions(), "w", ["slow down"] * refusals)
    items = pa.RecordBatch.from_pylist([vars(LOSS)], ROWS_TO_REMOVE)
    (result,) = [row for batch in run_task(removal, [items], 1) for row in batch.to_pylist()]
    assert (result["failed"], result["attempt"]) == (failed, 1)


def test_what_first_attempts_have_left_goes(tmp_path: Path) -> None:
    removal = RowRemoval(fs.LocalFileSystem(), SCHEMA, ParquetOptions(), "w-table")
    names = ["stream-w-table-rest-1.parquet", "stream-w-table-rest-2.parquet"]
    others = ["stream-w-own-rest-1.parquet", "f.parquet"]
    for name in [*names, *others]:
        (tmp_path / name).touch()
    item = RowsToRemove("s3://b/f.parquet", str(tmp_path / "f.parquet"), pa.array([0]))
    removal.sweep([item], [WrittenFile(f"s3://b/{names[0]}", 1, b"", 1), None])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[0], *others])
