"""What a table's layout means for a merge."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec


def merges_in_place(mode: str | None, metadata: Metadata) -> bool:
    """Return whether a merge rewrites files, or deletes changed rows by position.

    Args:
        mode: `merge_mode` of the model; None for the table's.
        metadata: table metadata.
    """
    mode = mode or (metadata.get("properties") or {}).get("write.merge.mode")
    # Format version 1 has no delete files.
    return mode != "merge-on-read" or metadata["format-version"] < 2


def partition_columns(metadata: Metadata) -> set[str]:
    """Return the columns by which rows are partitioned, in any spec, with roots of nested fields.

    Args:
        metadata: table metadata.
    """
    schema = current_schema(metadata)
    specs: Sequence[PartitionSpec] = [
        partition_spec(metadata, spec["spec-id"]) for spec in metadata["partition-specs"]
    ]
    names = {schema.find_column_name(f.source_id) for spec in specs for f in spec.fields}
    # An update of a nested field updates the whole column.
    return {part for name in names if name for part in (name, name.split(".")[0])}


def sorted_by(metadata: Metadata, file: DataFile) -> set[str]:
    """Return the columns by which a file's rows are sorted, with the roots of nested fields.

    Args:
        metadata: table metadata.
        file: the file's descriptor.
    """
    schema = current_schema(metadata)
    orders = metadata.get("sort-orders") or []
    sources = [
        field["source-id"]
        for order in orders
        if order["order-id"] == file.sort_order_id
        for field in order["fields"]
    ]
    names = (schema.find_column_name(source) for source in sources)
    return {part for name in names if name for part in (name, name.split(".")[0])}
