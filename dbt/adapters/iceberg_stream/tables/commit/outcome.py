"""The outcome of a write, read from the snapshot that it committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID

SPARK_APPLICATION = "spark.app.id"
MERGE_PREFIX = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True)
class Outcome:
    """Rows and files that a statement changed; sizes in bytes.

    `total_delete_files` are those of the whole table after the write, which each scan has to apply;
    None if the summary lacks them. `rows_before` and `rows_after` are the rows of the table; None
    if the summary cannot tell: an equality delete deletes any number of rows. `branch` got the
    snapshot; None for main.
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
    rows_before: int | None = None
    rows_after: int | None = None
    timestamp_ms: int = 0
    branch: str | None = None

    @property
    def replaced_all(self) -> bool:
        """Whether none of the rows before is left, though there were some."""
        is_full = self.rows_after is not None and self.rows_inserted == self.rows_after
        return bool(self.rows_before) and is_full and not self.rows_updated

    @property
    def rows_removed(self) -> int:
        """Rows that are no longer in the table, those of a replaced table included."""
        if self.rows_before is None or self.rows_after is None:
            return self.rows_deleted
        return max(self.rows_before + self.rows_inserted - self.rows_after, 0)


def find_outcome(snapshots: Iterable[SnapshotSummary], write_id: str) -> Outcome | None:
    """Return the outcome of a write; None if it committed no snapshot.

    Args:
        snapshots: the table's snapshots.
        write_id: the id in the snapshot's properties.
    """
    remaining = iter(snapshots)
    for snapshot in remaining:
        if snapshot.properties.get(WRITE_ID) == write_id:
            previous = (s for s in remaining if s.snapshot_id == snapshot.previous_id)
            return read_outcome(snapshot, next(previous, None))
    return None


def find_file_delete(snapshots: Iterable[SnapshotSummary], since: int | None) -> Outcome | None:
    """Return the outcome of Spark's last delete of whole files; None if there is none.

    Spark deletes whole files without a job, and Iceberg writes no properties of the session into
    the snapshot then (`SparkTable.deleteWhere`), so it has no write id.

    Args:
        snapshots: the table's snapshots, newest first.
        since: the snapshot that was current before the statement; None if there was none.
    """
    remaining = takewhile(lambda snapshot: snapshot.snapshot_id != since, snapshots)
    for snapshot in remaining:
        by_spark = SPARK_APPLICATION in snapshot.properties and WRITE_ID not in snapshot.properties
        if by_spark and snapshot.operation == "delete":
            return read_outcome(snapshot)
    return None


def read_outcome(snapshot: SnapshotSummary, previous: SnapshotSummary | None = None) -> Outcome:
    """Read the changed rows and files from a snapshot's summary.

    Only Spark's MERGE counts the rows that it changed. For other operations the summary has the
    rows of added and removed files, and copy-on-write copies unchanged rows: then the difference
    is what changed.

    Args:
        snapshot: the snapshot.
        previous: the one that was current before. Without it, the rows before the write are
            computed from the snapshot's own summary, which is right unless the table was replaced.
    """

    def number(key: str) -> int:
        return int(snapshot.properties.get(key) or 0)

    delete_files = snapshot.properties.get("total-delete-files")
    added, removed = number("added-records"), number("deleted-records")
    removed += number("added-position-deletes") - number("removed-position-deletes")
    counted = f"{MERGE_PREFIX}inserted" in snapshot.properties
    if counted:
        inserted, updated, deleted = (
            number(f"{MERGE_PREFIX}{kind}") for kind in ("inserted", "updated", "deleted")
        )
    elif snapshot.operation == "delete":
        inserted, updated, deleted = 0, 0, removed - added
    else:
        inserted, updated, deleted = added, 0, removed
    # A merge also adds all rows again if it copies the unchanged ones.
    replaced_all = not counted and inserted and deleted and number("total-records") == added
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
        rows_before=count_rows(
            _before(snapshot.properties) if previous is None else previous.properties
        ),
        rows_after=count_rows(snapshot.properties),
        timestamp_ms=snapshot.timestamp_ms,
    )


def count_rows(summary: Mapping[str, Any]) -> int | None:
    """Return how many rows a table has at a snapshot; None if its summary cannot tell.

    Args:
        summary: the snapshot's.
    """
    if "total-records" not in summary or int(summary.get("total-equality-deletes") or 0):
        return None
    return int(summary["total-records"]) - int(summary.get("total-position-deletes") or 0)


def _before(summary: Mapping[str, str]) -> dict[str, int]:
    """Return the totals before a snapshot, which Iceberg adds up from one to the next."""

    def number(key: str) -> int:
        return int(summary.get(key) or 0)

    return {
        f"total-{kind}": number(f"total-{kind}")
        - number(f"added-{kind}")
        + number(f"{gone}-{kind}")
        for kind, gone in (
            ("records", "deleted"),
            ("position-deletes", "removed"),
            ("equality-deletes", "removed"),
        )
        if f"total-{kind}" in summary
    }
