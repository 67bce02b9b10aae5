"""A table as it was loaded, and what a commit makes of its metadata (spec, "Table Metadata")."""

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
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata

MAIN = "main"
# Metadata files that are remembered (write.metadata.previous-versions-max).
PREVIOUS_VERSIONS = 100


@dataclass(frozen=True)
class LoadedTable:
    """A table at one moment, or one that its first commit will make.

    Attributes:
        name: namespace and name.
        metadata: as JSON.
        location: of the metadata; empty as long as there is no table.
        io: the way to its files.
        table: PyIceberg's, where commits go through PyIceberg.
        creation: what makes the table, if its catalog is to be told.
    """

    name: tuple[str, str]
    metadata: Metadata
    location: str
    io: FileIO
    table: Table | None = field(default=None, repr=False)
    creation: tuple[TableUpdate, ...] = ()

    @property
    def exists(self) -> bool:
        return bool(self.location)


@dataclass(frozen=True)
class TableCommit:
    """A change of one table, among others in one step.

    Attributes:
        base: the table as it must still be.
        requirements: what the catalog is to check; `updates`: what it changes.
    """

    base: LoadedTable
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    @property
    def all_updates(self) -> tuple[TableUpdate, ...]:
        """The updates, after those that make a staged table."""
        return (*self.base.creation, *self.updates)


def as_json(metadata: BaseModel) -> Metadata:
    """PyIceberg's metadata as the spec writes them."""
    # Not the class's own method: that of v3 refuses, because PyIceberg cannot write v3.
    parsed: Metadata = json.loads(
        BaseModel.model_dump_json(metadata, by_alias=True, exclude_none=True)
    )
    return parsed


def updated(base: Metadata, location: str, updates: Sequence[TableUpdate]) -> dict[str, Any]:
    """The metadata after a commit to the table whose metadata lie at the location.

    Snapshots and properties go in without PyIceberg, whose copies of all the metadata cost more
    with each snapshot.
    """
    known = AddSnapshotUpdate | SetSnapshotRefUpdate | SetPropertiesUpdate
    plain = [u for u in updates if isinstance(u, known)]
    others = tuple(u for u in updates if u not in plain)
    result: dict[str, Any] = dict(base)
    if others:
        parsed = TableMetadataUtil.parse_obj(dict(base))
        result = dict(as_json(update_table_metadata(parsed, others)))
    now = max(int(time.time() * 1000), base["last-updated-ms"])
    for update in plain:
        if isinstance(update, AddSnapshotUpdate):
            _add_snapshot(result, as_json(update.snapshot))
        elif isinstance(update, SetPropertiesUpdate):
            result["properties"] = {**(result.get("properties") or {}), **update.updates}
        else:
            _set_ref(result, update, now)
    result["last-updated-ms"] = now
    if not location:
        return result
    entry = {"metadata-file": location, "timestamp-ms": base["last-updated-ms"]}
    properties = result.get("properties") or {}
    keep = int(properties.get("write.metadata.previous-versions-max", PREVIOUS_VERSIONS))
    result["metadata-log"] = [*(base.get("metadata-log") or []), entry][-max(keep, 1) :]
    return result


def with_schema(metadata: Metadata, updates: Sequence[TableUpdate]) -> Metadata:
    """The metadata as a snapshot sees them that is committed along with a new schema."""
    schema = next((u.schema_ for u in updates if isinstance(u, AddSchemaUpdate)), None)
    if schema is not None:
        return {
            **metadata,
            "schemas": [*metadata["schemas"], as_json(schema)],
            "current-schema-id": schema.schema_id,
        }
    chosen = next((u.schema_id for u in updates if isinstance(u, SetCurrentSchemaUpdate)), None)
    return metadata if chosen is None else {**metadata, "current-schema-id": chosen}


def next_location(base: LoadedTable) -> str:
    """Where the next metadata go: numbered, and with a name nobody else takes."""
    properties = base.metadata.get("properties") or {}
    folder = properties.get("write.metadata.path") or f"{base.metadata['location']}/metadata"
    number = base.location.rsplit("/", 1)[-1].split("-", 1)[0]
    version = int(number) + 1 if number.isdigit() else 0
    return f"{folder.rstrip('/')}/{version:05}-{uuid.uuid4()}.metadata.json"


def _add_snapshot(metadata: dict[str, Any], snapshot: Metadata) -> None:
    number = snapshot.get("sequence-number") or 0
    if metadata["format-version"] == 1:
        # It has no sequence numbers.
        snapshot = {key: value for key, value in snapshot.items() if key != "sequence-number"}
    else:
        metadata["last-sequence-number"] = max(metadata.get("last-sequence-number", 0), number)
    metadata["snapshots"] = [*(metadata.get("snapshots") or []), snapshot]
    if metadata["format-version"] >= 3:
        metadata["next-row-id"] = metadata.get("next-row-id", 0) + snapshot.get("added-rows", 0)


def _set_ref(metadata: dict[str, Any], update: SetSnapshotRefUpdate, now: int) -> None:
    reference = dict(as_json(update))
    del reference["action"], reference["ref-name"]
    metadata["refs"] = {**(metadata.get("refs") or {}), update.ref_name: reference}
    if update.ref_name == MAIN:
        metadata["current-snapshot-id"] = update.snapshot_id
        entry = {"snapshot-id": update.snapshot_id, "timestamp-ms": now}
        metadata["snapshot-log"] = [*(metadata.get("snapshot-log") or []), entry]
