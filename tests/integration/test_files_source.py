"""A folder of Parquet files whose columns are not all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.sources.files import FilesSource, files_source


def land(folder: Path, name: str, second: int, *columns: str) -> None:
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({column: [second] for column in columns}), path)
    os.utime(path, (1_700_000_000 + second, 1_700_000_000 + second))


def test_a_late_file_of_other_columns(spark: Session, tmp_path: Path) -> None:
    """A batch that it is not in has the columns of its own files."""
    source = FilesSource(f"file://{tmp_path}", fs.LocalFileSystem(), str(tmp_path), "parquet")
    land(tmp_path, "first", 0, "id")
    lower = source.mint(None, 1000)
    land(tmp_path, "next", 20, "id")
    until = source.present(lower)
    land(tmp_path, "late", 10, "id", "more")

    upper = source.mint(lower, 1000, until)
    assert upper is not None
    assert source.schema_id(lower, upper) == source.schema_id(None)
    assert source.empty(spark.spark, lower, upper).columns == ["id", "__stream"]
    assert source.read(spark.spark, lower, upper).columns == ["id", "__stream"]

    after = source.mint(upper, 1000)
    assert source.schema_id(upper, after) != source.schema_id(lower, upper)
    assert source.empty(spark.spark, upper, after).columns == ["id", "more", "__stream"]


def test_names_that_look_like_patterns(spark: Session, tmp_path: Path) -> None:
    names = ["part1", "part[1]", "a", "a*", "b1", "b{1,2}", "c?", "cc", "d e", "e%20f", "g+h"]
    for number, name in enumerate(names):
        (tmp_path / f"{name}.json").write_text(f'{{"name": "{name}"}}\n')
        os.utime(tmp_path / f"{name}.json", (1_700_000_000 + number,) * 2)
    spec = {"path": f"file://{tmp_path}", "format": "json", "columns": "name string"}
    source = files_source(spec, fs.LocalFileSystem(), str(tmp_path))
    lower = None
    for name in names:
        # A batch of one file each.
        upper = source.mint(lower, 0)
        assert upper is not None
        rows = source.read(spark.spark, lower, upper).select("name").collect()
        assert [row["name"] for row in rows] == [name]
        lower = upper
