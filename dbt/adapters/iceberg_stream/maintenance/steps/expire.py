"""The step `expire_snapshots`: by the table's own retention, but not what streams still read."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.utils.properties import property_as_int

from dbt.adapters.iceberg_stream.catalog.catalog import collects_garbage
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.maintenance.retention import (
    DEFAULT_MAX_AGE_MS,
    MAX_AGE,
    expirable_snapshots,
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

MILLISECONDS_PER_HOUR = 60 * 60 * 1000


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
    max_age = property_as_int(dict(state.properties), MAX_AGE) or DEFAULT_MAX_AGE_MS
    expirable = expirable_snapshots(metadata, now)
    if not expirable:
        return Skip(
            f"the table keeps its {state.health.snapshots} snapshots: none is older than "
            f"{max_age / MILLISECONDS_PER_HOUR:g} hours ({MAX_AGE}), or a branch or tag has it"
        )
    times = {s["snapshot-id"]: s["timestamp-ms"] for s in metadata["snapshots"]}
    before, keeps = now - max_age, ""
    for reader in stream_readers(context.catalogs, metadata["table-uuid"]):
        needed = needed_snapshots(metadata, reader.snapshot_id)
        if not needed & expirable:
            continue
        if "max-snapshot-age-ms" in (metadata.get("refs") or {}).get(MAIN, {}):
            return Skip(
                f"{reader} still needs snapshots that the retention of the branch {MAIN} "
                "(max-snapshot-age-ms) would expire: run the stream first, or remove that retention"
            )
        before = min([before, *(times[snapshot_id] for snapshot_id in needed)])
        keeps = f"{reader} still needs those since snapshot {reader.snapshot_id}"
    expired = [snapshot_id for snapshot_id in expirable if times[snapshot_id] < before]
    if not expired:
        return Skip(keeps)
    until = datetime.fromtimestamp(before / 1000, tz=timezone.utc)
    text = f"{len(expired)} of {len(times)} snapshots, those before {until:%Y-%m-%d %H:%M} UTC"

    def run() -> str:
        if tags:
            updates = [RemoveSnapshotRefUpdate.model_validate({"ref-name": tag}) for tag in tags]
            context.catalog.commit(state.table, (), updates)
            context.after_commit(state.name)
        moment = until.isoformat(" ", "milliseconds").removesuffix("+00:00")
        arguments = {"older_than": f"timestamp '{moment} UTC'"}
        result = context.procedure("expire_snapshots", state.name, arguments)
        files = sum(count or 0 for count in result.values())
        return f"{text} expired, {counted(files, 'file')} removed"

    return Action(f"{text}{f'; {keeps}' if keeps else ''}", run)
