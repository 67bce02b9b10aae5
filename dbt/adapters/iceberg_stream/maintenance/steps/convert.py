"""The step `convert_deletes`: equality deletes become deletes by position.

It runs whatever the estimate is: some readers refuse equality deletes, or take minutes for them.
Files that have lost many rows then are written again.
"""

from __future__ import annotations

from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    Action,
    MaintenanceContext,
    Skip,
    TableState,
    counted,
    seconds_text,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import (
    new_write_id,
    snapshot_properties,
)
from dbt.adapters.iceberg_stream.tables.compaction.deleted_rows import rewrite_deleted_rows
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import UnsupportedFile
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting


def plan_conversion(
    context: MaintenanceContext, state: TableState, settings: MaintenanceSettings
) -> Skip | Action:
    """Plan to convert the equality deletes of a table.

    Args:
        context: what maintenance needs of the profile.
        state: the table.
        settings: not used.
    """
    health = state.health
    if not health.equality_files:
        return Skip("no equality deletes")
    saving = (
        f"{counted(health.equality_files, 'equality delete file')} with "
        f"{counted(health.equality_keys, 'key')}; a full "
        f"scan would take about {seconds_text(health.cost_after_convert.seconds)} instead of "
        f"{seconds_text(health.cost.seconds)}"
    )

    def run() -> str:
        properties = snapshot_properties(new_write_id(), context.principal)
        conversion = convert_equality_deletes(context.catalog, state.name, properties)
        return (
            f"{counted(conversion.delete_files, 'equality delete file')} converted, which deleted "
            f"{counted(conversion.rows, 'row')}{_rewrite(context, state)}"
        )

    return Action(saving, run)


def _rewrite(context: MaintenanceContext, state: TableState) -> str:
    """Write files again that have lost many of their rows; return what was done."""
    merged = written = 0
    while True:
        properties = snapshot_properties(new_write_id(), context.principal)
        try:
            done = rewrite_deleted_rows(context.catalog, state.name, properties)
        except (UnsupportedFile, NotByRewriting, ColumnError):
            # The step `compact` writes these files again, by Spark.
            done = None
        if done is None:
            break
        merged, written = merged + done.merged, written + done.written
    if not merged:
        return ""
    return f"; {counted(merged, 'file')} with many deleted rows rewritten as {written:,}"
