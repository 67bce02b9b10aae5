"""Loaded tables, and table metadata after a commit (spec, "Table Metadata")."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.variant_type import repair

repair()

# The current snapshot id that older writers set for an empty table.
NO_SNAPSHOT = -1
# Iceberg's default of `write.metadata.previous-versions-max`: entries of the metadata log.
PREVIOUS_VERSIONS = 100


@dataclass(frozen=True)
class LoadedTable:
    """One version of a table, or a staged table that its first commit creates.

    Attributes:
        name: namespace and identifier.
        metadata: table metadata as JSON.
        location: of the metadata file; empty for a staged table.
        io: reads and writes the table's files, with their storage credentials.
        table: PyIceberg's table, where commits go through PyIceberg.
        creation: updates that create a staged table in a catalog on a server.
    """

    name: tuple[str, str]
    metadata: Metadata
    location: str
    io: FileIO
    table: Table | None = field(default=None, repr=False)
    creation: tuple[TableUpdate, ...] = ()

    @property
    def exists(self) -> bool:
        """Return whether the catalog has the table: False for a staged one."""
        return bool(self.location)


@dataclass(frozen=True)
class TableCommit:
    """The commit of one table, alone or with other tables in one transaction.

    Attributes:
        base: the table as it was loaded or staged.
        requirements: what the catalog checks before it commits.
        updates: what changes.
    """

    base: LoadedTable
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    @property
    def all_updates(self) -> tuple[TableUpdate, ...]:
        """The updates that create a staged table, then `updates`."""
        return (*self.base.creation, *self.updates)


def as_json(metadata: BaseModel) -> Metadata:
    """Convert a PyIceberg model to the specification's JSON, without absent fields."""
    # Not the class's own method: TableMetadataV3's raises, because PyIceberg cannot write v3.
    parsed: Metadata = json.loads(
        BaseModel.model_dump_json(metadata, by_alias=True, exclude_none=True)
    )
    return parsed


def updated(base: Metadata, location: str, updates: Sequence[TableUpdate]) -> dict[str, Any]:
    """Return table metadata after a commit.

    Snapshots and properties are added without PyIceberg: its copies of all the metadata cost more
    with each snapshot.

    Args:
        base: metadata before the commit.
        location: of the file of `base`, for the metadata log; empty for a new table.
        updates: the commit's updates.
    """
    direct_types = (
        AddSnapshotUpdate | SetSnapshotRefUpdate | SetPropertiesUpdate | RemoveSnapshotsUpdate
    )
    direct_updates = [u for u in updates if isinstance(u, direct_types)]
    pyiceberg_updates = tuple(u for u in updates if u not in direct_updates)
    result: dict[str, Any] = dict(base)
    for upgrade in (u for u in pyiceberg_updates if isinstance(u, UpgradeFormatVersionUpdate)):
        # PyIceberg does not upgrade tables to format version 3.
        result["format-version"] = upgrade.format_version
        if upgrade.format_version >= 3:
            result.setdefault("next-row-id", 0)
    pyiceberg_updates = tuple(
        u for u in pyiceberg_updates if not isinstance(u, UpgradeFormatVersionUpdate)
    )
    if pyiceberg_updates:
        parsed = TableMetadataUtil.parse_obj(result)
        result = dict(as_json(update_table_metadata(parsed, pyiceberg_updates)))
    now = max(int(time.time() * 1000), base["last-updated-ms"])
    snapshots = [u.snapshot for u in direct_updates if isinstance(u, AddSnapshotUpdate)]
    added = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in snapshots}
    for update in direct_updates:
        if isinstance(update, AddSnapshotUpdate):
            _add_snapshot(result, as_json(update.snapshot))
        elif isinstance(update, SetPropertiesUpdate):
            result["properties"] = {**(result.get("properties") or {}), **update.updates}
        elif isinstance(update, RemoveSnapshotsUpdate):
            _remove_snapshots(result, set(update.snapshot_ids))
        else:
            _set_ref(result, update, added.get(update.snapshot_id, now))
    result["last-updated-ms"] = now
    if not location:
        return result
    entry = {"metadata-file": location, "timestamp-ms": base["last-updated-ms"]}
    properties = result.get("properties") or {}
    keep = int(properties.get("write.metadata.previous-versions-max", PREVIOUS_VERSIONS))
    result["metadata-log"] = [*(base.get("metadata-log") or []), entry][-max(keep, 1) :]
    return result


def with_schema(metadata: Metadata, updates: Sequence[TableUpdate]) -> Metadata:
    """Return table metadata whose current schema is the one that the updates set, if any."""
    schema = next((u.schema_ for u in updates if isinstance(u, AddSchemaUpdate)), None)
    if schema is not None:
        return {
            **metadata,
            "schemas": [*metadata["schemas"], as_json(schema)],
            "current-schema-id": schema.schema_id,
        }
    schema_id = next((u.schema_id for u in updates if isinstance(u, SetCurrentSchemaUpdate)), None)
    return metadata if schema_id is None else {**metadata, "current-schema-id": schema_id}


def next_location(base: LoadedTable) -> str:
    """Return a unique location for the next metadata file, with the next version number."""
    properties = base.metadata.get("properties") or {}
    folder = properties.get("write.metadata.path") or f"{base.metadata['location']}/metadata"
    number = base.location.rsplit("/", 1)[-1].split("-", 1)[0]
    version = int(number) + 1 if number.isdigit() else 0
    return f"{folder.rstrip('/')}/{version:05}-{uuid.uuid4()}.metadata.json"


def _add_snapshot(metadata: dict[str, Any], snapshot: Metadata) -> None:
    number = snapshot.get("sequence-number") or 0
    if metadata["format-version"] == 1:
        # Format version 1 has no sequence numbers.
        snapshot = {key: value for key, value in snapshot.items() if key != "sequence-number"}
    else:
        metadata["last-sequence-number"] = max(metadata.get("last-sequence-number", 0), number)
    metadata["snapshots"] = [*(metadata.get("snapshots") or []), snapshot]
    if metadata["format-version"] >= 3:
        metadata["next-row-id"] = metadata.get("next-row-id", 0) + snapshot.get("added-rows", 0)


def _remove_snapshots(metadata: dict[str, Any], ids: set[int]) -> None:
    """Remove snapshots as Iceberg's Java library does: PyIceberg would also forget parents."""
    for key in ("snapshots", "statistics", "partition-statistics"):
        if key in metadata:
            metadata[key] = [e for e in metadata[key] or [] if e["snapshot-id"] not in ids]
    refs = (metadata.get("refs") or {}).items()
    metadata["refs"] = {name: ref for name, ref in refs if ref["snapshot-id"] not in ids}
    log: list[Any] = []
    for entry in metadata.get("snapshot-log") or []:
        # Of the time before a removed snapshot the log would tell something wrong.
        log = [] if entry["snapshot-id"] in ids else [*log, entry]
    metadata["snapshot-log"] = log


def _set_ref(metadata: dict[str, Any], update: SetSnapshotRefUpdate, time: int) -> None:
    reference = dict(as_json(update))
    del reference["action"], reference["ref-name"]
    metadata["refs"] = {**(metadata.get("refs") or {}), update.ref_name: reference}
    if update.ref_name == MAIN:
        metadata["current-snapshot-id"] = update.snapshot_id
        entry = {"snapshot-id": update.snapshot_id, "timestamp-ms": time}
        metadata["snapshot-log"] = [*(metadata.get("snapshot-log") or []), entry]
