"""Merges small manifests, so that tables with many commits stay fast to read and to write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.utils.properties import property_as_bool, property_as_int

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.manifests import DELETED, StoredEntry, read_manifests

ENABLED = "commit.manifest-merge.enabled"
MIN_COUNT = "commit.manifest.min-count-to-merge"
TARGET_SIZE = "commit.manifest.target-size-bytes"
DEFAULT_MIN_COUNT = 100
DEFAULT_TARGET_SIZE = 8 * 1024 * 1024

Rewrite = Callable[[Metadata, ManifestFile, list[StoredEntry]], ManifestFile]


def merge_small(
    io: FileIO,
    metadata: Metadata,
    new_manifests: list[ManifestFile],
    base_manifests: list[ManifestFile],
    rewrite: Rewrite,
) -> list[ManifestFile]:
    """Merge small manifests of the same partition spec and content if there are many.

    Counts and sizes are the table's properties or Iceberg's defaults.

    Args:
        io: the table's FileIO.
        metadata: table metadata.
        new_manifests: the commit's own manifests, which are not merged.
        base_manifests: manifests that may be merged.
        rewrite: writes a manifest with the entries of several.

    Returns:
        `base_manifests`, with merged ones in the place of small ones.
    """
    properties = dict(metadata.get("properties") or {})
    if not property_as_bool(properties, ENABLED, True):
        return base_manifests
    count = property_as_int(properties, MIN_COUNT, DEFAULT_MIN_COUNT) or DEFAULT_MIN_COUNT
    target = _target_size(metadata)
    groups: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
    # The commit's own manifests are not merged: the next attempt uses them again.
    new_paths = {manifest.manifest_path for manifest in new_manifests}
    for manifest in base_manifests:
        is_new = manifest.manifest_path in new_paths or manifest.sequence_number < 0
        if manifest.manifest_length < target and not is_new:
            groups[manifest.partition_spec_id, manifest.content].append(manifest)
    for group in groups.values():
        if len(group) < count:
            continue
        merged = _newest_up_to(group, target)
        entries = [
            e
            for manifest_entries in read_manifests(io, merged)
            for e in manifest_entries
            if e.status != DELETED
        ]
        merged_paths = {manifest.manifest_path for manifest in merged}
        base_manifests = [
            manifest for manifest in base_manifests if manifest.manifest_path not in merged_paths
        ]
        if entries:
            base_manifests.insert(0, rewrite(metadata, merged[0], entries))
    return base_manifests


@dataclass
class ManifestBin:
    """Manifests that become one.

    Attributes:
        older: the first one.
        size: of all, in bytes.
        paths: locations of all.
        live: their entries.
        deleted: `id()` of the entries that the snapshot deletes.
    """

    older: ManifestFile
    size: int = 0
    paths: list[str] = field(default_factory=list)
    live: list[StoredEntry] = field(default_factory=list)
    deleted: frozenset[int] = frozenset()

    @property
    def rewrite(self) -> tuple[ManifestFile, list[StoredEntry], frozenset[int]]:
        """What to write: an older manifest, the entries, and those that are deleted."""
        return self.older, self.live, self.deleted


@dataclass
class MergedManifests:
    """Merges manifests that a commit reads anyway, up to the table's target size.

    Attributes:
        target: size of a manifest in bytes.
        is_enabled: whether the table's manifests may be merged.
    """

    target: int
    is_enabled: bool
    _bins: list[ManifestBin] = field(default_factory=list)

    @classmethod
    def of(cls, metadata: Metadata) -> MergedManifests:
        """Read the settings from a table's properties.

        Args:
            metadata: of the table.
        """
        properties = dict(metadata.get("properties") or {})
        return cls(_target_size(metadata), bool(property_as_bool(properties, ENABLED, True)))

    def takes(self, manifest: ManifestFile) -> bool:
        """Return whether a manifest is small enough to be merged with others."""
        return self.is_enabled and manifest.manifest_length < self.target / 2

    def add(
        self, manifest: ManifestFile, live: Sequence[StoredEntry], deleted: frozenset[int]
    ) -> None:
        """Add a manifest.

        Args:
            manifest: the manifest.
            live: its live entries.
            deleted: `id()` of those that the snapshot deletes.
        """
        into = next((each for each in self._bins if self._fits(each, manifest)), None)
        if into is None:
            into = ManifestBin(manifest)
            self._bins.append(into)
        into.size += manifest.manifest_length
        into.paths.append(manifest.manifest_path)
        into.live += live
        into.deleted |= deleted

    @property
    def bins(self) -> list[ManifestBin]:
        """The manifests to write; one that would only be copied is not among them."""
        return [each for each in self._bins if len(each.paths) > 1 or each.deleted]

    def _fits(self, into: ManifestBin, manifest: ManifestFile) -> bool:
        return (
            into.older.partition_spec_id == manifest.partition_spec_id
            and into.older.content == manifest.content
            and into.size + manifest.manifest_length <= self.target
        )


def _target_size(metadata: Metadata) -> int:
    properties = dict(metadata.get("properties") or {})
    return property_as_int(properties, TARGET_SIZE, DEFAULT_TARGET_SIZE) or DEFAULT_TARGET_SIZE


def _newest_up_to(group: list[ManifestFile], target: int) -> list[ManifestFile]:
    """Return the newest manifests whose sizes add up to at most the target, in bytes."""
    manifests: list[ManifestFile] = []
    size = 0
    for manifest in group:
        size += manifest.manifest_length
        if size > target:
            break
        manifests.append(manifest)
    return manifests
