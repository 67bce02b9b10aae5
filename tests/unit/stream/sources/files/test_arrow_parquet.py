"""Which Parquet files are read without Spark, and what they become."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType, YearMonthIntervalType

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.files.arrow_parquet import (
    is_arrow_readable,
    parquet_arrow_schema,
    read_arrow,
)
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = pa.table({"id": [1, 2], "name": ["a", None]}, SCHEMA)


def read(*files: Path, columns: Collection[str] = ("id", "name")) -> pa.Table:
    placed = [(str(file), 10 * number) for number, file in enumerate(files)]
    return pa.Table.from_batches(read_arrow(fs.LocalFileSystem(), placed, SCHEMA, columns))


def write(path: Path, rows: pa.Table, **options: object) -> Path:
    pq.write_table(rows, path, **options)
    return path


def test_rows_come_in_the_order_of_files_with_their_places(tmp_path: Path) -> None:
    more = pa.table({"more": [1], "name": ["c"], "id": [3]})
    rows = read(write(tmp_path / "a", ROWS, row_group_size=1), write(tmp_path / "b", more))
    assert rows.to_pylist() == [
        {"id": 1, "name": "a", MAJOR: 0, MINOR: 0},
        {"id": 2, "name": None, MAJOR: 0, MINOR: 1},
        {"id": 3, "name": "c", MAJOR: 10, MINOR: 0},
    ]


def test_columns_that_are_not_picked(tmp_path: Path) -> None:
    file = write(tmp_path / "a", ROWS)
    assert read(file, columns=["id"]).column_names == ["id", MAJOR, MINOR]
    assert read(file, columns=[])[MINOR].to_pylist() == [0, 1]


def test_large_strings_are_strings(tmp_path: Path) -> None:
    large = ROWS.cast(pa.schema([("id", pa.int64()), ("name", pa.large_string())]))
    assert read(write(tmp_path / "a", large))["name"].type == pa.string()


@pytest.mark.parametrize(
    "rows",
    [
        ROWS.select(["id"]),
        ROWS.rename_columns(["ID", "name"]),
        ROWS.append_column("NAME", ROWS["name"]),
        ROWS.append_column("id", ROWS["id"]),
        ROWS.set_column(0, "id", ROWS["id"].cast(pa.int32())),
        ROWS.set_column(1, "name", ROWS["name"].cast(pa.binary())),
        ROWS.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}),
        ROWS.replace_schema_metadata({"org.apache.spark.version": "2.4.8"}),
        ROWS.replace_schema_metadata({"org.apache.spark.version": "v4"}),
    ],
)
def test_what_spark_must_see(tmp_path: Path, rows: pa.Table) -> None:
    good = write(tmp_path / "good", ROWS)
    with pytest.raises(ArrowFallback):
        read(good, write(tmp_path / "bad", rows))


def test_a_value_that_a_file_holds_once_is_not_in_memory_for_all_rows(tmp_path: Path) -> None:
    count, text = 100_000, "x" * 10_000
    words = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text])
    path = write(tmp_path / "a", pa.table({"id": range(count), "name": words}))
    assert path.stat().st_size < 1_000_000
    columns = {"name": "name"}
    batches = read_arrow(fs.LocalFileSystem(), [(str(path), 0)], SCHEMA, columns)
    assert max(batch.nbytes for batch in batches) < 100_000_000


def test_a_file_that_is_none_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"PAR1 no")
    for path in (tmp_path / "a", tmp_path / "gone"):
        with pytest.raises(ArrowFallback):
            read(path)


def test_columns_that_arrow_does_not_have_are_left_out() -> None:
    spark = StructType([StructField("id", LongType()), StructField("y", YearMonthIntervalType())])
    assert parquet_arrow_schema(spark) == pa.schema([("id", pa.int64())])


def test_types_that_both_see_alike() -> None:
    assert is_arrow_readable(pa.decimal128(9, 2)) and is_arrow_readable(pa.timestamp("us", "UTC"))
    others = [pa.timestamp("ns"), pa.uint32(), pa.list_(pa.int64()), pa.struct([("a", pa.int8())])]
    assert not any(is_arrow_readable(kind) for kind in others)
