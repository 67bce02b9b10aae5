"""What a merge does, and whether it is done by rewriting files or by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.metadata import (
    Metadata,
    fields,
    iter_fields,
)
from dbt.adapters.iceberg_stream.catalog.types import spark_type
from dbt.adapters.iceberg_stream.tables.files.spark_only import why_spark_writes
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.tables.merge.conditions import Condition

# Types whose values are equal in Arrow exactly if they are equal in Spark.
KEY_TYPES = {
    *("boolean", "int", "long", "float", "double", "decimal", "date", "timestamp", "timestamptz"),
    *("string", "binary"),
}
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
        condition: on the table's rows, without which none of them matches, or is deleted; None for
            none.
        updates_if: on the table's rows, without which a match is not updated; None for none.
        has_new_keys: whether no row that may be inserted has a match.
    """

    keys: tuple[str, ...]
    updates: tuple[str, ...]
    inserts: bool
    deletes: Deletes = Deletes.NONE
    condition: Condition | None = None
    updates_if: Condition | None = None
    has_new_keys: bool = False

    @property
    def replaces(self) -> bool:
        """Return whether the source's rows, with any keys, take the place of the matched rows."""
        return self.inserts and self.deletes in (Deletes.MATCHED, Deletes.SATISFYING)


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
    if used and not locates and plan.condition is None:
        return f"{used[0]} is an SQL expression"
    if plan.deletes is Deletes.SATISFYING and plan.condition is None:
        return "only Spark decides which rows are replaced"
    if options.get("not_matched_by_source_action") and plan.deletes is Deletes.NONE:
        return "not_matched_by_source_action updates rows"
    if reason := why_spark_writes(metadata):
        return reason
    every = [field for schema in metadata["schemas"] for field in schema["fields"]]
    if any(field["type"] == "variant" for field in iter_fields(every)):
        return "a column has the type variant"
    if name := partitioned_as_date(metadata):
        return f"partitions of {name} are of the time when it was a date"
    types = {field["name"]: field["type"] for field in fields(metadata)}
    for name in plan.keys:
        if str(types.get(name)).split("(")[0] not in KEY_TYPES:
            return f"the key {name} is {spark_type(types[name]) if name in types else 'nested'}"
    conditions = [each for each in (plan.condition, plan.updates_if) if each is not None]
    for name in (*plan.updates, *(name for each in conditions for name in each.columns)):
        if name not in types:
            return f"the table has no column {name}"
    return None


def partitioned_as_date(metadata: Metadata) -> str | None:
    """Return a column that was promoted from date although that changes its partition values.

    Args:
        metadata: table metadata.
    """
    every = [field for schema in metadata["schemas"] for field in schema["fields"]]
    sources = {
        field["source-id"]
        for spec in metadata["partition-specs"]
        for field in spec["fields"]
        if field["transform"].split("[")[0] in ("identity", "bucket")
    }
    dates = {column["id"] for column in every if column["type"] == "date"} & sources
    return next(
        (c["name"] for c in fields(metadata) if c["id"] in dates and c["type"] != "date"), None
    )


def sql_options(options: Mapping[str, Any]) -> list[str]:
    """Return the options of a model's config that have SQL for its merge.

    Args:
        options: the config.
    """
    return [name for name in SQL_OPTIONS if options.get(name)]


PREDICATES = ("incremental_predicates", "predicates")
SQL_OPTIONS = (
    *PREDICATES,
    "matched_condition",
    "not_matched_condition",
    "not_matched_by_source_condition",
)
