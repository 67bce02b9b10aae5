"""Decides whether appended Arrow rows leave a table as Spark's INSERT would."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.transforms import UnknownTransform

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform, unencoded_type
from dbt.adapters.iceberg_stream.tables.files.target import CODECS, WriteTarget

# Types that Spark has, too. For others it has substitutes, such as texts for UUIDs.
TYPES = (
    iceberg.BooleanType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.FloatType,
    iceberg.DoubleType,
    iceberg.DecimalType,
    iceberg.DateType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.StringType,
    iceberg.BinaryType,
    iceberg.StructType,
    iceberg.ListType,
    iceberg.MapType,
)
PARQUET, CODEC = "write.parquet.", "write.parquet.compression-codec"
# Options of Parquet files that `WriteTarget` reads; others, such as Bloom filters, it does not.
PARQUET_OPTIONS = {
    CODEC,
    "write.parquet.compression-level",
    "write.parquet.row-group-size-bytes",
    "write.parquet.page-size-bytes",
    "write.parquet.dict-size-bytes",
}
OTHER_OPTIONS = ("write.location-provider.impl", "write.spark.accept-any-schema", "encryption.")


def why_spark_appends(metadata: Metadata) -> str | None:
    """Return why only Spark can append rows to a table.

    Args:
        metadata: of the table.

    Returns:
        The reason; None if `ingest` writes the same rows into the same partitions and order.
    """
    try:
        # It is not asked for files.
        target = WriteTarget.of(metadata, CatalogFileIO())
    except ValueError as error:
        return f"PyIceberg cannot read its metadata: {error}"
    if len({name.lower() for name in target.schema.column_names}) < len(target.schema.column_names):
        return "names of columns differ in letter case only"
    fields = index_by_id(target.schema).values()
    if other := next((f for f in fields if not isinstance(f.field_type, TYPES)), None):
        return f"the column {other.name} is {other.field_type}"
    if any(isinstance(field.transform, UnknownTransform) for field in target.spec.fields):
        return "the table has a partition transform that is not in the specification"
    if target.sort_order.fields and not target.sort_columns:
        return "the table is sorted by a transform or a nested column"
    return _why_by_properties(target)


def _why_by_properties(target: WriteTarget) -> str | None:
    properties = target.properties
    if (kind := properties.get("write.format.default", "parquet").lower()) != "parquet":
        return f"the table's files are {kind}"
    if (codec := properties.get(CODEC, "zstd").lower()) not in CODECS:
        return f"the table's files are compressed with {codec}"
    for name in properties:
        is_unread = name.startswith(PARQUET) and name not in PARQUET_OPTIONS
        if is_unread or name.startswith(OTHER_OPTIONS):
            return f"the table has the property {name}"
    return None


def arrange(rows: pa.Table, schema: Schema) -> pa.RecordBatch:
    """Return rows with the columns and types of a table.

    Args:
        rows: the rows, which may have further columns; letter case is ignored, as in Spark.
        schema: the table's.

    Raises:
        ColumnError: a column is missing or ambiguous, cannot be cast without loss, or is nested
            and has other fields: what becomes of it, Spark's rules for INSERT decide.
    """
    names = [name.lower() for name in rows.column_names]
    target = file_schema(schema)
    columns = []
    for field in target:
        name = field.name.lower()
        if names.count(name) != 1:
            raise ColumnError(field.name, f"is {names.count(name)} times among the new columns")
        column = rows.column(names.index(name)).combine_chunks()
        if not _is_alike(column.type, field.type):
            raise ColumnError(field.name, f"is {column.type}, but the table has {field.type}")
        columns.append(column)
    # Here and not in the writer, which does not see the types of rows if there are none.
    return conform(pa.RecordBatch.from_arrays(columns, target.names), target)


def _is_alike(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether nested types have the same fields; other types are cast, or refused."""
    if not pa.types.is_nested(actual) and not pa.types.is_nested(expected):
        return True
    return _is_same(actual, expected)


def _is_same(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether types differ at most in their encoding, and in whether fields may be null."""
    actual = unencoded_type(actual)
    if actual.id != expected.id or actual.num_fields != expected.num_fields:
        return False
    if not pa.types.is_nested(actual):
        return bool(actual == expected)
    pairs = [(actual.field(n), expected.field(n)) for n in range(actual.num_fields)]
    if pa.types.is_struct(actual) and any(a.name != e.name for a, e in pairs):
        return False
    # Fields with metadata are parts of a type that Arrow does not have, such as a variant.
    return all(not a.metadata and _is_same(a.type, e.type) for a, e in pairs)
