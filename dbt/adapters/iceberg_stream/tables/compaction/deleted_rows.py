"""Writes data files again whose rows are mostly deleted by position.

A reader decodes deleted rows, too, and opens a file however few of its rows are left. Iceberg's
`rewrite_data_files` selects the same files by its option `delete-ratio-threshold`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntry

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.commit.producer import referenced_file
from dbt.adapters.iceberg_stream.tables.compaction.rewrite import (
    MOST_BYTES,
    MOST_ROWS,
    Compaction,
    commit_rewrite,
    groups_within,
    newest_equality_delete,
    sequence_number,
)
from dbt.adapters.iceberg_stream.tables.deletes.equality import (
    Scope,
    scope_of,
)
from dbt.adapters.iceberg_stream.tables.files.deletes import only_data_file
from dbt.adapters.iceberg_stream.tables.files.target import target_size

# Share of a file's rows: Iceberg's default of `delete-ratio-threshold`.
DELETED_SHARE = 0.3
# Bytes of files that are written again in one commit.
BYTES_AT_ONCE = 1024**3


def rewrite_deleted_rows(
    catalog: IcebergCatalog,
    name: Name,
    properties: Mapping[str, str],
    check: Callable[[Metadata], None] | None = None,
    most_bytes: int = BYTES_AT_ONCE,
) -> Compaction | None:
    """Write data files without their deleted rows, if these are enough of all; merge small ones.

    Files that are too large for memory (`MOST_BYTES`, `MOST_ROWS` after the rewrite) are left to
    Iceberg's `rewrite_data_files`.

    Args:
        catalog: the catalog, as the user who writes.
        name: of the table.
        properties: snapshot properties.
        check: raises if the commit is not allowed for the metadata of an attempt.
        most_bytes: size of the files that are written again, at most.

    Returns:
        The result; None if there is nothing to write again, or another writer was faster.

    Raises:
        UnsupportedFile, NotByRewriting, ColumnError: a file cannot be read here.
        CatalogError: the catalog refuses; nothing was changed.
        CommitStateUnknown: it is not known whether the commit was made.
        OSError: the storage refuses a file; nothing was changed.
    """
    base = catalog.load(name)
    if base is None:
        # Files from before a column was added lack its default.
        return None
    deletes = live_entries(base.io, base.metadata, ManifestContent.DELETES)
    rows = _deleted_by_position(deletes)
    if not rows:
        return None
    data = live_entries(base.io, base.metadata, ManifestContent.DATA)
    files = _mostly_deleted(base.metadata, data, deletes, rows)
    groups = groups_within(_groups(base.metadata, files, rows), most_bytes)
    return commit_rewrite(catalog, base, groups, deletes, properties, check) if groups else None


def _deleted_by_position(deletes: Iterable[ManifestEntry]) -> dict[str, int]:
    """Return how many rows deletes of one data file delete, by its location."""
    rows: dict[str, int] = defaultdict(int)
    for item in deletes:
        file = item.data_file
        if file.content == DataFileContent.POSITION_DELETES:
            path = referenced_file(file) or only_data_file(file)
            if path is not None:
                rows[path] += file.record_count
    return rows


def _mostly_deleted(
    metadata: Metadata,
    data: Iterable[ManifestEntry],
    deletes: Iterable[ManifestEntry],
    rows: Mapping[str, int],
) -> Iterator[ManifestEntry]:
    newest = newest_equality_delete(deletes)
    for item in data:
        file = item.data_file
        deleted = rows.get(file.file_path, 0)
        if not deleted or deleted < DELETED_SHARE * file.record_count:
            continue
        # Files of an older spec may have rows of several partitions of the current one, and
        # equality deletes that apply to the file would not apply to the new one.
        is_current = file.spec_id == metadata["default-spec-id"] and sequence_number(item) >= newest
        if is_current and file.file_format == FileFormat.PARQUET:
            yield item


def _groups(
    metadata: Metadata, files: Iterable[ManifestEntry], deleted: Mapping[str, int]
) -> Iterator[list[ManifestEntry]]:
    """Yield groups of files of one partition whose live rows fit into memory and into one file."""
    most_bytes = min(MOST_BYTES, target_size(metadata.get("properties") or {}))
    by_scope: dict[Scope, list[ManifestEntry]] = defaultdict(list)
    for item in files:
        by_scope[scope_of(metadata, item.data_file)].append(item)
    for entries in by_scope.values():
        group: list[ManifestEntry] = []
        size = rows = 0.0
        for item in sorted(entries, key=sequence_number):
            file = item.data_file
            live = max(file.record_count - deleted[file.file_path], 0)
            live_bytes = file.file_size_in_bytes * live / max(file.record_count, 1)
            if live_bytes > MOST_BYTES or live > MOST_ROWS:
                continue
            if group and (size + live_bytes > most_bytes or rows + live > MOST_ROWS):
                yield group
                group, size, rows = [], 0.0, 0.0
            group.append(item)
            size, rows = size + live_bytes, rows + live
        if group:
            yield group
