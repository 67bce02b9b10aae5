"""Merges the small data files that frequent commits leave into larger ones.

Article on high-scale streaming, "The Problem with Streaming Data into a Data Lake". Files are
merged with files of similar size, like the runs of a log-structured merge tree, so that a row is
written again once for each level only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntry

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.compaction.rewrite import (
    MOST_BYTES,
    MOST_ROWS,
    Compaction,
    commit_rewrite,
    groups_within,
    newest_equality_delete,
    sequence_number,
)
from dbt.adapters.iceberg_stream.tables.deletes.equality import scope_of
from dbt.adapters.iceberg_stream.tables.files.target import target_size

# Files of a partition and of similar size that are merged: a power of two.
MERGED_FILES = 8
# Bytes of the smallest level's unit, and of the largest files that are merged.
SMALLEST, LARGEST = 16 * 1024, 4 * 1024 * 1024
# Bytes of files that are merged in one commit, because its work is lost if it conflicts.
BYTES_AT_ONCE = 32 * 1024 * 1024


def merge_small_files(
    catalog: IcebergCatalog,
    name: Name,
    properties: Mapping[str, str],
    check: Callable[[Metadata], None] | None = None,
    most_bytes: int = BYTES_AT_ONCE,
) -> Compaction | None:
    """Merge small data files of a table, if it has enough of them.

    Args:
        catalog: the catalog, as the user who writes.
        name: of the table.
        properties: snapshot properties.
        check: raises if the commit is not allowed for the metadata of an attempt.
        most_bytes: size of the files that are merged, at most.

    Returns:
        The result; None if there is nothing to merge, or another writer was faster.

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
    data = live_entries(base.io, base.metadata, ManifestContent.DATA)
    deletes = live_entries(base.io, base.metadata, ManifestContent.DELETES)
    groups = groups_within(small_files(base.metadata, data, deletes), most_bytes)
    return commit_rewrite(catalog, base, groups, deletes, properties, check) if groups else None


def small_files(
    metadata: Metadata, data: Sequence[ManifestEntry], deletes: Sequence[ManifestEntry]
) -> list[list[ManifestEntry]]:
    """Return groups of small data files, each of one partition, that are worth merging.

    Args:
        metadata: of the table.
        data: manifest entries of its data files.
        deletes: manifest entries of its delete files.

    Returns:
        Manifest entries in the order of their sequence numbers; smallest files first.
    """
    spec_id, target = metadata["default-spec-id"], target_size(metadata.get("properties") or {})
    largest = min(LARGEST, target)
    levels: dict[tuple[int, object], list[ManifestEntry]] = defaultdict(list)
    for item in data:
        file = item.data_file
        is_small = file.file_size_in_bytes < largest and file.file_format == FileFormat.PARQUET
        # Files of an older spec may have rows of several partitions of the current one.
        if is_small and file.spec_id == spec_id:
            scope = scope_of(metadata, file)
            levels[_level(file.file_size_in_bytes), scope].append(item)
    newest = newest_equality_delete(deletes)
    groups = [
        group
        for _, entries in sorted(levels.items(), key=lambda level: level[0][0])
        for group in _bounded(sorted(entries, key=sequence_number), min(MOST_BYTES, target))
    ]
    # Equality deletes that apply to some files of a group cannot apply to the merged one.
    return [group for group in groups if newest <= min(map(sequence_number, group))]


def _level(size: int) -> int:
    return (size // SMALLEST).bit_length() // (MERGED_FILES.bit_length() - 1)


def _bounded(entries: Sequence[ManifestEntry], most_bytes: int) -> Iterator[list[ManifestEntry]]:
    """Yield groups of enough files, whose rows fit into memory and into one file."""
    group: list[ManifestEntry] = []
    size = rows = 0
    for item in entries:
        file = item.data_file
        is_full = (
            size + file.file_size_in_bytes > most_bytes or rows + file.record_count > MOST_ROWS
        )
        if is_full and len(group) >= MERGED_FILES:
            yield group
        if is_full:
            group, size, rows = [], 0, 0
        group.append(item)
        size, rows = size + file.file_size_in_bytes, rows + file.record_count
    if len(group) >= MERGED_FILES:
        yield group
