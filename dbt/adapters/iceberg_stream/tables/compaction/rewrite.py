"""Writes the live rows of groups of data files to one file for each group, in one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, Validation
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_snapshot_id,
    remove_quietly,
)
from dbt.adapters.iceberg_stream.tables.deletes.equality import is_equality_delete
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import (
    SnapshotFile,
    deleted_rows,
    old_file,
    snapshot_files,
)
from dbt.adapters.iceberg_stream.tables.files.arrow_types import file_schema
from dbt.adapters.iceberg_stream.tables.files.data_files import describe_in_place, with_lineage
from dbt.adapters.iceberg_stream.tables.files.parquet import WrittenFile, writer_beside
from dbt.adapters.iceberg_stream.tables.files.reader import (
    OldFile,
    live_rows,
    no_rows,
    require_ids,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import sorted_rows

THREADS = max(2, min(8, os.cpu_count() or 2))
# Bytes and rows of files that are merged into one file, because memory holds their rows.
MOST_BYTES, MOST_ROWS = 16 * 1024 * 1024, 1_000_000
# Groups whose rows are in memory at the same time.
GROUPS_AT_ONCE = 2
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


def sequence_number(entry: ManifestEntry) -> int:
    """Return the data sequence number of a file; 0 in format version 1.

    Args:
        entry: its manifest entry.
    """
    return entry.sequence_number or 0


def newest_equality_delete(deletes: Iterable[ManifestEntry]) -> int:
    """Return the highest sequence number of equality deletes; 0 if there are none.

    Args:
        deletes: manifest entries of delete files.
    """
    numbers = (sequence_number(d) for d in deletes if is_equality_delete(d.data_file))
    return max(numbers, default=0)


def groups_within(
    groups: Iterable[list[ManifestEntry]], most_bytes: int
) -> list[list[ManifestEntry]]:
    """Return the first groups of data files that fit into a size together.

    Args:
        groups: manifest entries of data files.
        most_bytes: size of all files, at most.
    """
    chosen, left = [], most_bytes
    for group in groups:
        size = sum(item.data_file.file_size_in_bytes for item in group)
        if size <= left:
            chosen.append(group)
            left -= size
    return chosen


def commit_rewrite(
    catalog: IcebergCatalog,
    base: LoadedTable,
    groups: Sequence[Sequence[ManifestEntry]],
    deletes: Sequence[ManifestEntry],
    properties: Mapping[str, str],
    check: Callable[[Metadata], None] | None = None,
) -> Compaction | None:
    """Write the live rows of each group of data files to one file, and commit.

    Args:
        catalog: the catalog, as the user who writes.
        base: the table.
        groups: manifest entries of data files, each group of one partition.
        deletes: manifest entries of all delete files; equality deletes must not apply to the files.
        properties: snapshot properties.
        check: raises if the commit is not allowed for the metadata of an attempt.

    Returns:
        The result; None if another writer has deleted rows of these files, or rewritten them.

    Raises:
        UnsupportedFile, NotByRewriting, ColumnError: a file cannot be read here.
        CatalogError: the catalog refuses; nothing was changed.
        CommitStateUnknown: it is not known whether the commit was made.
        OSError: the storage refuses a file; nothing was changed.
    """
    files = snapshot_files(base, [item for group in groups for item in group], deletes)
    change = _Rewrite.of(base, files).change(groups, properties)
    try:
        committed = Committer(catalog, base.name, change, base, check=check).commit()
    except ValidationFailed:
        for file in change.new_files:
            remove_quietly(base.io, file.file_path)
        return None
    merged = [item.data_file for group in groups for item in group]
    size = sum(file.file_size_in_bytes for file in merged)
    return Compaction(committed, len(merged), len(change.new_files), size)


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
        new = self._write(groups, deleted)
        return Change(
            Operation.REPLACE,
            (AddedFiles(tuple(new)),),
            removed=tuple(f for group in items for i in group for f in (i.file, *i.own_deletes)),
            properties=properties,
            validation=Validation(
                current_snapshot_id(self.base.metadata),
                lacks_row_ids=any(item.lacks_row_ids for group in items for item in group),
            ),
            merges_manifests=True,
        )

    def _write(
        self, groups: Sequence[Sequence[ManifestEntry]], deleted: Mapping[str, BitMap]
    ) -> list[DataFile]:
        """Write the files of all groups; an error leaves none behind."""
        new: list[DataFile] = []

        def write(group: Sequence[ManifestEntry]) -> None:
            if (file := self._merge(group, deleted)) is not None:
                new.append(file)

        with ExitStack() as undo, ExitStack() as end:
            undo.callback(self._remove, new)
            # While one file is written, the rows of the next one are read.
            pool = ThreadPoolExecutor(GROUPS_AT_ONCE, thread_name_prefix="rewrite")
            end.callback(pool.shutdown, cancel_futures=True)
            for each in [pool.submit(write, group) for group in groups]:
                each.result()
            undo.pop_all()
        return new

    def _remove(self, files: Sequence[DataFile]) -> None:
        for file in files:
            remove_quietly(self.base.io, file.file_path)

    def _merge(
        self, group: Sequence[ManifestEntry], deleted: Mapping[str, BitMap]
    ) -> DataFile | None:
        """Write the live rows of some files to one file; return None if there are none."""
        arrow_schema = file_schema(self.schema)
        items = [old_file(self.target, item, deleted[item.data_file.file_path]) for item in group]
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


def _read(filesystem: fs.FileSystem, schema: pa.Schema, item: OldFile) -> pa.Table:
    try:
        with filesystem.open_input_file(item.path) as opened, pq.ParquetFile(opened) as parquet:
            require_ids(parquet)
            return pa.concat_tables([no_rows(schema), *live_rows(parquet, schema, item)])
    except (OSError, pa.ArrowException) as error:
        raise OSError(f"{item.location}: {error}") from error


def _row_groups(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    count = max(1, rows.num_rows * size // max(rows.nbytes, 1))
    for begin in range(0, rows.num_rows, count):
        yield rows.slice(begin, count)
