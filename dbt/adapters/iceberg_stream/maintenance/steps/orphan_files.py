"""The step `remove_orphans`: files that no snapshot references, removed only on demand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.orphans import (
    find_orphans,
    remove_orphans,
    shares_folder,
    without_clones,
)
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    Action,
    MaintenanceContext,
    Skip,
    TableState,
    counted,
)


def plan_orphans(
    context: MaintenanceContext, state: TableState, settings: MaintenanceSettings
) -> Skip | Action:
    """Plan to remove orphan files; without `removes_orphans`, only count them.

    Args:
        context: what maintenance needs of the profile.
        state: the table.
        settings: the age of an orphan, and whether to remove them.

    Raises:
        CatalogError: the files may belong to other tables.
        OSError: the storage cannot be listed or read.
    """
    files = find_orphans(state.table, datetime.now(timezone.utc) - settings.orphan_age)
    if files:
        files = without_clones(state.table, files, _tables(context.catalog))
    hours = settings.orphan_age.total_seconds() / 3600
    if not files:
        return Skip(f"no file older than {hours:g} hours is without a snapshot")
    total = sum(orphan.size for orphan in files)
    text = (
        f"{counted(len(files), 'file')} without a snapshot, {total:,} bytes, older than "
        f"{hours:g} hours"
    )
    if not settings.removes_orphans:
        return Skip(f"{text}: remove them with --remove-orphans")
    if (nested := shares_folder(state.table, _tables(context.catalog))) is not None:
        return Skip(f"{'.'.join(nested.name)} has its files in the folder of this table")
    return Action(text, lambda: f"{counted(remove_orphans(state.table, files), 'file')} removed")


def _tables(catalog: IcebergCatalog) -> Iterator[LoadedTable]:
    names = (
        (namespace, identifier)
        for namespace in catalog.namespaces()
        for identifier, kind in catalog.relations(namespace)
        if kind == "table"
    )
    return (table for name in names if (table := catalog.load(name)) is not None)
