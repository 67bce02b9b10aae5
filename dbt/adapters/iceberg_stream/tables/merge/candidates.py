"""Data files that may hold rows with the keys of a source, told by their bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField, PrimitiveType, StringType, StructType

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    DELETED,
    iter_manifests,
    read_manifest_list,
    within,
)
from dbt.adapters.iceberg_stream.tables.commit.producer import (
    current_schema,
    parent_snapshot,
    partition_spec,
)
from dbt.adapters.iceberg_stream.tables.files.partitions import partition_values


def live_files(
    io: FileIO,
    metadata: Metadata,
    branch: str = "main",
    test: Callable[[DataFile], bool] = lambda _: True,
    manifests: Callable[[ManifestFile], bool] = lambda _: True,
) -> list[DataFile]:
    """Data files of a branch's snapshot, in the order of their names.

    Only those that pass a test are held in memory; manifests that do not pass theirs are not read.
    """

    def passes(item: ManifestEntry) -> bool:
        return test(item.data_file)

    entries = live_entries(io, metadata, ManifestContent.DATA, branch, passes, manifests)
    return sorted((item.data_file for item in entries), key=lambda file: file.file_path)


def live_entries(
    io: FileIO,
    metadata: Metadata,
    content: ManifestContent,
    branch: str = "main",
    test: Callable[[ManifestEntry], bool] = lambda _: True,
    manifests: Callable[[ManifestFile], bool] = lambda _: True,
) -> list[ManifestEntry]:
    """What the manifests of a branch's snapshot say of its data files, or of its deletes; see
    `live_files`.
    """
    snapshot = parent_snapshot(metadata, branch)
    if snapshot is None:
        return []
    wanted = filter(manifests, _of(read_manifest_list(io, snapshot["manifest-list"]), content))
    return [
        item
        for _, entries in iter_manifests(io, wanted)
        for item in entries
        if item.status != DELETED and test(item)
    ]


def has_deletes(io: FileIO, metadata: Metadata, branch: str = "main") -> bool:
    """Whether some rows of a branch's data files are deleted by other files."""
    snapshot = parent_snapshot(metadata, branch)
    if snapshot is None:
        return False
    manifests = _of(read_manifest_list(io, snapshot["manifest-list"]), ManifestContent.DELETES)
    return any(m.has_added_files() or m.has_existing_files() for m in manifests)


def _of(manifests: list[ManifestFile], content: ManifestContent) -> list[ManifestFile]:
    return [manifest for manifest in manifests if manifest.content == content]


def may_hold(rows: pa.Table, keys: Sequence[str], schema: Schema) -> Callable[[DataFile], bool]:
    """A test of files: whether some row's keys all lie within the file's bounds."""
    columns = [(schema.find_field(key), rows[key].combine_chunks()) for key in keys]

    def test(file: DataFile) -> bool:
        possible: Any = None
        for field, values in columns:
            here = _within(file, field, values)
            if here is None:
                continue
            possible = here if possible is None else pc.and_(possible, here)
        return possible is None or bool(pc.any(possible).as_py())

    return test


def manifests_of(
    rows: pa.Table, keys: Sequence[str], metadata: Metadata
) -> Callable[[ManifestFile], bool]:
    """A test of manifests: whether one may hold a file of the partition of some row's keys."""
    schema = current_schema(metadata)
    found: dict[int, tuple[StructType, dict[int, set[Any]]]] = {}

    def values_of(spec_id: int) -> tuple[StructType, dict[int, set[Any]]]:
        spec = partition_spec(metadata, spec_id)
        return spec.partition_type(schema), {
            place: set(partition_values(rows, field, schema).unique().to_pylist())
            for place, field in enumerate(spec.fields)
            if schema.find_column_name(field.source_id) in keys
            and not isinstance(field.transform, VoidTransform)
        }

    def test(manifest: ManifestFile) -> bool:
        spec_id = manifest.partition_spec_id
        if spec_id not in found:
            found[spec_id] = values_of(spec_id)
        types, values = found[spec_id]
        return all(within(manifest, types, place, each) for place, each in values.items())

    return test


def _within(file: DataFile, field: NestedField, values: pa.Array) -> pa.BooleanArray | None:
    """Which values the file may hold; None if it does not tell."""
    lower = _bound(file.lower_bounds, field)
    upper = _bound(file.upper_bounds, field)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if lower is None or upper is None:
        return None
    # Upper bounds of texts may be cut, but then they are raised.
    inside = pc.and_(
        pc.greater_equal(values, pa.scalar(lower, values.type)),
        pc.less_equal(values, pa.scalar(upper, values.type)),
    )
    return pc.fill_null(inside, nulls != 0)


def _bound(bounds: dict[int, bytes] | None, field: NestedField) -> Any:
    raw = (bounds or {}).get(field.field_id)
    if raw is None:
        return None
    if isinstance(field.field_type, StringType):
        return raw.decode("utf-8", "replace")
    assert isinstance(field.field_type, PrimitiveType)
    return from_bytes(field.field_type, raw)
