"""Which appends are left to Spark, and how rows get the columns of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.ingest.appending import arrange, why_spark_appends
from tests.unit.local_tables import SCHEMA, make_catalog, make_table

NESTED = Schema(
    NestedField(1, "Id", iceberg.LongType(), required=True),
    NestedField(
        2,
        "pair",
        iceberg.StructType(
            NestedField(3, "a", iceberg.LongType(), required=False),
            NestedField(4, "b", iceberg.StringType(), required=False),
        ),
        required=False,
    ),
    NestedField(
        5,
        "items",
        iceberg.ListType(6, iceberg.DecimalType(9, 2), element_required=False),
        required=False,
    ),
)
PAIR = pa.struct([("a", pa.int64()), ("b", pa.large_string())])
ITEMS = pa.list_(pa.decimal128(9, 2))


def why(folder: Path, schema: Schema = SCHEMA, version: int = 2, **properties: str) -> str | None:
    """Return why only Spark appends to a table with a schema and properties."""
    names = {name.replace("_", "."): value for name, value in properties.items()}
    table = make_table(make_catalog(folder), version, schema, properties=names)
    return why_spark_appends(table.metadata)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_tables_of_all_versions(tmp_path: Path, version: int) -> None:
    assert why(tmp_path, NESTED, version) is None


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"write.format.default": "ORC"}, "the table's files are orc"),
        ({"write.format.default": "parquet", "owner": "me"}, None),
        ({"write.parquet.compression-codec": "brotli"}, "compressed with brotli"),
        ({"write.parquet.compression-codec": "GZIP"}, None),
        ({"write.parquet.page-size-bytes": "1000"}, None),
        ({"write.parquet.bloom-filter-enabled.column.id": "true"}, "bloom-filter"),
        ({"write.spark.accept-any-schema": "true"}, "accept-any-schema"),
        ({"encryption.key-id": "k"}, "encryption.key-id"),
    ],
)
def test_by_the_properties(tmp_path: Path, properties: dict[str, str], reason: str | None) -> None:
    actual = why(tmp_path, **properties)
    assert actual is None if reason is None else reason in str(actual)


@pytest.mark.parametrize("kind", [iceberg.UUIDType(), iceberg.TimeType(), iceberg.FixedType(4)])
def test_types_that_spark_lacks(tmp_path: Path, kind: iceberg.PrimitiveType) -> None:
    within = iceberg.ListType(2, kind, element_required=False)
    schema = Schema(NestedField(1, "x", within, required=False))
    assert why(tmp_path, schema) == f"the column element is {kind}"


def test_names_that_spark_does_not_distinguish(tmp_path: Path) -> None:
    fields = [
        NestedField(n, x, iceberg.LongType(), required=False) for n, x in ((1, "a"), (2, "A"))
    ]
    assert why(tmp_path, Schema(*fields)) == "names of columns differ in letter case only"


@pytest.mark.parametrize("order", [{"transform": "bucket[4]", "source-id": 1}])
def test_a_sort_order_that_only_spark_writes(tmp_path: Path, order: dict[str, Any]) -> None:
    metadata = dict(make_table(make_catalog(tmp_path)).metadata)
    field = {**order, "direction": "asc", "null-order": "nulls-first"}
    metadata["sort-orders"] = [{"order-id": 1, "fields": [field]}]
    metadata["default-sort-order-id"] = 1
    assert why_spark_appends(metadata) == "the table is sorted by a transform or a nested column"


def test_columns_are_taken_by_name_and_widened() -> None:
    rows = pa.table(
        {
            "more": [1],
            "ITEMS": pa.array([[None]], ITEMS),
            "pair": pa.array([{"a": 1, "b": "x"}], PAIR),
            "ID": pa.array([7], pa.int32()),
        }
    )
    batch = arrange(rows, NESTED)
    assert batch.to_pylist() == [{"Id": 7, "pair": {"a": 1, "b": "x"}, "items": [None]}]
    assert batch.schema.types == [
        pa.int64(),
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ITEMS,
    ]


def row(**columns: pa.Array) -> pa.Table:
    """Return a row of the table with other columns, or without those that are None."""
    all_columns = {
        "Id": pa.array([1]),
        "pair": pa.array([None], PAIR),
        "items": pa.array([None], ITEMS),
        **columns,
    }
    return pa.table({name: column for name, column in all_columns.items() if column is not None})


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        (row(pair=None), "pair"),
        (row(ID=pa.array([2])), "Id"),
        (row(Id=pa.array(["1"])), "Id"),
        (row(Id=pa.array([1.5])), "Id"),
        (row(pair=pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))), "pair"),
        (row(pair=pa.array([None], pa.struct(list(reversed(list(PAIR)))))), "pair"),
        (row(pair=pa.array([None], pa.struct([("a", pa.int32()), ("b", pa.string())]))), "pair"),
        (row(items=pa.array([None], pa.list_(pa.decimal128(9, 1)))), "items"),
        (row(items=pa.array([None], pa.null())), "items"),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_what_spark_casts_or_refuses(rows: pa.Table, column: str, empty: bool) -> None:
    with pytest.raises(ColumnError) as error:
        arrange(rows.slice(0, 0) if empty else rows, NESTED)
    assert error.value.column == column


def test_a_required_column_has_no_null() -> None:
    with pytest.raises(ColumnError, match="has nulls, but the table requires it"):
        arrange(row(Id=pa.array([None], pa.int64())), NESTED)


def test_a_variant_is_no_struct() -> None:
    """Spark sends it as one, and marks a field."""
    fields = [pa.field("a", pa.int64()), pa.field("b", pa.string(), metadata={"variant": "true"})]
    with pytest.raises(ColumnError, match="pair"):
        arrange(row(pair=pa.array([None], pa.struct(fields))), NESTED)
