"""Files that are written again without their deleted rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.tables.files.parquet import ParquetOptions, WrittenFile
from dbt.adapters.iceberg_stream.tables.files.reader import (
    OLD_FILES,
    NotByRewriting,
    OldFile,
)
from dbt.adapters.iceberg_stream.tables.merge import file_task
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import FileChange, FileRewrite
from dbt.adapters.iceberg_stream.tables.merge.file_task import read_task_result, run_task

SCHEMA = pa.schema([("id", pa.int64())])
LOSS = OldFile("s3://b/f.parquet", "b/f.parquet", pa.array([0]))


@dataclass(frozen=True)
class Flaky(FileRewrite):
    """A storage that refuses a few times."""

    refusals: list[str] = field(default_factory=list)

    def run(self, file: OldFile) -> FileChange:
        if self.refusals:
            raise OSError(self.refusals.pop())
        return FileChange(file.location)


@pytest.mark.parametrize(("refusals", "failed"), [(2, None), (3, "slow down")])
def test_a_storage_that_refuses(
    refusals: int, failed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task tries again by itself: were it to fail, others would go on to write files."""
    monkeypatch.setattr(file_task.time, "sleep", lambda seconds: None)
    removal = Flaky(
        fs.LocalFileSystem(), SCHEMA, ParquetOptions(), "w", refusals=["slow down"] * refusals
    )
    items = pa.RecordBatch.from_pylist([vars(LOSS)], OLD_FILES)
    (result,) = [row for batch in run_task(removal, [items], 1) for row in batch.to_pylist()]
    assert (result["failed"], result["attempt"]) == (failed, 1)


def test_what_first_attempts_have_left_goes(tmp_path: Path) -> None:
    removal = FileRewrite(fs.LocalFileSystem(), SCHEMA, ParquetOptions(), "stream-w-table-rest-")
    names = ["stream-w-table-rest-1.parquet", "stream-w-table-rest-2.parquet"]
    others = ["stream-w-own-rest-1.parquet", "f.parquet"]
    for name in [*names, *others]:
        (tmp_path / name).touch()
    item = OldFile("s3://b/f.parquet", str(tmp_path / "f.parquet"), pa.array([0]))
    kept = FileChange("s3://b/f.parquet", new_files=(WrittenFile(f"s3://b/{names[0]}", 1, b"", 1),))
    removal.sweep([item], [kept, FileChange("s3://b/g.parquet")])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[0], *others])


NAMES = ("id", "v", "_row_id", "_last_updated_sequence_number")
IDS = (1, 2, 2147483540, 2147483539)
LINEAGE = pa.schema(
    [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
        for name, number in zip(NAMES, IDS, strict=True)
    ]
)


class TestRowRemoval:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """Three row groups of two rows."""
        path = tmp_path / "f.parquet"
        pq.write_table(
            pa.table({"id": range(6), "v": range(10, 16)}).cast(pa.schema(list(LINEAGE)[:2])),
            path,
            row_group_size=2,
        )
        return path

    def removal(self, schema: pa.Schema = LINEAGE) -> FileRewrite:
        options = ParquetOptions(target_size=1)
        return FileRewrite(fs.LocalFileSystem(), schema, options, "stream-w-rest-")

    def old_file(self, file: Path, *gone: int, **more: Any) -> OldFile:
        return OldFile(f"x://{file}", str(file), pa.array(gone, pa.int64()), **more)

    def written(self, file: Path) -> pq.ParquetFile:
        (path,) = (p for p in file.parent.iterdir() if p != file)
        return pq.ParquetFile(path)

    @pytest.mark.parametrize(
        ("gone", "left", "groups"),
        [((0,), [1, 2, 3, 4, 5], 3), ((2, 3), [0, 1, 4, 5], 2), ((0, 1, 2, 3, 5), [4], 1)],
    )
    def test_rows_and_their_lineage(
        self, file: Path, gone: tuple[int, ...], left: list[int], groups: int
    ) -> None:
        old = self.old_file(file, *gone, first_row_id=100, sequence_number=7)
        (new,) = self.removal().run(old).new_files
        assert new.row_groups == groups
        rows = self.written(file).read()
        assert rows.to_pydict() == {
            "id": left,
            "v": [10 + n for n in left],
            "_row_id": [100 + n for n in left],
            "_last_updated_sequence_number": [7] * len(left),
        }
        name = new.location.rsplit("/", 1)[1]
        assert name.startswith("stream-w-rest-")
        assert new.location == f"x://{file.parent}/{name}"

    def test_lineage_that_rows_have_stays(self, file: Path) -> None:
        columns = {"id": [1, 2, 3], "v": [1, 2, 3], "_row_id": [5, None, 9]}
        pq.write_table(
            pa.table(columns | {"_last_updated_sequence_number": [1, 2, None]}, schema=LINEAGE),
            file,
        )
        self.removal().run(self.old_file(file, 0, first_row_id=100, sequence_number=7))
        rows = self.written(file).read()
        assert rows["_row_id"].to_pylist() == [101, 9]
        assert rows["_last_updated_sequence_number"].to_pylist() == [2, 7]

    def test_files_of_before_format_version_3(self, file: Path) -> None:
        self.removal().run(self.old_file(file, 0))
        assert self.written(file).read()["_row_id"].null_count == 5

    def test_tables_without_lineage(self, file: Path) -> None:
        schema = pa.schema(list(LINEAGE)[:2])
        self.removal(schema).run(self.old_file(file, 0, first_row_id=100, sequence_number=7))
        assert self.written(file).schema_arrow.names == ["id", "v"]

    def test_no_row_is_left(self, file: Path) -> None:
        assert self.removal().run(self.old_file(file, *range(6))).new_files == ()
        assert list(file.parent.iterdir()) == [file]

    def test_a_task(self, file: Path) -> None:
        items = [self.old_file(file, 0, 3), self.old_file(file, *range(6))]
        batch = pa.RecordBatch.from_pylist(
            [vars(item) | {"dead": item.dead.to_pylist()} for item in items], OLD_FILES
        )
        results = [row for b in run_task(self.removal(), [batch]) for row in b.to_pylist()]
        assert [row["location"] for row in results] == [f"x://{file}"] * 2
        (first,), second = (read_task_result(row).new_files for row in results)
        assert second == ()
        assert self.written(file).read()["id"].to_pylist() == [1, 2, 4, 5]
        assert first.size == Path(first.location.removeprefix("x://")).stat().st_size

    def test_refusals(self, file: Path) -> None:
        with pytest.raises(OSError, match="x://.*lost"):
            self.removal().run(self.old_file(file.with_name("lost")))
        file.write_bytes(b"PAR1 no")
        with pytest.raises(OSError, match="f.parquet: "):
            self.removal().run(self.old_file(file, 0))
        pq.write_table(pa.table({"id": [1]}), file)
        with pytest.raises(NotByRewriting, match="no field ids"):
            self.removal().run(self.old_file(file, 0))
        removal = replace(self.removal(), prefix="other")
        removal.sweep([self.old_file(file)])
        assert list(file.parent.iterdir()) == [file]
