"""Decides whether a write of Arrow rows replaces a table as Spark's statement would."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import index_by_id

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.files.spark_only import why_by_properties


def why_spark_replaces(columns: Sequence[str], metadata: Metadata | None) -> str | None:
    """Return why only Spark can create or replace a table without a layout of its own.

    Args:
        columns: names of the new columns.
        metadata: of the table that is replaced; None if there is none.

    Returns:
        The reason; None if `ingest` leaves the same table, given the comments of its columns.
    """
    names = [column.lower() for column in columns]
    if len(set(names)) < len(names) or any("." in column for column in names):
        return "Spark refuses a column's name"
    return None if metadata is None else _why_kept(metadata)


def _why_kept(metadata: Metadata) -> str | None:
    """Return what an ingest would keep of the old table, but Spark would not."""
    if "versions" in metadata:
        return "a view has the name"
    spec = partition_spec(metadata, metadata["default-spec-id"])
    # Id 0 is the unsorted order (Iceberg spec, "Sorting").
    if spec.fields or metadata["default-sort-order-id"] != 0 or metadata["format-version"] != 2:
        return "the old table has a layout"
    if reason := why_by_properties(metadata.get("properties") or {}):
        return reason
    schema = current_schema(metadata)
    columns = {field.field_id for field in schema.fields}
    if any(field.doc for number, field in index_by_id(schema).items() if number not in columns):
        return "fields within columns of the old table have comments"
    return None
