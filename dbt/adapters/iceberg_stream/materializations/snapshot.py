"""The columns of a snapshot: those that its strategy checks, and those that dbt adds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dbt.adapters.base import Column
from dbt.adapters.exceptions import SnapshotTargetNotSnapshotTableError
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.sql.comparisons import comparable_sql
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.type_changes import may_lose

# What each snapshot has, and what only those with `hard_deletes: new_record` have.
ADDED = ("dbt_scd_id", "dbt_valid_from", "dbt_valid_to")
ADDED_FOR_DELETES = "dbt_is_deleted"
# What the queries of a snapshot call their own columns, and those of `iceberg_history`.
OWN = re.compile(
    r"dbt_change_type|dbt_unique_key(_\d+)?|__dbt_(change|changed_at|exists|new_id|old_\w+|until)"
)
OWN_OF_HISTORY = re.compile(
    r"dbt_(at|current_id|is_deleted|next_step|next_type|previous_row|previous_step|scd_id|step|times"
    r"|until)"
)
# Types that have a value for the time of a deletion.
TIMES = {"timestamp", "timestamp_ntz", "date", "string"}


def check_target(
    columns: Sequence[Column], names: Mapping[str, str], strategy: Mapping[str, Any]
) -> None:
    """Check that a snapshot's table has the columns that dbt adds.

    Args:
        columns: of the table.
        names: what the config calls dbt's columns.
        strategy: the snapshot's strategy, as its macro returns it.

    Raises:
        SnapshotTargetNotSnapshotTableError: a column is missing.
    """
    existing = {column.name.lower() for column in columns}
    added = [*ADDED, ADDED_FOR_DELETES] if strategy.get("hard_deletes") == "new_record" else ADDED
    wanted = [names.get(name) or name for name in added]
    missing = [name for name in wanted if name.lower() not in existing]
    if missing:
        raise SnapshotTargetNotSnapshotTableError(missing)


def check_query(
    model: Mapping[str, Any], strategy: Mapping[str, Any], columns: Sequence[Column]
) -> None:
    """Check the names of a snapshot's columns, and that its deletions can be dated.

    Args:
        model: the snapshot's node in dbt's graph.
        strategy: the snapshot's strategy, as its macro returns it.
        columns: of the rows to be stored, in any order; for `iceberg_history`, those of the source.

    Raises:
        CompilationError: a column has the name of one of dbt's own, or `updated_at` has a type
            that has no value for the time of a deletion.
    """
    config = model["config"]
    renamed = config.get("snapshot_meta_column_names") or {}
    added = {
        name: str(renamed.get(name) or name).lower()
        for name in (*ADDED, "dbt_updated_at", ADDED_FOR_DELETES)
    }
    is_history = config.get("strategy") == "iceberg_history"
    counts = Counter(column.name.lower() for column in columns)
    taken = [
        name
        for name, count in counts.items()
        if OWN.fullmatch(name)
        or (count > 1 and name in added.values())
        or (is_history and (OWN_OF_HISTORY.fullmatch(name) or name in added.values()))
    ]
    if taken:
        raise CompilationError(
            f"The query of {model['unique_id']} returns {', '.join(f'`{name}`' for name in taken)}"
            ", a name that snapshots use for a column of their own. Return the column under "
            "another name."
        )
    kind = next((c.dtype for c in columns if c.name.lower() == added["dbt_valid_from"]), "date")
    deletes = strategy.get("hard_deletes", "ignore")
    if deletes != "ignore" and kind.lower() not in TIMES:
        raise CompilationError(
            f"`updated_at` of {model['unique_id']} is {kind}, which has no value for the time of a "
            f"deletion, as `hard_deletes: {deletes}` needs it. Return a timestamp, a date or a "
            "string as `updated_at`, such as `timestamp_millis(changed_ms)`, or set "
            "`hard_deletes: ignore`."
        )


def checked_columns(model: Mapping[str, Any], columns: Sequence[Column]) -> list[Column]:
    """Return the columns of a snapshot's query that `check_cols` names, in any letter case.

    Args:
        model: the snapshot's node in dbt's graph.
        columns: of its query.

    Raises:
        CompilationError: `check_cols` is empty, or names a column that the query does not have.
    """
    check_cols = model["config"].get("check_cols") or "all"
    if check_cols == "all":
        return list(columns)
    by_name = {column.name.lower(): column for column in columns}
    names = [check_cols] if isinstance(check_cols, str) else list(check_cols)
    keys = [name.replace("`", "").lower() for name in names]
    missing = [name for name, key in zip(names, keys, strict=True) if key not in by_name]
    if missing:
        raise CompilationError(
            f"{model['unique_id']}: `check_cols` has {', '.join(missing)}, which its query does "
            f"not return. The query returns {', '.join(column.name for column in columns)}."
        )
    return [by_name[key] for key in keys]


def columns_to_widen(
    relation: str, existing: Sequence[Column], queried: Sequence[Column]
) -> list[Column]:
    """Return the columns of a query whose types the snapshot's table has to take.

    Args:
        relation: the snapshot's table.
        existing: its columns.
        queried: the columns of the query.

    Raises:
        CompilationError: the table cannot store the values of a column as they are.
    """
    by_name = {column.name.lower(): column for column in existing}
    pairs = [(column, by_name.get(column.name.lower())) for column in queried]
    widened = []
    for column, stored in pairs:
        if stored is None or not may_lose(column.dtype, stored.dtype):
            continue
        if not stored.can_expand_to(column):
            raise CompilationError(
                f"`{stored.name}` of {relation} is {stored.dtype}, and the query now returns "
                f"{column.dtype}, whose values it cannot store as they are. Cast the column in the "
                "query, return it under another name, or alter the snapshot's table."
            )
        widened.append(column)
    return widened


def row_changed_sql(
    checked: Sequence[Column], existing: Sequence[Column], stored: str, queried: str
) -> str:
    """Return the condition that a row of a query differs from the current one of its key.

    As in dbt's own strategy, each row has changed if the table lacks one of the columns.

    Args:
        checked: the columns to compare.
        existing: the columns of the snapshot's table.
        stored, queried: aliases of the table and of the query.
    """
    by_name = {column.name.lower(): column for column in existing}
    comparisons = []
    for column in checked:
        before = by_name.get(column.name.lower())
        if before is None:
            return "true"
        left = comparable_sql(f"{stored}.{quote(before.name)}", before.dtype)
        right = comparable_sql(f"{queried}.{quote(column.name)}", column.dtype)
        comparisons.append(f"not ({left} <=> {right})")
    return f"({' or '.join(comparisons)})"
