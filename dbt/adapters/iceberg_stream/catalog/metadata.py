"""Table and view metadata files as JSON (spec, "Table Metadata" and "View Metadata")."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.catalog.reach import require_reach
from dbt.adapters.iceberg_stream.catalog.types import spark_type

Metadata = Mapping[str, Any]
MAIN = "main"


@dataclass(frozen=True)
class Column:
    """A column of a table or view.

    Attributes:
        name: the column's name.
        type: Spark SQL's type.
        comment: the column's comment.
        is_uuid: whether its values are UUIDs, which Spark shows as strings.
    """

    name: str
    type: str
    comment: str | None
    is_uuid: bool = False


@dataclass(frozen=True)
class SnapshotSummary:
    """A snapshot and its summary.

    Attributes:
        snapshot_id: the snapshot's id.
        timestamp_ms: when it was committed, in milliseconds since 1970 (UTC).
        properties: the summary, `operation` included.
        previous_id: the snapshot that was current before; None for the first one, or if unknown.
    """

    snapshot_id: int
    timestamp_ms: int
    properties: Mapping[str, str]
    previous_id: int | None = None

    @property
    def operation(self) -> str:
        """`append`, `overwrite`, `delete` or `replace`; empty if the summary has none."""
        return self.properties.get("operation", "")


# Property of snapshots that only write deletes in another form.
CONVERSION = "iceberg-stream.conversion"


def keeps_rows(snapshot: Mapping[str, Any]) -> bool:
    """Return whether a snapshot changes no row: a compaction, or a conversion of deletes.

    Args:
        snapshot: as JSON.
    """
    summary = snapshot.get("summary") or {}
    return summary.get("operation") == "replace" or CONVERSION in summary


def same_rows(metadata: Metadata) -> Iterator[int | None]:
    """Iterate over the current snapshot and the ones before it that have the same rows.

    Args:
        metadata: of a table.
    """
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}
    current = metadata.get("current-snapshot-id")
    current = None if current in (None, -1) else current
    yield current
    while (snapshot := snapshots.get(current)) is not None and keeps_rows(snapshot):
        current = snapshot.get("parent-snapshot-id")
        if current is None:
            return
        yield current


def read_metadata(location: str, storage: Mapping[str, str]) -> Metadata:
    """Read a metadata file, compressed or not.

    Args:
        location: the file's.
        storage: properties of the FileIO that reads it.

    Raises:
        FileNotFoundError: the file does not exist.
        OutOfReach: it is outside the warehouse.
    """
    content = _read(location, storage)
    text = gzip.decompress(content) if ".gz.metadata.json" in location else content
    parsed: Metadata = orjson.loads(text)
    return parsed


def columns(metadata: Metadata) -> list[Column]:
    """Return the columns of a table's current schema, or of a view's current version."""
    return [
        Column(f["name"], spark_type(f["type"]), f.get("doc"), f["type"] == "uuid")
        for f in fields(metadata)
    ]


def fields(metadata: Metadata) -> list[dict[str, Any]]:
    """Return the fields of a table's current schema, or of a view's current version, as JSON."""
    if "current-schema-id" not in metadata:
        version = current(metadata, "versions")
        metadata = {**metadata, "current-schema-id": version["schema-id"]}
    return list(current(metadata, "schemas")["fields"])


# Property that names the columns of files without field ids (spec, "Name Mapping Serialization").
NAME_MAPPING = "schema.name-mapping.default"


def name_mapping(metadata: Metadata) -> str | None:
    """Return a table's name mapping; None if it has none."""
    mapping: str | None = (metadata.get("properties") or {}).get(NAME_MAPPING)
    return mapping


def row_schema(metadata: Metadata) -> list[Any]:
    """Return what decides which columns the rows of a table or view have.

    The id of a schema does not: another one gets it after the schema has expired.

    Args:
        metadata: of a table or view.

    Returns:
        The current fields without comments; for a table with a name mapping, these and the mapping,
        another one of which gives columns of its files other values.
    """
    columns = [_without_comments(field) for field in fields(metadata)]
    mapping = name_mapping(metadata)
    return columns if mapping is None else [columns, mapping]


def _without_comments(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_comments(item) for key, item in value.items() if key != "doc"}
    return [_without_comments(item) for item in value] if isinstance(value, list) else value


# Lists of versions, of a table's layout or of a view: the id of the current one, and that in each.
CURRENT_IDS = {
    "versions": ("current-version-id", "version-id"),
    "schemas": ("current-schema-id", "schema-id"),
    "partition-specs": ("default-spec-id", "spec-id"),
    "sort-orders": ("default-sort-order-id", "order-id"),
}


def current(metadata: Metadata, kind: str) -> Mapping[str, Any]:
    """Return a table's current schema, partition spec or sort order, or a view's version, as JSON.

    Args:
        metadata: of the table or view.
        kind: `schemas`, `partition-specs`, `sort-orders` or `versions`.
    """
    of_table, own = CURRENT_IDS[kind]
    found: Mapping[str, Any] = next(v for v in metadata[kind] if v[own] == metadata[of_table])
    return found


def field_names(metadata: Metadata) -> dict[int, str]:
    """Return the full names of a table's fields, nested ones included, by their ids.

    Args:
        metadata: of the table.
    """
    return dict(_names(current(metadata, "schemas"), ""))


def _names(kind: Any, prefix: str) -> Iterator[tuple[int, str]]:
    """Iterate over ids and names of the fields in a type."""
    if not isinstance(kind, Mapping):
        return
    parts = [(f"{part}-id", part, part) for part in ("element", "key", "value") if part in kind]
    nested = [(kind[number], name, kind[of]) for number, name, of in parts]
    nested += [(field["id"], field["name"], field["type"]) for field in kind.get("fields", ())]
    for number, name, of in nested:
        yield number, f"{prefix}{name}"
        yield from _names(of, f"{prefix}{name}.")


def iter_fields(fields: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield fields with all that are nested in them.

    Args:
        fields: as table metadata has them.

    Yields:
        The fields; of elements, keys and values of lists and maps only the type.
    """
    for field in fields:
        yield field
        if isinstance(kind := field["type"], Mapping):
            elements = [{"type": kind[p]} for p in ("element", "key", "value") if p in kind]
            yield from iter_fields([*kind.get("fields", ()), *elements])


def snapshots(metadata: Metadata) -> Iterator[SnapshotSummary]:
    """Return the snapshots of a table, newest first."""
    for snapshot in reversed(metadata.get("snapshots") or []):
        yield SnapshotSummary(
            snapshot["snapshot-id"],
            snapshot["timestamp-ms"],
            snapshot.get("summary") or {},
            previous_snapshot_id(metadata, snapshot),
        )


def previous_snapshot_id(metadata: Metadata, snapshot: Mapping[str, Any]) -> int | None:
    """Return the snapshot that was current before another one; None for the first one.

    Args:
        metadata: the table's.
        snapshot: one of the table's snapshots.
    """
    parent = snapshot.get("parent-snapshot-id")
    if parent is not None:
        return int(parent)
    # A replaced table (`create or replace`) begins a new line of snapshots.
    numbers = [int(entry["snapshot-id"]) for entry in metadata.get("snapshot-log") or []]
    own = int(snapshot["snapshot-id"])
    at = numbers.index(own) if own in numbers else 0
    return numbers[at - 1] if at else None


def became_current(metadata: Metadata) -> tuple[int, int] | None:
    """Return the last entry of a table's snapshot log; None if it has none.

    Args:
        metadata: the table's.

    Returns:
        The snapshot's id, and milliseconds since the epoch.
    """
    return next(reversed(_log(metadata)), None)


def current_since(metadata: Metadata, moment: tuple[int, int] | None) -> set[int]:
    """Return the ids of all snapshots that became current after a moment.

    After a rollback, and after a rollback of a rollback, an earlier snapshot is current again.

    Args:
        metadata: the table's.
        moment: what `became_current` returned then.
    """
    log = _log(metadata)
    # Snapshots that expire, or are not loaded, take their entries, and all before, out of the log.
    begin = log.index(moment) + 1 if moment in log else 0
    return {snapshot_id for snapshot_id, _ in log[begin:]}


def _log(metadata: Metadata) -> list[tuple[int, int]]:
    log = metadata.get("snapshot-log") or []
    return [(int(entry["snapshot-id"]), int(entry["timestamp-ms"])) for entry in log]


def current_snapshot(metadata: Metadata) -> SnapshotSummary | None:
    """Return a table's current snapshot; None for a table without one."""
    current = metadata.get("current-snapshot-id")
    return next((s for s in snapshots(metadata) if s.snapshot_id == current), None)


def _read(location: str, storage: Mapping[str, str]) -> bytes:
    if (path := local_path(location)) is not None:
        require_reach(storage, "file", str(path))
        return path.read_bytes()
    from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO

    with CatalogFileIO(dict(storage)).new_input(location).open() as stream:
        return stream.read()
