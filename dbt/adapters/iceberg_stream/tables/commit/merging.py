"""Merges small manifests, so that tables with many commits stay fast to read and to write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.utils.properties import property_as_bool, property_as_int

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.manifests import StoredEntry

ENABLED = "commit.manifest-merge.enabled"
MIN_COUNT = "commit.manifest.min-count-to-merge"
TARGET_SIZE = "commit.manifest.target-size-bytes"
DEFAULT_MIN_COUNT = 100
DEFAULT_TARGET_SIZE = 8 * 1024 * 1024


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
    """Merges manifests up to the table's target size.

    Attributes:
        target: size of a manifest in bytes.
        paths: locations of the manifests that are merged.
    """

    target: int
    paths: frozenset[str]
    _bins: list[ManifestBin] = field(default_factory=list)

    @classmethod
    def of(
        cls, metadata: Metadata, manifests: Sequence[ManifestFile], however_few: bool
    ) -> MergedManifests:
        """Choose the small manifests to merge.

        Counts and sizes are the table's properties or Iceberg's defaults.

        Args:
            metadata: of the table.
            manifests: of its snapshot, newest first.
            however_few: whether to choose all; if not, some of those of which there are many.
        """
        properties = dict(metadata.get("properties") or {})
        target = _positive(properties, TARGET_SIZE, DEFAULT_TARGET_SIZE)
        chosen: Iterable[ManifestFile] = ()
        if property_as_bool(properties, ENABLED, True):
            few = [each for each in manifests if each.manifest_length < target / 2]
            count = _positive(properties, MIN_COUNT, DEFAULT_MIN_COUNT)
            chosen = few if however_few else _of_many(manifests, count, target)
        return cls(target, frozenset(manifest.manifest_path for manifest in chosen))

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


def _positive(properties: dict[str, str], name: str, default: int) -> int:
    return property_as_int(properties, name, default) or default


def _of_many(manifests: Sequence[ManifestFile], count: int, target: int) -> Iterator[ManifestFile]:
    """Yield the newest small manifests, of groups with so many or more, that fit in one."""
    groups: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if manifest.manifest_length < target:
            groups[manifest.partition_spec_id, manifest.content].append(manifest)
    for group in groups.values():
        if len(group) >= count:
            yield from _newest_up_to(group, target)


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
