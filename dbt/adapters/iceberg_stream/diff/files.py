"""Finds the rows that only one of two versions has, from manifests and deletes alone.

A data file that is live in both versions, with the same deletes, is not read at all. Of a data file
with other deletes, only the rows that are live in one version are read (spec, "Scan Planning").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.version import TableVersion
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    iter_manifests,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import file_key, referenced_file
from dbt.adapters.iceberg_stream.tables.deletes.equality import (
    EqualityDeletes,
    Scope,
    is_equality_delete,
    scope_of,
)
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    UnsupportedFile,
    deleted_rows,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.deletes import only_data_file, read_position_deletes

FileKey = tuple[str, str | None]


@dataclass(frozen=True)
class FileRows:
    """Rows of a data file.

    Attributes:
        file: the data file.
        rows: their positions, from 0.
    """

    file: DataFile
    rows: BitMap


@dataclass(frozen=True)
class FileCounts:
    """Files that one version has and the other one has not.

    Attributes:
        files: data files.
        rows: their rows, deleted ones included.
        bytes: their size.
        delete_files: delete files and deletion vectors.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0
    delete_files: int = 0

    @classmethod
    def of(cls, data: Iterable[ManifestEntry], delete_files: int) -> FileCounts:
        """Return the counts of data files."""
        files = [item.data_file for item in data]
        return cls(
            len(files),
            sum(file.record_count for file in files),
            sum(file.file_size_in_bytes for file in files),
            delete_files,
        )


@dataclass
class VersionFiles:
    """The files of one version.

    Attributes:
        version: the version.
        deletes: its delete files.
        data: its data files in manifests that the other version does not have, by location.
        shared: manifests of data files that both versions have.
        rows: live rows by manifests alone; None if only reading deletes would tell.
    """

    version: TableVersion
    deletes: dict[FileKey, ManifestEntry] = field(default_factory=dict)
    data: dict[str, ManifestEntry] = field(default_factory=dict)
    shared: list[ManifestFile] = field(default_factory=list)
    rows: int | None = 0

    def live_rows(self, entries: Sequence[ManifestEntry]) -> dict[str, BitMap]:
        """Read which rows of data files are live.

        Args:
            entries: manifest entries of the data files.

        Raises:
            UnsupportedFile: a file cannot be read here.
            OSError: the storage refuses a file.
        """
        table = self.version.table
        files = snapshot_files(table, entries, list(self.deletes.values()))
        deleted = deleted_rows(table, list(files.values()))
        if any(is_equality_delete(item.data_file) for item in self.deletes.values()):
            with EqualityDeletes(table) as equality:
                affected = [item for item in entries if equality.apply_to(item)]
                for file, positions in equality.deleted_in(affected):
                    deleted[file.file_path] |= positions
        return {
            path: BitMap(range(item.file.record_count)) - deleted[path]
            for path, item in files.items()
        }


@dataclass(frozen=True)
class FileDifference:
    """What differs between two versions, by their manifests.

    Attributes:
        removed: files that only the older version has.
        added: files that only the newer version has.
        rows_before: rows of the older version; None if only reading deletes would tell.
        rows_after: rows of the newer version; None likewise.
    """

    removed: FileCounts
    added: FileCounts
    rows_before: int | None
    rows_after: int | None
    _before: VersionFiles = field(repr=False)
    _after: VersionFiles = field(repr=False)

    def rows(self) -> tuple[list[FileRows], list[FileRows]]:
        """Return the rows that only the older, and only the newer version has.

        The same row may be in both, in other files. Reads delete files, but no data file except
        its columns that equality deletes compare.

        Raises:
            DiffError: a file cannot be read here.
            OSError: the storage refuses a file.
        """
        try:
            return self._rows()
        except UnsupportedFile as error:
            raise DiffError(
                f"{self._before.version.label} and {self._after.version.label} cannot be compared: "
                f"{error}. `--metadata` compares what manifests say."
            ) from error

    def _rows(self) -> tuple[list[FileRows], list[FileRows]]:
        old, new = self._before, self._after
        both = self._with_other_deletes()
        removed = [item for path, item in old.data.items() if path not in new.data]
        added = [item for path, item in new.data.items() if path not in old.data]
        before = old.live_rows([*removed, *(one for one, _ in both)])
        after = new.live_rows([*added, *(other for _, other in both)])
        only_before = [_rows_of(item, before) for item in removed]
        only_after = [_rows_of(item, after) for item in added]
        for one, other in both:
            path = one.data_file.file_path
            only_before.append(FileRows(one.data_file, before[path] - after[path]))
            only_after.append(FileRows(other.data_file, after[path] - before[path]))
        return _not_empty(only_before), _not_empty(only_after)

    def _with_other_deletes(self) -> list[tuple[ManifestEntry, ManifestEntry]]:
        """Return entries of data files that are live in both versions, with other deletes."""
        old, new = self._before, self._after
        if not old.version.is_same_table(new.version):
            return []
        deletes = _differing_deletes(old, new)
        if not any(deletes):
            return []
        targets = _Targets(old, deletes[0]), _Targets(new, deletes[1])
        pairs = [(item, new.data[path]) for path, item in old.data.items() if path in new.data]
        io = new.version.table.io
        for _, entries in iter_manifests(io, new.shared):
            pairs += [(item, item) for item in entries if item.status != DELETED]
        return [pair for pair in pairs if any(target.has(pair[0]) for target in targets)]


def compare_files(before: TableVersion, after: TableVersion) -> FileDifference:
    """Compare the manifests of two versions.

    Args:
        before: the older version.
        after: the newer version.

    Raises:
        OSError: the storage refuses a manifest.
    """
    same_table = before.is_same_table(after)
    lists = [_manifests(version) for version in (before, after)]
    paths = [{manifest.manifest_path for manifest in manifests} for manifests in lists]
    shared = paths[0] & paths[1] if same_table else set()
    old, new = (
        _files(version, manifests, shared)
        for version, manifests in zip((before, after), lists, strict=True)
    )
    common = old.data.keys() & new.data.keys() if same_table else set()
    removed = [item for path, item in old.data.items() if path not in common]
    added = [item for path, item in new.data.items() if path not in common]
    gone, fresh = _differing_deletes(old, new)
    return FileDifference(
        FileCounts.of(removed, len(gone)),
        FileCounts.of(added, len(fresh)),
        old.rows,
        new.rows,
        old,
        new,
    )


def _manifests(version: TableVersion) -> list[ManifestFile]:
    if version.snapshot is None:
        return []
    return read_manifest_list(version.table.io, version.snapshot["manifest-list"])


def _files(
    version: TableVersion, manifests: Sequence[ManifestFile], shared: set[str]
) -> VersionFiles:
    files, io = VersionFiles(version), version.table.io
    deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
    data = [m for m in manifests if m.content != ManifestContent.DELETES]
    for _, entries in iter_manifests(io, deletes):
        for item in _live(entries):
            files.deletes[file_key(item.data_file)] = item
    files.shared = [m for m in data if m.manifest_path in shared]
    for _, entries in iter_manifests(io, [m for m in data if m.manifest_path not in shared]):
        files.data |= {item.data_file.file_path: item for item in _live(entries)}
    files.rows = _row_count(files)
    return files


def _live(entries: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    return [item for item in entries if item.status != DELETED]


def _row_count(files: VersionFiles) -> int | None:
    """Return the number of live rows; None if some deletes may delete a row twice, or no row."""
    deletes = [item.data_file for item in files.deletes.values()]
    if any(file.file_format != FileFormat.PUFFIN for file in deletes):
        return None
    rows = sum(item.data_file.record_count for item in files.data.values())
    for manifest in files.shared:
        if manifest.added_rows_count is None or manifest.existing_rows_count is None:
            return None
        rows += manifest.added_rows_count + manifest.existing_rows_count
    # A data file has at most one deletion vector, which counts its rows.
    return rows - sum(file.record_count for file in deletes)


def _differing_deletes(
    old: VersionFiles, new: VersionFiles
) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Return the delete files that only one of the versions has."""
    if not old.version.is_same_table(new.version):
        return list(old.deletes.values()), list(new.deletes.values())
    return (
        [item for key, item in old.deletes.items() if key not in new.deletes],
        [item for key, item in new.deletes.items() if key not in old.deletes],
    )


class _Targets:
    """The data files that some delete files may apply to."""

    def __init__(self, files: VersionFiles, deletes: Iterable[ManifestEntry]) -> None:
        self._metadata = files.version.table.metadata
        self._paths: set[str] = set()
        self._numbers: dict[Scope, int] = {}
        io = files.version.table.io
        for item in deletes:
            delete = item.data_file
            if is_equality_delete(delete):
                scope = scope_of(self._metadata, delete)
                number = item.sequence_number or 0
                self._numbers[scope] = max(number, self._numbers.get(scope, 0))
            elif (only := referenced_file(delete) or only_data_file(delete)) is not None:
                self._paths.add(only)
            else:
                self._paths |= {path for path, _ in read_position_deletes(io, delete)}

    def has(self, entry: ManifestEntry) -> bool:
        """Return whether a delete file may apply to a data file."""
        if entry.data_file.file_path in self._paths:
            return True
        number = entry.sequence_number or 0
        scopes = {None, scope_of(self._metadata, entry.data_file)} if self._numbers else ()
        return any(self._numbers.get(scope, -1) > number for scope in scopes)


def _rows_of(entry: ManifestEntry, rows: dict[str, BitMap]) -> FileRows:
    return FileRows(entry.data_file, rows[entry.data_file.file_path])


def _not_empty(files: Iterable[FileRows]) -> list[FileRows]:
    return [item for item in files if item.rows]
