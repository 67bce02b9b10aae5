"""Partition values of changes.

Spark computes them where its workers write, because these do not have this package.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    TimeTransform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import StructType

from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback, StreamError
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_values as values_of_field


def partition_sql(catalog: str, spec: PartitionSpec, schema: Schema) -> str:
    """Return SQL for a struct `f0`, `f1`, … of a row's partition values.

    Args:
        catalog: the catalog's name for Spark.
        spec: the table's partition spec.
        schema: the table's schema.

    Returns:
        The expression; empty for an unpartitioned table.

    Raises:
        StreamError: Spark has no function for a transform.
    """
    if spec.is_unpartitioned():
        return ""
    parts = [
        f"'f{number}', {_value(quote(catalog), field, schema)}"
        for number, field in enumerate(spec.fields)
    ]
    return f"named_struct({', '.join(parts)})"


def partition_values(rows: pa.RecordBatch, spec: PartitionSpec, schema: Schema) -> pa.StructArray:
    """Return what the SQL of `partition_sql` returns, computed by this process.

    Args:
        rows: the rows.
        spec: the table's partition spec.
        schema: the table's schema.

    Raises:
        ArrowFallback: a column is missing, or has a value that is not of the table's type.
    """
    types = {field.name: field.type for field in file_schema(schema)}
    names = [name for name in rows.schema.names if name in types]
    try:
        table = pa.table({name: rows[name].cast(types[name]) for name in names})
        values = [values_of_field(table, field, schema).combine_chunks() for field in spec.fields]
    except (KeyError, pa.ArrowInvalid) as error:
        raise ArrowFallback from error
    return pa.StructArray.from_arrays(values, [f"f{number}" for number in range(len(values))])


def _value(catalog: str, field: PartitionField, schema: Schema) -> str:
    """Return SQL for a field's value."""
    transform = field.transform
    if isinstance(transform, VoidTransform):
        return "cast(null as int)"
    column = _column(field.source_id, schema)
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return f"{catalog}.system.bucket({transform.num_buckets}, {column})"
    if isinstance(transform, TruncateTransform):
        return f"{catalog}.system.truncate({transform.width}, {column})"
    if isinstance(transform, TimeTransform):
        return f"{catalog}.system.{transform}s({column})"
    raise StreamError(
        f"The partition field `{field.name}` has the transform `{transform}`, which streams cannot "
        "compute. Remove it: alter table … drop partition field."
    )


def _column(field_id: int, schema: Schema) -> str:
    """Return a column, qualified by the fields that it is nested in."""
    for field in schema.fields:
        if field.field_id == field_id:
            return quote(field.name)
        inside = field.field_type
        if isinstance(inside, StructType) and field_id in Schema(*inside.fields).field_ids:
            return f"{quote(field.name)}.{_column(field_id, Schema(*inside.fields))}"
    raise StreamError(f"The table's schema has no column with the field id {field_id}.")
