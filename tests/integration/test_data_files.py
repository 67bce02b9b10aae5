"""Every type of Iceberg in our files and manifests, as Spark and DuckDB read them."""

from __future__ import annotations

import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.tables.files.arrow_types import new_schema
from tests.integration.tables import duckdb_rows, insert

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
BERLIN = timezone(timedelta(hours=2))

# A column's type in Spark, its data, and their values as Spark gives them if they differ.
COLUMNS: dict[str, tuple[str, pa.Array]] = {
    "id": ("int", pa.array([1, 2, 3], pa.int32())),
    "b": ("boolean", pa.array([True, None, False])),
    "l": ("bigint", pa.array([-(2**63), None, 2**63 - 1])),
    "f": ("float", pa.array([1.5, None, -0.25], pa.float32())),
    "d": ("double", pa.array([1e300, None, -1e-300])),
    "small": ("decimal(9,2)", pa.array([Decimal("1234567.89"), None, Decimal("-0.01")], pa.decimal128(9, 2))),
    "wide": ("decimal(38,10)", pa.array([Decimal(10) ** 27, None, Decimal("-1e-10")], pa.decimal128(38, 10))),
    "day": ("date", pa.array([date(1, 1, 1), None, date(9999, 12, 31)])),
    "ntz": ("timestamp_ntz", pa.array([datetime(1969, 12, 31, 23, 59, 59, 999999), None, datetime(2026, 1, 2)], pa.timestamp("us"))),
    "tz": ("timestamp", pa.array([datetime(2026, 7, 1, 12, tzinfo=BERLIN), None, datetime(1900, 1, 1, tzinfo=timezone.utc)], pa.timestamp("us", "Europe/Berlin"))),
    "s": ("string", pa.array(["", None, "zoë 🎈 O'Brien"])),
    "bin": ("binary", pa.array([b"", None, bytes(range(40))])),
    "st": ("struct<x: bigint, y: struct<z: string>>", pa.array([{"x": 1, "y": {"z": "a"}}, None, {"x": None, "y": None}], pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))]))),
    "li": ("array<int>", pa.array([[1, None], None, []], pa.list_(pa.int32()))),
    "ls": ("array<struct<k: string>>", pa.array([[{"k": "a"}, None], None, []], pa.list_(pa.struct([("k", pa.string())])))),
    "m": ("map<string, int>", pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int32()))),
}  # fmt: skip


def values(array: pa.Array) -> list[Any]:
    return [_plain(value) for value in array.to_pylist()]


def _plain(value: Any) -> Any:
    """One form for what readers give in several."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list) and value and all(isinstance(v, tuple) for v in value):
        return dict(value)
    return value


def _same(actual: list[Any], expected: list[Any]) -> bool:
    # An empty map and an empty list look alike in Arrow's values.
    return [[] if v == {} else v for v in map(_plain, actual)] == [
        [] if v == {} else v for v in expected
    ]


@pytest.mark.parametrize("version", [2, 3])
def test_types_that_spark_knows(lake: IcebergCatalog, spark: Session, version: int) -> None:
    name = f"types{version}"
    columns = ", ".join(f"{column} {kind}" for column, (kind, _) in COLUMNS.items())
    spark.run(f"create table s.{name} ({columns}) tblproperties ('format-version' = '{version}')")
    batch = pa.RecordBatch.from_arrays([data for _, data in COLUMNS.values()], list(COLUMNS))
    insert(lake, name, batch)
    insert(lake, name, batch.slice(1, 1))
    expected = {c: [v[0], v[1], v[1], v[2]] for c, (_, d) in COLUMNS.items() if (v := values(d))}
    table = spark.query(f"select * from s.{name} order by id")
    for column in COLUMNS:
        assert _same(table[column].to_pylist(), expected[column]), column
    actual = list(zip(*duckdb_rows(lake, name), strict=True))
    for column, of_duckdb in zip(COLUMNS, actual, strict=True):
        assert _same(list(of_duckdb), expected[column]), column


def test_bounds_are_used_and_right(lake: IcebergCatalog, spark: Session) -> None:
    plain = [c for c, (kind, _) in COLUMNS.items() if "<" not in kind and c not in ("b", "bin")]
    for column in plain[1:]:
        actual = spark.query(
            f"select count(*) from s.types2 where {column} >= (select min({column}) from s.types2)"
        )
        assert as_rows(actual) == [(2,)], column
    metrics = as_rows(
        spark.query(
            "select readable_metrics.l.lower_bound, readable_metrics.l.null_value_count, readable_metrics.s.upper_bound, record_count from s.types2.files order by record_count desc"
        )
    )
    assert metrics[0] == (-(2**63), 1, "zoë 🎈 O'Brien", 3)
    assert metrics[1] == (None, 1, None, 1)


def test_types_that_spark_does_not_know(lake: IcebergCatalog) -> None:
    schema = pa.schema(
        [("id", pa.int32()), ("t", pa.time64("us")), ("u", pa.uuid()), ("x", pa.binary(3))]
    )
    rows = [
        (1, time(23, 59, 59, 999999), ID, b"abc"),
        (2, None, None, None),
    ]
    arrays = [
        pa.array([1, 2], pa.int32()),
        pa.array([r[1] for r in rows], pa.time64("us")),
        pa.array([ID.bytes, None], pa.binary(16)).cast(pa.uuid()),
        pa.array([b"abc", None], pa.binary(3)),
    ]
    lake.pyiceberg.create_table("s.others", new_schema(schema))
    insert(lake, "others", pa.RecordBatch.from_arrays(arrays, schema=schema))
    assert [tuple(map(_plain, row)) for row in duckdb_rows(lake, "others")] == rows


def test_nanoseconds(lake: IcebergCatalog, spark: Session) -> None:
    """The first of the article's bugs: two precisions that look alike."""
    exact = pa.array([1_000, None], pa.timestamp("ns"))
    spark.run("create table s.nanos (id int, t timestamp_ntz)")
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "t": exact})
    insert(lake, "nanos", batch)
    expected = datetime(1970, 1, 1, 0, 0, 0, 1)
    assert as_rows(spark.query("select t from s.nanos order by id")) == [(expected,), (None,)]
    assert duckdb_rows(lake, "nanos", "id, t") == [(1, expected), (2, None)]


def test_nulls_that_come_late(lake: IcebergCatalog, spark: Session) -> None:
    """The second: the first batch says of itself that it holds no null."""
    never = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    batches = [pa.record_batch([[n]], schema=never) for n in (1, 2)]
    late = pa.record_batch([pa.array([None, 3], pa.int64())], schema=never)
    lake.pyiceberg.create_table("s.late", new_schema(never))
    insert(lake, "late", *batches, late)
    assert as_rows(spark.query("select id from s.late order by id")) == [(None,), (1,), (2,), (3,)]
    assert duckdb_rows(lake, "late") == [(None,), (1,), (2,), (3,)]


def test_a_long_value_leaves_no_wrong_bounds(lake: IcebergCatalog, spark: Session) -> None:
    """Arrow tells no bounds of values over 4 KiB: those of other row groups are not all."""
    spark.run(
        "create table s.long (k string) tblproperties ('write.parquet.row-group-size-bytes' = '20')"
    )
    insert(
        lake, "long", pa.record_batch({"k": ["a", "b"]}), pa.record_batch({"k": ["z" * 5000, "y"]})
    )
    assert as_rows(spark.query("select count(*) from s.long where k = 'y'")) == [(1,)]
    assert [row[0] for row in duckdb_rows(lake, "long")] == ["a", "b", "y", "z" * 5000]
