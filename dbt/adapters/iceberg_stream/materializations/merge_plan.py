"""Plans of merges, and merges of few rows, whose import would take longer than their query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, columns, fields
from dbt.adapters.iceberg_stream.engines.while_waiting import import_later
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sql.statements import split
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.plan import (
    PREDICATES,
    MergePlan,
    sql_options,
    why_spark,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.tables.merge.conditions import Condition

# Types of columns that Spark shows as others.
SHOWN_BY_SPARK = ("time", "uuid", "timestamp_ns", "timestamptz_ns")
MERGE = "dbt.adapters.iceberg_stream.materializations.merge"


class TableColumns:
    """The columns of a table, by their names in any letter case.

    Args:
        metadata: of the table; None for no columns.
    """

    def __init__(self, metadata: Metadata | None) -> None:
        all_columns = [] if metadata is None else columns(metadata)
        self._columns = {column.name.lower(): column for column in all_columns}
        stored = [] if metadata is None else fields(metadata)
        self._shown = {f["name"].lower() for f in stored if f["type"] in SHOWN_BY_SPARK}

    def spelling(self, name: str) -> str:
        """Return a column's name in the table's letter case."""
        column = self._columns.get(name.lower())
        return column.name if column else name

    def type_of(self, name: str) -> str:
        """Return a column's type in Spark; empty if there is no such column."""
        column = self._columns.get(name.lower())
        return column.type if column else ""

    def comparable_type(self, name: str) -> str:
        """Return a column's type in Spark; empty if files have values of another type."""
        return "" if name.lower() in self._shown else self.type_of(name)

    def keys(self, unique_key: str | Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of the key's columns, each once."""
        names = [unique_key] if isinstance(unique_key, str) else list(unique_key or ())
        return tuple(dict.fromkeys(self.spelling(name.replace("`", "")) for name in names))


def plan_of(
    context: MaterializationContext,
    metadata: Metadata | None,
    plan: Mapping[str, Any],
    options: Mapping[str, Any],
) -> MergePlan:
    """Return what a model's merge does.

    Args:
        context: what the materialization needs of the adapter.
        metadata: of the table; None if it does not exist.
        plan: the plan of the macro `get_plan`.
        options: the model's config.
    """
    of_table, deletes = TableColumns(metadata), _deletes(plan, options)
    updates_if = None
    if "matched_target_when" in plan:
        updates_if = _parsed(context, of_table, plan, [plan["matched_target_when"]])
    return MergePlan(
        of_table.keys(plan["unique_key"]),
        tuple(of_table.spelling(column.name) for column in plan["updated"]),
        bool(plan["inserts"]),
        deletes,
        None if deletes is Deletes.UNMATCHED else _condition(context, of_table, plan, options),
        updates_if,
        bool(plan.get("has_new_keys")),
    )


def _deletes(plan: Mapping[str, Any], options: Mapping[str, Any]) -> Deletes:
    if plan.get("replaces"):
        return Deletes.SATISFYING if "range" in plan else Deletes.MATCHED
    action = str(options.get("not_matched_by_source_action")).strip().lower()
    return Deletes.UNMATCHED if action == "delete" else Deletes.NONE


def _condition(
    context: MaterializationContext,
    of_table: TableColumns,
    plan: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Condition | None:
    """Return the predicates as a condition; None if there are none, or only Spark decides them."""
    predicates = options.get("predicates") or options.get("incremental_predicates") or []
    predicates = [predicates] if isinstance(predicates, str) else [*predicates]
    predicates += [plan["range"]] if "range" in plan else []
    others = set(sql_options(options)) - set(PREDICATES)
    if not predicates or others or plan.get("matched_when"):
        return None
    return _parsed(context, of_table, plan, predicates)


def _parsed(
    context: MaterializationContext,
    of_table: TableColumns,
    plan: Mapping[str, Any],
    predicates: Sequence[str],
) -> Condition | None:
    from dbt.adapters.iceberg_stream.materializations.row_condition import row_condition

    return row_condition(
        predicates,
        plan["target"],
        lambda name: (of_table.spelling(name), of_table.comparable_type(name)),
        lambda sql: context.session().query(sql),
    )


def merge_few_rows(
    context: MaterializationContext,
    relation: BaseRelation,
    query: str,
    plan: Mapping[str, Any],
    model: Mapping[str, Any],
) -> IcebergStreamResponse | None:
    """Merge the rows of a model's query without a staging table, if they are few.

    Args:
        context: what the materialization needs of the adapter.
        relation: the table.
        query: returns the new rows; it runs once.
        plan: the plan of the macro `get_plan`.
        model: the model's node in dbt's graph.

    Returns:
        The commit; None if the rows must be staged, because they are many or Spark must merge them.

    Raises:
        DbtDatabaseError: the catalog, the storage or Spark refuses; nothing was written.
    """
    options = model["config"]
    if context.is_remote or options.get("merge_engine") == "spark" or len(split(query)) != 1:
        return None
    metadata = context.catalog.metadata(table_name(relation), history=False)
    merge_plan = plan_of(context, metadata, plan, options)
    import_later(MERGE)
    if metadata is None or why_spark(merge_plan, options, False, metadata):
        return None
    with context.database_errors(f"merge into {relation}"):
        check = context.read_check_of(query, relation)
        rows = context.few_rows(query, metadata)
    if rows is None:
        return None
    from dbt.adapters.iceberg_stream.materializations.merge import merge_rows

    return merge_rows(context, relation, rows, check, merge_plan, options)
