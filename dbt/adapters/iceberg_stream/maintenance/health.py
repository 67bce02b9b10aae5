"""The health of a table: its files, deletes, manifests, snapshots and streams, from metadata."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestFile

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import PREVIOUS_VERSIONS, LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.structure import normalized
from dbt.adapters.iceberg_stream.maintenance.live_files import (
    SMALL_SHARE,
    DataCounts,
    DeleteCounts,
    count_data,
    count_deletes,
    size_property,
)
from dbt.adapters.iceberg_stream.maintenance.retention import expirable_snapshots, freed_bytes
from dbt.adapters.iceberg_stream.maintenance.scan_cost import Deletes, ScanCost
from dbt.adapters.iceberg_stream.maintenance.stream_health import StreamHealth, stream_health
from dbt.adapters.iceberg_stream.tables.commit import merging
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot

# Since this format version, rows are deleted by deletion vectors.
VECTOR_VERSION = 3
METADATA_DELETE = "write.metadata.delete-after-commit.enabled"
METADATA_VERSIONS = "write.metadata.previous-versions-max"


@dataclass(frozen=True)
class TableHealth:
    """What the metadata tell about the current snapshot of the branch main, and about the history.

    Attributes:
        name: namespace and identifier.
        format_version: of the table.
        data_files: how many data files.
        data_bytes: their size.
        rows: rows of the data files, deleted ones included.
        small_files: data files that compaction would merge.
        files_saved: how many data files fewer there are after compaction.
        equality_files: equality delete files.
        equality_keys: their keys.
        position_files: position delete files, without deletion vectors.
        position_rows: positions that these delete.
        vectors: deletion vectors.
        vector_rows: positions that these delete.
        manifests: manifests of the current snapshot.
        small_manifests: manifests that `rewrite_manifests` would merge.
        manifests_saved: how many manifests fewer there are afterwards.
        snapshots: snapshots in the metadata.
        expirable_snapshots: those that the table's own retention no longer keeps.
        expirable_bytes: about the size of the files that their expiry frees.
        metadata_versions: previous metadata files in the log.
        metadata_version: number of the current metadata file, from its name; 0 if it has none.
        metadata_limit: how many previous metadata files the table keeps; None without a limit.
        last_commit_ms: time of the current snapshot in milliseconds since 1970; None without one.
        partitions: partitions with data files.
        largest_partition_bytes: size of the largest one.
        median_partition_bytes: size of the median one.
        is_sorted: whether the table has a sort order.
        branches: names of branches beside main, which are not examined.
        streams: streams that write to the table.
        cost: of a full scan.
        cost_after_convert: the same, with equality deletes converted to positions.
        cost_after_compact: the same, with small files merged and deleted positions removed.
        cost_after_manifests: the same, with small manifests merged.
    """

    name: tuple[str, str]
    format_version: int
    data_files: int
    data_bytes: int
    rows: int
    small_files: int
    files_saved: int
    equality_files: int
    equality_keys: int
    position_files: int
    position_rows: int
    vectors: int
    vector_rows: int
    manifests: int
    small_manifests: int
    manifests_saved: int
    snapshots: int
    expirable_snapshots: int
    expirable_bytes: int
    metadata_versions: int
    metadata_version: int
    metadata_limit: int | None
    last_commit_ms: int | None
    partitions: int
    largest_partition_bytes: int
    median_partition_bytes: int
    is_sorted: bool
    branches: tuple[str, ...]
    streams: tuple[StreamHealth, ...]
    cost: ScanCost
    cost_after_convert: ScanCost
    cost_after_compact: ScanCost
    cost_after_manifests: ScanCost

    @property
    def delete_files(self) -> int:
        """How many delete files there are, of all kinds."""
        return self.equality_files + self.position_files + self.vectors

    @property
    def deleted_share(self) -> float:
        """The largest possible share of deleted rows: a key of an equality delete may have none."""
        deleted = self.equality_keys + self.position_rows + self.vector_rows
        return min(deleted / self.rows, 1.0) if self.rows else 0.0


def table_health(table: LoadedTable, now_ms: int | None = None) -> TableHealth:
    """Measure the health of a table without reading its data files.

    Args:
        table: the table, with all snapshots.
        now_ms: the time, in milliseconds since 1970 (UTC); None for the clock's.

    Raises:
        CatalogError: the current snapshot is missing, or has no manifest list.
        OSError: a metadata file cannot be read.
    """
    metadata = normalized(table.metadata)
    version = metadata["format-version"]
    properties = metadata.get("properties") or {}
    snapshot = _current_snapshot(table, metadata)
    manifests = _manifests(table, snapshot)
    deletes = count_deletes(table.io, metadata, manifests)
    data = count_data(table.io, properties, manifests, deletes)
    small_manifests, manifests_saved = _merged_manifests(manifests, properties)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    expirable = expirable_snapshots(metadata, now)
    cost = ScanCost(data.bytes, data.files, len(manifests), deletes.positional, data.equality)
    return TableHealth(
        name=table.name,
        format_version=version,
        data_files=data.files,
        data_bytes=data.bytes,
        rows=data.rows,
        small_files=sum(partition.small_files for partition in data.mergeable),
        files_saved=data.files_saved,
        equality_files=deletes.equality_files,
        equality_keys=deletes.equality_keys,
        position_files=deletes.position_files,
        position_rows=deletes.position_rows,
        vectors=deletes.vectors,
        vector_rows=deletes.vector_rows,
        manifests=len(manifests),
        small_manifests=small_manifests,
        manifests_saved=manifests_saved,
        snapshots=len(metadata.get("snapshots") or []),
        expirable_snapshots=len(expirable),
        expirable_bytes=freed_bytes(metadata, expirable),
        metadata_versions=len(metadata.get("metadata-log") or []),
        metadata_version=_version(table.location),
        metadata_limit=_metadata_limit(properties),
        last_commit_ms=None if snapshot is None else snapshot["timestamp-ms"],
        partitions=len(data.partitions),
        largest_partition_bytes=max(data.partition_bytes, default=0),
        median_partition_bytes=int(median(data.partition_bytes or [0])),
        is_sorted=metadata.get("default-sort-order-id", 0) != 0,
        branches=_other_branches(metadata),
        streams=stream_health(metadata),
        cost=cost,
        cost_after_convert=_cost_after_convert(cost, version, data, deletes),
        cost_after_compact=_cost_after_compact(cost, data, deletes),
        cost_after_manifests=replace(cost, manifests=len(manifests) - manifests_saved),
    )


def _cost_after_convert(
    cost: ScanCost, version: int, data: DataCounts, deletes: DeleteCounts
) -> ScanCost:
    """Return the cost of a scan after the conversion of equality deletes, if each key has a row."""
    now, files = cost.positional, data.files_with_keys
    positions = min(now.positions + deletes.equality_keys, data.rows)
    if version >= VECTOR_VERSION:
        after = replace(now, vectors=min(now.vectors + files, data.files), positions=positions)
    else:
        after = replace(
            now,
            position_files=now.position_files + files,
            position_targets=min(now.position_targets + files, data.files),
            positions=positions,
        )
    return replace(cost, equality=Deletes(), positional=after)


def _cost_after_compact(cost: ScanCost, data: DataCounts, deletes: DeleteCounts) -> ScanCost:
    removed = int(data.bytes * deletes.positional_share(data.rows))
    return replace(
        cost,
        bytes=data.bytes - removed,
        data_files=data.files - data.files_saved,
        positional=Deletes(),
    )


def _current_snapshot(table: LoadedTable, metadata: Metadata) -> Mapping[str, Any] | None:
    try:
        return parent_snapshot(metadata, MAIN)
    except StopIteration as error:
        raise CatalogError(
            f"The metadata of {'.'.join(table.name)} lack its current snapshot."
        ) from error


def _manifests(table: LoadedTable, snapshot: Mapping[str, Any] | None) -> list[ManifestFile]:
    if snapshot is None:
        return []
    if "manifest-list" not in snapshot:
        raise CatalogError(
            f"The current snapshot of {'.'.join(table.name)} has no manifest list, as those of "
            "the first writers of format version 1. Write to the table once with Spark."
        )
    return [
        manifest
        for manifest in read_manifest_list(table.io, snapshot["manifest-list"])
        if manifest.has_added_files() or manifest.has_existing_files()
    ]


def _merged_manifests(
    manifests: Iterable[ManifestFile], properties: Mapping[str, str]
) -> tuple[int, int]:
    """Return how many manifests `rewrite_manifests` would merge, and how many it would save."""
    target = size_property(properties, merging.TARGET_SIZE, merging.DEFAULT_TARGET_SIZE)
    groups: dict[tuple[int, ManifestContent], list[int]] = defaultdict(list)
    for manifest in manifests:
        if manifest.manifest_length < SMALL_SHARE * target:
            groups[manifest.partition_spec_id, manifest.content].append(manifest.manifest_length)
    merged = [sizes for sizes in groups.values() if len(sizes) > ceil(sum(sizes) / target)]
    saved = sum(len(sizes) - ceil(sum(sizes) / target) for sizes in merged)
    return sum(map(len, merged)), saved


def _metadata_limit(properties: Mapping[str, str]) -> int | None:
    if properties.get(METADATA_DELETE, "false").lower() != "true":
        return None
    return size_property(properties, METADATA_VERSIONS, PREVIOUS_VERSIONS)


def _version(location: str) -> int:
    """Return the version in the name of a metadata file: `00012-….metadata.json` or `v12.…`."""
    name = location.rsplit("/", 1)[-1]
    number = name.split("-", 1)[0] if "-" in name else name.split(".", 1)[0].removeprefix("v")
    return int(number) if number.isdigit() else 0


def _other_branches(metadata: Metadata) -> tuple[str, ...]:
    refs = (metadata.get("refs") or {}).items()
    return tuple(sorted(n for n, ref in refs if n != MAIN and ref["type"].lower() == "branch"))
