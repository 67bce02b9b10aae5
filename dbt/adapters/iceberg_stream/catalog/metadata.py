"""Table and view metadata files as JSON (spec, "Table Metadata" and "View Metadata")."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dbt.adapters.iceberg_stream.catalog.types import spark_type

Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table or view; `type` in Spark SQL's words."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True)
class SnapshotSummary:
    """What a snapshot says of itself; `properties` hold the operation, too."""

    snapshot_id: int
    timestamp_ms: int
    properties: Mapping[str, str]

    @property
    def operation(self) -> str:
        return self.properties.get("operation", "")


def read_metadata(location: str) -> Metadata:
    """Read a metadata file, compressed or not.

    Raises:
        FileNotFoundError: there is no such file.
    """
    raw = _read(location)
    plain = gzip.decompress(raw) if ".gz.metadata.json" in location else raw
    parsed: Metadata = orjson.loads(plain)
    return parsed


def columns(metadata: Metadata) -> list[Column]:
    """Columns of a table, or of a view's current version."""
    current = metadata.get("current-schema-id")
    if current is None:
        version = next(
            v for v in metadata["versions"] if v["version-id"] == metadata["current-version-id"]
        )
        current = version["schema-id"]
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == current)
    return [Column(f["name"], spark_type(f["type"]), f.get("doc")) for f in schema["fields"]]


def snapshots(metadata: Metadata) -> Iterator[SnapshotSummary]:
    """Snapshots of a table, newest first."""
    for snapshot in reversed(metadata.get("snapshots") or []):
        yield SnapshotSummary(
            snapshot["snapshot-id"], snapshot["timestamp-ms"], snapshot.get("summary") or {}
        )


def current_snapshot(metadata: Metadata) -> SnapshotSummary | None:
    """The snapshot that a reader sees; None for a table never written."""
    current = metadata.get("current-snapshot-id")
    return next((s for s in snapshots(metadata) if s.snapshot_id == current), None)


def _read(location: str) -> bytes:
    if location.startswith(("file:", "/")):
        return Path("/" + location.removeprefix("file:").lstrip("/")).read_bytes()
    from pyiceberg.io import load_file_io

    with load_file_io(location=location).new_input(location).open() as stream:
        return stream.read()
