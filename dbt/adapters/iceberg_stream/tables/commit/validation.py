"""Validates a change against the commits of other writers since its writer read the table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, keeps_rows
from dbt.adapters.iceberg_stream.tables.commit.change import Change
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DELETED,
    read_manifest_list,
    read_manifests,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot, referenced_file

# Id of `file_path` in position delete files (Iceberg spec, "Reserved Field IDs").
FILE_PATH = 2147483546


@dataclass
class _Since:
    """Files that were added or removed after a snapshot, and their writers."""

    data: list[DataFile] = field(default_factory=list)
    deletes: list[DataFile] = field(default_factory=list)
    # Of all commits, also of those that keep all rows.
    all_deletes: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    writers: list[str] = field(default_factory=list)
    snapshots: int = 0


def validate(io: FileIO, base: Metadata, metadata: Metadata, change: Change) -> None:
    """Validate a change against the commits since the snapshot that its writer read.

    Args:
        io: the table's FileIO.
        base: table metadata that the writer read.
        metadata: current table metadata.
        change: the change to commit.

    Raises:
        ValidationFailed: another writer's commit conflicts.
    """
    validation = change.validation
    if validation is None:
        return
    since = _collect(io, metadata, change)
    if since is None:
        raise ValidationFailed(_unknown_base(validation.since), [], set())
    conflicts = validation.conflicts
    if conflicts is not None and base["current-schema-id"] != metadata["current-schema-id"]:
        conflicts = _with_any_file  # it was made for other columns
    added = [file for file in since.data if conflicts is not None and conflicts(file)]
    removed = {f.file_path for f in change.removed if f.content == DataFileContent.DATA}
    deleted = [f for f in since.deletes if validation.new_deletes and _may_delete(f, removed)]
    deleted += [f for f in since.all_deletes if _may_delete(f, {*validation.located})]
    rewritten = since.removed & validation.located
    # Deletes of a file that is added again are older than it, and do not apply any more.
    again = {file.file_path for file in since.data} & (removed | validation.located)
    has_ids_now = validation.lacks_row_ids and metadata["format-version"] >= 3 and since.snapshots
    if not (added or deleted or rewritten or again or has_ids_now):
        return
    conflict = (
        f"added {len(added)} data files that conflict with this write"
        if added
        else "deleted rows of files that this write changes"
        if deleted
        else "removed files that this write changes"
        if rewritten
        else "added files again that this write changes"
        if again
        else "gave row ids to files that this write changes"
    )
    raise ValidationFailed(
        f"Another writer {conflict}: {', '.join(since.writers)}.",
        added,
        set(),
    )


def _with_any_file(file: DataFile) -> bool:
    return True


def _unknown_base(since: int | None) -> str:
    if since is None:
        return (
            "The table was empty when this write began, and no longer has its first snapshot "
            "since: it expired, or the table was replaced."
        )
    return (
        f"The table no longer has the snapshot {since} that this write read: it was rolled back, "
        "expired or replaced."
    )


def _collect(io: FileIO, metadata: Metadata, change: Change) -> _Since | None:
    """Collect files added since the writer's read; None if its snapshot is no known ancestor."""
    assert change.validation is not None
    since, snapshot = _Since(), None
    for snapshot in _ancestors(metadata, change.branch):
        if snapshot["snapshot-id"] == change.validation.since:
            return since
        since.snapshots += 1
        summary = snapshot.get("summary") or {}
        if keeps_rows(snapshot) and not change.validation.located:
            continue
        writer = summary.get("iceberg-stream.model") or summary.get("engine-name") or "unknown"
        since.writers.append(f"snapshot {snapshot['snapshot-id']} by {writer}")
        _add_files(io, snapshot, since, bool(change.validation.located))
    # For a table that was empty, the list is complete only if it has the first snapshot.
    has_first_snapshot = snapshot is None or snapshot.get("parent-snapshot-id") is None
    return since if change.validation.since is None and has_first_snapshot else None


def _add_files(io: FileIO, snapshot: dict[str, Any], since: _Since, with_removed: bool) -> None:
    manifests = [
        manifest
        for manifest in read_manifest_list(io, snapshot["manifest-list"])
        if manifest.added_snapshot_id == snapshot["snapshot-id"]
        and (manifest.has_added_files() or with_removed)
    ]
    for manifest, entries in zip(manifests, read_manifests(io, manifests), strict=True):
        added = [item.data_file for item in entries if item.status == ADDED]
        if manifest.content == ManifestContent.DELETES:
            since.all_deletes += added
        else:
            since.removed |= {e.data_file.file_path for e in entries if e.status == DELETED}
        if not keeps_rows(snapshot):
            is_data = manifest.content == ManifestContent.DATA
            into = since.data if is_data else since.deletes
            into += added


def _ancestors(metadata: Metadata, branch: str) -> Iterator[dict[str, Any]]:
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    snapshot = parent_snapshot(metadata, branch)
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.get("parent-snapshot-id", -1))


def _may_delete(file: DataFile, removed: set[str]) -> bool:
    """Return whether a delete file may delete rows of one of these data files."""
    if not removed:
        return False
    if file.content == DataFileContent.EQUALITY_DELETES:
        return True
    referenced = referenced_file(file)
    if referenced is not None:
        return referenced in removed
    lower = (file.lower_bounds or {}).get(FILE_PATH)
    upper = (file.upper_bounds or {}).get(FILE_PATH)
    if lower is None or upper is None:
        return True
    return any(lower <= path.encode() <= upper for path in removed)
