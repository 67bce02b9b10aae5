"""The step `remove_orphans`: files that nothing references, removed only on demand."""

from __future__ import annotations

from datetime import datetime, timezone

from dbt.adapters.iceberg_stream.maintenance.orphans import (
    REMOVED_FOLDER,
    delete_removed,
    find_orphans,
    remove_orphans,
    removed_files,
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
        settings: the age of an orphan, whether to remove them, and how long to keep removed ones.

    Raises:
        CatalogError: the files may belong to other tables, or other tables cannot be read.
        OSError: the storage cannot be listed or read.
    """
    now = datetime.now(timezone.utc)
    table, kept_since = state.table, now - settings.keep_removed
    files = find_orphans(table, now - settings.orphan_age, context.catalogs)
    hours = settings.orphan_age.total_seconds() / 3600
    total = sum(orphan.size for orphan in files)
    text = (
        f"{counted(len(files), 'file')} without a snapshot, {total:,} bytes, older than "
        f"{hours:g} hours"
        if files
        else f"no file older than {hours:g} hours is without a snapshot"
    )
    if not settings.removes_orphans:
        return Skip(f"{text}: remove them with --remove-orphans" if files else text)
    due = [file for file in removed_files(table) if file.removed < kept_since]
    if not files and not due:
        return Skip(text)
    if due:
        text += f"; {counted(len(due), 'file')} removed earlier to delete"

    def run() -> str:
        moved = counted(remove_orphans(table, files), "file")
        result = f"{moved} removed, to {REMOVED_FOLDER} in the table's folder"
        deleted, restored = delete_removed(table, kept_since, context.catalogs)
        if deleted:
            result += f"; {counted(deleted, 'file')} removed earlier deleted"
        if restored:
            result += f"; {counted(restored, 'file')} moved back, because a table has it again"
        return result

    return Action(text, run)
