"""Finds and removes orphan files: files in a table's folder that no snapshot references."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

import pyarrow.fs as fs
from pyiceberg.io import FileIO

from dbt.adapters.iceberg_stream.catalog.catalog import GC_ENABLED
from dbt.adapters.iceberg_stream.catalog.clone_tags import ORIGIN_LOCATION, is_clone
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.key_index.deleted_keys import deleted_keys_locations
from dbt.adapters.iceberg_stream.stream.key_index.storage import PROPERTY as KEY_INDEX
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    read_manifest_list,
    read_manifests,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget


@dataclass(frozen=True)
class Orphan:
    """A file that no snapshot references.

    Attributes:
        path: on the table's filesystem.
        size: in bytes.
        modified: time of the last change (UTC).
    """

    path: str
    size: int
    modified: datetime


def find_orphans(table: LoadedTable, before: datetime) -> list[Orphan]:
    """Find the orphan files of a table.

    Files of a write that is not committed yet look like orphans, so `before` must be longer ago
    than any write takes.

    Args:
        table: the table, with all snapshots.
        before: only files last changed before this time (UTC).

    Raises:
        CatalogError: the files may belong to other tables (`gc.enabled` is false).
        OSError: the storage cannot be listed or read.
    """
    properties = table.metadata.get("properties") or {}
    # The files that a clone shares are not in its folder.
    if properties.get(GC_ENABLED, "true").lower() == "false" and not is_clone(table.metadata):
        raise CatalogError(
            f"The files of {'.'.join(table.name)} may belong to other tables, too: its table "
            "property gc.enabled is false. Set it to true if they do not."
        )
    target = WriteTarget.of(table.metadata, table.io)
    referenced_paths = {target.path_of(location) for location in referenced(table)}
    orphans = []
    # Not the folder `write.data.path`: several tables may share it.
    for info in _files(target.filesystem(), target.path_of(table.metadata["location"])):
        modified = info.mtime.astimezone(timezone.utc)
        if info.path not in referenced_paths and modified < before:
            orphans.append(Orphan(info.path, info.size, modified))
    return sorted(set(orphans), key=lambda orphan: orphan.path)


def remove_orphans(table: LoadedTable, orphans: Iterable[Orphan]) -> int:
    """Remove orphan files.

    Args:
        table: the table.
        orphans: the files.

    Returns:
        How many files still existed and were removed.

    Raises:
        OSError: the storage refuses to remove a file.
    """
    filesystem = WriteTarget.of(table.metadata, table.io).filesystem()
    removed = 0
    for orphan in orphans:
        if filesystem.get_file_info(orphan.path).type != fs.FileType.NotFound:
            filesystem.delete_file(orphan.path)
            removed += 1
    return removed


def referenced(table: LoadedTable) -> Iterator[str]:
    """Iterate over the locations of all files that the table's metadata reference.

    Args:
        table: the table, with all snapshots.
    """
    metadata = table.metadata
    yield table.location
    for entry in metadata.get("metadata-log") or []:
        yield entry["metadata-file"]
    for kind in ("statistics", "partition-statistics"):
        for statistics in metadata.get(kind) or []:
            yield statistics["statistics-path"]
    for name, value in (metadata.get("properties") or {}).items():
        if name.startswith(KEY_INDEX):
            yield value
    yield from deleted_keys_locations(metadata)
    yield from _of_snapshots(table.io, metadata)


def _of_snapshots(io: FileIO, metadata: Metadata) -> Iterator[str]:
    visited: set[str] = set()
    for snapshot in metadata.get("snapshots") or []:
        yield snapshot["manifest-list"]
        manifests = [
            manifest
            for manifest in read_manifest_list(io, snapshot["manifest-list"])
            if manifest.manifest_path not in visited
        ]
        visited.update(manifest.manifest_path for manifest in manifests)
        for manifest, entries in zip(manifests, read_manifests(io, manifests), strict=True):
            yield manifest.manifest_path
            # The file of a deleted entry counts only if another snapshot still has it.
            yield from (e.data_file.file_path for e in entries if e.status != DELETED)


def without_clones(
    table: LoadedTable, orphans: list[Orphan], others: Iterable[LoadedTable]
) -> list[Orphan]:
    """Return the orphans that are not files of a clone.

    If a table was dropped while it had clones, and created again, the files of the clones are in
    its folder, and none of its snapshots references them.

    Args:
        table: the table with the folder.
        orphans: files in it.
        others: the tables that may be clones, with all snapshots.

    Raises:
        OSError: the storage cannot be read.
    """
    target = WriteTarget.of(table.metadata, table.io)
    own = target.path_of(table.metadata["location"]).rstrip("/") + "/"
    clone_paths: set[str] = set()
    for other in others:
        location = (other.metadata.get("properties") or {}).get(ORIGIN_LOCATION)
        if location is not None and (target.path_of(location) + "/").startswith(own):
            clone_paths.update(target.path_of(path) for path in referenced(other))
    return [orphan for orphan in orphans if orphan.path not in clone_paths]


def shares_folder(table: LoadedTable, others: Iterable[LoadedTable]) -> LoadedTable | None:
    """Return a table whose files are in another table's folder; None if there is none.

    Args:
        table: the table with the folder.
        others: the tables to check.
    """
    own = table.metadata["location"].rstrip("/") + "/"
    for other in others:
        if other.name != table.name and (other.metadata["location"] + "/").startswith(own):
            return other
    return None


def _files(filesystem: fs.FileSystem, folder: str) -> Iterator[fs.FileInfo]:
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    # Hidden files are checksums and markers of file systems.
    return (
        info
        for info in filesystem.get_file_info(selector)
        if info.is_file and not info.base_name.startswith((".", "_", "version-hint"))
    )
