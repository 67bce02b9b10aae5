"""SQL for partition values: Spark computes them, because its workers do not have this package."""

from __future__ import annotations

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
from dbt.adapters.iceberg_stream.stream.errors import StreamError


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
