"""The writes of a table, from the summaries of its snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from dbt.adapters.iceberg_stream.builds.staged import BUILD
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata, SnapshotSummary, keeps_rows
from dbt.adapters.iceberg_stream.stream.sink.progress import SINK_ID
from dbt.adapters.iceberg_stream.tables.commit.outcome import read_outcome
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX, WRITE_ID

# In the summary of a snapshot that was staged, and perhaps never published.
STAGED = "wap.id"


@dataclass(frozen=True)
class Totals:
    """What a table has after a snapshot; None where the summary lacks it."""

    rows: int | None
    bytes: int | None
    data_files: int | None
    delete_files: int | None
    deletes: int | None


@dataclass(frozen=True)
class Write:
    """One snapshot that was written to the branch main.

    Attributes:
        snapshot_id: the snapshot's id.
        committed_ms: when it was committed, in milliseconds since 1970.
        operation: of the summary; `compaction` for snapshots that change no row.
        writer: the model, the stream or the engine that committed it; empty if unknown.
        node_id: unique id of the model; empty if it was none.
        run: dbt's invocation id; empty if it was none.
        principal: the catalog's user; empty if unknown.
        sink_id: the stream; empty if it was none.
        build: the build that published it; empty if it was none.
        inserted: rows inserted; those of rewritten files may be among them.
        updated: rows that a MERGE updated.
        deleted: rows deleted, those of a replaced table included, and keys of equality deletes.
        bytes: of the files that were written.
        totals: the table afterwards.
    """

    snapshot_id: int
    committed_ms: int
    operation: str
    writer: str
    node_id: str
    run: str
    principal: str
    sink_id: str
    build: str
    inserted: int
    updated: int
    deleted: int
    bytes: int
    totals: Totals


def written_snapshots(metadata: Metadata) -> list[Mapping[str, Any]]:
    """Return the snapshots that were written to the branch main, as JSON, newest first.

    Not only the ancestors of the current one: a table that is replaced begins a new line.

    Args:
        metadata: of the table.
    """
    snapshots = metadata.get("snapshots") or []
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in snapshots}
    refs = metadata.get("refs") or {}
    main = _line(by_id, (refs.get(MAIN) or {}).get("snapshot-id"))
    branched: set[int] = set()
    for name, ref in refs.items():
        if name != MAIN and ref["type"].lower() == "branch":
            branched |= _line(by_id, ref["snapshot-id"])
    return [
        snapshot
        for snapshot in reversed(snapshots)
        if snapshot["snapshot-id"] in main
        or not (snapshot["snapshot-id"] in branched or STAGED in (snapshot.get("summary") or {}))
    ]


def utc(milliseconds: int) -> datetime | None:
    """Return a time in milliseconds since 1970; None if it is out of all range."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def _line(by_id: Mapping[int, Mapping[str, Any]], snapshot_id: int | None) -> set[int]:
    """Return the ids of a snapshot and its ancestors."""
    line: set[int] = set()
    while snapshot_id is not None and snapshot_id in by_id and snapshot_id not in line:
        line.add(snapshot_id)
        snapshot_id = by_id[snapshot_id].get("parent-snapshot-id")
    return line


def read_write(snapshot: Mapping[str, Any], previous: Mapping[str, Any] | None = None) -> Write:
    """Read a write from its snapshot.

    Args:
        snapshot: as JSON.
        previous: the one that was current before, which tells how many rows a replaced table had.
    """
    summary = snapshot.get("summary") or {}
    outcome = read_outcome(_summary(snapshot), None if previous is None else _summary(previous))
    unchanged = keeps_rows(snapshot)
    deleted = outcome.rows_deleted + (_number(summary, "added-equality-deletes") or 0)
    if outcome.replaced_all:
        deleted = outcome.rows_removed
    return Write(
        snapshot_id=outcome.snapshot_id,
        committed_ms=int(snapshot["timestamp-ms"]),
        operation="compaction" if unchanged else outcome.operation,
        writer=_writer(summary),
        node_id=str(summary.get(f"{PREFIX}node-id", "")),
        run=str(summary.get(f"{PREFIX}invocation-id", "")),
        principal=str(summary.get(f"{PREFIX}principal", "")),
        sink_id=str(summary.get(SINK_ID, "")),
        build=str(summary.get(BUILD, "")),
        inserted=0 if unchanged else outcome.rows_inserted,
        updated=0 if unchanged else outcome.rows_updated,
        deleted=0 if unchanged else max(deleted, 0),
        bytes=outcome.bytes_written,
        totals=Totals(
            rows=_number(summary, "total-records"),
            bytes=_number(summary, "total-files-size"),
            data_files=_number(summary, "total-data-files"),
            delete_files=_number(summary, "total-delete-files"),
            deletes=_deletes(summary),
        ),
    )


def _summary(snapshot: Mapping[str, Any]) -> SnapshotSummary:
    number, time = snapshot["snapshot-id"], int(snapshot["timestamp-ms"])
    return SnapshotSummary(number, time, snapshot.get("summary") or {})


def _deletes(summary: Mapping[str, str]) -> int | None:
    counts = [_number(summary, f"total-{kind}-deletes") for kind in ("position", "equality")]
    present = [count for count in counts if count is not None]
    return sum(present) if present else None


def _writer(summary: Mapping[str, str]) -> str:
    if model := summary.get(f"{PREFIX}model"):
        return f"model {model}"
    if sink_id := summary.get(SINK_ID):
        return f"stream {sink_id}"
    if application := summary.get("spark.app.id"):
        return f"Spark {application}"
    if job := summary.get("flink.job-id"):
        return f"Flink job {job}"
    if WRITE_ID in summary:
        return "dbt-iceberg-stream"
    return str(summary.get("engine-name", ""))


def _number(summary: Mapping[str, str], key: str) -> int | None:
    value = summary.get(key)
    return None if value is None else int(value)
