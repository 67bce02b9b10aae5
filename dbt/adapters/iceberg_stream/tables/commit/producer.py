"""Builds a snapshot: manifests, manifest list, summary (spec, "Snapshots")."""

from __future__ import annotations

import copy
import itertools
import secrets
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import StructType
from pyiceberg.utils.concurrent import ExecutorFactory

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata, current
from dbt.adapters.iceberg_stream.catalog.tables import NO_SNAPSHOT
from dbt.adapters.iceberg_stream.tables.commit.avro_files import paused_collection
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.manifest_writer import (
    ManifestWriter,
    entry,
    partition_types,
    write_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    FILE_FIRST_ROW_ID,
    REFERENCED_DATA_FILE,
    StoredEntry,
    iter_manifests,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.merging import MergedManifests
from dbt.adapters.iceberg_stream.tables.commit.partition_summaries import (
    FieldValues,
    may_have_partition,
)
from dbt.adapters.iceberg_stream.tables.commit.summary import summary

CONTENTS = (ManifestContent.DATA, ManifestContent.DELETES)


class MissingFiles(Exception):
    """Files that the change removes are no longer in the table.

    Attributes:
        paths: the paths of the files.
    """

    def __init__(self, paths: set[str]) -> None:
        super().__init__(paths)
        self.paths = paths


@dataclass
class SnapshotProducer:
    """Builds the snapshot of one change, again for each attempt to commit it.

    All attempts use the same snapshot id. Manifests of new files are written once if their
    sequence numbers are inherited.

    Attributes:
        io: the table's FileIO.
        change: the change to commit.
        snapshot_id: the snapshot's id.
        new_manifests: manifests of new files that the next attempt can use again.
        metadata_files: locations of all manifests and manifest lists written so far.
    """

    io: FileIO
    change: Change
    snapshot_id: int = field(default_factory=lambda: secrets.randbits(62))
    new_manifests: list[ManifestFile] | None = None
    metadata_files: list[str] = field(default_factory=list)
    _names: Iterable[int] = field(default_factory=itertools.count)
    _id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def build(self, metadata: Metadata) -> dict[str, Any]:
        """Write the manifests and the manifest list of the snapshot.

        Args:
            metadata: table metadata on which the snapshot is based.

        Returns:
            The snapshot as JSON.

        Raises:
            MissingFiles: the table does not have a file that the change removes.
            OSError: the storage refuses a file.
        """
        parent = parent_snapshot(metadata, self.change.branch)
        last = metadata.get("last-sequence-number", 0)
        # Storage requests are slow, so independent ones run in parallel.
        reading = _pool().submit(self._base_manifests, parent)
        added_manifests = self._new_manifests(metadata, last)
        with paused_collection():
            base_manifests, removed = self._without_removed(metadata, reading.result())
        snapshot: dict[str, Any] = {
            "snapshot-id": self.snapshot_id,
            # Those of format version 1 are all 0 (spec, "Version 2"): Iceberg refuses others.
            "sequence-number": self._sequence_number(last) if numbered(metadata) else 0,
            "timestamp-ms": max(int(time.time() * 1000), metadata["last-updated-ms"]),
            "summary": summary(self.change, removed, parent),
            "schema-id": metadata["current-schema-id"],
        }
        if parent:
            snapshot["parent-snapshot-id"] = parent["snapshot-id"]
        if metadata["format-version"] >= 3:
            snapshot["first-row-id"] = metadata.get("next-row-id", 0)
        location = self._location(metadata, f"snap-{self.snapshot_id}-{self._id}-{{}}.avro")
        rows = write_manifest_list(
            self.io,
            location,
            metadata["format-version"],
            snapshot,
            [*added_manifests, *base_manifests],
        )
        if metadata["format-version"] >= 3:
            # An upper bound (spec, "Snapshots"): the next row ids begin behind it.
            taken = self.change.next_row_id - snapshot["first-row-id"]
            snapshot["added-rows"] = max(rows, taken)
        return snapshot | {"manifest-list": location}

    def discard(self, keep: Iterable[str] = ()) -> None:
        """Remove the metadata files of failed attempts.

        Args:
            keep: locations of files that stay.
        """
        retained = set(keep)
        for location in self.metadata_files:
            if location not in retained:
                remove_quietly(self.io, location)
        self.metadata_files = [path for path in self.metadata_files if path in retained]

    def attempt_failed(self) -> None:
        """Remove the attempt's metadata files, except those that the next attempt can use."""
        self.discard(keep=[m.manifest_path for m in self.new_manifests or []])

    def _sequence_number(self, last: int) -> int:
        kept = [added.sequence_number or 0 for added in self.change.added]
        return max([last + max(len(kept), 1), *kept])

    def _base_manifests(self, parent: dict[str, Any] | None) -> list[ManifestFile]:
        return read_manifest_list(self.io, parent["manifest-list"]) if parent else []

    def _without_removed(
        self, metadata: Metadata, manifests: list[ManifestFile]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Return the base's manifests without removed files, merged if small, and these files."""
        if self.change.removes_all:
            return self._without_any(metadata, manifests)
        keys = {file_key(file) for file in self.change.removed}
        removed: list[DataFile] = []
        merging = MergedManifests.of(metadata, manifests, self.change.merges_manifests)
        may_hold = self._may_hold(metadata) if keys else lambda manifest: False
        candidates = [m for m in manifests if m.manifest_path in merging.paths or may_hold(m)]
        rewritten: dict[str, ManifestFile] = {}
        for manifest, entries in iter_manifests(self.io, candidates):
            live = [item for item in entries if item.status != DELETED]
            removed_entries = [item for item in live if _is_removed(item.data_file, keys)]
            removed += [item.data_file for item in removed_entries]
            deleted = frozenset(map(id, removed_entries))
            if manifest.manifest_path in merging.paths:
                merging.add(manifest, live, deleted)
            elif deleted:
                rewritten[manifest.manifest_path] = self._rewrite(metadata, manifest, live, deleted)
        if missing := keys - {file_key(file) for file in removed}:
            raise MissingFiles({path for path, _ in missing})
        bins = merging.bins
        merged = [self._rewrite(metadata, *each.rewrite) for each in bins if each.live]
        replaced = {path for each in bins for path in each.paths}
        result = [
            rewritten.get(m.manifest_path, m) for m in manifests if m.manifest_path not in replaced
        ]
        return [*merged, *result], removed

    def _may_hold(self, metadata: Metadata) -> Callable[[ManifestFile], bool]:
        """Return a test: whether a manifest may have a removed file, or deletes of its rows."""
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self.change.removed:
            if file.content == DataFileContent.DATA:
                by_spec[file.spec_id].append(file)

        @cache
        def of_spec(spec_id: int) -> tuple[StructType, list[FieldValues]]:
            spec = partition_spec(metadata, spec_id)
            types = partition_types(self.io, None, spec, known_schemas(metadata))
            return types, [
                FieldValues(file.partition[n] for file in by_spec[spec_id])
                for n in range(len(types.fields))
            ]

        def test(manifest: ManifestFile) -> bool:
            if not (manifest.has_added_files() or manifest.has_existing_files()):
                return False
            if manifest.content == ManifestContent.DELETES:
                return True  # delete files of removed data files are removed, too
            if not by_spec[manifest.partition_spec_id]:
                return False
            types, fields = of_spec(manifest.partition_spec_id)
            return all(
                may_have_partition(manifest, types, n, values) for n, values in enumerate(fields)
            )

        return test

    def _without_any(
        self, metadata: Metadata, manifests: list[ManifestFile]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Return manifests in which all files are deleted by this snapshot, and the files."""
        result, removed = [], []
        for manifest, entries in iter_manifests(self.io, manifests):
            live = [item for item in entries if item.status != DELETED]
            if live:
                removed += [item.data_file for item in live]
                deleted = frozenset(map(id, live))
                result.append(self._rewrite(metadata, manifest, live, deleted))
        return result, removed

    def _rewrite(
        self,
        metadata: Metadata,
        manifest: ManifestFile,
        live: list[StoredEntry],
        deleted: frozenset[int] = frozenset(),
    ) -> ManifestFile:
        """Write a manifest again, with the entries whose `id()` is in `deleted` as deleted."""
        entries = [
            item.changed(DELETED, self.snapshot_id)
            if id(item) in deleted
            else item.changed(EXISTING, item.snapshot_id)
            for item in live
        ]
        spec = manifest.partition_spec_id
        return self._write(metadata, spec, manifest.content, entries, manifest)

    def _new_manifests(self, metadata: Metadata, last: int) -> list[ManifestFile]:
        explicit = len(self.change.added) > 1 and numbered(metadata)
        if self.new_manifests is not None and not explicit:
            return self.new_manifests
        grouped: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for number, added in enumerate(self.change.added, start=last + 1):
            assigned = number if explicit else None
            for item in self._entries(added, added.sequence_number or assigned):
                content = CONTENTS[item.data_file.content != DataFileContent.DATA]
                grouped[item.data_file.spec_id, content].append(item)
        futures = [
            _pool().submit(self._write, metadata, spec, content, items)
            for (spec, content), items in grouped.items()
        ]
        wait(futures)
        manifests = [future.result() for future in futures]
        self.new_manifests = None if explicit else manifests
        return manifests

    def _entries(self, added: AddedFiles, number: int | None) -> list[ManifestEntry]:
        is_new = added.sequence_number is None
        data = map(_without_row_ids, added.data) if is_new else added.data
        files = (*data, *added.deletes)
        return [entry(ADDED, file, self.snapshot_id, number) for file in files]

    def _write(
        self,
        metadata: Metadata,
        spec_id: int,
        content: ManifestContent,
        entries: Sequence[ManifestEntry],
        older: ManifestFile | None = None,
    ) -> ManifestFile:
        spec = partition_spec(metadata, spec_id)
        writer = ManifestWriter(
            self.io,
            metadata["format-version"],
            current_schema(metadata),
            spec,
            partition_types(self.io, older, spec, known_schemas(metadata)),
            self.snapshot_id,
        )
        return writer.write(self._location(metadata, f"{self._id}-m{{}}.avro"), content, entries)

    def _location(self, metadata: Metadata, name: str) -> str:
        properties = metadata.get("properties") or {}
        folder = properties.get("write.metadata.path") or f"{metadata['location']}/metadata"
        location = f"{folder.rstrip('/')}/{name.format(next(iter(self._names)))}"
        self.metadata_files.append(location)
        return location


def _without_row_ids(file: DataFile) -> DataFile:
    """Return a file that gets new row ids: those of its first commit may be of other rows now."""
    # Descriptors that PyIceberg reads of older manifests are shorter.
    if len(file) <= FILE_FIRST_ROW_ID or file[FILE_FIRST_ROW_ID] is None:
        return file
    # Others have this descriptor, too.
    file = copy.deepcopy(file)
    file[FILE_FIRST_ROW_ID] = None
    return file


def numbered(metadata: Metadata) -> bool:
    """Return whether the table's snapshots have sequence numbers: all but format version 1."""
    return int(metadata["format-version"]) > 1


def parent_snapshot(metadata: Metadata, branch: str) -> dict[str, Any] | None:
    """Return the snapshot that a branch references, as JSON; None for an empty branch.

    Args:
        metadata: table metadata.
        branch: the branch's name.
    """
    reference = (metadata.get("refs") or {}).get(branch)
    snapshot_id = None if reference is None else reference["snapshot-id"]
    if snapshot_id is None and branch == MAIN:
        # Metadata of older writers have no `refs` (spec, "Table Metadata Fields").
        snapshot_id = metadata.get("current-snapshot-id")
    if snapshot_id is None or snapshot_id == NO_SNAPSHOT:
        return None
    return next(s for s in reversed(metadata["snapshots"]) if s["snapshot-id"] == snapshot_id)


def current_snapshot_id(metadata: Metadata) -> int | None:
    """Return the id of a table's current snapshot; None for a table without snapshots.

    Args:
        metadata: of the table.
    """
    snapshot = parent_snapshot(metadata, MAIN)
    return None if snapshot is None else int(snapshot["snapshot-id"])


def current_schema(metadata: Metadata) -> Schema:
    """Return the table's current schema."""
    return Schema.model_validate(current(metadata, "schemas"))


def known_schemas(metadata: Metadata) -> Iterator[Schema]:
    """Iterate over the table's schemas: the current one, then the others, newest first."""
    current = metadata["current-schema-id"]
    yield current_schema(metadata)
    for schema in sorted(metadata["schemas"], key=lambda s: int(s["schema-id"]), reverse=True):
        if schema["schema-id"] != current:
            yield Schema.model_validate(schema)


def partition_spec(metadata: Metadata, spec_id: int) -> PartitionSpec:
    """Return one of the table's partition specs."""
    spec = next(s for s in metadata["partition-specs"] if s["spec-id"] == spec_id)
    return PartitionSpec.model_validate(spec)


def remove_quietly(io: FileIO, location: str) -> None:
    """Remove a file if possible; otherwise leave it to `remove_orphan_files`."""
    try:
        io.delete(location)
    except OSError:
        return


def _pool() -> Executor:
    """Return PyIceberg's thread pool, for calls that do not wait for other calls in it."""
    return ExecutorFactory.get_or_create()


def _is_removed(file: DataFile, removed: set[tuple[str, str | None]]) -> bool:
    """Return whether a file is removed, or is a delete file whose only data file is removed."""
    if file_key(file) in removed:
        return True
    referenced = referenced_file(file)
    return referenced is not None and (referenced, None) in removed


def file_key(file: DataFile) -> tuple[str, str | None]:
    """Return a file's identity: deletion vectors of several data files share one path."""
    is_vector = file.file_format == FileFormat.PUFFIN
    return file.file_path, referenced_file(file) if is_vector else None


def referenced_file(file: DataFile) -> str | None:
    """Return the only data file that a delete file references; None if it does not say so."""
    path: str | None = file[REFERENCED_DATA_FILE] if len(file) > REFERENCED_DATA_FILE else None
    return path
