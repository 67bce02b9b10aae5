"""The health of a table: its files, deletes, manifests, snapshots and streams, from metadata."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.utils.properties import property_as_int

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import MAIN, PREVIOUS_VERSIONS, LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.deletes import EQUALITY, is_vector
from dbt.adapters.iceberg_stream.maintenance.check.structure import normalized
from dbt.adapters.iceberg_stream.maintenance.retention import expirable_snapshots, freed_bytes
from dbt.adapters.iceberg_stream.maintenance.scan_cost import Deletes, ScanCost
from dbt.adapters.iceberg_stream.maintenance.stream_health import StreamHealth, stream_health
from dbt.adapters.iceberg_stream.tables.commit import merging
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    iter_manifests,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot
from dbt.adapters.iceberg_stream.tables.files.target import DEFAULT_TARGET_SIZE, TARGET_SIZE

# Defaults of Iceberg's `rewrite_data_files`: a file below this share of the target size is small,
# and small files of a partition are merged if there are so many or if they exceed the target size.
SMALL_SHARE, MIN_INPUT_FILES = 0.75, 5
# Spark splits larger files (`read.split.target-size`, Iceberg's default).
SPLIT_SIZE, DEFAULT_SPLIT_SIZE = "read.split.target-size", 128 * 1024 * 1024
METADATA_DELETE = "write.metadata.delete-after-commit.enabled"
METADATA_VERSIONS = "write.metadata.previous-versions-max"

# Spec id and partition values; None for all partitions.
Scope = tuple[int, tuple[Any, ...]] | None


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
        CatalogError: the current snapshot has no manifest list.
        OSError: a metadata file cannot be read.
    """
    metadata = normalized(table.metadata)
    properties = metadata.get("properties") or {}
    snapshot = parent_snapshot(metadata, MAIN)
    manifests = _manifests(table, snapshot)
    deletes = _count_deletes(table.io, metadata, manifests)
    data = _count_data(table.io, properties, manifests, deletes)
    manifest_target = _size(properties, merging.TARGET_SIZE, merging.DEFAULT_TARGET_SIZE)
    small_manifests, manifests_saved = _merged_manifests(manifests, manifest_target)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    expirable = expirable_snapshots(metadata, now)
    small = [part for part in data.partitions.values() if part.is_worth_merging(data.target)]
    files_saved = sum(part.files_saved(data.target) for part in small)
    sizes = [part.bytes for part in data.partitions.values()]
    cost = ScanCost(data.bytes, data.files, len(manifests), deletes.positional, data.equality)
    return TableHealth(
        name=table.name,
        format_version=metadata["format-version"],
        data_files=data.files,
        data_bytes=data.bytes,
        rows=data.rows,
        small_files=sum(part.small_files for part in small),
        files_saved=files_saved,
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
        partitions=len(sizes),
        largest_partition_bytes=max(sizes, default=0),
        median_partition_bytes=int(median(sizes or [0])),
        is_sorted=metadata.get("default-sort-order-id", 0) != 0,
        branches=_other_branches(metadata),
        streams=stream_health(metadata),
        cost=cost,
        cost_after_convert=replace(
            cost, equality=Deletes(), positional=data.positional_after(deletes)
        ),
        cost_after_compact=replace(cost, data_files=data.files - files_saved, positional=Deletes()),
        cost_after_manifests=replace(cost, manifests=len(manifests) - manifests_saved),
    )


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


@dataclass
class _Partition:
    """Data files of one partition."""

    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0

    def files_saved(self, target: int) -> int:
        """How many files fewer there are when the small ones are merged."""
        return max(self.small_files - ceil(self.small_bytes / target), 0)

    def is_worth_merging(self, target: int) -> bool:
        """Whether Iceberg's `rewrite_data_files` would merge the small files."""
        enough = self.small_files >= MIN_INPUT_FILES or self.small_bytes > target
        return enough and self.files_saved(target) > 0


@dataclass
class _DeleteCounts:
    """Delete files of a snapshot; equality deletes by scope and sequence number."""

    equality_files: int = 0
    equality_keys: int = 0
    position_files: int = 0
    position_rows: int = 0
    vectors: int = 0
    vector_rows: int = 0
    keys: dict[Scope, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def positional(self) -> Deletes:
        """Position delete files and deletion vectors."""
        return Deletes(self.position_files + self.vectors, self.position_rows + self.vector_rows)

    def add(self, entry: ManifestEntry, is_unpartitioned: bool) -> None:
        """Count a delete file."""
        file = entry.data_file
        if file.content == EQUALITY:
            self.equality_files += 1
            self.equality_keys += file.record_count
            scope = None if is_unpartitioned else _partition_of(file)
            self.keys[scope].append((entry.sequence_number or 0, file.record_count))
        elif is_vector(file):
            self.vectors += 1
            self.vector_rows += file.record_count
        else:
            self.position_files += 1
            self.position_rows += file.record_count


class _KeysAfter:
    """Answers how many keys of equality deletes apply to a data file."""

    def __init__(self, keys: Mapping[Scope, list[tuple[int, int]]]) -> None:
        self._numbers: dict[Scope, list[int]] = {}
        self._sums: dict[Scope, list[int]] = {}
        for scope, deletes in keys.items():
            deletes = sorted(deletes)
            self._numbers[scope] = [number for number, _ in deletes]
            # Keys of the deletes from each place to the end.
            sums = [0]
            for _, count in reversed(deletes):
                sums.append(sums[-1] + count)
            self._sums[scope] = sums[::-1]

    def count(self, entry: ManifestEntry) -> int:
        """Return the keys of deletes with a higher sequence number, in the file's scopes."""
        number = entry.sequence_number or 0
        return sum(
            self._sums[scope][bisect_right(self._numbers[scope], number)]
            for scope in (None, _partition_of(entry.data_file))
            if scope in self._numbers
        )


@dataclass
class _DataCounts:
    """Data files of a snapshot."""

    target: int
    files: int = 0
    bytes: int = 0
    rows: int = 0
    files_with_keys: int = 0
    equality: Deletes = Deletes()
    partitions: dict[Scope, _Partition] = field(default_factory=lambda: defaultdict(_Partition))

    def add(self, file: DataFile) -> None:
        """Count a data file."""
        size = file.file_size_in_bytes
        self.files += 1
        self.bytes += size
        self.rows += file.record_count
        partition = self.partitions[_partition_of(file)]
        partition.bytes += size
        if size < SMALL_SHARE * self.target:
            partition.small_files += 1
            partition.small_bytes += size

    def positional_after(self, deletes: _DeleteCounts) -> Deletes:
        """Return position deletes after equality deletes are converted, if each key has a row."""
        rows = min(deletes.positional.positions + deletes.equality_keys, self.rows)
        return Deletes(deletes.positional.files + self.files_with_keys, rows)


def _count_deletes(
    io: FileIO, metadata: Metadata, manifests: Iterable[ManifestFile]
) -> _DeleteCounts:
    counts = _DeleteCounts()
    unpartitioned = {
        spec["spec-id"]
        for spec in metadata["partition-specs"]
        if all(part["transform"] == "void" for part in spec["fields"])
    }
    deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
    for manifest, entries in iter_manifests(io, deletes):
        for entry in entries:
            if entry.status != DELETED:
                counts.add(entry, manifest.partition_spec_id in unpartitioned)
    return counts


def _count_data(
    io: FileIO,
    properties: Mapping[str, str],
    manifests: Iterable[ManifestFile],
    deletes: _DeleteCounts,
) -> _DataCounts:
    counts = _DataCounts(_size(properties, TARGET_SIZE, DEFAULT_TARGET_SIZE))
    split = _size(properties, SPLIT_SIZE, DEFAULT_SPLIT_SIZE)
    keys_after, split_keys = _KeysAfter(deletes.keys), 0
    data = [m for m in manifests if m.content == ManifestContent.DATA]
    for _, entries in iter_manifests(io, data):
        for entry in entries:
            if entry.status == DELETED:
                continue
            counts.add(entry.data_file)
            keys = keys_after.count(entry)
            counts.files_with_keys += keys > 0
            split_keys += keys * max(ceil(entry.data_file.file_size_in_bytes / split), 1)
    counts.equality = Deletes(deletes.equality_files, split_keys=split_keys)
    return counts


def _merged_manifests(manifests: Iterable[ManifestFile], target: int) -> tuple[int, int]:
    """Return how many manifests `rewrite_manifests` would merge, and how many it would save."""
    groups: dict[tuple[int, ManifestContent], list[int]] = defaultdict(list)
    for manifest in manifests:
        if manifest.manifest_length < SMALL_SHARE * target:
            groups[manifest.partition_spec_id, manifest.content].append(manifest.manifest_length)
    merged = [sizes for sizes in groups.values() if len(sizes) > ceil(sum(sizes) / target)]
    saved = sum(len(sizes) - ceil(sum(sizes) / target) for sizes in merged)
    return sum(map(len, merged)), saved


def _partition_of(file: DataFile) -> Scope:
    return file.spec_id, tuple(file.partition[i] for i in range(len(file.partition)))


def _size(properties: Mapping[str, str], name: str, default: int) -> int:
    return property_as_int(dict(properties), name, default) or default


def _metadata_limit(properties: Mapping[str, str]) -> int | None:
    if properties.get(METADATA_DELETE, "false").lower() != "true":
        return None
    return _size(properties, METADATA_VERSIONS, PREVIOUS_VERSIONS)


def _version(location: str) -> int:
    """Return the version in the name of a metadata file: `00012-….metadata.json` or `v12.…`."""
    name = location.rsplit("/", 1)[-1]
    number = name.split("-", 1)[0] if "-" in name else name.split(".", 1)[0].removeprefix("v")
    return int(number) if number.isdigit() else 0


def _other_branches(metadata: Metadata) -> tuple[str, ...]:
    refs = (metadata.get("refs") or {}).items()
    return tuple(sorted(n for n, ref in refs if n != MAIN and ref.get("type") == "branch"))
