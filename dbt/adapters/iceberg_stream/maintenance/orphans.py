"""Finds and removes orphan files: files in a table's folder that nothing references.

Removed files are moved to a folder in the table's folder, and deleted some days later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pyarrow.fs as fs

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, collects_garbage
from dbt.adapters.iceberg_stream.catalog.clone_tags import is_clone
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.locations import comparable, comparables, local_path
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.references import KINDS, references, without_referenced

# Iceberg's `remove_orphan_files` ignores folders whose names begin so.
REMOVED_FOLDER = "_removed"
_TIME = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True)
class Orphan:
    """A file that nothing references.

    Attributes:
        location: of the file.
        path: on the table's filesystem.
        size: in bytes.
        modified: time of the last change (UTC).
    """

    location: str
    path: str
    size: int
    modified: datetime


@dataclass(frozen=True)
class RemovedFile:
    """A file that was removed, and is not deleted yet.

    Attributes:
        path: where it is now, on the table's filesystem.
        origin: where it was, on the table's filesystem.
        location: where it was.
        removed: when (UTC).
    """

    path: str
    origin: str
    location: str
    removed: datetime


def find_orphans(
    table: LoadedTable, before: datetime, catalogs: Sequence[IcebergCatalog]
) -> list[Orphan]:
    """Find the files in a table's folder that no table and no view references.

    Files of a write that is not committed yet look like orphans, so `before` must be longer ago
    than any write takes.

    Args:
        table: the table, with all snapshots.
        before: only files last changed before this time (UTC).
        catalogs: all catalogs whose tables may have files in the folder, the table's own first.

    Raises:
        CatalogError: the files may belong to other tables (`gc.enabled` is false), or a table or
            namespace cannot be read, so its files are unknown.
        OSError: the storage cannot be listed or read.
    """
    files = unreferenced_files(table, before)
    if not files:
        return []
    locations = [orphan.location for orphan in files]
    left = set(without_referenced(locations, catalogs, [table]))
    return [orphan for orphan in files if orphan.location in left]


def unreferenced_files(table: LoadedTable, before: datetime) -> list[Orphan]:
    """List the files in a table's folder that the table itself does not reference.

    Args:
        table: the table, with all snapshots.
        before: only files last changed before this time (UTC).

    Raises:
        CatalogError: the files may belong to other tables (`gc.enabled` is false).
        OSError: the storage cannot be listed or read.
    """
    properties = table.metadata.get("properties") or {}
    # The files that a clone shares are not in its folder.
    if not collects_garbage(properties) and not is_clone(table.metadata):
        raise CatalogError(
            f"The files of {'.'.join(table.name)} may belong to other tables, too: its table "
            "property gc.enabled is false. Set it to true if they do not."
        )
    folder = _Folder.of(table)
    referenced = {key for location in references(table) for key in comparables(location)}
    orphans = []
    # Not the folder `write.data.path`: several tables may share it.
    for info in folder.files():
        modified, location = info.mtime.astimezone(timezone.utc), folder.location_of(info.path)
        is_old = modified < before and info.path.endswith(KINDS)
        if is_old and comparable(location) not in referenced:
            orphans.append(Orphan(location, info.path, info.size, modified))
    return sorted(set(orphans), key=lambda orphan: orphan.path)


def remove_orphans(table: LoadedTable, orphans: Iterable[Orphan]) -> int:
    """Move orphan files to the table's folder of removed files.

    Args:
        table: the table.
        orphans: the files.

    Returns:
        How many files still existed and were moved.

    Raises:
        OSError: the storage refuses to move a file.
    """
    folder = _Folder.of(table)
    batch = f"{folder.removed}/{datetime.now(timezone.utc).strftime(_TIME)}"
    return sum(
        folder.move(orphan.path, batch + orphan.path.removeprefix(folder.path))
        for orphan in orphans
    )


def restore_removed(table: LoadedTable) -> tuple[int, list[str]]:
    """Move all removed files back, unless there are other files in their places.

    Args:
        table: the table.

    Returns:
        How many were moved, and the paths of those that were not.

    Raises:
        OSError: the storage refuses to move a file.
    """
    folder = _Folder.of(table)
    moved, kept = 0, []
    for file in removed_files(table):
        if folder.move(file.path, file.origin):
            moved += 1
        else:
            kept.append(file.path)
    folder.delete_empty_folders()
    return moved, kept


def removed_files(table: LoadedTable) -> list[RemovedFile]:
    """List the removed files of a table that are not deleted yet.

    Args:
        table: the table.

    Raises:
        OSError: the storage cannot be listed.
    """
    folder = _Folder.of(table)
    files = []
    for info in folder.list(folder.removed):
        batch, _, inner = info.path.removeprefix(f"{folder.removed}/").partition("/")
        try:
            removed = datetime.strptime(batch, _TIME).replace(tzinfo=timezone.utc)
        except ValueError:
            continue  # not ours
        origin = f"{folder.path}/{inner}"
        files.append(RemovedFile(info.path, origin, folder.location_of(origin), removed))
    return files


def delete_removed(
    table: LoadedTable, before: datetime, catalogs: Sequence[IcebergCatalog]
) -> tuple[int, int]:
    """Delete the files that were removed some time ago; move back those that are referenced now.

    Args:
        table: the table.
        before: only files removed before this time (UTC).
        catalogs: as for `find_orphans`.

    Returns:
        How many were deleted, and how many were moved back.

    Raises:
        CatalogError: a table or namespace cannot be read, so its files are unknown.
        OSError: the storage refuses.
    """
    # Also those just removed: a table may have got them after the orphans were listed.
    files = removed_files(table)
    if not files:
        return 0, 0
    folder, moved, deleted = _Folder.of(table), 0, 0
    present = [folder.location_of(file.path) for file in files]
    left = set(without_referenced([*(file.location for file in files), *present], catalogs))
    for file, location in zip(files, present, strict=True):
        if location not in left:
            # A table has it where it is now.
            continue
        if file.location not in left:
            moved += folder.move(file.path, file.origin)
        elif file.removed < before:
            folder.filesystem.delete_file(file.path)
            deleted += 1
    folder.delete_empty_folders()
    return deleted, moved


@dataclass(frozen=True)
class _Folder:
    """The folder of a table.

    Attributes:
        filesystem: of the table's storage.
        location: of the folder.
        path: on the filesystem.
    """

    filesystem: fs.FileSystem
    location: str
    path: str

    @classmethod
    def of(cls, table: LoadedTable) -> _Folder:
        location = table.metadata["location"].rstrip("/")
        target = WriteTarget.of(table.metadata, table.io)
        local = local_path(location)
        path = target.path_of(location) if local is None else os.path.normpath(local)
        return cls(target.filesystem(), location, path)

    @property
    def removed(self) -> str:
        """Path of the folder of removed files."""
        return f"{self.path}/{REMOVED_FOLDER}"

    def location_of(self, path: str) -> str:
        if not path.startswith(f"{self.path}/"):
            raise OSError(f"The storage lists {path} in the folder {self.path}.")
        return self.location + path.removeprefix(self.path)

    def files(self) -> Iterator[fs.FileInfo]:
        """Iterate over the files, without those that were removed."""
        inner = f"{self.removed}/"
        return (info for info in self.list(self.path) if not info.path.startswith(inner))

    def list(self, path: str) -> Iterator[fs.FileInfo]:
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        # Hidden files are checksums and markers of file systems.
        return (
            info
            for info in self.filesystem.get_file_info(selector)
            if info.is_file
            and not info.base_name.startswith((".", "_", "version-hint"))
            and not self._is_elsewhere(info.path)
        )

    def _is_elsewhere(self, path: str) -> bool:
        """Return whether a symbolic link leads out of the folder."""
        if self.filesystem.type_name != "local":
            return False
        return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.path))

    def move(self, path: str, new: str) -> bool:
        """Move a file; return False if it does not exist, or if there is one in its new place."""
        infos = self.filesystem.get_file_info([path, new])
        if [info.type for info in infos] != [fs.FileType.File, fs.FileType.NotFound]:
            return False
        # Object stores have no folders, and would store an empty object for each.
        if self._has_folders:
            self.filesystem.create_dir(new.rsplit("/", 1)[0], recursive=True)
        self.filesystem.move(path, new)
        return True

    def delete_empty_folders(self) -> None:
        """Delete the batches of removed files that have no file left."""
        if not self._has_folders:
            return
        selector = fs.FileSelector(self.removed, allow_not_found=True)
        for info in self.filesystem.get_file_info(selector):
            inner = fs.FileSelector(info.path, recursive=True)
            if not info.is_file and not any(
                i.is_file for i in self.filesystem.get_file_info(inner)
            ):
                self.filesystem.delete_dir(info.path)

    @property
    def _has_folders(self) -> bool:
        return self.filesystem.type_name in ("local", "hdfs")
