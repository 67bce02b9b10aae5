"""Files in a table's folders that no snapshot knows: what writers that died have left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

import pyarrow.fs as fs
from pyiceberg.io import FileIO

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    read_manifest_list,
    read_manifests,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget


@dataclass(frozen=True)
class Orphan:
    """A file that belongs to no snapshot; size in bytes, last change in UTC."""

    path: str
    size: int
    modified: datetime


def find_orphans(table: LoadedTable, before: datetime) -> list[Orphan]:
    """Files of the table's folders that were last changed before and that nothing refers to.

    A file that a writer has written and not yet committed looks like an orphan: `before` must be
    longer ago than any write takes.

    Raises:
        CatalogError: the files may be another table's (`gc.enabled` is false).
        OSError: the storage cannot be listed or read.
    """
    properties = table.metadata.get("properties") or {}
    if properties.get("gc.enabled", "true").lower() == "false":
        raise CatalogError(
            f"The files of {'.'.join(table.name)} may belong to other tables, too: its property "
            "gc.enabled is false."
        )
    target = WriteTarget.of(table.metadata, table.io)
    known = {target.path_of(location) for location in referenced(table)}
    found = []
    # Not `write.data.path`: other tables may have the same.
    for info in _files(target.filesystem(), target.path_of(table.metadata["location"])):
        modified = info.mtime.astimezone(timezone.utc)
        if info.path not in known and modified < before:
            found.append(Orphan(info.path, info.size, modified))
    return sorted(set(found), key=lambda orphan: orphan.path)


def remove_orphans(table: LoadedTable, orphans: Iterable[Orphan]) -> int:
    """Remove them; how many were there.

    Raises:
        OSError: the storage refuses.
    """
    filesystem = WriteTarget.of(table.metadata, table.io).filesystem()
    removed = 0
    for orphan in orphans:
        if filesystem.get_file_info(orphan.path).type != fs.FileType.NotFound:
            filesystem.delete_file(orphan.path)
            removed += 1
    return removed


def referenced(table: LoadedTable) -> Iterator[str]:
    """Locations of all that the table's metadata, snapshots and logs name."""
    metadata = table.metadata
    yield table.location
    for entry in metadata.get("metadata-log") or []:
        yield entry["metadata-file"]
    for kind in ("statistics", "partition-statistics"):
        for statistics in metadata.get(kind) or []:
            yield statistics["statistics-path"]
    yield from _of_snapshots(table.io, metadata)


def _of_snapshots(io: FileIO, metadata: Metadata) -> Iterator[str]:
    seen: set[str] = set()
    for snapshot in metadata.get("snapshots") or []:
        yield snapshot["manifest-list"]
        manifests = [
            manifest
            for manifest in read_manifest_list(io, snapshot["manifest-list"])
            if manifest.manifest_path not in seen
        ]
        seen.update(manifest.manifest_path for manifest in manifests)
        for manifest, entries in zip(manifests, read_manifests(io, manifests), strict=True):
            yield manifest.manifest_path
            # A deleted entry's file is another snapshot's, as long as one holds it.
            yield from (e.data_file.file_path for e in entries if e.status != DELETED)


def shares_folder(table: LoadedTable, others: Iterable[LoadedTable]) -> LoadedTable | None:
    """Another table whose files lie in this one's folder; None if there is none."""
    own = table.metadata["location"].rstrip("/") + "/"
    for other in others:
        if other.name != table.name and (other.metadata["location"] + "/").startswith(own):
            return other
    return None


def _files(filesystem: fs.FileSystem, folder: str) -> Iterator[fs.FileInfo]:
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    # Hidden ones are checksums and markers of file systems.
    return (
        info
        for info in filesystem.get_file_info(selector)
        if info.is_file and not info.base_name.startswith((".", "_", "version-hint"))
    )
