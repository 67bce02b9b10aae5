"""Checks branches, tags, the snapshot log and summaries (spec, "Snapshots")."""

from __future__ import annotations

from collections.abc import Iterator

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.tables import NO_SNAPSHOT
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding

OPERATIONS = ("append", "replace", "overwrite", "delete")


def check_history_rules(metadata: Metadata) -> Iterator[Finding]:
    """Check branches, tags, the snapshot log and the operations of snapshots.

    Args:
        metadata: table metadata.
    """
    yield from _refs(metadata)
    yield from _snapshot_log(metadata)
    for snapshot in metadata.get("snapshots") or []:
        where = f"snapshot {snapshot['snapshot-id']}"
        operation = (snapshot.get("summary") or {}).get("operation")
        if operation not in OPERATIONS and metadata["format-version"] > 1:
            yield Finding("snapshot-operation", where, f"Its operation is {operation!r}.")


def _refs(metadata: Metadata) -> Iterator[Finding]:
    for name, ref in (metadata.get("refs") or {}).items():
        is_tag = ref["type"].lower() == "tag"
        if name == MAIN and is_tag:
            yield Finding("main-branch", "tag main", "main is a tag; it has to be a branch.")
        for key in ("min-snapshots-to-keep", "max-snapshot-age-ms"):
            if is_tag and ref.get(key) is not None:
                yield Finding("metadata-refused", f"tag {name}", f"It has {key}, as only branches.")


def _snapshot_log(metadata: Metadata) -> Iterator[Finding]:
    log = metadata.get("snapshot-log") or []
    ids = {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or []}
    for entry in log:
        if entry["snapshot-id"] not in ids:
            yield Finding(
                "snapshot-log",
                "snapshot-log",
                f"It names the snapshot {entry['snapshot-id']}, which the table does not have.",
            )
    current = metadata.get("current-snapshot-id")
    if log and current not in (None, NO_SNAPSHOT) and log[-1]["snapshot-id"] != current:
        yield Finding(
            "snapshot-log",
            "snapshot-log",
            f"It ends with {log[-1]['snapshot-id']}; the current snapshot is {current}.",
        )
