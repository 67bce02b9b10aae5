"""Builds a snapshot on a base: manifests, manifest list, summary (spec, "Snapshots")."""

from __future__ import annotations

import itertools
import secrets
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import StructType
from pyiceberg.utils.concurrent import ExecutorFactory

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import MAIN
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    ManifestWriter,
    entry,
    iter_manifests,
    partition_types,
    read_manifest_list,
    within,
    write_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.merging import merge_small
from dbt.adapters.iceberg_stream.tables.commit.summary import summary

# Older writers say so of an empty table.
NO_SNAPSHOT = -1
CONTENTS = (ManifestContent.DATA, ManifestContent.DELETES)


class MissingFiles(Exception):
    """Files that the change removes are no longer in the table."""

    def __init__(self, paths: set[str]) -> None:
        super().__init__(paths)
        self.paths = paths


@dataclass
class SnapshotProducer:
    """Makes the snapshot of one change, anew on each base that an attempt meets.

    The snapshot's id is the same in all attempts, and manifests of new files are written once
    where their numbers are inherited.
    """

    io: FileIO
    change: Change
    snapshot_id: int = field(default_factory=lambda: secrets.randbits(62))
    kept: list[ManifestFile] | None = None
    written: list[str] = field(default_factory=list)
    _names: Iterable[int] = field(default_factory=itertools.count)
    _id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def build(self, metadata: Metadata) -> dict[str, Any]:
        """Write the manifests and list of a snapshot on such a table, and describe it.

        Raises:
            MissingFiles: a file that is to be removed is not there.
            OSError: the storage refuses a file.
        """
        parent = parent_snapshot(metadata, self.change.branch)
        last = metadata.get("last-sequence-number", 0)
        # The storage takes a while for each file: those that do not need each other go at once.
        reading = _pool().submit(self._base_manifests, parent)
        new = self._new_manifests(metadata, last)
        rest, removed = self._without_removed(metadata, reading.result())
        rest = merge_small(self.io, metadata, new, rest, self._rewrite)
        snapshot: dict[str, Any] = {
            "snapshot-id": self.snapshot_id,
            # Those of format version 1 are all 0 (spec, "Version 2"): Iceberg refuses others.
            "sequence-number": last + max(len(self.change.added), 1) if numbered(metadata) else 0,
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
            self.io, location, metadata["format-version"], snapshot, [*new, *rest]
        )
        if metadata["format-version"] >= 3:
            snapshot["added-rows"] = rows
        return snapshot | {"manifest-list": location}

    def discard(self, keep: Iterable[str] = ()) -> None:
        """Remove the metadata files of attempts that came to nothing."""
        kept = set(keep)
        for location in self.written:
            if location not in kept:
                remove_quietly(self.io, location)
        self.written = [location for location in self.written if location in kept]

    def attempt_failed(self) -> None:
        """Another attempt follows: keep what it can use again."""
        self.discard(keep=[m.manifest_path for m in self.kept or []])

    def _base_manifests(self, parent: dict[str, Any] | None) -> list[ManifestFile]:
        return read_manifest_list(self.io, parent["manifest-list"]) if parent else []

    def _without_removed(
        self, metadata: Metadata, manifests: list[ManifestFile]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """The base's manifests without the removed files, and the files that were removed."""
        if self.change.removes_all:
            return self._without_any(metadata, manifests)
        wanted = {file_key(file) for file in self.change.removed}
        if not wanted:
            return manifests, []
        removed: list[DataFile] = []
        possible = self._may_hold(metadata)
        looked_at = [m for m in manifests if possible(m)]
        rewritten: dict[str, ManifestFile] = {}
        for manifest, entries in iter_manifests(self.io, looked_at):
            live = [item for item in entries if item.status != DELETED]
            gone = [item for item in live if _is_removed(item.data_file, wanted)]
            if gone:
                removed += [item.data_file for item in gone]
                made = self._rewrite(metadata, manifest, live, frozenset(map(id, gone)))
                rewritten[manifest.manifest_path] = made
        rest = [rewritten.get(m.manifest_path, m) for m in manifests]
        if missing := wanted - {file_key(file) for file in removed}:
            raise MissingFiles({path for path, _ in missing})
        return rest, removed

    def _may_hold(self, metadata: Metadata) -> Callable[[ManifestFile], bool]:
        """A test of manifests: whether one may hold a file that is removed, or deletes of it."""
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self.change.removed:
            if file.content == DataFileContent.DATA:
                by_spec[file.spec_id].append(file)
        types: dict[int, StructType] = {}

        def test(manifest: ManifestFile) -> bool:
            if not (manifest.has_added_files() or manifest.has_existing_files()):
                return False
            if manifest.content == ManifestContent.DELETES:
                return True  # those of removed data files go with them
            spec_id = manifest.partition_spec_id
            if not by_spec[spec_id]:
                return False
            if spec_id not in types:
                spec = partition_spec(metadata, spec_id)
                types[spec_id] = partition_types(self.io, None, spec, known_schemas(metadata))
            fields = range(len(types[spec_id].fields))
            return any(
                all(within(manifest, types[spec_id], n, (file.partition[n],)) for n in fields)
                for file in by_spec[spec_id]
            )

        return test

    def _without_any(
        self, metadata: Metadata, manifests: list[ManifestFile]
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """Manifests that say of each file that this snapshot deleted it."""
        rest, removed = [], []
        for manifest, entries in iter_manifests(self.io, manifests):
            live = [item for item in entries if item.status != DELETED]
            if live:
                removed += [item.data_file for item in live]
                gone = frozenset(map(id, live))
                rest.append(self._rewrite(metadata, manifest, live, gone))
        return rest, removed

    def _rewrite(
        self,
        metadata: Metadata,
        manifest: ManifestFile,
        live: list[ManifestEntry],
        gone: frozenset[int] = frozenset(),
    ) -> ManifestFile:
        """A manifest anew, with some of its entries, known by their identity, as deleted."""
        entries = [
            entry(
                DELETED if id(item) in gone else EXISTING,
                item.data_file,
                self.snapshot_id if id(item) in gone else item.snapshot_id,
                item.sequence_number,
                item.file_sequence_number,
            )
            for item in live
        ]
        spec = manifest.partition_spec_id
        return self._write(metadata, spec, manifest.content, entries, manifest)

    def _new_manifests(self, metadata: Metadata, last: int) -> list[ManifestFile]:
        explicit = len(self.change.added) > 1 and numbered(metadata)
        if self.kept is not None and not explicit:
            return self.kept
        grouped: dict[tuple[int, ManifestContent], list[ManifestEntry]] = defaultdict(list)
        for number, added in enumerate(self.change.added, start=last + 1):
            assigned = number if explicit else None
            for item in self._entries(added, added.sequence_number or assigned):
                content = CONTENTS[item.data_file.content != DataFileContent.DATA]
                grouped[item.data_file.spec_id, content].append(item)
        writing = [
            _pool().submit(self._write, metadata, spec, content, items)
            for (spec, content), items in grouped.items()
        ]
        wait(writing)
        made = [written.result() for written in writing]
        self.kept = None if explicit else made
        return made

    def _entries(self, added: AddedFiles, number: int | None) -> list[ManifestEntry]:
        files = (*added.data, *added.deletes)
        return [entry(ADDED, file, self.snapshot_id, number) for file in files]

    def _write(
        self,
        metadata: Metadata,
        spec_id: int,
        content: ManifestContent,
        entries: list[ManifestEntry],
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
        self.written.append(location)
        return location


def numbered(metadata: Metadata) -> bool:
    """Whether the table's snapshots have sequence numbers: all but format version 1."""
    return int(metadata["format-version"]) > 1


def parent_snapshot(metadata: Metadata, branch: str) -> dict[str, Any] | None:
    """The snapshot that a branch points to; None for one without any."""
    reference = (metadata.get("refs") or {}).get(branch)
    wanted = None if reference is None else reference["snapshot-id"]
    if wanted is None and branch == MAIN:
        # Metadata of older writers have no references (spec, "Table Metadata Fields").
        wanted = metadata.get("current-snapshot-id")
    if wanted is None or wanted == NO_SNAPSHOT:
        return None
    return next(s for s in reversed(metadata["snapshots"]) if s["snapshot-id"] == wanted)


def current_schema(metadata: Metadata) -> Schema:
    found = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return Schema.model_validate(found)


def known_schemas(metadata: Metadata) -> Iterator[Schema]:
    """The current schema, and then the older ones, the newest first."""
    current = metadata["current-schema-id"]
    yield current_schema(metadata)
    for known in sorted(metadata["schemas"], key=lambda s: int(s["schema-id"]), reverse=True):
        if known["schema-id"] != current:
            yield Schema.model_validate(known)


def partition_spec(metadata: Metadata, spec_id: int) -> PartitionSpec:
    found = next(s for s in metadata["partition-specs"] if s["spec-id"] == spec_id)
    return PartitionSpec.model_validate(found)


def remove_quietly(io: FileIO, location: str) -> None:
    """Remove a file of ours; one that is gone or cannot be removed is left to maintenance."""
    try:
        io.delete(location)
    except OSError:
        return


def _pool() -> Executor:
    """PyIceberg's, for calls that do not wait for others in it."""
    return ExecutorFactory.get_or_create()


def _is_removed(file: DataFile, wanted: set[tuple[str, str | None]]) -> bool:
    """Also deletes whose only data file is removed: they would be left over."""
    if file_key(file) in wanted:
        return True
    referenced = referenced_file(file)
    return referenced is not None and (referenced, None) in wanted


def file_key(file: DataFile) -> tuple[str, str | None]:
    """What tells a file from others: deletion vectors of many data files share one path."""
    return file.file_path, referenced_file(file)


REFERENCED = 17


def referenced_file(file: DataFile) -> str | None:
    """The one data file whose rows all of a delete file's deletes are in, if it says so."""
    found: str | None = file[REFERENCED] if len(file) > REFERENCED else None
    return found
