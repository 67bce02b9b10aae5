"""Decides which merges are done by rewriting files, and which by Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec

from dbt.adapters.iceberg_stream.catalog.metadata import (
    Metadata,
    fields,
    has_initial_default,
    iter_fields,
)
from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.files.spark_only import why_spark_writes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.rows import Deletes

# Types whose values are equal in Arrow exactly if they are equal in Spark.
KEY_TYPES = (
    iceberg.BooleanType,
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.DecimalType,
    iceberg.DateType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.StringType,
    iceberg.BinaryType,
)
# Larger sources do not fit in this process's memory, so Spark merges them.
MOST_SOURCE_ROWS = 5_000_000


@dataclass(frozen=True)
class MergePlan:
    """What a merge does with a source's rows.

    Attributes:
        keys: columns by which rows match; null equals null.
        updates: columns of a matched row that get the source's values, if one differs.
        inserts: whether rows without a match are inserted; all rows, if matched ones are deleted.
        deletes: which rows of the table are deleted instead of updated.
    """

    keys: tuple[str, ...]
    updates: tuple[str, ...]
    inserts: bool
    deletes: Deletes = Deletes.NONE

    @property
    def replaces(self) -> bool:
        """Return whether the source's rows, with any keys, take the place of the matched rows."""
        return self.inserts and self.deletes is Deletes.MATCHED


def why_spark(
    plan: MergePlan, options: Mapping[str, Any], locates: bool, metadata: Metadata
) -> str | None:
    """Return why a merge cannot be done by rewriting files; None if it can.

    Args:
        plan: what the merge does.
        options: the model's config; only Spark evaluates SQL in it.
        locates: whether Spark locates the rows.
        metadata: table metadata.
    """
    used = sql_options(options)
    if used and not locates:
        return f"{used[0]} is an SQL expression"
    if options.get("not_matched_by_source_action") and plan.deletes is Deletes.NONE:
        return "not_matched_by_source_action updates rows"
    # It is not asked for files.
    if reason := why_spark_writes(WriteTarget.of(metadata, CatalogFileIO())):
        return reason
    every = (field for schema in metadata["schemas"] for field in schema["fields"])
    if any(field["type"] == "variant" for field in iter_fields(every)):
        return "a column has the type variant"
    schema = current_schema(metadata)
    types = {field.name: field.field_type for field in schema.fields}
    by_name = {field["name"]: field for field in fields(metadata)}
    for name in plan.keys:
        if name not in types or not isinstance(types[name], KEY_TYPES):
            return f"the key {name} is {types.get(name, 'nested')}"
    for name in plan.updates:
        if name not in types:
            return f"the table has no column {name}"
        if any(_is_map(field["type"]) for field in iter_fields([by_name[name]])):
            return f"values of the updated column {name}, {types[name]}, cannot be compared"
    if has_initial_default(metadata):
        return "a column has an initial default"
    return None


def _is_map(kind: Any) -> bool:
    return isinstance(kind, Mapping) and kind["type"] == "map"


def sql_options(options: Mapping[str, Any]) -> list[str]:
    """Return the options of a model's config that have SQL for its merge.

    Args:
        options: the config.
    """
    return [name for name in SQL_OPTIONS if options.get(name)]


SQL_OPTIONS = (
    "incremental_predicates",
    "predicates",
    "matched_condition",
    "not_matched_condition",
    "not_matched_by_source_condition",
)


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
