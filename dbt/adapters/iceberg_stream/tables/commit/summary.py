"""A snapshot's summary: what was done, and what the table holds (spec, "Snapshot Summary")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import SnapshotSummaryCollector

from dbt.adapters.iceberg_stream.tables.commit.change import Change

# A total, and what adds to it and takes from it.
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
    """Counts of the change, totals after it, and its own properties."""
    collector = SnapshotSummaryCollector()
    for file in change.new_files:
        collector.metrics.add_file(file)
    for file in removed:
        collector.metrics.remove_file(file)
    counts = collector.build()
    before = {} if parent is None else parent.get("summary") or {}
    totals = {}
    for total, (added, gone) in TOTALS.items():
        # Where the one before does not know, neither do we.
        if parent is None or total in before:
            value = int(before.get(total, 0)) + int(counts.get(added, 0)) - int(counts.get(gone, 0))
            totals[total] = str(max(value, 0))
    return {"operation": change.operation.value, **counts, **totals, **change.properties}
