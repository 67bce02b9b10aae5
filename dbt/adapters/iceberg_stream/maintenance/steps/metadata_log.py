"""The step `trim_metadata`: has the catalog remove old metadata files with each commit."""

from __future__ import annotations

from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.maintenance.health import METADATA_DELETE, METADATA_VERSIONS
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    Action,
    MaintenanceContext,
    Skip,
    TableState,
)


def plan_metadata_log(
    context: MaintenanceContext, state: TableState, settings: MaintenanceSettings
) -> Skip | Action:
    """Plan to set the properties that limit metadata files, as models have them.

    Args:
        context: what maintenance needs of the profile.
        state: the table.
        settings: not used.
    """
    names = (METADATA_DELETE, METADATA_VERSIONS)
    unset = {name: TABLE_DEFAULTS[name] for name in names if name not in state.properties}
    if METADATA_DELETE not in unset:
        return Skip(f"{METADATA_DELETE} is {state.properties[METADATA_DELETE]}")
    text = ", ".join(f"{name} = {value}" for name, value in unset.items())

    def run() -> str:
        context.catalog.commit(state.table, (), (SetPropertiesUpdate(updates=unset),))
        return f"{text} set; the next commits remove older metadata files"

    return Action(f"set {text}", run)
