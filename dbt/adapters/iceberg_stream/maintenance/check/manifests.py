"""Checks of manifest lists and manifests against each other (spec, "Manifests")."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.types import IcebergType, PrimitiveType, UUIDType

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.schemas import REFUSALS, TableSchemas
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    first_row_id,
    read_manifest,
    read_manifest_list,
)

Item = TypeVar("Item")
# Shows progress: has items and a label as arguments, and returns the items.
Track = Callable[[Sequence[Item], str], Iterable[Item]]
SEQUENCE_NUMBER_UNKNOWN = -1


@dataclass
class Listed:
    """The files that the manifests of all snapshots list.

    Attributes:
        sizes: size of each file in bytes by its location; None if unknown.
        used_by: the newest snapshot that references a file, by the file's location.
        heads: live entries of the snapshot of each branch and tag.
        manifests: how many manifests were read.
    """

    sizes: dict[str, int | None] = field(default_factory=dict)
    used_by: dict[str, int] = field(default_factory=dict)
    heads: dict[str, list[ManifestEntry]] = field(default_factory=dict)
    manifests: int = 0

    def add(self, location: str, size: int | None, snapshot_id: int) -> None:
        """Add a file that a snapshot references, unless a newer one does."""
        self.sizes.setdefault(location, size)
        self.used_by.setdefault(location, snapshot_id)


def check_manifests(
    table: LoadedTable, schemas: TableSchemas, listed: Listed, track: Track[Any]
) -> Iterator[Finding]:
    """Check the manifests of all snapshots, newest first, each once.

    Args:
        table: the table, with all snapshots.
        schemas: the table's schemas.
        listed: is filled with the files that the manifests list.
        track: shows progress.
    """
    refs = _refs(table)
    snapshots = sorted(
        table.metadata.get("snapshots") or [],
        key=lambda s: (s["snapshot-id"] in refs, s.get("sequence-number", 0), s["timestamp-ms"]),
        reverse=True,
    )
    visited: set[str] = set()
    for snapshot in track(snapshots, "Manifests"):
        names = refs.get(snapshot["snapshot-id"], [])
        manifests, problem = _manifests_of(table, snapshot, listed)
        yield from problem
        for manifest in manifests:
            if manifest.manifest_path in visited and not names:
                continue
            entries: Sequence[ManifestEntry] = []
            try:
                entries = read_manifest(table.io, manifest)
            except OSError as error:
                if manifest.manifest_path not in visited:
                    yield _unreadable(table, manifest.manifest_path, snapshot, error)
            else:
                if manifest.manifest_path not in visited:
                    yield from _check_manifest(table, schemas, manifest, entries, snapshot)
            visited.add(manifest.manifest_path)
            listed.add(manifest.manifest_path, manifest.manifest_length, snapshot["snapshot-id"])
            live = [entry for entry in entries if entry.status != DELETED]
            for entry in live:
                file = entry.data_file
                listed.add(file.file_path, file.file_size_in_bytes, snapshot["snapshot-id"])
            for name in names:
                listed.heads.setdefault(name, []).extend(live)
        for name in names:
            listed.heads.setdefault(name, [])
    listed.manifests = len(visited)


def _refs(table: LoadedTable) -> dict[int, list[str]]:
    """Return names of branches and tags by their snapshot; main if the table has no refs."""
    names: dict[int, list[str]] = {}
    refs = dict(table.metadata.get("refs") or {})
    current = table.metadata.get("current-snapshot-id")
    if current not in (None, -1) and "main" not in refs:
        refs["main"] = {"snapshot-id": current}
    for name, ref in refs.items():
        names.setdefault(ref["snapshot-id"], []).append(name)
    return names


def _manifests_of(
    table: LoadedTable, snapshot: Mapping[str, Any], listed: Listed
) -> tuple[list[ManifestFile], list[Finding]]:
    location = snapshot.get("manifest-list")
    where = f"snapshot {snapshot['snapshot-id']}"
    if location is None:
        return [], [Finding("not-checked", where, "It has no manifest list file.")]
    listed.add(location, None, snapshot["snapshot-id"])
    try:
        manifests = read_manifest_list(table.io, location)
    except OSError as error:
        return [], [_unreadable(table, location, snapshot, error)]
    problems = []
    number = snapshot.get("sequence-number", 0)
    for manifest in manifests:
        if (manifest.sequence_number or 0) > number:
            problems.append(
                Finding(
                    "sequence-number",
                    manifest.manifest_path,
                    f"Its sequence number is {manifest.sequence_number}, that of {where} is "
                    f"{number}.",
                )
            )
        if (
            snapshot.get("first-row-id") is not None
            and manifest.content == ManifestContent.DATA
            and first_row_id(manifest) is None
        ):
            problems.append(
                Finding("row-ids", manifest.manifest_path, f"It has no first row id in {where}.")
            )
    return manifests, problems


def _unreadable(
    table: LoadedTable, location: str, snapshot: Mapping[str, Any], error: Exception
) -> Finding:
    where = f"snapshot {snapshot['snapshot-id']}"
    if isinstance(error, FileNotFoundError):
        return Finding("missing-file", location, f"The file is missing; {where} needs it.")
    cause = error.__cause__ or error
    return Finding(
        "unreadable-file",
        location,
        f"It cannot be read ({type(cause).__name__}: {cause}); {where}.",
    )


def _check_manifest(
    table: LoadedTable,
    schemas: TableSchemas,
    manifest: ManifestFile,
    entries: Sequence[ManifestEntry],
    snapshot: Mapping[str, Any],
) -> Iterator[Finding]:
    where = manifest.manifest_path
    if manifest.partition_spec_id not in schemas.specs:
        yield Finding(
            "manifest-spec", where, f"The table has no partition spec {manifest.partition_spec_id}."
        )
        return
    yield from _counts(manifest, entries)
    if table.metadata["format-version"] > 1:
        yield from _numbers(manifest, entries, snapshot)
    is_data = manifest.content == ManifestContent.DATA
    for entry in entries:
        if (int(entry.data_file.content) == 0) != is_data:
            yield Finding(
                "manifest-content",
                where,
                f"Its content is {manifest.content.name.lower()}, but that of "
                f"{entry.data_file.file_path} is "
                f"{entry.data_file.content.name.lower().replace('_', ' ')}.",
            )
            break
    yield from _partition_summaries(schemas, manifest, entries)


def _counts(manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> Iterator[Finding]:
    for status, files, rows in (
        (ADDED, manifest.added_files_count, manifest.added_rows_count),
        (EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
        (DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
    ):
        matching = [entry.data_file.record_count for entry in entries if entry.status == status]
        for noun, count, actual in (("files", files, len(matching)), ("rows", rows, sum(matching))):
            if count is not None and count != actual:
                yield Finding(
                    "manifest-counts",
                    manifest.manifest_path,
                    f"The manifest list counts {count} {status.name.lower()} {noun}; the manifest "
                    f"has {actual}.",
                )


def _numbers(
    manifest: ManifestFile, entries: Sequence[ManifestEntry], snapshot: Mapping[str, Any]
) -> Iterator[Finding]:
    own = manifest.sequence_number or 0
    live = [entry for entry in entries if entry.status != DELETED]
    for entry in live:
        number, file_number = entry.sequence_number or 0, entry.file_sequence_number or 0
        if number > own or number > file_number:
            yield Finding(
                "sequence-number",
                entry.data_file.file_path,
                f"Its data sequence number is {number}; its file's is {file_number}, its "
                f"manifest's {own}.",
            )
    lowest = min((entry.sequence_number or 0 for entry in live), default=own)
    least = manifest.min_sequence_number
    if least is not None and least > lowest and least != SEQUENCE_NUMBER_UNKNOWN:
        yield Finding(
            "sequence-number",
            manifest.manifest_path,
            f"The manifest list says that its lowest sequence number is {least}; a file has "
            f"{lowest}.",
        )


def _partition_summaries(
    schemas: TableSchemas, manifest: ManifestFile, entries: Sequence[ManifestEntry]
) -> Iterator[Finding]:
    types = schemas.partition_types(manifest.partition_spec_id)
    for index, summary in enumerate(manifest.partitions or []):
        if index >= len(types) or not isinstance(types[index], PrimitiveType):
            continue
        for entry in entries:
            if entry.status == DELETED or index >= len(entry.data_file.partition):
                continue
            value = entry.data_file.partition[index]
            if not _summary_holds(types[index], summary, value):
                yield Finding(
                    "partition-summary",
                    manifest.manifest_path,
                    f"Its summary of partition field {index} does not include {value!r} of "
                    f"{entry.data_file.file_path}.",
                )
                break


def _summary_holds(kind: IcebergType, summary: Any, value: Any) -> bool:
    if value is None:
        return bool(summary.contains_null)
    if isinstance(value, float) and value != value:
        return summary.contains_nan is not False
    if summary.lower_bound is None or summary.upper_bound is None:
        return False
    assert isinstance(kind, PrimitiveType)
    try:
        raw = (summary.lower_bound, to_bytes(kind, value), summary.upper_bound)
        values: list[Any] = [from_bytes(kind, item) for item in raw]
    except (struct.error, *REFUSALS):
        # A table that replaced this one may have given the column's id to one of another type.
        return True
    if isinstance(kind, UUIDType) and _as_java_orders(values):
        return True
    return values == sorted(values)


def _as_java_orders(values: list[bytes]) -> bool:
    """Return whether UUIDs are in the order of Java's writers, which compare two signed numbers."""
    halves = [struct.unpack(">qq", value) for value in values]
    return halves == sorted(halves)
