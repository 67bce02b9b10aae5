"""The updates that turn a published table into its staged version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)

from dbt.adapters.iceberg_stream.builds.staged import BUILD, PROTECTION
from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import NO_SNAPSHOT

# In the summary of published snapshots: the id that the last one of the table had when staged.
STAGED_SNAPSHOT = f"{BUILD}.staged-snapshot"
# Fields of table metadata with items that have ids.
COLLECTIONS = ("schemas", "partition-specs", "sort-orders", "snapshots", "statistics")


def updates_between(
    base: Metadata, staged: Metadata, build: str, now: int
) -> tuple[TableUpdate, ...]:
    """Return the updates that a staged table has made to the published one.

    Args:
        base: metadata of the published table.
        staged: metadata of the staged table, whose history begins with that of `base`.
        build: name of the build, for the summaries of its snapshots.
        now: time of the commit in milliseconds since 1970, which the snapshots get.
    """
    return (
        *_format_version(base, staged),
        *_schemas(base, staged),
        *_specs(base, staged),
        *_sort_orders(base, staged),
        *_location(base, staged),
        *_properties(base, staged),
        *_snapshots(base, staged, build, now),
        *_refs(base, staged),
        *_statistics(base, staged),
    )


def requirements(base: Metadata) -> tuple[TableRequirement, ...]:
    """Return what must not have changed since a table was staged.

    Args:
        base: metadata of the published table.
    """
    main = (base.get("refs") or {}).get(MAIN) or {}
    return (
        AssertTableUUID(uuid=base["table-uuid"]),
        AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": main.get("snapshot-id")}),
        AssertCurrentSchemaId.model_validate({"current-schema-id": base["current-schema-id"]}),
        AssertLastAssignedFieldId.model_validate(
            {"last-assigned-field-id": base["last-column-id"]}
        ),
        AssertDefaultSpecId.model_validate({"default-spec-id": base["default-spec-id"]}),
        AssertLastAssignedPartitionId.model_validate(
            {"last-assigned-partition-id": base["last-partition-id"]}
        ),
        AssertDefaultSortOrderId.model_validate(
            {"default-sort-order-id": base["default-sort-order-id"]}
        ),
    )


def without_snapshots(staged: Metadata) -> dict[str, Any]:
    """Return metadata with which a new table is created, before its snapshots are added.

    Args:
        staged: metadata of the staged table.
    """
    used = {staged["current-schema-id"]}
    used |= {s.get("schema-id") for s in staged.get("snapshots") or []}
    properties = {**own_properties(staged), **TABLE_DEFAULTS}
    result = {
        **staged,
        "schemas": [s for s in staged["schemas"] if s["schema-id"] in used],
        "properties": properties | {BUILD: (staged.get("properties") or {})[BUILD]},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
        "refs": {},
        "last-sequence-number": 0,
        "current-snapshot-id": NO_SNAPSHOT,
    }
    if staged["format-version"] >= 3:
        result["next-row-id"] = 0
    return result


def _format_version(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    if staged["format-version"] != base["format-version"]:
        version = {"format-version": staged["format-version"]}
        yield UpgradeFormatVersionUpdate.model_validate(version)


def _schemas(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    for schema in _added(base, staged, "schemas", "schema-id"):
        yield AddSchemaUpdate.model_validate({"schema": schema})
    if (current := staged["current-schema-id"]) != base["current-schema-id"]:
        yield SetCurrentSchemaUpdate.model_validate({"schema-id": current})


def _specs(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    for spec in _added(base, staged, "partition-specs", "spec-id"):
        yield AddPartitionSpecUpdate.model_validate({"spec": spec})
    if (default := staged["default-spec-id"]) != base["default-spec-id"]:
        yield SetDefaultSpecUpdate.model_validate({"spec-id": default})


def _sort_orders(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    for order in _added(base, staged, "sort-orders", "order-id"):
        yield AddSortOrderUpdate.model_validate({"sort-order": order})
    if (default := staged["default-sort-order-id"]) != base["default-sort-order-id"]:
        yield SetDefaultSortOrderUpdate.model_validate({"sort-order-id": default})


def _location(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    if staged["location"] != base["location"]:
        yield SetLocationUpdate(location=staged["location"])


def property_updates(base: Metadata, staged: Metadata) -> tuple[TableUpdate, ...]:
    """Return the updates of properties that a build has changed.

    Args:
        base: metadata of the staged table when it was staged.
        staged: its metadata now.
    """
    return tuple(_properties({"properties": own_properties(base)}, staged))


def _properties(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    old, new = dict(base.get("properties") or {}), own_properties(staged)
    if changed := {key: value for key, value in new.items() if old.get(key) != value}:
        yield SetPropertiesUpdate(updates=changed)
    if removed := sorted(set(old) - set(new) - set(PROTECTION)):
        yield RemovePropertiesUpdate(removals=removed)


def own_properties(staged: Metadata) -> dict[str, str]:
    """Return the properties of a staged table that its published version has, too.

    Args:
        staged: metadata of the staged table.
    """
    properties = dict(staged.get("properties") or {})
    return {
        key: value
        for key, value in properties.items()
        if key not in PROTECTION and not key.startswith(BUILD)
    }


def _snapshots(base: Metadata, staged: Metadata, build: str, now: int) -> Iterator[TableUpdate]:
    summary = {BUILD: build, STAGED_SNAPSHOT: str(staged.get("current-snapshot-id"))}
    for snapshot in _added(base, staged, "snapshots", "snapshot-id"):
        published = {
            **snapshot,
            # All tables of a build get one time, at which queries read all of them as published.
            "timestamp-ms": now,
            "summary": {**snapshot["summary"], **summary},
        }
        yield AddSnapshotUpdate(snapshot=Snapshot.model_validate(published))


def _refs(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    old, new = base.get("refs") or {}, staged.get("refs") or {}
    for name, reference in new.items():
        if old.get(name) != reference:
            yield SetSnapshotRefUpdate.model_validate({**reference, "ref-name": name})
    for name in sorted(set(old) - set(new)):
        yield RemoveSnapshotRefUpdate.model_validate({"ref-name": name})


def _statistics(base: Metadata, staged: Metadata) -> Iterator[TableUpdate]:
    for file in _added(base, staged, "statistics", "snapshot-id"):
        yield SetStatisticsUpdate.model_validate({"statistics": file})


def _added(base: Metadata, staged: Metadata, key: str, id_key: str) -> Iterator[Mapping[str, Any]]:
    ids = {item[id_key] for item in base.get(key) or []}
    return (item for item in staged.get(key) or [] if item[id_key] not in ids)
