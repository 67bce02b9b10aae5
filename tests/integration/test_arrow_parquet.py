"""What of Parquet files is read without Spark is what Spark would have read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.files.definition import files_source
from dbt.adapters.iceberg_stream.stream.sources.files.source import FilesSource
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

MOMENT = datetime(1500, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-32768, 32767]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float": (pa.float32(), [1.5, float("-inf")]),
    "double": (pa.float64(), [-0.0, 5e-324]),
    "string": (pa.string(), ["", "é\x00😀"]),
    "large": (pa.large_string(), ["a", "b"]),
    "words": (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    "binary": (pa.binary(), [b"", b"\xff"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "utc": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT]),
    "local": (pa.timestamp("us"), [MOMENT.replace(tzinfo=None)] * 2),
    "seconds": (pa.timestamp("ms"), [MOMENT.replace(tzinfo=None, microsecond=0)] * 2),
    "small": (pa.decimal128(9, 2), [Decimal("-1.10"), Decimal("9999999.99")]),
    "wide": (pa.decimal128(38, 10), [Decimal("-1.5"), Decimal(10) ** 27]),
    "listed": (pa.list_(pa.int64()), [[1], None]),
}
PLAIN = {"bool", "int8", "int16", "int32", "int64", "float", "double", "string", "large", "words"}
PLAIN |= {"binary", "date", "utc", "local", "small", "wide"}


def source_of(folder: Path) -> FilesSource:
    spec = {"path": f"file://{folder}", "format": "parquet"}
    return files_source(spec, pa.fs.LocalFileSystem(), str(folder))


def arrow_table(spark: Session, source: FilesSource, names: Sequence[str]) -> pa.Table | None:
    def pick(schema: pa.Schema) -> Collection[str] | None:
        return names if set(names) <= set(schema.names) else None

    upper = source.plan_batch(None, 10**9)
    assert upper is not None
    rows: Iterator[pa.RecordBatch] | None = source.arrow_rows(spark, None, upper, pick)
    try:
        return None if rows is None else pa.Table.from_batches(rows)
    except ArrowFallback:
        return None


@pytest.mark.parametrize("name", VALUES)
def test_a_column_is_the_same(spark: Session, tmp_path: Path, name: str) -> None:
    kind, values = VALUES[name]
    rows = pa.table({name: pa.array([*values, None], kind), "n": [0, 1, 2]})
    pq.write_table(rows, tmp_path / "a.parquet")
    source = source_of(tmp_path)
    actual = arrow_table(spark, source, [name])
    assert (actual is not None) == (name in PLAIN)
    if actual is None:
        return
    upper = source.plan_batch(None, 1)
    assert upper is not None
    frame = source.read(spark.spark, None, upper)
    expected = spark.rows(f"select {name} from v order by n", v=frame)
    assert actual[name].to_pylist() == expected[name].to_pylist()


def test_files_come_in_the_order_that_spark_gives_them(spark: Session, tmp_path: Path) -> None:
    for number in range(5):
        rows = pa.table({"id": list(range(number, number + 3))})
        pq.write_table(rows, tmp_path / f"{9 - number}.parquet", row_group_size=2)
    source = source_of(tmp_path)
    actual = arrow_table(spark, source, ["id"])
    upper = source.plan_batch(None, 10**9)
    assert actual is not None and upper is not None
    sql = "select id, __stream.major, __stream.minor from v order by 2, 3"
    expected = spark.rows(sql, v=source.read(spark.spark, None, upper))
    assert actual["id"].to_pylist() == expected["id"].to_pylist()
    assert actual[MAJOR].to_pylist() == expected["major"].to_pylist()
    assert actual[MINOR].to_pylist() == [0, 1, 2] * 5


def test_files_of_other_columns_are_left_to_spark(spark: Session, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    source = files_source(
        {"path": f"file://{tmp_path}", "format": "parquet", "columns": "id bigint, name string"},
        pa.fs.LocalFileSystem(),
        str(tmp_path),
    )
    assert arrow_table(spark, source, ["id"]) is not None
    assert arrow_table(spark, source, ["id", "name"]) is None
    upper = source.plan_batch(None, 1)
    assert upper is not None
    frame = source.read(spark.spark, None, upper)
    assert spark.rows("select id, name from v", v=frame).to_pylist() == [{"id": 1, "name": None}]


def test_days_of_another_calendar_are_left_to_spark(spark: Session, tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": [date(1000, 1, 1)]}), tmp_path / "a.parquet")
    name = "spark.sql.parquet.datetimeRebaseModeInRead"
    spark.configure({name: "LEGACY"})
    try:
        assert arrow_table(spark, source_of(tmp_path), ["at"]) is None
    finally:
        spark.configure({name: "CORRECTED"})
    assert arrow_table(spark, source_of(tmp_path), ["at"]) is not None
