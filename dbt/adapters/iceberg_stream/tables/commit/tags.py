"""Tags: names of snapshots, which keep them from expiring (spec, "Snapshot References")."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata

ATTEMPTS = 5


@dataclass(frozen=True)
class Tag:
    """A tag to set.

    Attributes:
        name: its name.
        retention: how long it is kept; None for ever.
        replace: whether it is moved if the table has it on another snapshot.
    """

    name: str
    retention: timedelta | None = None
    replace: bool = False


def set_tag(catalog: IcebergCatalog, name: Name, tag: Tag, branch: str = MAIN) -> int:
    """Set a tag on the newest snapshot of a branch.

    Args:
        catalog: the profile's catalog.
        name: namespace and identifier of the table.
        tag: the tag.
        branch: the branch.

    Returns:
        The id of the snapshot.

    Raises:
        CatalogError: there is no snapshot, the tag must not be moved, or other writers commit all
            the time.
    """
    from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

    from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot

    snapshot_id: int | None = None
    for _ in range(ATTEMPTS):
        table = catalog.load(name)
        snapshot = None if table is None else parent_snapshot(table.metadata, branch)
        if table is None or snapshot is None:
            raise CatalogError(f"{'.'.join(name)} has no snapshot to tag as `{tag.name}`.")
        # Another writer's commit between two attempts is not what this run has built.
        snapshot_id = snapshot_id or int(snapshot["snapshot-id"])
        reference = _references(table.metadata).get(tag.name)
        wanted = _reference(tag, snapshot_id)
        if reference == wanted:
            return snapshot_id
        if error := tag_error(table.metadata, name, tag, snapshot_id):
            raise CatalogError(error)
        before = None if reference is None else reference["snapshot-id"]
        requirements = (
            AssertTableUUID(uuid=table.metadata["table-uuid"]),
            AssertRefSnapshotId.model_validate({"ref": tag.name, "snapshot-id": before}),
        )
        update = SetSnapshotRefUpdate.model_validate({**wanted, "ref-name": tag.name})
        try:
            catalog.commit(table, requirements, (update,))
        except (CommitConflict, CommitStateUnknown):
            # The next attempt finds out whether the tag is set.
            continue
        return snapshot_id
    raise CatalogError(
        f"The tag `{tag.name}` of {'.'.join(name)} was not set: other writers changed the table "
        f"{ATTEMPTS} times in a row. Set it on snapshot {snapshot_id} later."
    )


def tag_error(
    metadata: Metadata, name: Name, tag: Tag, snapshot_id: int | None = None
) -> str | None:
    """Return why a tag cannot be set; None if it can.

    Args:
        metadata: of the table.
        name: namespace and identifier of the table.
        tag: the tag.
        snapshot_id: where it is to be set; None for a snapshot that does not exist yet.
    """
    reference = _references(metadata).get(tag.name)
    if tag.name == MAIN or (reference or {}).get("type") == "branch":
        return f"{'.'.join(name)} has a branch `{tag.name}`. Give the tag another name."
    if reference is None or tag.replace or reference["snapshot-id"] == snapshot_id:
        return None
    return (
        f"{'.'.join(name)} already has the tag `{tag.name}`, on snapshot "
        f"{reference['snapshot-id']}. Give the tag another name, or set `replace: true` to move it."
    )


def _references(metadata: Metadata) -> dict[str, Any]:
    return dict(metadata.get("refs") or {})


def _reference(tag: Tag, snapshot_id: int) -> dict[str, Any]:
    reference: dict[str, Any] = {"type": "tag", "snapshot-id": snapshot_id}
    if tag.retention is not None:
        reference["max-ref-age-ms"] = tag.retention // timedelta(milliseconds=1)
    return reference
