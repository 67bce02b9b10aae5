"""Small manifests become few, so that tables of many commits stay cheap to read and to write to."""

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
    new: list[ManifestFile],
    rest: list[ManifestFile],
    rewrite: Rewrite,
) -> list[ManifestFile]:
    """The older manifests, with the small ones of a spec and content made one if they are many.

    Counts and sizes are the table's properties or Iceberg's defaults.
    """
    properties = dict(metadata.get("properties") or {})
    if not property_as_bool(properties, ENABLED, True):
        return rest
    count = property_as_int(properties, MIN_COUNT, DEFAULT_MIN_COUNT) or DEFAULT_MIN_COUNT
    target = property_as_int(properties, TARGET_SIZE, DEFAULT_TARGET_SIZE) or DEFAULT_TARGET_SIZE
    groups: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
    # Those of this commit stay alone: an attempt that fails keeps them.
    fresh = {manifest.manifest_path for manifest in new}
    for manifest in rest:
        small = manifest.manifest_length < target and manifest.manifest_path not in fresh
        if small and manifest.sequence_number >= 0:
            groups[manifest.partition_spec_id, manifest.content].append(manifest)
    for group in groups.values():
        if len(group) < count:
            continue
        chosen = _fitting(group, target)
        entries = [e for found in read_manifests(io, chosen) for e in found if e.status != DELETED]
        gone = {manifest.manifest_path for manifest in chosen}
        rest = [manifest for manifest in rest if manifest.manifest_path not in gone]
        if entries:
            rest.insert(0, rewrite(metadata, chosen[0], entries))
    return rest


def _fitting(group: list[ManifestFile], target: int) -> list[ManifestFile]:
    """The newest manifests that make one of the target's size."""
    chosen: list[ManifestFile] = []
    size = 0
    for manifest in group:
        size += manifest.manifest_length
        if size > target:
            break
        chosen.append(manifest)
    return chosen
