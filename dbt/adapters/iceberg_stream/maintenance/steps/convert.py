"""The step `convert_deletes`: equality deletes become deletes by position.

It runs whatever the estimate is: some readers refuse equality deletes, or take minutes for them.
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
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes


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
            f"{counted(conversion.rows, 'row')}"
        )

    return Action(saving, run)
