"""The step `rewrite_manifests`: Iceberg's procedure, if it merges enough manifests."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.compact import pays
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    Action,
    MaintenanceContext,
    Skip,
    TableState,
    counted,
)

# Below, each run of a model would rewrite the manifests of the run before it.
FEWEST_SAVED = 10


def plan_manifests(
    context: MaintenanceContext, state: TableState, settings: MaintenanceSettings
) -> Skip | Action:
    """Plan to merge small manifests.

    Args:
        context: what maintenance needs of the profile.
        state: the table.
        settings: not used.
    """
    health = state.health
    after = health.cost_after_manifests
    saving = f"{counted(health.manifests, 'manifest')}, {after.manifests} after a rewrite"
    if health.manifests_saved < FEWEST_SAVED or not pays(health.cost, after):
        return Skip(f"does not pay: {saving}")

    def run() -> str:
        result = context.procedure("rewrite_manifests", state.name, {})
        return (
            f"{counted(result['rewritten_manifests_count'], 'manifest')} rewritten as "
            f"{result['added_manifests_count']}"
        )

    return Action(saving, run)
