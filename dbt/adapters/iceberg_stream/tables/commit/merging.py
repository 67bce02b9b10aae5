"""Merges small manifests, so that tables with many commits stay fast to read and to write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.utils.properties import property_as_bool, property_as_int

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.manifests import DELETED, read_manifests

ENABLED = "commit.manifest-merge.enabled"
MIN_COUNT = "commit.manifest.min-count-to-merge"
TARGET_SIZE = "commit.manifest.target-size-bytes"
DEFAULT_MIN_COUNT = 100
DEFAULT_TARGET_SIZE = 8 * 1024 * 1024

Rewrite = Callable[[Metadata, ManifestFile, list[ManifestEntry]], ManifestFile]


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
    target, is_small = _target_size(metadata), small_manifests(metadata)
    groups: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
    # The commit's own manifests are not merged: the next attempt uses them again.
    new_paths = {manifest.manifest_path for manifest in new_manifests}
    for manifest in base_manifests:
        is_new = manifest.manifest_path in new_paths or manifest.sequence_number < 0
        if is_small(manifest) and not is_new:
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


def small_manifests(metadata: Metadata) -> Callable[[ManifestFile], bool]:
    """Return a test of manifests: whether one is smaller than the table's target size.

    Args:
        metadata: of the table.
    """
    target = _target_size(metadata)
    return lambda manifest: bool(manifest.manifest_length < target)


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
