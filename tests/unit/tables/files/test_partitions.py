"""All transforms of all types: what our writers put into which partition."""

from __future__ import annotations

import itertools
import math
import struct
import uuid
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
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
    VoidTransform,
    YearTransform,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_key, split
from tests.unit.local_tables import NAME, insert, live, make_table, rows, write

MICROS = iceberg.TimestampType(), iceberg.TimestamptzType()
NANOS = iceberg.TimestampNanoType(), iceberg.TimestamptzNanoType()
SECOND = 1_000_000
# Days of the years -1000 and 12000, for which Python has no dates.
YEARS = [-1_084_000, 3_663_000]
SAMPLES: dict[iceberg.IcebergType, list[Any]] = {
    iceberg.BooleanType(): [True, False],
    iceberg.IntegerType(): [-2_147_483_640, -1, 0, 34, 2**31 - 1],
    iceberg.LongType(): [-(2**62), -1, 0, 34, 2**63 - 1],
    iceberg.FloatType(): [-1.5, 0.0, 2.25],
    iceberg.DoubleType(): [-1.5, 0.0, 1e300],
    iceberg.DateType(): [-719162, -366, -1, 0, 364, 17486],
    iceberg.TimeType(): [0, 81_068 * SECOND, 86_399_999_999],
    **dict.fromkeys(MICROS, [-SECOND * 86_400 * 366, -3_600 * SECOND - 1, -1, 0, 1_510_871_468_000_001]),
    **dict.fromkeys(NANOS, [-(10**18), -1001, -1000, -1, 0, 999, 1_510_871_468_000_001_001]),
    iceberg.StringType(): ["", "iceberg", "zoë 🎈 long enough", "null"],
    iceberg.BinaryType(): [b"", b"\x00\x01\x02\x03", b"\xff" * 20],
    iceberg.FixedType(4): [b"\x00\x01\x02\x03", b"\xff" * 4],
    iceberg.UUIDType(): [uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, bytes(16)],
    iceberg.DecimalType(9, 2): [Decimal("-10.65"), Decimal("0.00"), Decimal("14.20")],
    iceberg.DecimalType(18, 4): [Decimal("-10.6500"), Decimal("14.2000")],
    iceberg.DecimalType(38, 2): [Decimal("-10.65"), Decimal("14.20")],
}  # fmt: skip
TRANSFORMS = (
    IdentityTransform(),
    BucketTransform(16),
    TruncateTransform(10),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
    VoidTransform(),
)
PAIRS = [
    (transform, kind)
    for transform, kind in itertools.product(TRANSFORMS, SAMPLES)
    if transform.can_transform(kind)
]


def schema_of(kind: iceberg.IcebergType) -> Schema:
    return Schema(iceberg.NestedField(1, "v", kind, required=False))


def column(kind: iceberg.IcebergType, values: list[Any]) -> pa.Table:
    stored = file_schema(schema_of(kind)).field("v").type
    if stored == pa.uuid():
        array = pa.array(values, pa.binary(16)).cast(stored)
    elif pa.types.is_temporal(stored):
        number = pa.int32() if pa.types.is_date(stored) else pa.int64()
        array = pa.array(values, number).cast(stored)
    else:
        array = pa.array(values, stored)
    return pa.table({"v": array})


def of_pyiceberg(transform: Transform[Any, Any], kind: iceberg.IcebergType, value: Any) -> Any:
    if isinstance(kind, iceberg.UUIDType) and isinstance(transform, BucketTransform):
        value = uuid.UUID(bytes=value)
    return transform.transform(kind)(value)


def plain(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


@pytest.mark.parametrize("day", YEARS)
@pytest.mark.parametrize(
    "transform",
    [IdentityTransform(), DayTransform(), MonthTransform(), YearTransform(), HourTransform()],
)
@pytest.mark.parametrize("kind", [iceberg.DateType(), *MICROS], ids=str)
def test_partitions_of_years_that_python_lacks(
    lake: IcebergCatalog, kind: iceberg.PrimitiveType, transform: Any, day: int
) -> None:
    is_date = isinstance(kind, iceberg.DateType)
    if is_date and isinstance(transform, HourTransform):
        return
    value = day if is_date else day * 86_400 * SECOND
    stored = file_schema(schema_of(kind)).field("v").type
    numbers = pa.array([value], pa.int32() if is_date else pa.int64())
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    make_table(lake, 2, schema_of(kind), spec)
    (file,) = write(lake, pa.table({"v": numbers.cast(stored)}))
    units = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
    unit = units.get(str(transform))
    expected = np.datetime64(day, "D").astype(f"M8[{unit}]").astype(int) if unit else value
    assert file.partition[0] == expected


def test_partitions_of_text_that_is_not_utf_8(lake: IcebergCatalog) -> None:
    texts = pa.array([b"a", b"\xff"], pa.binary())
    table = pa.table({"v": pa.Array.from_buffers(pa.string(), 2, texts.buffers())})
    schema = Schema(iceberg.NestedField(1, "v", iceberg.StringType(), required=False))
    for transform in (IdentityTransform(), TruncateTransform(1)):
        spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
        with pytest.raises(ColumnError, match="`p` partitions the table, and has a value that is"):
            list(split(table, spec, schema))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "p"))
    assert sum(part.num_rows for _, part in split(table, spec, schema)) == 2


@pytest.mark.parametrize(("transform", "kind"), PAIRS, ids=str)
def test_values_are_those_of_the_transform(transform: Any, kind: Any) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    for value in [*SAMPLES[kind], None]:
        ((key, actual),) = split(column(kind, [value]), spec, schema_of(kind))
        assert key is not None
        expected = None if value is None else of_pyiceberg(transform, kind, value)
        assert plain(key.partition[0]) == expected
        assert actual.num_rows == 1


@pytest.mark.parametrize(("transform", "kind"), PAIRS, ids=str)
def test_a_reader_finds_the_values_and_the_rows(
    lake: IcebergCatalog, transform: Any, kind: iceberg.IcebergType
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    make_table(lake, 3, schema_of(kind), spec)
    values = [*SAMPLES[kind], None]
    insert(lake, column(kind, [*values, *values]))
    expected = {repr(None if v is None else of_pyiceberg(transform, kind, v)) for v in values}
    files = live(lake)
    assert {repr(plain(file.partition[0])) for file in files} == expected
    assert len(files) == len(expected)
    assert sum(file.record_count for file in files) == 2 * len(values)
    if kind not in NANOS:  # which PyIceberg reads as microseconds
        written = column(kind, [*values, *values])["v"].to_pylist()
        assert rows(lake) == sorted(((v,) for v in written), key=repr)
    if isinstance(transform, IdentityTransform) and isinstance(kind, iceberg.FixedType):
        # Iceberg's own reader of manifests takes a fixed value for one with a length (1.11).
        drop_table(lake, NAME)


# Spec, "Appendix B: 32-bit Hash Requirements", and what follows from it.
HASHES: list[tuple[iceberg.IcebergType, Any, int]] = [
    (iceberg.IntegerType(), 34, 2017239379),
    (iceberg.LongType(), 34, 2017239379),
    (iceberg.DecimalType(9, 2), Decimal("14.20"), -500754589),
    (iceberg.DateType(), (date(2017, 11, 16) - date(1970, 1, 1)).days, -653330422),
    (iceberg.TimeType(), (22 * 3600 + 31 * 60 + 8) * SECOND, -662762989),
    (iceberg.TimestampType(), 1_510_871_468 * SECOND, -2047944441),
    (iceberg.TimestampType(), 1_510_871_468_000_001, -1207196810),
    (iceberg.TimestamptzType(), 1_510_871_468 * SECOND, -2047944441),
    (iceberg.TimestampNanoType(), 1_510_871_468_000_000_000, -2047944441),
    (iceberg.TimestampNanoType(), 1_510_871_468_000_001_001, -1207196810),
    (iceberg.TimestamptzNanoType(), 1_510_871_468_000_001_001, -1207196810),
    (iceberg.StringType(), "iceberg", 1210000089),
    (iceberg.UUIDType(), uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340),
    (iceberg.FixedType(4), b"\x00\x01\x02\x03", -188683207),
    (iceberg.BinaryType(), b"\x00\x01\x02\x03", -188683207),
]


@pytest.mark.parametrize(("kind", "value", "hashed"), HASHES, ids=str)
@pytest.mark.parametrize("buckets", [1, 16, 1000])
def test_buckets_are_those_of_the_specification(
    kind: iceberg.IcebergType, value: Any, hashed: int, buckets: int
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(buckets), "p"))
    ((key, _),) = split(column(kind, [value]), spec, schema_of(kind))
    assert key is not None
    assert key.partition[0] == (hashed & (2**31 - 1)) % buckets


# Spec, "Partition Transforms": whole numbers since 1970, the earlier one before it.
TIMES = [
    (YearTransform(), iceberg.TimestampType(), -1, -1),
    (MonthTransform(), iceberg.TimestampType(), 0, 0),
    (MonthTransform(), iceberg.TimestampType(), -1, -1),
    (DayTransform(), iceberg.TimestampType(), 86_400 * SECOND - 1, 0),
    (DayTransform(), iceberg.TimestampType(), 86_400 * SECOND, 1),
    (DayTransform(), iceberg.TimestamptzType(), -1, -1),
    (HourTransform(), iceberg.TimestampType(), 3_600 * SECOND - 1, 0),
    (HourTransform(), iceberg.TimestampType(), -1, -1),
    (HourTransform(), iceberg.TimestampNanoType(), -1, -1),
    (DayTransform(), iceberg.TimestampNanoType(), 86_400 * 10**9 - 1, 0),
    (DayTransform(), iceberg.TimestampNanoType(), 86_400 * 10**9, 1),
    (DayTransform(), iceberg.DateType(), 17486, 17486),
    (YearTransform(), iceberg.DateType(), 365, 1),
    (TruncateTransform(10), iceberg.IntegerType(), -1, -10),
    (TruncateTransform(10), iceberg.LongType(), 9, 0),
    (TruncateTransform(50), iceberg.DecimalType(9, 2), Decimal("10.65"), Decimal("10.50")),
    (TruncateTransform(3), iceberg.StringType(), "ëëëë", "ëëë"),
    (TruncateTransform(3), iceberg.BinaryType(), b"\x01\x02\x03\x04", b"\x01\x02\x03"),
]


@pytest.mark.parametrize(("transform", "kind", "value", "expected"), TIMES, ids=str)
def test_values_of_the_specification(
    transform: Any, kind: iceberg.IcebergType, value: Any, expected: Any
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    ((key, _),) = split(column(kind, [value]), spec, schema_of(kind))
    assert key is not None
    assert key.partition[0] == expected


def test_rows_of_a_partition_stay_in_order() -> None:
    schema = Schema(
        iceberg.NestedField(1, "v", iceberg.LongType(), required=False),
        iceberg.NestedField(2, "n", iceberg.LongType(), required=False),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    table = pa.table({"v": [2, 1, None, 2, 1, None], "n": [0, 1, 2, 3, 4, 5]})
    actual = [
        (key and key.partition[0], part["n"].to_pylist())
        for key, part in split(table, spec, schema)
    ]
    assert actual == [(1, [1, 4]), (2, [0, 3]), (None, [2, 5])]


def test_no_rows_are_in_no_partition() -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    kind = iceberg.LongType()
    assert list(split(column(kind, []), spec, schema_of(kind))) == []


def test_a_table_without_partitions_is_one() -> None:
    kind = iceberg.LongType()
    ((key, actual),) = split(column(kind, [2, 1]), PartitionSpec(), schema_of(kind))
    assert key is None
    assert actual["v"].to_pylist() == [2, 1]


@pytest.mark.parametrize("kind", [iceberg.FloatType(), iceberg.DoubleType()], ids=str)
def test_each_floating_point_number_has_one_partition(lake: IcebergCatalog, kind: Any) -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    make_table(lake, 2, schema_of(kind), spec)
    values = [math.nan, 0.0, -0.0, 1.0, other_nan, None, -math.inf, 0.0, -0.0]
    files = write(
        lake, pa.table({"v": pa.array(values, file_schema(schema_of(kind)).field("v").type)})
    )
    actual = sorted((repr(file.partition[0]), file.record_count) for file in files)
    assert actual == [("-0.0", 2), ("-inf", 1), ("0.0", 2), ("1.0", 1), ("None", 1), ("nan", 2)]


def test_batches_of_one_partition_are_one_file(lake: IcebergCatalog) -> None:
    kind = iceberg.DoubleType()
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    make_table(lake, 2, schema_of(kind), spec)
    batch = column(kind, [math.nan, 1.0, None])
    files = write(lake, pa.concat_tables([batch, batch]))
    assert sorted(file.record_count for file in files) == [2, 2, 2]


def test_several_fields_of_one_column(lake: IcebergCatalog) -> None:
    """A table of version 1 keeps the fields that it no longer has, as void ones."""
    kind = iceberg.TimestampType()
    spec = PartitionSpec(
        PartitionField(1, 1000, VoidTransform(), "old"),
        PartitionField(1, 1001, DayTransform(), "day"),
        PartitionField(1, 1002, BucketTransform(4), "bucket"),
    )
    make_table(lake, 1, schema_of(kind), spec)
    insert(lake, pa.table({"v": pa.array([datetime(1970, 1, 2)], pa.timestamp("us"))}))
    (file,) = live(lake)
    expected = of_pyiceberg(BucketTransform(4), kind, 86_400 * SECOND)
    assert [file.partition[n] for n in range(3)] == [None, 1, expected]
    assert rows(lake) == [(datetime(1970, 1, 2),)]


def test_nested_columns(lake: IcebergCatalog) -> None:
    struct_type = iceberg.StructType(
        iceberg.NestedField(2, "at", iceberg.TimestamptzType(), required=False)
    )
    schema = Schema(iceberg.NestedField(1, "s", struct_type, required=False))
    make_table(lake, 2, schema, PartitionSpec(PartitionField(2, 1000, DayTransform(), "day")))
    at = datetime(1970, 1, 3, 23, tzinfo=timezone.utc)
    insert(
        lake,
        pa.table(
            {"s": pa.array([{"at": at}, None, {"at": None}], file_schema(schema).field("s").type)}
        ),
    )
    actual = {file.partition[0]: file.record_count for file in live(lake)}
    assert actual == {2: 1, None: 2}


def test_dots_in_the_name_of_a_column(lake: IcebergCatalog) -> None:
    schema = Schema(iceberg.NestedField(1, "a.b", iceberg.LongType(), required=False))
    make_table(lake, 2, schema, PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p")))
    insert(lake, pa.table({"a.b": [7]}))
    assert [file.partition[0] for file in live(lake)] == [7]


def test_paths_show_the_values() -> None:
    kind = iceberg.TimestampType()
    spec = PartitionSpec(
        PartitionField(1, 1000, DayTransform(), "day"),
        PartitionField(1, 1001, HourTransform(), "hour"),
    )
    key = partition_key(spec, schema_of(kind), [1, None])
    assert key.to_path() == "day=1970-01-02/hour=null"


def test_the_catalog_of_the_table_prunes_by_them(lake: IcebergCatalog) -> None:
    kind = iceberg.TimestampType()
    make_table(
        lake, 2, schema_of(kind), PartitionSpec(PartitionField(1, 1000, DayTransform(), "d"))
    )
    insert(lake, column(kind, [0, 86_400 * SECOND, None]))
    scan = lake.pyiceberg.load_table(NAME).scan("v >= '1970-01-02T00:00:00'")
    assert len(list(scan.plan_files())) == 1
