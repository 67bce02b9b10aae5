"""Partition values as Spark computes them: workers have nothing of ours that could."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    TruncateTransform,
    VoidTransform,
)

from dbt.adapters.iceberg_stream.relation import quote


def partition_sql(catalog: str, spec: PartitionSpec, schema: Schema) -> str:
    """A struct `f0`, `f1`, … of a row's partition values; empty for an unpartitioned table."""
    if spec.is_unpartitioned():
        return ""
    parts = []
    for number, item in enumerate(spec.fields):
        column = quote(str(schema.find_column_name(item.source_id)))
        transform = item.transform
        if isinstance(transform, IdentityTransform):
            value = column
        elif isinstance(transform, VoidTransform):
            value = "cast(null as int)"
        elif isinstance(transform, BucketTransform):
            value = f"{quote(catalog)}.system.bucket({transform.num_buckets}, {column})"
        elif isinstance(transform, TruncateTransform):
            value = f"{quote(catalog)}.system.truncate({transform.width}, {column})"
        else:
            value = f"{quote(catalog)}.system.{transform}s({column})"
        parts.append(f"'f{number}', {value}")
    return f"named_struct({', '.join(parts)})"
