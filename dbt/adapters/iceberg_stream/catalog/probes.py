"""Empty commits, which show before any row is computed whether a user may write to a table."""

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


def rows_unchanged(
    table: Table,
) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
    """Return requirements and updates of a commit that sets main to its current snapshot.

    For a commit without updates, a catalog may require the right to change properties.

    Args:
        table: the table.
    """
    metadata = table.metadata
    requirements: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=metadata.table_uuid),)
    main = metadata.refs.get(MAIN_BRANCH)
    if main is None:
        return requirements, ()
    main_json = main.model_dump(mode="json", by_alias=True, exclude_none=True)
    set_main = SetSnapshotRefUpdate.model_validate(
        {"action": "set-snapshot-ref", "ref-name": MAIN_BRANCH, **main_json}
    )
    main_unchanged = AssertRefSnapshotId.model_validate(
        {"type": "assert-ref-snapshot-id", "ref": MAIN_BRANCH, "snapshot-id": main.snapshot_id}
    )
    return (*requirements, main_unchanged), (set_main,)
