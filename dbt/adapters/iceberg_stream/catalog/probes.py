"""Commits that change nothing: whether a user may write, before anything is computed."""

from __future__ import annotations

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)


def empty_commit(
    table: Table, rows_only: bool
) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
    """Requirements and updates of a commit that leaves the table as it is.

    A catalog may ask for the right to change properties where a commit has no update. For who
    writes rows only it sets the branch main to where it stands.
    """
    metadata = table.metadata
    requirements: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=metadata.table_uuid),)
    main = metadata.refs.get(MAIN_BRANCH)
    if not rows_only or main is None:
        return requirements, ()
    kept = main.model_dump(mode="json", by_alias=True, exclude_none=True)
    same = SetSnapshotRefUpdate.model_validate(
        {"action": "set-snapshot-ref", "ref-name": MAIN_BRANCH, **kept}
    )
    stands = AssertRefSnapshotId.model_validate(
        {"type": "assert-ref-snapshot-id", "ref": MAIN_BRANCH, "snapshot-id": main.snapshot_id}
    )
    return (*requirements, stands), (same,)
