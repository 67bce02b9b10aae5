"""The step `expire_snapshots`: by the table's own retention, but not what streams still read."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import datetime, timezone

from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)

from dbt.adapters.iceberg_stream.catalog.catalog import collects_garbage
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.maintenance.properties import int_property
from dbt.adapters.iceberg_stream.maintenance.retention import (
    DEFAULT_MAX_AGE_MS,
    MAX_AGE,
    expirable_snapshots,
    expired_refs,
)
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings
from dbt.adapters.iceberg_stream.maintenance.steps.clones import unused_tags, without_tags
from dbt.adapters.iceberg_stream.maintenance.steps.step import (
    Action,
    MaintenanceContext,
    Skip,
    TableState,
    counted,
)
from dbt.adapters.iceberg_stream.maintenance.steps.stream_readers import (
    needed_snapshots,
    stream_readers,
)
from dbt.adapters.iceberg_stream.tables.drop import remove_from_all
from dbt.adapters.iceberg_stream.tables.references import UNREADABLE, own_files, snapshot_files

MILLISECONDS_PER_HOUR = 60 * 60 * 1000

logger = Logger()


def plan_expiry(
    context: MaintenanceContext, state: TableState, settings: MaintenanceSettings
) -> Skip | Action:
    """Plan to expire the snapshots that neither the table's retention nor a stream needs.

    Tags of clones that do not exist any more are removed with them, unless the catalog has users:
    it may hide a clone from those who may not see it.

    Args:
        context: what maintenance needs of the profile.
        state: the table.
        settings: not used.

    Raises:
        CatalogError: a table of the catalog cannot be read, so its streams and the
            clones are unknown.
    """
    if not collects_garbage(state.properties):
        return Skip("the table property gc.enabled is false: other tables may have its files")
    tags = [] if context.principal else unused_tags(context.catalogs, state.table.metadata)
    metadata, now = without_tags(state.table.metadata, tags), int(time.time() * 1000)
    max_age = int_property(state.properties, MAX_AGE, DEFAULT_MAX_AGE_MS) or 0
    expirable = expirable_snapshots(metadata, now)
    if not expirable:
        return Skip(
            f"the table keeps its {state.health.snapshots} snapshots: none is older than "
            f"{max_age / MILLISECONDS_PER_HOUR:g} hours ({MAX_AGE}), or a branch or tag has it"
        )
    times = {s["snapshot-id"]: s["timestamp-ms"] for s in metadata["snapshots"]}
    before, keeps = now, ""
    for reader in stream_readers(context.catalogs, metadata["table-uuid"]):
        needed = needed_snapshots(metadata, reader.snapshot_id)
        if not needed & expirable:
            continue
        before = min([before, *(times[snapshot_id] for snapshot_id in needed)])
        keeps = f"{reader} still needs those since snapshot {reader.snapshot_id}"
    expired = [snapshot_id for snapshot_id in expirable if times[snapshot_id] < before]
    if not expired:
        return Skip(keeps)
    last = datetime.fromtimestamp(max(times[i] for i in expired) / 1000, tz=timezone.utc)
    text = f"{len(expired)} of {len(times)} snapshots, the last of {last:%Y-%m-%d %H:%M} UTC,"

    def run() -> str:
        files = _list_files(state.table, expired)
        _commit(context, state.table, expired, tags, now)
        removed = remove_from_all([(state.table, files)], lambda: context.catalogs)
        return f"{text} expired, {counted(removed, 'file')} removed"

    return Action(f"{text.rstrip(',')}{f'; {keeps}' if keeps else ''}", run)


def _list_files(table: LoadedTable, expired: Collection[int]) -> list[str]:
    """List the files of snapshots in the table's own folders; others are somebody else's."""
    try:
        return own_files(table, snapshot_files(table, expired))
    except UNREADABLE as error:
        logger.warning(
            f"Files of expired snapshots of {'.'.join(table.name)} stay, because they cannot be "
            f"listed: {reason(error)}"
        )
        return []


def _commit(
    context: MaintenanceContext,
    planned: LoadedTable,
    expired: Sequence[int],
    tags: Sequence[str],
    now: int,
) -> None:
    """Remove snapshots and references from the metadata of a table.

    Spark's procedure would also delete files, without a look at the tables that share them.
    """
    # Listing the files takes time, in which streams commit.
    table = context.catalog.load(planned.name)
    if table is None or table.metadata["table-uuid"] != planned.metadata["table-uuid"]:
        raise CatalogError(f"{'.'.join(planned.name)} was dropped meanwhile.")
    refs = table.metadata.get("refs") or {}
    metadata = without_tags(table.metadata, tags)
    if not expirable_snapshots(metadata, now).issuperset(expired):
        raise CommitConflict(f"Another writer uses snapshots of {'.'.join(planned.name)} again.")
    names = [name for name in [*tags, *expired_refs(metadata, now)] if name in refs]
    updates: list[TableUpdate] = [
        RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in names
    ]
    updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(expired)}))
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata["table-uuid"])]
    requirements += [
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref["snapshot-id"]})
        for name, ref in refs.items()
    ]
    context.catalog.commit(table, requirements, updates)
    context.after_commit(planned.name)
