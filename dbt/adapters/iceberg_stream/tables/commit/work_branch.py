"""A branch on which Spark writes rows that are computed from the table itself.

Iceberg checks for a merge only what was committed since Spark planned it, and for an insert
nothing. The work branch begins at the snapshot from which the rows were computed. The table gets
its commit only if it still has that snapshot (spec, "Snapshot References").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import (
    MAIN,
    Metadata,
    became_current,
    current_since,
)

if TYPE_CHECKING:
    from pyiceberg.table.update import AssertRefSnapshotId

PREFIX = "dbt_write_"
ATTEMPTS = 5
# After a week, expiry removes the branch that a killed process has left.
MAX_AGE_MS = 7 * 24 * 3600 * 1000


@dataclass
class WorkBranch:
    """A branch of one write.

    Attributes:
        catalog: the catalog, as the user who writes.
        table: namespace and identifier of the table.
        write_id: id of the write, for the branch's name.
        onto: the branch that gets the write's commit.
    """

    catalog: IcebergCatalog
    table: Name
    write_id: str
    onto: str = MAIN
    _start: int | None = field(default=None, init=False)
    _moment: tuple[int, int] | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The branch's name."""
        return f"{PREFIX}{self.write_id}"

    def begin(self) -> Metadata | None:
        """Create the branch.

        Returns:
            The table's metadata with the branch; None if it has no snapshot, or the catalog keeps
            no branches.

        Raises:
            CatalogError: the catalog refuses, or other writers commit all the time.
        """
        from pyiceberg.table.update import AssertTableUUID, SetSnapshotRefUpdate

        for _ in range(ATTEMPTS):
            table = self.catalog.load(self.table, history=False)
            self._start = None if table is None else _head(table.metadata, self.onto)
            if table is None or self._start is None:
                return None
            self._moment = became_current(table.metadata)
            reference = {
                "ref-name": self.name,
                "type": "branch",
                "snapshot-id": self._start,
                "max-ref-age-ms": MAX_AGE_MS,
            }
            try:
                self.catalog.commit(
                    table,
                    (AssertTableUUID(uuid=table.metadata["table-uuid"]),),
                    (SetSnapshotRefUpdate.model_validate(reference),),
                )
            except CommitConflict:
                continue
            current = self.catalog.metadata(self.table, history=False)
            has_branch = current is not None and _head(current, self.name) == self._start
            return current if has_branch else None
        raise CatalogError(
            f"No branch for the new rows of {'.'.join(self.table)} was created: other writers "
            f"changed the table {ATTEMPTS} times in a row. Run the model again."
        )

    def publish(self) -> None:
        """Give the table the branch's commits, and remove the branch.

        Raises:
            CommitConflict: another writer committed since the branch was created.
            CatalogError: the catalog refuses.
        """
        from pyiceberg.table.update import (
            AssertTableUUID,
            RemoveSnapshotRefUpdate,
            SetSnapshotRefUpdate,
        )

        written: int | None = None
        for _ in range(ATTEMPTS):
            table = self.catalog.load(self.table)
            if table is None:
                break
            if _head(table.metadata, self.onto) == written != self._start:
                # The answer to the attempt before was lost.
                return
            written = _head(table.metadata, self.name)
            if written is None or _head(table.metadata, self.onto) != self._start:
                break
            if self._moment and self.onto == MAIN and current_since(table.metadata, self._moment):
                break  # the statement may have read what was rolled back
            reference = dict((table.metadata.get("refs") or {}).get(self.onto) or {})
            moved = {"type": "branch", **reference, "ref-name": self.onto, "snapshot-id": written}
            requirements = (
                AssertTableUUID(uuid=table.metadata["table-uuid"]),
                _is_at(self.onto, self._start),
                _is_at(self.name, written),
            )
            move = SetSnapshotRefUpdate.model_validate(moved)
            remove = RemoveSnapshotRefUpdate.model_validate({"ref-name": self.name})
            updates = (remove,) if written == self._start else (move, remove)
            try:
                self.catalog.commit(table, requirements, updates)
                return
            except (CommitConflict, CommitStateUnknown):
                continue
        raise CommitConflict(f"Another writer committed to {'.'.join(self.table)}.")

    def remove(self) -> None:
        """Remove the branch, if the catalog allows it; otherwise its age limit removes it."""
        from pyiceberg.table.update import RemoveSnapshotRefUpdate

        remove = RemoveSnapshotRefUpdate.model_validate({"ref-name": self.name})
        for _ in range(ATTEMPTS):
            try:
                table = self.catalog.load(self.table, history=False)
                if table is None or _head(table.metadata, self.name) is None:
                    return
                self.catalog.commit(table, (), (remove,))
            except (CommitConflict, CommitStateUnknown):
                continue
            except CatalogError:
                return


def _is_at(branch: str, snapshot: int | None) -> AssertRefSnapshotId:
    from pyiceberg.table.update import AssertRefSnapshotId

    return AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": snapshot})


def _head(metadata: Metadata, branch: str) -> int | None:
    from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot

    snapshot: dict[str, Any] | None = parent_snapshot(metadata, branch)
    return None if snapshot is None else int(snapshot["snapshot-id"])
