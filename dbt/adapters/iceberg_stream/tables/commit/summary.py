"""A snapshot's summary: counts of the change, and totals (spec, "Snapshot Summary")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import SnapshotSummaryCollector

from dbt.adapters.iceberg_stream.tables.commit.change import Change

# The counts that add to a total and subtract from it.
TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


def summary(
    change: Change, removed: list[DataFile], parent: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return a snapshot's summary: operation, counts, totals and snapshot properties.

    Args:
        change: the change that the snapshot commits.
        removed: files that the change removes.
        parent: the parent snapshot as JSON; None for a table's first.
    """
    collector = SnapshotSummaryCollector()
    for file in change.new_files:
        collector.metrics.add_file(file)
    for file in removed:
        collector.metrics.remove_file(file)
    counts = collector.build()
    if change.removes_all:
        # Whatever the parent says of itself.
        totals = {total: str(counts.get(added, 0)) for total, (added, _) in TOTALS.items()}
        return {"operation": change.operation.value, **counts, **totals, **change.properties}
    before = {} if parent is None else parent.get("summary") or {}
    totals = {}
    for total, (added, subtracted) in TOTALS.items():
        # Without the parent's total, this snapshot's is unknown.
        if parent is None or total in before:
            value = int(before.get(total, 0)) + int(counts.get(added, 0))
            totals[total] = str(max(value - int(counts.get(subtracted, 0)), 0))
    return {"operation": change.operation.value, **counts, **totals, **change.properties}
