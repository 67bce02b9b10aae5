"""Whether what a change was made from still holds, after others have committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.change import Change
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    read_manifest_list,
    read_manifests,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot, referenced_file

FILE_PATH = 2147483546


class ChangedMeanwhile(CatalogError):
    """Other writers changed what this change was made from; the same files do not do any more.

    Attributes:
        added: data files of others that this change had to see.
        removed: paths of files that this change removes and that are gone already.
    """

    def __init__(self, message: str, added: list[DataFile], removed: set[str]) -> None:
        super().__init__(message)
        self.added = added
        self.removed = removed


@dataclass
class _Since:
    """What came after a snapshot, and who brought it."""

    data: list[DataFile] = field(default_factory=list)
    deletes: list[DataFile] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)


def validate(io: FileIO, metadata: Metadata, change: Change) -> None:
    """Check a change against what came after the snapshot it was made from.

    Raises:
        ChangedMeanwhile: it does not hold any more.
    """
    validation = change.validation
    if validation is None:
        return
    since = _collect(io, metadata, change)
    if since is None:
        raise ChangedMeanwhile(_unknown_base(validation.since), [], set())
    conflicts = validation.conflicts
    added = [file for file in since.data if conflicts is not None and conflicts(file)]
    removed = {f.file_path for f in change.removed if f.content == DataFileContent.DATA}
    hidden = [f for f in since.deletes if validation.new_deletes and _may_delete(f, removed)]
    if not added and not hidden:
        return
    what = f"{len(added)} data files" if added else "deletes of rows"
    raise ChangedMeanwhile(
        f"Another writer added {what} that this write had to see: {', '.join(since.writers)}.",
        added,
        set(),
    )


def _unknown_base(since: int | None) -> str:
    if since is None:
        return (
            "The table was empty when this write began, and what came first since is no longer "
            "among its snapshots: they expired, or the table was replaced."
        )
    return (
        f"The snapshot {since} that this write was made from is no longer among the table's: it "
        "was rolled back, expired or replaced."
    )


def _collect(io: FileIO, metadata: Metadata, change: Change) -> _Since | None:
    """None if the snapshot that was read is not an ancestor of the branch's, as far as is known."""
    assert change.validation is not None
    found, snapshot = _Since(), None
    for snapshot in _ancestors(metadata, change.branch):
        if snapshot["snapshot-id"] == change.validation.since:
            return found
        said = snapshot.get("summary") or {}
        if said.get("operation") == Operation.REPLACE.value:
            continue  # the same rows in other files
        who = said.get("iceberg-stream.model") or said.get("engine-name") or "somebody"
        found.writers.append(f"snapshot {snapshot['snapshot-id']} by {who}")
        manifests = [
            manifest
            for manifest in read_manifest_list(io, snapshot["manifest-list"])
            if manifest.added_snapshot_id == snapshot["snapshot-id"] and manifest.has_added_files()
        ]
        for manifest, entries in zip(manifests, read_manifests(io, manifests), strict=True):
            into = found.data if manifest.content == ManifestContent.DATA else found.deletes
            into += [item.data_file for item in entries if item.status == ADDED]
    # What an empty table has had since is known only up to its first snapshot.
    whole = snapshot is None or snapshot.get("parent-snapshot-id") is None
    return found if change.validation.since is None and whole else None


def _ancestors(metadata: Metadata, branch: str) -> Iterator[dict[str, Any]]:
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    snapshot = parent_snapshot(metadata, branch)
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.get("parent-snapshot-id", -1))


def _may_delete(file: DataFile, removed: set[str]) -> bool:
    """Whether a delete file may delete rows of one of these data files."""
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
