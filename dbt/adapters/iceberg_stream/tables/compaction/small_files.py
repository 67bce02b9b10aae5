"""Merges the small data files that frequent commits leave into larger ones.

Article on high-scale streaming, "The Problem with Streaming Data into a Data Lake". Files are
merged with files of similar size, like the runs of a log-structured merge tree, so that a row is
written again once for each level only.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, Validation
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.manifests import FILE_FIRST_ROW_ID
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_schema,
    current_snapshot_id,
    remove_quietly,
)
from dbt.adapters.iceberg_stream.tables.commit.validation import ValidationFailed
from dbt.adapters.iceberg_stream.tables.deletes.equality import is_equality_delete, scope_of
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    deleted_rows,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.data_files import describe_in_place, with_lineage
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile, writer_beside
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget, target_size
from dbt.adapters.iceberg_stream.tables.files.writer import sorted_rows
from dbt.adapters.iceberg_stream.tables.merge.candidates import live_entries
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import require_ids
from dbt.adapters.iceberg_stream.tables.merge.row_removal import RowsToRemove, remaining_rows

THREADS = max(2, min(8, os.cpu_count() or 2))
# Files of a partition and of similar size that are merged: a power of two.
MERGED_FILES = 8
# Bytes of the smallest level's unit, and of the largest files that are merged.
SMALLEST, LARGEST = 16 * 1024, 4 * 1024 * 1024
# Bytes and rows of files that are merged into one file, because memory holds their rows.
MOST_BYTES, MOST_ROWS = 16 * 1024 * 1024, 1_000_000
# Bytes of files that are merged in one commit, because its work is lost if it conflicts.
BYTES_AT_ONCE = 32 * 1024 * 1024
# Of the names of new files.
PREFIX = "compact-"


@dataclass(frozen=True)
class Compaction:
    """The result of a compaction.

    Attributes:
        committed: the commit.
        merged: data files that were merged.
        written: data files that replace them.
        bytes: size of the merged files.
    """

    committed: Committed
    merged: int
    written: int
    bytes: int


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
    if base is None or _has_defaults(base.metadata):
        # Files from before a column was added lack its default.
        return None
    data = live_entries(base.io, base.metadata, ManifestContent.DATA)
    deletes = live_entries(base.io, base.metadata, ManifestContent.DELETES)
    groups = _first(small_files(base.metadata, data, deletes), most_bytes)
    if not groups:
        return None
    files = snapshot_files(base, [item for group in groups for item in group], deletes)
    change = _Rewrite.of(base, files).change(groups, properties)
    try:
        committed = Committer(catalog, name, change, base, check=check).commit()
    except ValidationFailed:
        # Another writer has deleted rows of these files, or rewritten them.
        for file in change.new_files:
            remove_quietly(base.io, file.file_path)
        return None
    merged = [item.data_file for group in groups for item in group]
    size = sum(file.file_size_in_bytes for file in merged)
    return Compaction(committed, len(merged), len(change.new_files), size)


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
    newest = max((_number(d) for d in deletes if is_equality_delete(d.data_file)), default=0)
    groups = [
        group
        for _, entries in sorted(levels.items(), key=lambda level: level[0][0])
        for group in _bounded(sorted(entries, key=_number), min(MOST_BYTES, target))
    ]
    # Equality deletes that apply to some files of a group cannot apply to the merged one.
    return [group for group in groups if newest <= min(map(_number, group))]


def _level(size: int) -> int:
    return (size // SMALLEST).bit_length() // (MERGED_FILES.bit_length() - 1)


def _number(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0


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


def _first(groups: Sequence[list[ManifestEntry]], most_bytes: int) -> list[list[ManifestEntry]]:
    """Return the first groups, up to a size."""
    sizes = [sum(item.data_file.file_size_in_bytes for item in group) for group in groups]
    totals = accumulate(sizes)
    return [group for group, total in zip(groups, totals, strict=True) if total <= most_bytes]


def _has_defaults(metadata: Metadata) -> bool:
    schema = current_schema(metadata)
    return any(schema.find_field(i).initial_default is not None for i in schema.field_ids)


@dataclass(frozen=True)
class _Rewrite:
    """Writes the rows of groups of files to one file for each group.

    Attributes:
        base: the table.
        target: its schema, properties and storage.
        files: its data files and their delete files, by location.
        schema: of new files; in format version 3 with the columns of row lineage.
    """

    base: LoadedTable
    target: WriteTarget
    files: Mapping[str, SnapshotFile]
    schema: Schema

    @classmethod
    def of(cls, base: LoadedTable, files: Mapping[str, SnapshotFile]) -> _Rewrite:
        target = WriteTarget.of(base.metadata, base.io)
        v3 = base.metadata["format-version"] >= 3
        schema = with_lineage(target.schema) if v3 else target.schema
        return cls(base, target, files, schema)

    def change(
        self, groups: Sequence[Sequence[ManifestEntry]], properties: Mapping[str, str]
    ) -> Change:
        """Write the files; an error leaves none behind."""
        items = [[self.files[entry.data_file.file_path] for entry in group] for group in groups]
        deleted = deleted_rows(self.base, [item for group in items for item in group])
        new: list[DataFile] = []
        with ExitStack() as undo:
            for group in groups:
                if (file := self._merge(group, deleted)) is not None:
                    new.append(file)
                    undo.callback(remove_quietly, self.base.io, file.file_path)
            undo.pop_all()
        return Change(
            Operation.REPLACE,
            (AddedFiles(tuple(new)),),
            removed=tuple(f for group in items for i in group for f in (i.file, *i.own_deletes)),
            properties=properties,
            validation=Validation(current_snapshot_id(self.base.metadata)),
            merges_manifests=True,
        )

    def _merge(
        self, group: Sequence[ManifestEntry], deleted: Mapping[str, BitMap]
    ) -> DataFile | None:
        """Write the live rows of some files to one file; return None if there are none."""
        arrow_schema = file_schema(self.schema)
        items = [_rows_to_remove(self.target, item, deleted) for item in group]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="compaction") as pool:
            read = partial(_read, self.target.filesystem(), arrow_schema)
            rows = pa.concat_tables(pool.map(read, items))
        first, options = items[0], self.target.options
        writer = writer_beside(
            self.target.filesystem(), arrow_schema, options, first.location, first.path, PREFIX
        )
        with writer:
            for part in _row_groups(rows, options.row_group_size):
                writer.write(sorted_rows(part, self.target.sort_columns), may_roll=False)
            written = writer.close()
        return self._describe(group[0].data_file, written[0]) if written else None

    def _describe(self, old: DataFile, new: WrittenFile) -> DataFile:
        order = self.target.sort_order.order_id if self.target.sort_columns else None
        in_order = new.row_groups == 1 and old.sort_order_id == order
        return describe_in_place(self.schema, dict(self.target.properties), old, new, in_order)


def _rows_to_remove(
    target: WriteTarget, entry: ManifestEntry, deleted: Mapping[str, BitMap]
) -> RowsToRemove:
    file = entry.data_file
    positions = deleted[file.file_path].to_array()
    return RowsToRemove(
        file.file_path,
        target.path_of(file.file_path),
        pa.array(positions, pa.uint32()).cast(pa.int64()),
        file[FILE_FIRST_ROW_ID],
        entry.sequence_number,
    )


def _read(filesystem: fs.FileSystem, schema: pa.Schema, item: RowsToRemove) -> pa.Table:
    try:
        with filesystem.open_input_file(item.path) as opened, pq.ParquetFile(opened) as parquet:
            require_ids(parquet, schema)
            return pa.concat_tables([schema.empty_table(), *remaining_rows(parquet, schema, item)])
    except (OSError, pa.ArrowException) as error:
        raise OSError(f"{item.location}: {error}") from error


def _row_groups(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    count = max(1, rows.num_rows * size // max(rows.nbytes, 1))
    for begin in range(0, rows.num_rows, count):
        yield rows.slice(begin, count)
