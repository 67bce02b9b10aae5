"""Empty commits, which check whether a user may write before anything is computed."""

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
    """Return requirements and updates of a commit that leaves the table as it is.

    A catalog may require the right to change properties for a commit without updates. So with
    `rows_only` the commit sets the branch main to its current snapshot.
    """
    metadata = table.metadata
    requirements: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=metadata.table_uuid),)
    main = metadata.refs.get(MAIN_BRANCH)
    if not rows_only or main is None:
        return requirements, ()
    main_json = main.model_dump(mode="json", by_alias=True, exclude_none=True)
    set_main = SetSnapshotRefUpdate.model_validate(
        {"action": "set-snapshot-ref", "ref-name": MAIN_BRANCH, **main_json}
    )
    main_unchanged = AssertRefSnapshotId.model_validate(
        {"type": "assert-ref-snapshot-id", "ref": MAIN_BRANCH, "snapshot-id": main.snapshot_id}
    )
    return (*requirements, main_unchanged), (set_main,)
