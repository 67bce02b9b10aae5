"""Decides whether appended Arrow rows leave a table as Spark's INSERT would."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema, index_by_id

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform, unencoded_type
from dbt.adapters.iceberg_stream.tables.files.spark_only import why_spark_writes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

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
    fields = index_by_id(target.schema).values()
    if other := next((f for f in fields if not isinstance(f.field_type, TYPES)), None):
        return f"the column {other.name} is {other.field_type}"
    return why_spark_writes(metadata)


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
