"""The order of a table's rows: by snapshot, then by file, then by position in the file.

Iceberg spec, "Sequence Numbers": https://iceberg.apache.org/spec/. Spark reads files in an order of
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """A data file with its place in a snapshot.

    Attributes:
        file: the data file.
        snapshot_id: the snapshot that has added it, which may have expired.
        major: its data sequence number; 0 for format version 1.
        minor: of its first row, among the files of one data sequence number.
    """

    file: DataFile
    snapshot_id: int | None
    major: int
    minor: int


def ordered_files(io: FileIO, snapshot: Mapping[str, Any]) -> list[OrderedFile]:
    """Return the data files of a snapshot in their order.

    It depends on the snapshot alone: whatever else expires, the order stays the same.

    Args:
        io: of the table.
        snapshot: the snapshot.
    """
    manifests = [
        manifest
        for manifest in read_manifest_list(io, snapshot["manifest-list"])
        if manifest.content == ManifestContent.DATA
    ]
    live = [
        item for items in read_manifests(io, manifests) for item in items if item.status != DELETED
    ]
    files = _ordered((item.sequence_number or 0, item) for item in live)
    return sorted(files, key=lambda item: (item.major, item.minor))


def orders_rows(files: Sequence[OrderedFile], ancestors: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the order of the files is that of their rows.

    Files of format version 1 have no sequence numbers, so they must be of one snapshot.

    Args:
        files: of a snapshot, by `ordered_files`.
        ancestors: the snapshot and those before it, newest first.
    """
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in ancestors}
    unnumbered = {item.snapshot_id for item in files if not item.major}
    return len(unnumbered) <= 1 and all(_has_new_rows(item, by_id) for item in files)


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
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in ancestors}
    # Files of format version 1 have no sequence numbers: they come first, by their snapshots.
    v1_majors = {number: -1 - n for n, number in enumerate(by_id)}

    def in_order(item: OrderedFile) -> OrderedFile:
        major = item.major or v1_majors.get(item.snapshot_id, -1 - len(by_id))
        minor = item.minor if _has_new_rows(item, by_id) else UNKNOWN_ORDER
        return replace(item, major=major, minor=minor)

    return _table(map(in_order, ordered_files(io, ancestors[0])))


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
    return _table(_ordered((item.sequence_number or v1_major, item) for item in added))


def _has_new_rows(item: OrderedFile, by_id: Mapping[int, Mapping[str, Any]]) -> bool:
    """Return whether all rows of a file are known to be new in the snapshot that has added it."""
    adding = by_id.get(item.snapshot_id or 0)
    if adding is None:
        return False
    summary = adding.get("summary") or {}
    if summary.get("operation") == "append":
        return True
    parent = adding.get("parent-snapshot-id")
    before = {} if parent is None else by_id.get(parent, {}).get("summary") or {}
    empty = parent is None or before.get("total-data-files") == "0"
    return summary.get("operation") == "overwrite" and empty


def _ordered(files: Iterable[tuple[int, ManifestEntry]]) -> Iterator[OrderedFile]:
    """Yield files with their order; those of one major are ordered as their manifests are."""
    ranks: dict[int, int] = {}
    for major, item in files:
        rank = ranks[major] = ranks.get(major, -1) + 1
        yield OrderedFile(item.data_file, item.snapshot_id, major, rank * ROWS_OF_A_FILE)


def _table(files: Iterable[OrderedFile]) -> pa.Table:
    rows = [(item.file.file_path, item.major, item.minor) for item in files]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, FILE_ORDER, strict=True)],
        schema=FILE_ORDER,
    )
