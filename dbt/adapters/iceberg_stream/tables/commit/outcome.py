"""What a write did, read from the snapshot that it committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID

MERGE_PREFIX = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True)
class Outcome:
    """Rows a statement changed and what it wrote; sizes in bytes."""

    snapshot_id: int
    operation: str
    rows_affected: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    files_added: int
    files_removed: int
    bytes_written: int


def find_outcome(snapshots: Iterable[SnapshotSummary], write_id: str) -> Outcome | None:
    """The outcome of the write with this id, None if it committed no snapshot."""
    for snapshot in snapshots:
        if snapshot.properties.get(WRITE_ID) == write_id:
            return read_outcome(snapshot)
    return None


def read_outcome(snapshot: SnapshotSummary) -> Outcome:
    """Rows and files of a snapshot.

    Spark's MERGE counts the rows it changed. Any other operation has only the rows of files, and
    copy-on-write copies unchanged ones: what was added or removed on balance is what changed.
    """

    def number(key: str) -> int:
        return int(snapshot.properties.get(key) or 0)

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
    )
