"""`warn_row_drop`: warns if a run has left a table with far fewer rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbt_common.ui import warning_tag

from dbt.adapters.iceberg_stream.builds.names import without_build
from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be
from dbt.adapters.iceberg_stream.summary.changes import Changes
from dbt.adapters.iceberg_stream.tables.commit.table_change import TableChange

OPTION = "warn_row_drop"
MICROBATCH_REFUSED = (
    f"`{OPTION}` cannot be used with `incremental_strategy: microbatch`, whose batches build the "
    "table one after the other: remove the config and use the data test `row_drop`"
)


def row_drop_errors(config: Mapping[str, Any]) -> list[str]:
    """Return the errors of `warn_row_drop`.

    Args:
        config: the model's config, without nulls.
    """
    share = config.get(OPTION)
    if share is None:
        return []
    if not is_share(share):
        return [must_be(OPTION, share, "a share of the rows of at least 0 and less than 1")]
    if config.get("incremental_strategy") == "microbatch":
        return [MICROBATCH_REFUSED]
    return []


def is_share(value: Any) -> bool:
    """Return whether a value is a share of rows: a number of at least 0 and less than 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def check_row_drop(changes: Changes, name: QualifiedName, model: Mapping[str, Any]) -> str | None:
    """Return the warning if the run removed more than `warn_row_drop` of a table's rows.

    Args:
        changes: of the command; the table is marked there.
        name: the table.
        model: the model's node in dbt's graph.
    """
    change = changes.get(name)
    if (warning := _warning(model, ".".join(without_build(name)), change)) is None:
        return None
    changes.mark_as_warned(name)
    return warning_tag(warning)


def _warning(model: Mapping[str, Any], table: str, change: TableChange) -> str | None:
    limit = model["config"].get(OPTION)
    if limit is None or not change.commits:
        return None
    if change.rows_before is None or change.rows_after is None:
        return (
            f"`{OPTION}` of {model['unique_id']} was not checked: {table} has equality deletes, so "
            "its metadata cannot tell how many rows it has. Convert them with `iceberg-stream "
            "maintain`, or remove the config."
        )
    if not change.has_lost_more_than(limit):
        return None
    return (
        f"{table} lost {change.share_lost:.1%} of its rows: it had {change.rows_before:,} before "
        f"this run and has {change.rows_after:,} now (`{OPTION}: {limit}` of "
        f"{model['unique_id']}). `iceberg-stream diff {table}` shows which."
    )
