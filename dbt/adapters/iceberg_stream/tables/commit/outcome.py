"""The outcome of a write, read from the snapshot that it committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID

MERGE_PREFIX = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True)
class Outcome:
    """Rows and files that a statement changed; sizes in bytes.

    `total_delete_files` are those of the whole table after the write, which each scan has to apply;
    None if the summary lacks them.
    """

    snapshot_id: int
    operation: str
    rows_affected: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    files_added: int
    files_removed: int
    bytes_written: int
    total_delete_files: int | None = None


def find_outcome(snapshots: Iterable[SnapshotSummary], write_id: str) -> Outcome | None:
    """Return the outcome of a write; None if it committed no snapshot.

    Args:
        snapshots: the table's snapshots.
        write_id: the id in the snapshot's properties.
    """
    for snapshot in snapshots:
        if snapshot.properties.get(WRITE_ID) == write_id:
            return read_outcome(snapshot)
    return None


def read_outcome(snapshot: SnapshotSummary) -> Outcome:
    """Read the changed rows and files from a snapshot's summary.

    Only Spark's MERGE counts the rows that it changed. For other operations the summary has the
    rows of added and removed files, and copy-on-write copies unchanged rows: then the difference
    is what changed.
    """

    def number(key: str) -> int:
        return int(snapshot.properties.get(key) or 0)

    delete_files = snapshot.properties.get("total-delete-files")
    added, removed = number("added-records"), number("deleted-records")
    removed += number("added-position-deletes") - number("removed-position-deletes")
    if f"{MERGE_PREFIX}inserted" in snapshot.properties:
        inserted, updated, deleted = (
            number(f"{MERGE_PREFIX}{kind}") for kind in ("inserted", "updated", "deleted")
        )
    elif snapshot.operation == "delete":
        inserted, updated, deleted = 0, 0, removed - added
    else:
        inserted, updated, deleted = added, 0, removed
    replaced_all = inserted and deleted and not updated and number("total-records") == added
    return Outcome(
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot.operation,
        rows_affected=inserted if replaced_all else inserted + updated + deleted,
        rows_inserted=inserted,
        rows_updated=updated,
        rows_deleted=deleted,
        files_added=number("added-data-files") + number("added-delete-files"),
        files_removed=number("deleted-data-files") + number("removed-delete-files"),
        bytes_written=number("added-files-size"),
        total_delete_files=None if delete_files is None else int(delete_files),
    )
