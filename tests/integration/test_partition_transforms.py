"""Each transform of each type: PyIceberg reads the partitions that our writers have written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertCreate
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
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.query.partition_values import partition_sql
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.files.casting import stored_values
from tests.integration.tables import insert

MICROS = [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29, 3), None]
NANOS = [-1, 1_709_175_600_000_000_001, None]
UUIDS = [uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, bytes(16), None]
VALUES: dict[t.PrimitiveType, pa.Array] = {
    t.BooleanType(): pa.array([True, False, None]),
    t.IntegerType(): pa.array([-5, 34, None], pa.int32()),
    t.LongType(): pa.array([-5, 1 << 40, None], pa.int64()),
    t.FloatType(): pa.array([-1.5, 2.5, None], pa.float32()),
    t.DoubleType(): pa.array([-1.5, 2.5, None], pa.float64()),
    t.DateType(): pa.array([date(1969, 12, 31), date(2024, 2, 29), None]),
    t.TimeType(): pa.array([time(22, 31, 8, 5), time(0), None], pa.time64("us")),
    t.TimestampType(): pa.array(MICROS, pa.timestamp("us")),
    t.TimestamptzType(): pa.array(MICROS, pa.timestamp("us", "UTC")),
    t.TimestampNanoType(): pa.array(NANOS, pa.timestamp("ns")),
    t.TimestamptzNanoType(): pa.array(NANOS, pa.timestamp("ns", "UTC")),
    t.StringType(): pa.array(["iceberg", "éä😀x", None]),
    t.UUIDType(): pa.array(UUIDS, pa.uuid()),
    t.FixedType(4): pa.array([b"\0\1\2\3", b"abcd", None], pa.binary(4)),
    t.BinaryType(): pa.array([b"\0\1\2\3", b"", None], pa.binary()),
    t.DecimalType(9, 2): pa.array([Decimal("-14.25"), Decimal("14.25"), None]).cast(
        pa.decimal128(9, 2)
    ),
}
TRANSFORMS = [
    IdentityTransform(),
    BucketTransform(16),
    TruncateTransform(3),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
    VoidTransform(),
]
CASES = [
    pytest.param(kind, transform, id=f"{transform}-{kind}")
    for kind in VALUES
    for transform in TRANSFORMS
    if transform.can_transform(kind)
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergCatalog]:
    names = SqliteBackend("lake", tmp_path_factory.mktemp("partitions"))
    names.create_namespace("s")
    lake = IcebergCatalog("lake", names)
    yield lake
    lake.close()


def make_table(
    lake: IcebergCatalog, kind: t.PrimitiveType, *transforms: Transform[Any, Any]
) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    schema = Schema(t.NestedField(1, "v", kind, required=False))
    fields = [PartitionField(1, 1000 + n, one, f"p{n}") for n, one in enumerate(transforms)]
    staged = lake.stage(("s", name), schema, PartitionSpec(*fields), {"format-version": "3"})
    lake.commit(staged, (AssertCreate(),), ())
    return name


def expected(kind: t.PrimitiveType, transform: Transform[Any, Any]) -> list[Any]:
    """PyIceberg's own value by value, of values as they are stored."""
    values = VALUES[kind]
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return [transform.transform(kind)(value) for value in values.to_pylist()]


def partitions(lake: IcebergCatalog, name: str, deletes: bool = False) -> list[Any]:
    """Of the files of the table's snapshot, as PyIceberg reads its manifests."""
    table = lake.table(("s", name))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [m for m in snapshot.manifests(table.io) if bool(m.content.value) == deletes]
    entries = [entry for m in manifests for entry in m.fetch_manifest_entry(table.io)]
    return [tuple(map(stored, entry.data_file.partition)) for entry in entries]


def stored(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


def rows_of(actual: list[Any]) -> list[str]:
    return sorted(map(repr, actual))


@pytest.mark.parametrize(("kind", "transform"), CASES)
def test_of_data_files(
    lake: IcebergCatalog, kind: t.PrimitiveType, transform: Transform[Any, Any]
) -> None:
    name = make_table(lake, kind, transform)
    insert(lake, name, pa.record_batch({"v": VALUES[kind]}))
    assert rows_of(partitions(lake, name)) == rows_of(
        [(value,) for value in {*expected(kind, transform)}]
    )


def as_spark_gives(kind: t.PrimitiveType, transform: Transform[Any, Any]) -> pa.Array:
    if isinstance(transform, IdentityTransform):
        values = VALUES[kind]
        return values.storage if isinstance(values, pa.ExtensionArray) else values
    if isinstance(transform, TruncateTransform):
        return pa.array(expected(kind, transform), VALUES[kind].type)
    days = isinstance(transform, DayTransform)
    return pa.array(expected(kind, transform), pa.int32()).cast(pa.date32() if days else pa.int32())


# Spark has texts of UUIDs, which no stream takes for them.
@pytest.mark.parametrize(
    ("kind", "transform"), [case for case in CASES if case.values[0] != t.UUIDType()]
)
def test_of_streams(
    lake: IcebergCatalog, kind: t.PrimitiveType, transform: Transform[Any, Any]
) -> None:
    name = make_table(lake, kind, transform)
    sink = Sink(lake, ("s", name), Progress("model.shop.t"), ("v",))
    sink.claim()
    columns = {
        "v": VALUES[kind],
        f"{ORDER}0": pa.array([0, 1, 2], pa.int64()),
        DELETED: pa.array([False, False, False]),
        PARTITION: pa.StructArray.from_arrays([as_spark_gives(kind, transform)], ["f0"]),
    }
    plan = sink.plan("w", max_keys=100)
    delta = write_changes(plan, [pa.record_batch(columns)])
    sink.commit("w", [WrittenBatch(BatchRange(None, {"offset": 1}), [delta])])
    values = rows_of([(value,) for value in {*expected(kind, transform)}])
    assert rows_of(partitions(lake, name)) == values
    assert rows_of(partitions(lake, name, deletes=True)) == values


def test_two_fields_of_one_column(lake: IcebergCatalog) -> None:
    name = make_table(lake, t.LongType(), IdentityTransform(), BucketTransform(16))
    insert(lake, name, pa.record_batch({"v": pa.array([-5, 34], pa.int64())}))
    assert sorted(partitions(lake, name)) == [(-5, 14), (34, 3)]


def test_of_spark(spark: Session) -> None:
    """What Spark's functions make of the same values, which streams have them compute."""
    lacking = (t.TimeType, t.TimestampNanoType, t.TimestamptzNanoType, t.UUIDType, t.FixedType)
    cases = [case.values for case in CASES if not isinstance(case.values[0], lacking)]
    kinds = list(dict.fromkeys(kind for kind, _ in cases))
    nested = t.StructType(
        *(
            t.NestedField(100 + number, f"in ` {number}", kind, required=False)
            for number, kind in enumerate(kinds)
        )
    )
    schema = Schema(t.NestedField(1, "a.b", nested, required=False))
    fields = [
        PartitionField(100 + kinds.index(kind), 1000 + number, transform, f"p{number}")
        for number, (kind, transform) in enumerate(cases)
    ]
    inside = pa.StructArray.from_arrays(
        [VALUES[kind] for kind in kinds], [field.name for field in nested.fields]
    )
    frame = spark.spark.createDataFrame(pa.table({"a.b": inside}))
    sql = partition_sql("lake", PartitionSpec(*fields), schema)
    (actual,) = spark.rows(f"select {sql} as p from given", given=frame).columns
    for values, (kind, transform) in zip(actual.combine_chunks().flatten(), cases, strict=True):
        said = stored_values(values).to_pylist()
        assert said == expected(kind, transform), f"{transform} of {kind}"


def test_two_partition_fields_of_one_decimal_type(lake: IcebergCatalog, spark: Session) -> None:
    """Java names the type of the second field only, which PyIceberg cannot read."""
    spark.run(
        "create table s.twice using iceberg partitioned by (a, truncate(10, b)) as "
        "select 1.10BD as a, 2.25BD as b"
    )
    rows = pa.table({"a": [Decimal("3.30")], "b": [Decimal("4.45")]})
    insert(lake, "twice", rows.to_batches()[0])
    assert sorted(partitions(lake, "twice")) == [
        (Decimal("1.10"), Decimal("2.20")),
        (Decimal("3.30"), Decimal("4.40")),
    ]
    spark.run("call lake.system.rewrite_manifests('s.twice')")
    insert(lake, "twice", rows.to_batches()[0])
    assert spark.rows("select count(*) as n from s.twice").to_pylist() == [{"n": 3}]
    drop_table(lake, ("s", "twice"))
