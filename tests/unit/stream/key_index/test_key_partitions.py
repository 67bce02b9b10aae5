"""Partitions that keys decide: those of the files that rows are written to."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from dbt.adapters.iceberg_stream.stream.key_index.key_partitions import KeyPartitions
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.unit.local_tables import evolve, load, make_catalog, make_table, write

TIMES = [datetime(1969, 12, 31, 23), datetime(2026, 2, 28, 1, 30), datetime(2026, 3, 1), None]
VALUES: list[tuple[IcebergType, list[Any], list[Transform[Any, Any]]]] = [
    (LongType(), [-(2**63), -1, 0, 7, None], [BucketTransform(3), TruncateTransform(10)]),
    (IntegerType(), [-7, 0, 7, None], [BucketTransform(3), TruncateTransform(10)]),
    (StringType(), ["", "abc", "abd", "äöü😀", None], [BucketTransform(3), TruncateTransform(2)]),
    (BinaryType(), [b"", b"\0a", b"\xff", None], [BucketTransform(3)]),
    (DecimalType(9, 2), [Decimal("-0.01"), Decimal("12.34"), None], [BucketTransform(3)]),
    (BooleanType(), [True, False, None], []),
    (
        DateType(),
        [date(1969, 12, 31), date(2026, 2, 28), None],
        [BucketTransform(3), YearTransform(), MonthTransform(), DayTransform()],
    ),
    (TimestampType(), TIMES, [BucketTransform(3), DayTransform(), HourTransform()]),
    (
        TimestamptzType(),
        [time and time.replace(tzinfo=UTC) for time in TIMES],
        [YearTransform(), MonthTransform(), HourTransform()],
    ),
]
CASES = [
    (kind, values, transform)
    for kind, values, transforms in VALUES
    for transform in (IdentityTransform(), *transforms)
]


@pytest.mark.parametrize(("kind", "values", "transform"), CASES, ids=str)
def test_the_partitions_of_files(
    tmp_path: Path, kind: IcebergType, values: list[Any], transform: Transform[Any, Any]
) -> None:
    lake = make_catalog(tmp_path)
    schema = Schema(
        NestedField(1, "key", kind, required=False),
        NestedField(2, "other", IntegerType(), required=False),
    )
    fields = (
        PartitionField(1, 1000, transform, "of_key"),
        PartitionField(2, 1001, IdentityTransform(), "of_other"),
    )
    make_table(lake, schema=schema)
    evolve(lake, spec=PartitionSpec(*fields, spec_id=1))
    base = load(lake)
    partitions = KeyPartitions(base.metadata, ["key"])
    assert partitions.are_decided
    keys = WriteTarget.of(base.metadata, base.io).file_schema.field("key").type
    for value in values:
        row = pa.table({"key": pa.array([value], keys), "other": pa.array([1], pa.int32())})
        (file,) = write(lake, row)
        assert partitions.of_rows(row) == {partitions.of_file(file)}


def test_what_keys_do_not_decide(tmp_path: Path) -> None:
    lake = make_catalog(tmp_path)
    schema = Schema(
        NestedField(1, "key", DoubleType(), required=False),
        NestedField(2, "other", IntegerType(), required=False),
    )
    make_table(lake, schema=schema)
    (before,) = write(lake, pa.table({"key": [1.0], "other": pa.array([1], pa.int32())}))
    fields = (
        # Writers do not agree which floating-point numbers are equal.
        PartitionField(1, 1000, IdentityTransform(), "of_key"),
        PartitionField(2, 1001, IdentityTransform(), "of_other"),
    )
    evolve(lake, spec=PartitionSpec(*fields, spec_id=1))
    partitions = KeyPartitions(load(lake).metadata, ["key"])
    assert not partitions.are_decided
    assert partitions.of_file(before) is None


def test_a_transform_that_is_not_known(tmp_path: Path) -> None:
    lake = make_catalog(tmp_path)
    make_table(lake, schema=Schema(NestedField(1, "key", LongType(), required=False)))
    evolve(lake, spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "b"), spec_id=1))
    unknown = {"source-id": 1, "field-id": 1001, "transform": "zorder[3]", "name": "z"}
    metadata = load(lake).metadata
    specs = [*metadata["partition-specs"], {"spec-id": 2, "fields": [unknown]}]
    partitions = KeyPartitions({**metadata, "partition-specs": specs}, ["key"])
    assert partitions.of_rows(pa.table({"key": [34]})) == {(1, (1,))}


def test_a_column_that_was_a_date(tmp_path: Path) -> None:
    """Partitions of its older files are days, and those of its newer ones microseconds."""
    lake = make_catalog(tmp_path)
    make_table(lake, 3, Schema(NestedField(1, "key", DateType(), required=False)))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "of_key"), spec_id=1)
    evolve(lake, spec=spec)
    assert KeyPartitions(load(lake).metadata, ["key"]).are_decided
    promoted = NestedField(1, "key", TimestampType(), required=False)
    evolve(lake, schema=Schema(promoted, schema_id=1))
    assert not KeyPartitions(load(lake).metadata, ["key"]).are_decided
