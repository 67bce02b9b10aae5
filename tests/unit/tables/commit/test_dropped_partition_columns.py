"""Tables whose specs name columns that are gone: their old manifests are rewritten as they are."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.manifests import read_manifest, read_manifest_list
from tests.unit.local_tables import (
    NAME,
    evolve,
    insert,
    live,
    load,
    make_table,
    manifests,
    replace,
    rewrite,
    rows,
    set_metadata,
)

# A column's type, how it partitions, its values, and the partition's value.
DROPPED: dict[str, tuple[iceberg.IcebergType, Transform[Any, Any], pa.DataType, Any, Any]] = {
    "decimal": (iceberg.DecimalType(9, 2), IdentityTransform(), pa.decimal128(9, 2), Decimal("1.50"), Decimal("1.50")),
    "string": (iceberg.StringType(), IdentityTransform(), pa.string(), "a/b", "a/b"),
    "long": (iceberg.LongType(), IdentityTransform(), pa.int64(), 2**40, 2**40),
    "date": (iceberg.DateType(), IdentityTransform(), pa.date32(), date(1970, 1, 3), 2),
    "boolean": (iceberg.BooleanType(), IdentityTransform(), pa.bool_(), True, True),
    "double": (iceberg.DoubleType(), IdentityTransform(), pa.float64(), 0.1, 0.1),
    "uuid": (iceberg.UUIDType(), IdentityTransform(), pa.uuid(), uuid.UUID(int=7).bytes, uuid.UUID(int=7)),
    "bucket": (iceberg.StringType(), BucketTransform(4), pa.string(), "a", None),
    "truncate": (iceberg.DecimalType(9, 2), TruncateTransform(100), pa.decimal128(9, 2), Decimal("1.50"), Decimal("1.00")),
    "null": (iceberg.DecimalType(9, 2), IdentityTransform(), pa.decimal128(9, 2), None, None),
    "day": (iceberg.TimestampType(), DayTransform(), pa.timestamp("us"), datetime(1970, 1, 3), 2),
}  # fmt: skip


def make(lake: IcebergCatalog, name: str, version: int = 2) -> Any:
    """A table with a file in a partition whose column is gone; the value of its partition."""
    kind, transform, stored, value, expected = DROPPED[name]
    schema = Schema(
        iceberg.NestedField(1, "id", iceberg.LongType(), required=False),
        iceberg.NestedField(2, "p", kind, required=False),
    )
    make_table(lake, version, schema, PartitionSpec(PartitionField(2, 1000, transform, "part")))
    for number in (0, 1):
        insert(lake, pa.table({"id": pa.array([number]), "p": pa.array([value], stored)}))
    evolve(lake, Schema(*schema.fields[:1], schema_id=1), PartitionSpec(spec_id=1))
    return expected


def stored_partitions(lake: IcebergCatalog) -> dict[int, list[Any]]:
    """Partitions of the first spec by rows' count of their files, as their manifests hold them."""
    table = load(lake)
    location = lake.pyiceberg.load_table(NAME).current_snapshot().manifest_list
    actual: dict[int, list[Any]] = {}
    for manifest in read_manifest_list(table.io, location):
        for entry in read_manifest(table.io, manifest):
            if manifest.partition_spec_id == 0:
                actual.setdefault(entry.status.value, []).append(entry.data_file.partition[0])
    return actual


def merge_manifests(lake: IcebergCatalog) -> None:
    evolve(lake, properties={"commit.manifest.min-count-to-merge": "2"})
    insert(lake, pa.table({"id": [2]}))


def bytes_of(summary: Any) -> tuple[Any, ...]:
    return summary.contains_null, summary.lower_bound, summary.upper_bound


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", DROPPED)
def test_old_files_are_replaced(lake: IcebergCatalog, name: str, version: int) -> None:
    make(lake, name, version)
    before = stored_partitions(lake)[1]
    rewrite(lake, live(lake), pa.table({"id": [2]}))
    assert rows(lake) == [(2,)]
    assert stored_partitions(lake) == {2: before}


@pytest.mark.parametrize("name", DROPPED)
def test_old_files_stay_in_their_partition(lake: IcebergCatalog, name: str) -> None:
    expected = make(lake, name)
    before = stored_partitions(lake)[1]
    summaries = [manifest.partitions[0] for manifest in manifests(lake)]
    merge_manifests(lake)
    assert rows(lake) == [(0,), (1,), (2,)]
    after = stored_partitions(lake)[0]
    assert after == before
    assert expected is None or after == [expected] * 2
    (merged,) = [m for m in manifests(lake) if m.partition_spec_id == 0]
    assert merged.existing_files_count == 2
    assert [bytes_of(merged.partitions[0])] * 2 == list(map(bytes_of, summaries))


def test_everything_is_replaced(lake: IcebergCatalog) -> None:
    make(lake, "decimal")
    replace(lake, pa.table({"id": [2]}))
    assert rows(lake) == [(2,)]
    assert stored_partitions(lake) == {2: [Decimal("1.50")] * 2}


def test_types_that_no_schema_tells_are_those_of_the_manifest(lake: IcebergCatalog) -> None:
    make(lake, "decimal")
    metadata = load(lake).metadata
    current = metadata["current-schema-id"]
    # As `expire_snapshots` leaves it, which removes schemas that no snapshot names.
    set_metadata(lake, schemas=[s for s in metadata["schemas"] if s["schema-id"] == current])
    merge_manifests(lake)
    assert stored_partitions(lake)[0] == [Decimal("1.50")] * 2


def test_widened_columns_keep_both_widths(lake: IcebergCatalog) -> None:
    schema = Schema(
        iceberg.NestedField(1, "id", iceberg.LongType(), required=False),
        iceberg.NestedField(2, "p", iceberg.IntegerType(), required=False),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    make_table(lake, 2, schema, spec)
    insert(lake, pa.table({"id": [0], "p": pa.array([1], pa.int32())}))
    wider = iceberg.NestedField(2, "p", iceberg.LongType(), required=False)
    evolve(lake, Schema(schema.fields[0], wider, schema_id=1))
    insert(lake, pa.table({"id": [1], "p": [2**40]}))
    evolve(lake, Schema(schema.fields[0], schema_id=2), PartitionSpec(spec_id=1))
    merge_manifests(lake)
    assert sorted(stored_partitions(lake)[0]) == [1, 2**40]
    assert rows(lake) == [(0,), (1,), (2,)]
