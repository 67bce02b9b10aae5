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
from pyiceberg.types import NestedField, PrimitiveType, StringType

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.commit.manifests import (
    DELETED,
    read_manifest_list,
    read_manifests,
)
from dbt.adapters.iceberg_stream.commit.producer import parent_snapshot


def live_files(io: FileIO, metadata: Metadata, branch: str = "main") -> list[DataFile]:
    """Data files of a branch's snapshot, in the order of their names."""
    entries = live_entries(io, metadata, ManifestContent.DATA, branch)
    return sorted((item.data_file for item in entries), key=lambda file: file.file_path)


def live_entries(
    io: FileIO, metadata: Metadata, content: ManifestContent, branch: str = "main"
) -> list[ManifestEntry]:
    """What the manifests of a branch's snapshot say of its data files, or of its deletes."""
    snapshot = parent_snapshot(metadata, branch)
    if snapshot is None:
        return []
    manifests = read_manifest_list(io, snapshot["manifest-list"])
    return [
        item
        for entries in read_manifests(io, _of(manifests, content))
        for item in entries
        if item.status != DELETED
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
