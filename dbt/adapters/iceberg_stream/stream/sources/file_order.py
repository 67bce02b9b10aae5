"""The order of a table's rows: that of their snapshots, then of the files, then in their file.

Spec, "Sequence Numbers". Spark reads files in an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry

from dbt.adapters.iceberg_stream.stream.sources.iceberg_changes import ROWS_OF_A_FILE
from dbt.adapters.iceberg_stream.stream.sources.source import UNKNOWN_ORDER
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DELETED,
    read_manifest_list,
    read_manifests,
)

FILE_ORDER = pa.schema([("file", pa.string()), ("major", pa.int64()), ("minor", pa.int64())])


def order_of_all(
    io: FileIO, ancestors: Sequence[Mapping[str, Any]], appends_only: bool
) -> pa.Table:
    """The order of all data files of a snapshot, the first of the ancestors, newest first.

    A file that was rewritten has rows of several snapshots, and does not tell which one is older:
    their minor is UNKNOWN_ORDER. `appends_only` says that nothing but compaction rewrites files.
    """
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
    places = {snapshot["snapshot-id"]: -1 - n for n, snapshot in enumerate(ancestors)}

    def place(item: ManifestEntry) -> tuple[int, bool]:
        adding = by_id.get(item.snapshot_id)
        if not item.sequence_number:
            major = places.get(item.snapshot_id, -1 - len(ancestors))
            return major, adding is not None and _only_adds(adding, by_id)
        if adding is not None:
            return item.sequence_number, _only_adds(adding, by_id)
        whole = item.sequence_number == item.file_sequence_number
        return item.sequence_number, appends_only and whole

    return _table(_ordered((*place(item), item) for item in live))


def order_of_added(io: FileIO, snapshot: Mapping[str, Any]) -> pa.Table:
    """The order of the data files that a snapshot has added."""
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
    return _table(_ordered((item.sequence_number or 0, True, item) for item in added))


def _only_adds(snapshot: Mapping[str, Any], by_id: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether all rows of the snapshot's files are new."""
    summary = snapshot.get("summary") or {}
    if summary.get("operation") == "append":
        return True
    parent = snapshot.get("parent-snapshot-id")
    before = {} if parent is None else by_id.get(parent, {}).get("summary") or {}
    empty = parent is None or before.get("total-data-files") == "0"
    return summary.get("operation") == "overwrite" and empty


def _ordered(
    files: Iterable[tuple[int, bool, ManifestEntry]],
) -> Iterator[tuple[str, int, int]]:
    """Files of one number in the order of their manifests."""
    ranks: dict[int, int] = {}
    for major, known, item in files:
        rank = ranks[major] = ranks.get(major, -1) + 1
        minor = rank * ROWS_OF_A_FILE if known else UNKNOWN_ORDER
        yield item.data_file.file_path, major, minor


def _table(rows: Iterable[tuple[str, int, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, FILE_ORDER, strict=True)],
        schema=FILE_ORDER,
    )
