"""What a build and other writers have changed of a table since it was staged."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.builds.staged import PUBLISHED_UUID, StagedTable, versions
from dbt.adapters.iceberg_stream.builds.updates import own_properties
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.manifests import (
    ADDED,
    iter_manifests,
    read_manifest_list,
)
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import READS_TARGET

# Fields of table metadata with layouts, and their ids.
LAYOUTS = {"schemas": "schema-id", "partition-specs": "spec-id", "sort-orders": "order-id"}


def shares_ids(staged: StagedTable, published: LoadedTable) -> bool:
    """Return whether the build has given ids that another writer has given, too.

    The table is as it was staged then, but has other schemas, partition specs or sort orders that
    it does not use any more.

    Args:
        staged: the staged table.
        published: the published table now.
    """
    first, now = staged.first_metadata, published.metadata
    last = "last-partition-id"
    if staged.metadata.get(last) != first.get(last) != now.get(last):
        return True
    for key, id_key in LAYOUTS.items():
        known = {item[id_key] for item in first.get(key) or []}
        theirs = {item[id_key]: item for item in now.get(key) or []}
        for item in staged.metadata.get(key) or []:
            if item[id_key] not in known and theirs.get(item[id_key], item) != item:
                return True
    return False


def is_unchanged(staged: StagedTable) -> bool:
    """Return whether the build has not changed a table.

    Args:
        staged: the staged table.
    """
    first, now = staged.first_metadata, staged.metadata
    return (
        versions(first) == versions(now)
        and own_properties(first) == own_properties(now)
        and (first.get("refs") or {}) == (now.get("refs") or {})
    )


def same_layout(staged: StagedTable, published: LoadedTable) -> bool:
    """Return whether neither the build nor another writer has changed more than rows.

    Args:
        staged: the staged table.
        published: the published table now.
    """
    layouts = []
    for metadata in (staged.first_metadata, staged.metadata, published.metadata):
        keys = ("format-version", "current-schema-id", "default-spec-id", "location")
        layouts.append([metadata[key] for key in keys])
    uuid = published.metadata["table-uuid"]
    is_same_table = uuid == staged.first_metadata["properties"].get(PUBLISHED_UUID)
    # Another writer's order is as good for the rows; the build's would be lost.
    order = "default-sort-order-id"
    has_own_order = staged.metadata[order] != staged.first_metadata[order]
    return is_same_table and layouts[0] == layouts[1] == layouts[2] and not has_own_order


# Spark and the adapter count the rows of a merge in its snapshot.
MERGE = "spark.merge-into."


def appended_files(staged: StagedTable) -> list[DataFile] | None:
    """Return the files that the build appended; None if it also changed or removed rows.

    Args:
        staged: the staged table.

    Raises:
        OSError: the storage cannot be read.
    """
    new = {s["snapshot-id"]: s for s in staged.new_snapshots(staged.first_metadata)}
    current = new.get(staged.metadata.get("current-snapshot-id") or 0)
    operations = {s["summary"]["operation"] for s in new.values()}
    if current is None or operations != {Operation.APPEND.value}:
        return None
    if any(_depends_on_rows(s["summary"]) for s in new.values()):
        return None
    # The snapshots of a replaced table (`create or replace`) do not follow the published ones.
    main = (staged.first_metadata.get("refs") or {}).get(MAIN) or {}
    if next(iter(new.values())).get("parent-snapshot-id") != main.get("snapshot-id"):
        return None
    io = staged.table.io
    manifests = read_manifest_list(io, current["manifest-list"])
    own = [manifest for manifest in manifests if manifest.added_snapshot_id in new]
    return [
        entry.data_file
        for _, entries in iter_manifests(io, own)
        for entry in entries
        if entry.status == ADDED or entry.snapshot_id in new
    ]


def _depends_on_rows(summary: Mapping[str, str]) -> bool:
    """Return whether an append depends on the rows that the table had: a merge, for instance."""
    return any(name == READS_TARGET or name.startswith(MERGE) for name in summary)


def foreign_change(staged: StagedTable, published: LoadedTable) -> str:
    """Describe what another writer did to a published table.

    Args:
        staged: the staged table.
        published: the published table now.
    """
    if published.metadata["table-uuid"] != staged.first_metadata["properties"].get(PUBLISHED_UUID):
        return "was dropped and created again"
    ids = {s["snapshot-id"] for s in staged.first_metadata.get("snapshots") or []}
    snapshots = published.metadata.get("snapshots") or []
    new = [s for s in snapshots if s["snapshot-id"] not in ids]
    if not new:
        return "has other columns or another layout"
    summary = new[-1]["summary"]
    who = summary.get("iceberg-stream.principal") or summary.get("engine-name") or ""
    return f"has the new snapshot {new[-1]['snapshot-id']} ({summary['operation']}" + (
        f", by {who})" if who else ")"
    )
