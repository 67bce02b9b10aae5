"""Lists the live data files and delete files of a branch's snapshot."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    iter_manifests,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot


def live_files(
    io: FileIO,
    metadata: Metadata,
    branch: str = "main",
    test: Callable[[DataFile], bool] = lambda _: True,
    manifests: Callable[[ManifestFile], bool] = lambda _: True,
) -> list[DataFile]:
    """Return the data files of a branch's snapshot, sorted by path.

    Args:
        io: the table's FileIO.
        metadata: table metadata.
        branch: the branch.
        test: selects data files; others are not held in memory.
        manifests: selects manifests; others are not read.
    """

    def passes(item: ManifestEntry) -> bool:
        return test(item.data_file)

    entries = live_entries(io, metadata, ManifestContent.DATA, branch, passes, manifests)
    return sorted((item.data_file for item in entries), key=lambda file: file.file_path)


def live_entries(
    io: FileIO,
    metadata: Metadata,
    content: ManifestContent,
    branch: str = "main",
    test: Callable[[ManifestEntry], bool] = lambda _: True,
    manifests: Callable[[ManifestFile], bool] = lambda _: True,
) -> list[ManifestEntry]:
    """Return the live manifest entries of a branch's snapshot.

    Args:
        io: the table's FileIO.
        metadata: table metadata.
        content: entries of data files or of delete files.
        branch: the branch.
        test: selects entries; others are not held in memory.
        manifests: selects manifests; others are not read.
    """
    snapshot = parent_snapshot(metadata, branch)
    if snapshot is None:
        return []
    selected = filter(manifests, _of(read_manifest_list(io, snapshot["manifest-list"]), content))
    is_wanted = lambda item: item.status != DELETED and test(item)  # noqa: E731
    return [item for _, entries in iter_manifests(io, selected, is_wanted) for item in entries]


def has_deletes(io: FileIO, metadata: Metadata, branch: str = "main") -> bool:
    """Return whether a branch has delete files.

    Args:
        io: the table's FileIO.
        metadata: table metadata.
        branch: the branch.
    """
    snapshot = parent_snapshot(metadata, branch)
    if snapshot is None:
        return False
    manifests = _of(read_manifest_list(io, snapshot["manifest-list"]), ManifestContent.DELETES)
    return any(m.has_added_files() or m.has_existing_files() for m in manifests)


def live_spec_ids(io: FileIO, metadata: Metadata, branch: str = "main") -> set[int]:
    """Return the ids of the partition specs that a branch's data files have.

    Args:
        io: the table's FileIO.
        metadata: table metadata.
        branch: the branch.
    """
    snapshot = parent_snapshot(metadata, branch)
    if snapshot is None:
        return set()
    manifests = _of(read_manifest_list(io, snapshot["manifest-list"]), ManifestContent.DATA)
    return {
        manifest.partition_spec_id
        for manifest in manifests
        if manifest.has_added_files() or manifest.has_existing_files()
    }


def _of(manifests: list[ManifestFile], content: ManifestContent) -> list[ManifestFile]:
    return [manifest for manifest in manifests if manifest.content == content]
