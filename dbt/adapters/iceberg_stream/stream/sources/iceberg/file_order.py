"""The order of a table's rows: by snapshot, then by file, then by position in the file.

Iceberg spec, "Sequence Numbers": https://iceberg.apache.org/spec/. Spark reads files in an order of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry

from dbt.adapters.iceberg_stream.stream.sources.iceberg.changes import ROWS_OF_A_FILE
from dbt.adapters.iceberg_stream.stream.sources.source import UNKNOWN_ORDER
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DELETED,
    read_manifest_list,
    read_manifests,
)

FILE_ORDER = pa.schema([("file", pa.string()), ("major", pa.int64()), ("minor", pa.int64())])


@dataclass(frozen=True)
class OrderedFile:
    """A data file with the order of its rows.

    Attributes:
        file: the data file.
        major: its data sequence number; for format version 1, a number by its snapshot.
        minor: of its first row; UNKNOWN_ORDER if the order of its rows is not known.
    """

    file: DataFile
    major: int
    minor: int


def order_of_all(io: FileIO, ancestors: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the order of all data files of a snapshot.

    A file that was rewritten has rows of several snapshots in an unknown order: their minor is
    UNKNOWN_ORDER. So is that of a file whose snapshot has expired: its sequence number does not
    tell whether Spark's copy-on-write has rewritten it, or it was appended.

    Args:
        io: of the table.
        ancestors: the snapshot and those before it, newest first.

    Returns:
        A row of FILE_ORDER for each file.
    """
    return _table(_files_of(io, ancestors))


def ordered_files(io: FileIO, ancestors: Sequence[Mapping[str, Any]]) -> list[OrderedFile]:
    """Return the data files of a snapshot in their order.

    Args:
        io: of the table.
        ancestors: the snapshot and those before it, newest first.
    """
    return sorted(_files_of(io, ancestors), key=lambda item: (item.major, item.minor))


def _files_of(io: FileIO, ancestors: Sequence[Mapping[str, Any]]) -> Iterator[OrderedFile]:
    manifests = [
        manifest
        for manifest in read_manifest_list(io, ancestors[0]["manifest-list"])
        if manifest.content == ManifestContent.DATA
    ]
    live = [
        item for items in read_manifests(io, manifests) for item in items if item.status != DELETED
    ]
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in ancestors}
    # Files of format version 1 have no sequence numbers: they come first, by their snapshots.
    v1_majors = {snapshot["snapshot-id"]: -1 - n for n, snapshot in enumerate(ancestors)}

    def major_of(item: ManifestEntry) -> tuple[int, bool]:
        """Return the major of a file's rows, and whether their order is known."""
        adding = by_id.get(item.snapshot_id)
        is_known = adding is not None and _only_adds(adding, by_id)
        v1_major = v1_majors.get(item.snapshot_id, -1 - len(ancestors))
        return item.sequence_number or v1_major, is_known

    return _ordered((*major_of(item), item) for item in live)


def order_of_added(io: FileIO, snapshot: Mapping[str, Any], v1_major: int = 0) -> pa.Table:
    """Return the order of the data files that a snapshot has added, as rows of FILE_ORDER.

    Args:
        io: of the table.
        snapshot: the snapshot.
        v1_major: of files of format version 1, which have no sequence numbers.
    """
    number = snapshot["snapshot-id"]
    own = [
        manifest
        for manifest in read_manifest_list(io, snapshot["manifest-list"])
        if manifest.added_snapshot_id == number and manifest.content == ManifestContent.DATA
    ]
    added = [
        item
        for items in read_manifests(io, own)
        for item in items
        if item.status == ADDED and item.snapshot_id == number
    ]
    return _table(_ordered((item.sequence_number or v1_major, True, item) for item in added))


def _only_adds(snapshot: Mapping[str, Any], by_id: Mapping[int, Mapping[str, Any]]) -> bool:
    """Return whether all rows of the files that a snapshot has added are new."""
    summary = snapshot.get("summary") or {}
    if summary.get("operation") == "append":
        return True
    parent = snapshot.get("parent-snapshot-id")
    before = {} if parent is None else by_id.get(parent, {}).get("summary") or {}
    empty = parent is None or before.get("total-data-files") == "0"
    return summary.get("operation") == "overwrite" and empty


def _ordered(files: Iterable[tuple[int, bool, ManifestEntry]]) -> Iterator[OrderedFile]:
    """Yield files with their order; those of one major are ordered as their manifests are."""
    ranks: dict[int, int] = {}
    for major, has_order, item in files:
        rank = ranks[major] = ranks.get(major, -1) + 1
        minor = rank * ROWS_OF_A_FILE if has_order else UNKNOWN_ORDER
        yield OrderedFile(item.data_file, major, minor)


def _table(files: Iterable[OrderedFile]) -> pa.Table:
    rows = [(item.file.file_path, item.major, item.minor) for item in files]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, FILE_ORDER, strict=True)],
        schema=FILE_ORDER,
    )
