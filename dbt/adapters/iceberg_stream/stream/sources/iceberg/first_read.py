"""Cut the first read of a table into batches: ranges of the rows in its data files.

A snapshot's manifests never change, so its files have one order, and a number of rows in that order
is a place to continue from. Deleted rows count, because a later batch must find the same place.
Whether that is the order of the rows depends on snapshots that may expire: the frontier keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntry

from dbt.adapters.iceberg_stream.catalog.metadata import (
    Metadata,
    fields,
    iter_fields,
    name_mapping,
)
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.sources.iceberg.changes import Piece, deleted_positions
from dbt.adapters.iceberg_stream.stream.sources.iceberg.file_order import (
    OrderedFile,
    ordered_files,
    orders_rows,
)
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    read_manifest_list,
    read_manifests,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

NO_POSITIONS = pa.array([], pa.int64())


@dataclass(frozen=True)
class FirstRead:
    """The rows of a snapshot, in the order of its files.

    Attributes:
        table: the table.
        files: its data files, in their order.
        deletes: its position deletes and deletion vectors.
        has_order: whether the order of the files is known to be that of the rows.
    """

    table: LoadedTable
    files: Sequence[OrderedFile]
    deletes: Sequence[ManifestEntry]
    has_order: bool

    @property
    def rows(self) -> int:
        """Rows in the data files, deleted ones included."""
        return sum(item.file.record_count for item in self.files)

    def pieces(self, begin: int, end: int) -> list[Piece]:
        """Return the pieces of files with the rows from `begin` to before `end`."""
        parts = list(self._parts(begin, end))
        numbers = {item.file.file_path: item.major for item, _, _ in parts}
        deleted = deleted_positions(self.table.io, self.deletes, numbers) if self.deletes else {}
        return [
            Piece(
                item.file.file_path,
                item.file.file_size_in_bytes,
                False,
                item.major,
                item.minor,
                deleted.get(item.file.file_path, NO_POSITIONS),
                begin=first,
                end=last,
                file=item.file,
            )
            for item, first, last in parts
        ]

    def _parts(self, begin: int, end: int) -> Iterator[tuple[OrderedFile, int, int]]:
        start = 0
        for item in self.files:
            count = item.file.record_count
            first, last = max(begin - start, 0), min(end - start, count)
            if first < last:
                yield item, first, last
            start += count


def plan_first_read(table: LoadedTable, ancestors: Sequence[Mapping[str, Any]]) -> FirstRead | None:
    """Plan the first read of a snapshot in batches.

    Args:
        table: the table.
        ancestors: the snapshot and those before it, newest first.

    Returns:
        The rows; None if only Spark can read them, which is then one batch.
    """
    if not _is_readable(table.metadata, table):
        return None
    manifests = [
        manifest
        for manifest in read_manifest_list(table.io, ancestors[0]["manifest-list"])
        if manifest.content == ManifestContent.DELETES
    ]
    deletes = [
        item
        for items in read_manifests(table.io, manifests)
        for item in items
        if item.status != DELETED
    ]
    files = ordered_files(table.io, ancestors[0])
    if any(item.data_file.content == DataFileContent.EQUALITY_DELETES for item in deletes):
        return None
    if any(item.file.file_format != FileFormat.PARQUET for item in files):
        return None
    return FirstRead(table, files, deletes, orders_rows(files, ancestors))


def _is_readable(metadata: Metadata, table: LoadedTable) -> bool:
    """Return whether PyArrow can read all files with the current columns."""
    if name_mapping(metadata) is not None:
        return False  # only Spark finds the columns of files without field ids
    # UUIDs are strings in Spark; only those that are columns of their own are converted.
    nested = (
        inner["type"]
        for field in fields(metadata)
        if isinstance(field["type"], Mapping)
        for inner in iter_fields([field])
    )
    if "uuid" in nested:
        return False
    try:
        return WriteTarget.of(metadata, table.io).file_schema is not None
    except ValueError:
        return False  # a type that PyArrow or PyIceberg does not have
