"""The step `compute_statistics`: numbers of distinct values, for query planners."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    Action,
    MaintenanceContext,
    Skip,
    TableState,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id


def plan_statistics(
    context: MaintenanceContext, state: TableState, settings: MaintenanceSettings
) -> Skip | Action:
    """Plan to count the distinct values of all columns, unless the current snapshot has them.

    Args:
        context: what maintenance needs of the profile.
        state: the table.
        settings: not used.
    """
    if not state.health.data_files:
        return Skip("the table is empty")
    current = current_snapshot_id(state.table.metadata)
    statistics = state.table.metadata.get("statistics") or []
    if any(file["snapshot-id"] == current for file in statistics):
        return Skip("the current snapshot has statistics")

    def run() -> str:
        context.procedure("compute_table_stats", state.name, {})
        return "distinct values of all columns counted"

    return Action(f"read {state.health.data_bytes:,} bytes to count distinct values", run)
