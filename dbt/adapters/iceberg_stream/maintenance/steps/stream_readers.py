"""The streams of a catalog that read a table, and the snapshots that they still need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.progress import committed_progress, sinks
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot


@dataclass(frozen=True)
class StreamReader:
    """A stream that reads a table.

    Attributes:
        sink_id: identifies the stream.
        table: the table that it writes, which has its progress.
        snapshot_id: of the table that it reads; it continues after this snapshot.
    """

    sink_id: str
    table: Name
    snapshot_id: int

    def __str__(self) -> str:
        return f"the stream {self.sink_id} of {'.'.join(self.table)}"


def stream_readers(catalogs: Iterable[IcebergCatalog], table_uuid: str) -> list[StreamReader]:
    """Return the streams that read a table, from the progress in all tables of catalogs.

    Args:
        catalogs: the catalogs: a stream may write to another one than it reads.
        table_uuid: of the table.

    Raises:
        CatalogError: a table cannot be read, so its streams are unknown.
    """
    return [
        reader
        for catalog in catalogs
        for name, kind in catalog.all_relations()
        if kind == "table"
        for reader in _readers(catalog, name, table_uuid)
    ]


def _readers(catalog: IcebergCatalog, name: Name, table_uuid: str) -> Iterator[StreamReader]:
    try:
        metadata = catalog.metadata(name)
        frontiers = [] if metadata is None else list(_frontiers(metadata))
    except (CatalogError, OSError, ValueError, KeyError) as error:
        raise CatalogError(
            f"The streams into {'.'.join(name)} cannot be read, and may need old snapshots: {error}"
        ) from error
    for sink_id, frontier in frontiers:
        if frontier.get("table-uuid") == table_uuid:
            yield StreamReader(sink_id, name, frontier["snapshot-id"])


def _frontiers(metadata: Metadata) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for progress in sinks(metadata):
        yield progress.sink_id, progress.frontier or {}
        try:
            # After a rollback, the stream resumes from an older frontier than the property's.
            committed = committed_progress(metadata, progress.sink_id)
        except StreamError:
            continue  # parts of it have expired, which only frontiers of folders have
        if committed is not None:
            yield progress.sink_id, committed.frontier or {}


def needed_snapshots(metadata: Metadata, frontier: int) -> set[int]:
    """Return the snapshots that a stream needs to continue: its frontier's, and the later ones.

    Args:
        metadata: of the table that it reads.
        frontier: the snapshot up to which it has read.

    Returns:
        Ids of snapshots; empty if the stream cannot continue, because its frontier has expired.
    """
    by_id = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    if frontier not in by_id:
        return set()
    needed, snapshot = {frontier}, parent_snapshot(metadata, MAIN)
    while snapshot is not None and snapshot["snapshot-id"] != frontier:
        needed.add(snapshot["snapshot-id"])
        snapshot = by_id.get(snapshot.get("parent-snapshot-id", -1))
    # A frontier that was rolled back needs only itself.
    return needed if snapshot is not None else {frontier}
