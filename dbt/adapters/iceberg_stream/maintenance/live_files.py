"""Counts the live data and delete files of a snapshot, and which deletes apply to which files."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.live_files import EQUALITY, is_vector
from dbt.adapters.iceberg_stream.maintenance.properties import int_property
from dbt.adapters.iceberg_stream.maintenance.scan_cost import Deletes
from dbt.adapters.iceberg_stream.tables.commit.manifests import DELETED, iter_manifests
from dbt.adapters.iceberg_stream.tables.files.deletes import only_data_file
from dbt.adapters.iceberg_stream.tables.files.target import DEFAULT_TARGET_SIZE, TARGET_SIZE

# Defaults of Iceberg's `rewrite_data_files`: a file below this share of the target size is small,
# and small files of a partition are merged if there are so many or if they exceed the target size.
SMALL_SHARE, MIN_INPUT_FILES = 0.75, 5
# Spark splits larger files (`read.split.target-size`, Iceberg's default).
SPLIT_SIZE, DEFAULT_SPLIT_SIZE = "read.split.target-size", 128 * 1024 * 1024

# Spec id and partition values; None for all partitions.
Scope = tuple[int, tuple[Any, ...]] | None


@dataclass
class PartitionFiles:
    """Data files of one partition.

    Attributes:
        bytes: of all files.
        small_files: how many files are small.
        small_bytes: size of the small files.
    """

    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0

    def files_saved(self, target: int) -> int:
        """Return how many files fewer there are when the small ones are merged.

        Args:
            target: size of the new files in bytes.
        """
        return max(self.small_files - ceil(self.small_bytes / target), 0)

    def is_worth_merging(self, target: int) -> bool:
        """Return whether Iceberg's `rewrite_data_files` would merge the small files.

        Args:
            target: size of the new files in bytes.
        """
        enough = self.small_files >= MIN_INPUT_FILES or self.small_bytes > target
        return enough and self.files_saved(target) > 0


@dataclass
class DeleteCounts:
    """Delete files of a snapshot.

    Attributes:
        equality_files: equality delete files.
        equality_keys: their keys.
        position_files: position delete files, without deletion vectors.
        position_rows: positions that these delete.
        vectors: deletion vectors.
        vector_rows: positions that these delete.
        position_targets: data files of the position delete files, or the delete file itself if it
            is not of one data file.
        keys: sequence number and keys of the equality delete files by their scope.
    """

    equality_files: int = 0
    equality_keys: int = 0
    position_files: int = 0
    position_rows: int = 0
    vectors: int = 0
    vector_rows: int = 0
    position_targets: set[str] = field(default_factory=set)
    keys: dict[Scope, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def positional(self) -> Deletes:
        """Position delete files and deletion vectors."""
        return Deletes(
            self.position_files,
            len(self.position_targets),
            self.vectors,
            self.position_rows + self.vector_rows,
        )

    def positional_share(self, rows: int) -> float:
        """Return the share of rows that are deleted by position."""
        return min(self.positional.positions / rows, 1.0) if rows else 0.0

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
            self.position_targets.add(only_data_file(file) or file.file_path)


class _KeysAfter:
    """Counts the keys of equality deletes that apply to a data file."""

    def __init__(self, keys: Mapping[Scope, list[tuple[int, int]]]) -> None:
        self._numbers: dict[Scope, list[int]] = {}
        self._sums: dict[Scope, list[int]] = {}
        for scope, unsorted_deletes in keys.items():
            deletes = sorted(unsorted_deletes)
            self._numbers[scope] = [number for number, _ in deletes]
            # Keys of the deletes from each place to the end.
            counts = (count for _, count in reversed(deletes))
            self._sums[scope] = list(accumulate(counts, initial=0))[::-1]

    def count(self, entry: ManifestEntry) -> int:
        """Return the keys of deletes with a higher sequence number, in the file's scopes."""
        number = entry.sequence_number or 0
        return sum(
            self._sums[scope][bisect_right(self._numbers[scope], number)]
            for scope in (None, _partition_of(entry.data_file))
            if scope in self._numbers
        )


@dataclass
class DataCounts:
    """Data files of a snapshot.

    Attributes:
        target: size in bytes that the table wants its files to have.
        files: how many data files.
        bytes: their size.
        rows: their rows, deleted ones included.
        files_with_keys: files that an equality delete file may apply to.
        equality: the equality deletes that a full scan applies.
        partitions: files by their partition.
    """

    target: int
    files: int = 0
    bytes: int = 0
    rows: int = 0
    files_with_keys: int = 0
    equality: Deletes = Deletes()
    partitions: dict[Scope, PartitionFiles] = field(
        default_factory=lambda: defaultdict(PartitionFiles)
    )

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

    @property
    def partition_bytes(self) -> list[int]:
        """Sizes of the partitions."""
        return [partition.bytes for partition in self.partitions.values()]

    @property
    def mergeable(self) -> list[PartitionFiles]:
        """Partitions in which compaction would merge small files."""
        return [part for part in self.partitions.values() if part.is_worth_merging(self.target)]

    @property
    def files_saved(self) -> int:
        """How many files fewer there are after compaction."""
        return sum(partition.files_saved(self.target) for partition in self.mergeable)


def count_deletes(
    io: FileIO, metadata: Metadata, manifests: Iterable[ManifestFile]
) -> DeleteCounts:
    """Count the delete files of manifests.

    Args:
        io: the table's FileIO.
        metadata: of the table.
        manifests: of one snapshot.
    """
    counts = DeleteCounts()
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


def count_data(
    io: FileIO,
    properties: Mapping[str, str],
    manifests: Iterable[ManifestFile],
    deletes: DeleteCounts,
) -> DataCounts:
    """Count the data files of manifests, and the keys of deletes that apply to them.

    Args:
        io: the table's FileIO.
        properties: of the table.
        manifests: of one snapshot.
        deletes: the delete files of the same snapshot.
    """
    counts = DataCounts(size_property(properties, TARGET_SIZE, DEFAULT_TARGET_SIZE))
    split = size_property(properties, SPLIT_SIZE, DEFAULT_SPLIT_SIZE)
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
    counts.equality = Deletes(split_keys=split_keys)
    return counts


def _partition_of(file: DataFile) -> Scope:
    return file.spec_id, tuple(file.partition[i] for i in range(len(file.partition)))


def size_property(properties: Mapping[str, str], name: str, default: int) -> int:
    """Return a table property that is a number; the default if it is not set or 0."""
    return int_property(properties, name, default) or default
