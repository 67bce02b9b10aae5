"""Which merges are done by rewriting files, and which are Spark's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.producer import current_schema, partition_spec
from dbt.adapters.iceberg_stream.tables.merge.rows import Deletes

# Types whose equality in Arrow is that of Spark.
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
# What a process holds of a source; larger ones are Spark's.
MOST_SOURCE_ROWS = 5_000_000


@dataclass(frozen=True)
class MergePlan:
    """Rows of a source go into a table: matched ones are updated, the others inserted.

    Attributes:
        keys: columns that are equal, null to null.
        updates: columns of a matched row that take the source's values, if any differs.
        inserts: whether rows without a match are inserted.
        deletes: rows of the table that are deleted, instead of being updated.
    """

    keys: tuple[str, ...]
    updates: tuple[str, ...]
    inserts: bool
    deletes: Deletes = Deletes.NONE


def why_spark(plan: MergePlan, options: Mapping[str, Any], metadata: Metadata) -> str | None:
    """Why a merge cannot be done by rewriting files; None if it can.

    `options` are the model's: conditions and actions that are SQL are evaluated by Spark.
    """
    asked = [name for name in SQL_OPTIONS if options.get(name)]
    if asked:
        return f"{asked[0]} is an expression of SQL"
    if options.get("not_matched_by_source_action") and plan.deletes is Deletes.NONE:
        return "not_matched_by_source_action updates"
    if options.get("merge_mode") == "merge-on-read":
        return "merge_mode is merge-on-read"
    if (metadata.get("properties") or {}).get("write.merge.mode") == "merge-on-read":
        return "the table's write.merge.mode is merge-on-read"
    if metadata["format-version"] >= 3:
        return "rows of format version 3 keep their ids in Spark's merge only"
    if "'variant'" in str(metadata["schemas"]):
        return "a column is a variant"
    schema = current_schema(metadata)
    known = {field.name: field.field_type for field in schema.fields}
    for name in plan.keys:
        if name not in known or not isinstance(known[name], KEY_TYPES):
            return f"the key {name} is {known.get(name, 'nested')}"
    for name in plan.updates:
        if name not in known:
            return f"the table has no column {name}"
        if "map<" in str(known[name]) or "variant" in str(known[name]):
            return f"{name} is {known[name]}, which Spark does not compare"
    if moved := _partition_columns(metadata, schema) & set(plan.updates):
        return f"{min(moved)} is updated, and the table is partitioned by it"
    if "'initial-default'" in str(metadata["schemas"]):
        return "a column has a default"
    return None


SQL_OPTIONS = (
    "incremental_predicates",
    "predicates",
    "matched_condition",
    "not_matched_condition",
    "not_matched_by_source_condition",
)


def _partition_columns(metadata: Metadata, schema: Schema) -> set[str]:
    specs: Sequence[PartitionSpec] = [
        partition_spec(metadata, spec["spec-id"]) for spec in metadata["partition-specs"]
    ]
    names = {schema.find_column_name(f.source_id) for spec in specs for f in spec.fields}
    # Of a nested one the whole column is updated.
    return {part for name in names if name for part in (name, name.split(".")[0])}


def sorted_by(metadata: Metadata, file: DataFile) -> set[str]:
    """Columns whose values the order of a file's rows goes by; of a nested one the whole column."""
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
